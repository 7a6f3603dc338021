"""Assets are found in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_core import assets
from eagle_core.assets import asset_path
from eagle_core.errors import ModelNotFound


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(in the package, beside it), in the order they are searched."""
    monkeypatch.setattr(assets, "PACKAGE", tmp_path / "eagle_core")
    inside, beside = assets.asset_folders()
    for folder in (inside, beside):
        (folder / "head").mkdir(parents=True)
    (beside / "only.css").touch()
    return inside, beside


def test_the_checkout_has_its_assets() -> None:
    assert any(folder.is_dir() for folder in assets.asset_folders())


def test_finds_either_place_the_wheels_first(folders: tuple[Path, Path]) -> None:
    inside, beside = folders
    assert asset_path("head") == inside / "head"
    assert asset_path("only.css") == beside / "only.css"
    (inside / "head").rmdir()
    assert asset_path("head") == beside / "head"


@pytest.mark.parametrize("name", ["absent", "", "../secret", "head/../../secret", "/etc/passwd"])
def test_what_is_no_asset_is_an_error(name: str, folders: tuple[Path, Path]) -> None:
    (folders[1].parent / "secret").touch()
    with pytest.raises(ModelNotFound, match="is missing") as caught:
        asset_path(name)
    assert " or " in caught.value.expected
