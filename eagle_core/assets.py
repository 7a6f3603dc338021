"""Where the files that ship with the project lie: trained heads, style sheets, scripts.

In a checkout they are in ``assets/`` beside the package; in an installed wheel inside it, in ``_assets/``.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from eagle_core.errors import ModelNotFound

PACKAGE = Path(__file__).resolve().parent


def asset_folders() -> tuple[Path, ...]:
    """Folders that may hold the assets, the installed wheel's first."""
    return PACKAGE / "_assets", PACKAGE.parent / "assets"


def asset_path(name: str) -> Path:
    """Path of the file or folder ``name`` ("smollm2-135m-eagle1", "css/app.css") among the assets.

    Raises: ModelNotFound if no asset has this name, or if it points out of the assets.
    """
    parts = PurePosixPath(name).parts
    if parts and ".." not in parts and not PurePosixPath(name).is_absolute():
        for folder in asset_folders():
            path = folder.joinpath(*parts)
            if path.exists():
                return path
    raise ModelNotFound(
        f"the asset {name!r} is missing",
        expected=" or ".join(str(folder / name) for folder in asset_folders()),
        hint="install the project again; in a checkout, keep the assets folder beside eagle_core",
    )


__all__ = ["asset_folders", "asset_path"]
