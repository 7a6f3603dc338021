"""Moves one file's bytes: goes on where an earlier try stopped, checks the content, can be stopped.

The library restarts a file from its beginning after a kill and reads 10 MB before it looks up; this goes on
at the last byte and stops within one packet. Knows HTTP and files, no repositories.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]  # no __all__ there

from eagle_core.errors import Cancelled
from eagle_core.hub.errors import RETRY_STATUSES

PARTIAL = ".eagle-partial"
READ_TIMEOUT_S = 15  # without a single byte
CHUNK_BYTES = 1 << 20
MAX_RETRIES = 5  # in a row, without a byte between them
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
POLL_S = 0.1


class Stop:
    """Whether to go on: the user's event, and the other transfers of the same download."""

    def __init__(self, cancel: threading.Event | None = None) -> None:
        self._cancel, self._others = cancel or threading.Event(), threading.Event()

    def check(self) -> None:
        """Raises: Cancelled."""
        if self._cancel.is_set() or self._others.is_set():
            raise Cancelled(
                "the download was stopped",
                hint="start it again to go on where it stopped",
            )

    def wait(self, seconds: float) -> None:
        """Wait so long.

        Raises: Cancelled.
        """
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.check()
            self._others.wait(min(left_s, POLL_S))
        self.check()

    def stop_all(self) -> None:
        """End every transfer: one of them failed."""
        self._others.set()


class Content:
    """The checksum of a file that arrives in pieces: SHA-256 for large files, git's for small ones."""

    def __init__(self, n_bytes: int, sha256: str | None, git_id: str | None) -> None:
        self._n_bytes = n_bytes
        self.expected = sha256 or git_id
        self._is_sha256 = sha256 is not None
        self.restart()

    def restart(self) -> None:
        """Nothing has arrived."""
        if self._is_sha256:
            self._digest = hashlib.sha256()
        else:  # git's id of a blob; it names contents here, and guards no secret
            self._digest = hashlib.sha1(b"blob %d\0" % self._n_bytes, usedforsecurity=False)

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self._digest.update(data)

    @property
    def found(self) -> str:
        """The checksum of what arrived."""
        return self._digest.hexdigest()

    @property
    def is_right(self) -> bool:
        """Whether it is the one expected; without an expectation the size has to do."""
        return self.expected is None or self.found == self.expected


def fetch_file(
    url: str,
    headers: Mapping[str, str],
    path: Path,
    n_bytes: int,
    content: Content,
    stop: Stop,
    report: Callable[[int], None],
) -> bool:
    """Fetch ``url`` to ``path``, which then holds it whole and right, or is not there.

    What an earlier try left beside it is gone on with; if the whole is wrong then, it is fetched once more
    from the beginning.

    Args:
        report: gets the bytes that arrived, piece by piece; negative ones when it starts over.
    Returns: whether the content is right; a wrong one is removed.
    Raises: Cancelled, HfHubHTTPError, httpx2.HTTPError, OSError.
    """
    partial = path.with_name(path.name + PARTIAL)
    for is_last in (False, True):
        with partial.open("ab", buffering=0) as out:
            start = _resume(partial, out, n_bytes, content)
            report(start)
            _receive(url, headers, out, n_bytes, content, stop, report)
        if partial.stat().st_size == n_bytes and content.is_right:
            os.replace(partial, path)
            return True
        arrived = partial.stat().st_size
        partial.unlink()
        if start == 0 or is_last:
            return False
        report(-arrived)
    return False


def partial_bytes(path: Path) -> int:
    """What an earlier try left of ``path``."""
    try:
        return path.with_name(path.name + PARTIAL).stat().st_size
    except OSError:
        return 0


def _resume(partial: Path, out: BinaryIO, n_bytes: int, content: Content) -> int:
    """Take in what is there already; returns its length."""
    content.restart()
    start = out.tell()
    if start > n_bytes:
        out.truncate(0)
        return 0
    with partial.open("rb") as there:
        while chunk := there.read(CHUNK_BYTES):
            content.add(chunk)
    return start


def _receive(
    url: str,
    headers: Mapping[str, str],
    out: BinaryIO,
    n_bytes: int,
    content: Content,
    stop: Stop,
    report: Callable[[int], None],
) -> None:
    """Append the rest of the file; a break is mended by asking for what is missing."""
    n_failures = 0
    while (done := os.fstat(out.fileno()).st_size) < n_bytes:
        stop.check()
        response: httpx2.Response | None = None
        try:
            with _open(url, headers, done) as response:
                if done and response.status_code != 206:  # the server sends the whole file anew
                    out.truncate(0)
                    content.restart()
                    report(-done)
                    done = 0
                for chunk in _pieces(response, n_bytes - done):
                    stop.check()
                    out.write(chunk)
                    content.add(chunk)
                    report(len(chunk))
                    n_failures = 0
        except (HfHubHTTPError, httpx2.TransportError) as error:
            is_final = isinstance(error, HfHubHTTPError) and (
                error.response.status_code not in RETRY_STATUSES
            )
            if is_final or n_failures >= MAX_RETRIES:
                raise
            answer = error.response if isinstance(error, HfHubHTTPError) else None
            stop.wait(pause_s(n_failures, answer))
            n_failures += 1


def _open(url: str, headers: Mapping[str, str], start: int) -> Any:
    """A response as a context manager; a refusal is raised on entry."""
    wanted = {**headers, "Accept-Encoding": "identity"}
    if start:
        wanted["Range"] = f"bytes={start}-"
    return _Opened(
        get_session().stream(
            "GET", url, headers=wanted, timeout=READ_TIMEOUT_S, follow_redirects=True
        )
    )


class _Opened:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> httpx2.Response:
        response: httpx2.Response = self._stream.__enter__()
        try:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
        except BaseException as error:
            self._stream.__exit__(type(error), error, error.__traceback__)
            raise
        return response

    def __exit__(self, *details: Any) -> Any:
        return self._stream.__exit__(*details)


def _pieces(response: httpx2.Response, n_wanted: int) -> Iterator[bytes]:
    """The body as it arrives, at most ``n_wanted`` bytes of it.

    Raises: RemoteProtocolError when it ends early.
    """
    n_got = 0
    for chunk in response.iter_raw():
        piece = chunk[: n_wanted - n_got]
        n_got += len(piece)
        if piece:
            yield piece
        if n_got >= n_wanted:
            return
    if n_got < n_wanted:
        raise httpx2.RemoteProtocolError("the answer ended before the file did")


def pause_s(n_failures: int, response: httpx2.Response | None = None) -> float:
    """How long to wait before the next try: what the server asks for, else twice as long every time."""
    asked = response.headers.get("Retry-After", "") if response is not None else ""
    pause = float(asked) if asked.isdigit() else FIRST_PAUSE_S * 2**n_failures
    return min(pause, LONGEST_PAUSE_S)


__all__ = ["Content", "Stop", "fetch_file", "partial_bytes", "pause_s"]
