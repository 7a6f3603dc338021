"""One window per user: who holds the lock has it, and others can ask it to come forward.

Knows no window and no server, so that a second start is answered at once.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from eagle_core.errors import ConfigError
from eagle_core.folders import data_folder

FORWARD_PATH = "/eagle/window"
KEY_HEADER = "x-window-key"
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Instance:
    """A running window, as it is written down for the next start."""

    url: str
    key: str
    pid: int


def folder() -> Path:
    """Where the window keeps its lock, its address and its pages' storage."""
    return data_folder() / "desktop"


@contextmanager
def only_instance() -> Iterator[bool]:
    """Whether this process is the only one with a window; held until the block is left.

    Raises: ConfigError when the folder cannot be written.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder() / "lock")
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise ConfigError(
            "the window's folder cannot be written",
            expected="a writable folder",
            got=str(error),
            hint="set EAGLE_DATA to a folder of yours",
        ) from error
    try:
        yield True
    finally:
        (folder() / "instance.json").unlink(missing_ok=True)
        lock.release()


def bring_forward() -> str:
    """Ask the window that is open to come to the front; returns a sentence about it for the user."""
    try:
        found = Instance(**json.loads((folder() / "instance.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return "EAGLE chat is just starting in another process; its window opens in a moment."
    request = urllib.request.Request(  # noqa: S310 - its own address, written by itself
        found.url.rstrip("/") + FORWARD_PATH, method="POST", headers={KEY_HEADER: found.key}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError, urllib.error.URLError), direct.open(request, timeout=ANSWER_S):
        return f"EAGLE chat is open already (process {found.pid}); its window comes to the front."
    return f"EAGLE chat is open already (process {found.pid}), but does not answer; end it and start again."


def write_down(instance: Instance) -> None:
    """Keep the window's address for the next start, readable by this user alone."""
    path = folder() / "instance.json"
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(json.dumps(asdict(instance)))
    os.replace(partial, path)


__all__ = [
    "FORWARD_PATH",
    "KEY_HEADER",
    "Instance",
    "bring_forward",
    "folder",
    "only_instance",
    "write_down",
]
