"""Files and folders for results: whether they can be written is said before the work, not after it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from eagle_core.errors import ConfigError


def check_file(path: Path | str) -> None:
    """Whether a file can be made there, or replaced; makes nothing.

    Raises: ConfigError.
    """
    path = Path(path).absolute()
    if path.is_dir():
        raise cannot_write(path, "it is a folder")
    _check_parent(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise cannot_write(path, "it is read-only")


def check_folder(path: Path | str) -> None:
    """Whether a folder is there, or can be made, and takes files; makes nothing.

    Raises: ConfigError.
    """
    path = Path(path).absolute()
    if path.exists() and not path.is_dir():
        raise cannot_write(path, "it is a file")
    _check_parent(path / "a file in it")


def existing_parent(folder: Path) -> Path:
    """The nearest folder that exists, on whose disk ``folder`` will be; itself if it exists."""
    path = folder.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _check_parent(path: Path) -> None:
    parent = existing_parent(path.parent)
    if not parent.is_dir():
        raise cannot_write(path, f"{parent} is a file")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise cannot_write(path, f"nothing may be written in {parent}")


def write_text(path: Path | str, text: str) -> None:
    """Write a file whole or not at all.

    Raises: ConfigError when it cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise cannot_write(path, str(error)) from error


def cannot_write(path: Path | str, why: str) -> ConfigError:
    """The error for a file that cannot be written."""
    return ConfigError(f"cannot write {path}", got=why, hint="name another file or folder")


__all__ = ["cannot_write", "check_file", "check_folder", "existing_parent", "write_text"]
