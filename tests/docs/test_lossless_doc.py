"""docs/lossless.md names tests as proof: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?:tests/)?([\w/]+\.py)::(test_\w+)`")


def test_every_named_test_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "lossless.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / "tests" / file).is_file()
        or name
        not in {
            node.name
            for node in ast.walk(ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
    ]
    assert not missing
