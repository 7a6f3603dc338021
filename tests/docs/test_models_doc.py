"""docs/models.md: its TOML is an entry, its commands are commands, its error codes are ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from eagle_core import catalog, errors
from eagle_core.cli import build_parser
from eagle_core.fit import MARGIN_BYTES, SLOW_READ_BYTES
from eagle_core.precision import PRECISIONS, spelled

TEXT = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_pair_of_the_text_is_an_entry() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (row,) = catalog.read_rows(block)
    entry = catalog.read_entry(row, is_own=True)
    assert entry.head == "/data/heads/mine"
    assert entry.tree.size == 32


@pytest.mark.parametrize("line", re.findall(r"^eagle-chat .*", TEXT, re.MULTILINE))
def test_the_commands_are_understood(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert build_parser().parse_args(words[1:]).command == "models"


def test_the_errors_of_the_table_exist() -> None:
    codes = set(re.findall(r"^\|[^|]*\| `([a-z-]+)` \|", TEXT, re.MULTILINE))
    known = {getattr(errors, name).code for name in errors.__all__}
    assert len(codes) == 8
    assert codes <= known


def test_the_numbers_are_those_of_the_estimate() -> None:
    on_gpu = [spelled(name, "cuda").linear_bytes for name in PRECISIONS]
    assert [round(n, 2) for n in on_gpu] == [4, 2, 1.01, 0.52]
    assert "4, 2, 1.01 or 0.52 bytes per weight" in TEXT
    assert round(spelled("int8", "cpu").linear_bytes, 2) == 1.06
    assert "int8\nin 1.06" in TEXT
    assert f"{MARGIN_BYTES['cpu'] // 10**9} GB of main memory" in TEXT
    assert f"{MARGIN_BYTES['cuda'] // 10**9} GB of a graphics card's" in TEXT
    assert f"more than {SLOW_READ_BYTES // 10**9} GB of weights" in TEXT
