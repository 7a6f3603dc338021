"""Whether results can be written is known before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle_core import outputs
from eagle_core.errors import ConfigError


def test_a_file_in_folders_that_can_be_made_is_fine_and_nothing_is_made(tmp_path: Path) -> None:
    outputs.check_file(tmp_path / "a" / "b" / "file")
    outputs.check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for check in (outputs.check_file, outputs.check_folder):
        with pytest.raises(ConfigError, match="file is a file"):
            check(tmp_path / "file" / "x" / "y")
    with pytest.raises(ConfigError, match="it is a folder"):
        outputs.check_file(tmp_path)
    with pytest.raises(ConfigError, match="it is a file"):
        outputs.check_folder(tmp_path / "file")
    outputs.check_file(tmp_path / "file")


def test_a_place_without_the_right_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    refused = tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != refused)
    with pytest.raises(ConfigError, match="nothing may be written in"):
        outputs.check_folder(tmp_path / "new")
    with pytest.raises(ConfigError, match="nothing may be written in"):
        outputs.check_file(tmp_path / "file")
    refused = tmp_path / "file"
    with pytest.raises(ConfigError, match="read-only"):
        outputs.check_file(tmp_path / "file")


def test_text_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    outputs.write_text(tmp_path / "new" / "file", "text")
    assert (tmp_path / "new" / "file").read_text() == "text"
    with pytest.raises(ConfigError, match="cannot write"):
        outputs.write_text(tmp_path / "new" / "file" / "below", "text")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
