"""The user's cache and data folders, and building a folder in it: once, by one process, whole or not at all.

Knows no model and no network.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from eagle_core.errors import ConfigError, DiskFull
from eagle_core.events import Event, LoadProgress

OnEvent = Callable[[Event], None]
LOCK_POLL_S = 0.2


def ignore_event(event: Event) -> None:
    """Drop an event: for callers that show no progress."""


def cache_folder() -> Path:
    """Where converted models are kept; read from the environment at every call.

    ``EAGLE_CACHE`` if set; else ``eagle-chat`` in the platform's cache folder (``XDG_CACHE_HOME`` or
    ``~/.cache``; ``~/Library/Caches`` on macOS; ``%LOCALAPPDATA%`` on Windows). Not created here.
    """
    own = os.environ.get("EAGLE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg).expanduser().absolute() / "eagle-chat"
    return platform_cache() / "eagle-chat"


def config_folder() -> Path:
    """Where the user's own settings are kept; read from the environment at every call.

    ``EAGLE_CONFIG`` if set; else ``eagle-chat`` in ``XDG_CONFIG_HOME`` or ``~/.config``; in
    ``~/Library/Application Support`` on macOS, in ``%APPDATA%`` on Windows. Not created here.
    """
    own = os.environ.get("EAGLE_CONFIG")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CONFIG_HOME")
    if xdg:
        return Path(xdg).expanduser().absolute() / "eagle-chat"
    platform: str = sys.platform  # a plain str: see platform_cache
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "eagle-chat"
    if platform == "win32":
        roaming = os.environ.get("APPDATA")
        return (Path(roaming) if roaming else Path.home() / "AppData" / "Roaming") / "eagle-chat"
    return Path.home() / ".config" / "eagle-chat"


def platform_cache() -> Path:
    """The platform's own cache folder."""
    platform: str = sys.platform  # a plain str: otherwise mypy skips the other platforms' branches
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    return Path.home() / ".cache"


def data_folder() -> Path:
    """Where what the user made is kept, such as conversations; read from the environment at every call.

    ``EAGLE_DATA`` if set; else ``eagle-chat`` in the platform's data folder (``XDG_DATA_HOME`` or
    ``~/.local/share``; ``~/Library/Application Support`` on macOS; ``%APPDATA%`` on Windows). Not
    created here.
    """
    own = os.environ.get("EAGLE_DATA")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_DATA_HOME")
    if xdg:
        return Path(xdg).expanduser().absolute() / "eagle-chat"
    platform: str = sys.platform  # a plain str: otherwise mypy skips the other platforms' branches
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "eagle-chat"
    if platform == "win32":
        roaming = os.environ.get("APPDATA")
        return (Path(roaming) if roaming else Path.home() / "AppData" / "Roaming") / "eagle-chat"
    return Path.home() / ".local" / "share" / "eagle-chat"


def check_free_space(
    folder: Path, needed_bytes: int, what: str, variable: str = "EAGLE_CACHE"
) -> None:
    """Check that ``folder``'s disk has room for ``needed_bytes``.

    Raises: DiskFull saying how much is needed, how much there is, and where.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DiskFull(
            f"not enough disk space for {what}",
            expected=f"{needed_bytes / 1e6:,.0f} MB free in {folder}",
            got=f"{free_bytes / 1e6:,.0f} MB",
            hint=f"free some space, or set {variable} to a folder on another disk",
        )


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn the operating system's "no space left" into DiskFull; other errors pass."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, SafetensorError):  # it wraps the system's error in its text
            is_full = any(f"os error {n}" in str(error) for n in (errno.ENOSPC, errno.EDQUOT))
        else:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not is_full:
            raise
        raise DiskFull(
            f"the disk is full: {what} was not finished and its partial files are removed",
            hint="free some space, or set EAGLE_CACHE to a folder on another disk",
        ) from error


def build_folder(
    folder: Path,
    is_complete: Callable[[Path], bool],
    build: Callable[[Path], None],
    on_event: OnEvent = ignore_event,
) -> Path:
    """Make ``folder`` with ``build`` unless it is there and complete.

    ``build`` fills a hidden folder beside it, which takes its name at the end: a reader never sees half
    a folder, and an error or a killed process leaves nothing that counts as one. A lock file makes other
    processes wait, and what a killed one left is removed by the next.

    Args:
        is_complete: cheap test of a finished folder.
        build: fills the empty folder it is given.
    Raises: DiskFull; ConfigError if the cache folder cannot be written; whatever ``build`` raises.
    """
    if is_complete(folder):
        return folder
    partial = folder.with_name(f".{folder.name}.partial")
    with disk_errors(folder.name), locked(folder.with_name(f".{folder.name}.lock"), on_event):
        if is_complete(folder):  # another process built it while this one waited
            return folder
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            build(partial)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


@contextmanager
def locked(path: Path, on_event: OnEvent) -> Iterator[None]:
    """Hold the lock file ``path``; say so once when another process holds it, and wait."""
    make_cache_folder(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_event(LoadProgress("another process is preparing this model; waiting for it"))
        while not lock.is_locked:
            time.sleep(LOCK_POLL_S)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
    try:
        yield
    finally:
        lock.release()


def make_cache_folder(folder: Path) -> None:
    """Create ``folder``.

    Raises: ConfigError if it cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise cache_error(folder) from error
    if not is_writable:
        raise cache_error(folder)


def cache_error(folder: Path) -> ConfigError:
    """The error for a cache folder that cannot be used."""
    return ConfigError(
        "the cache folder cannot be written",
        expected="a writable folder",
        got=str(folder),
        hint="set EAGLE_CACHE to a folder of yours",
    )


__all__ = [
    "OnEvent",
    "build_folder",
    "cache_folder",
    "check_free_space",
    "config_folder",
    "data_folder",
    "disk_errors",
    "ignore_event",
    "locked",
    "make_cache_folder",
]
