"""Writes the user's own pairs of base and head: ``models.toml`` in the config folder.

The file is the user's: what stands in it stays as it is, a new pair is put at its end. Reading is
``catalog``'s affair.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from eagle_core import catalog
from eagle_core.errors import ConfigError
from eagle_core.folders import disk_errors

NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
HEADER = "# Your own pairs of base model and head; see `eagle-chat models add --help`.\n"


def add(row: Mapping[str, Any], *, replace: bool = False) -> catalog.CatalogEntry:
    """Put a pair into the user's file and return it. The file is written whole or not at all.

    Args:
        row: name and base; head, title, method, license as texts.
        replace: a pair of the user's with this name gives way.
    Raises: ConfigError for a bad name, a name that is taken, or a folder that cannot be written; DiskFull.
    """
    row = {key: value for key, value in row.items() if value is not None}
    name = str(row.get("name", ""))
    if not NAME.fullmatch(name):
        raise ConfigError(
            "that is no name for a model",
            expected="letters, digits and . _ + -, without a slash",
            got=repr(name),
            hint="for example my-llama",
        )
    entry = catalog.read_entry(row, is_own=True)
    with _Locked() as path:
        old = [dict(other) for other in _rows(path) if other["name"].lower() == name.lower()]
        if (old and not replace) or (not old and catalog.lookup(name) is not None):
            raise ConfigError(
                f"a model called {name!r} is known already",
                got=str(catalog.find(name).source),
                hint="choose another name" + (", or add --replace" if old else ""),
            )
        text = path.read_text(encoding="utf-8") if path.exists() else HEADER
        _write(path, (_without(text, name) if old else text).rstrip("\n") + "\n" + _table(row))
    return entry


def remove(name: str) -> bool:
    """Take a pair out of the user's file; whether there was one.

    Raises: ConfigError when the folder cannot be written; DiskFull.
    """
    with _Locked() as path:
        if not any(row["name"].lower() == name.lower() for row in _rows(path)):
            return False
        _write(path, _without(path.read_text(encoding="utf-8"), name))
    return True


class _Locked:
    """The file's path while no other process writes it."""

    def __enter__(self) -> Path:
        path = catalog.own_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path.with_name(".models.lock"))
            self._lock.acquire()
        except OSError as error:
            raise ConfigError(
                "the config folder cannot be written",
                expected="a writable folder",
                got=str(path.parent),
                hint="set EAGLE_CONFIG to a folder of yours",
            ) from error
        return path

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _rows(path: Path) -> list[dict[str, Any]]:
    """The tables of the file; catalog.own_entries has checked that they are entries."""
    catalog.own_entries()
    if not path.exists():
        return []
    return catalog.read_rows(path.read_text(encoding="utf-8"))


def _without(text: str, name: str) -> str:
    """``text`` without the [[model]] table called ``name``, to the letter otherwise."""
    parts = re.split(r"(?m)^(?=\[\[model\]\])", text)
    names = [str(catalog.read_rows(part)[0]["name"]).lower() for part in parts[1:]]
    kept = [part for part, own in zip(parts[1:], names, strict=True) if own != name.lower()]
    return "".join(parts[:1] + kept)


def _table(row: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_quoted(str(value))}" for key, value in row.items()]
    return "\n[[model]]\n" + "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04X}" for c in escaped) + '"'
    )


def _write(path: Path, text: str) -> None:
    with disk_errors(path.name):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".models.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


__all__ = ["add", "remove"]
