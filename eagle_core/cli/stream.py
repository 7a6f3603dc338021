"""Reads the engine's events for the terminal: progress to stderr, an answer to its transcript."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from eagle_core.bench.methods import RequestFailed, close_stream
from eagle_core.cli.console import note
from eagle_core.config import LoadConfig
from eagle_core.devices import resolve_device
from eagle_core.events import (
    DownloadProgress,
    Event,
    FileProgress,
    LoadProgress,
    Notice,
    PrefillProgress,
    Queued,
    TextDelta,
)
from eagle_core.rate import Rate, as_text, time_left
from eagle_core.startup import models_scanned_once, quick_imports
from eagle_core.transcript import Transcript

if TYPE_CHECKING:
    from eagle_core.session import Session

PLAIN_STEPS = 10
LONG_PROMPT = 512


class Progress:
    """Shows what takes time: bars on a terminal, a few plain lines elsewhere. Takes any event."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._bars: dict[str, Any] = {}
        self._shown: dict[str, int] = {}
        self._rates: dict[str, Rate] = {}

    def __call__(self, event: Event) -> None:
        """Show ``event`` if it is about progress."""
        if isinstance(event, DownloadProgress):
            self.count(event.what, event.done_bytes, event.total_bytes, unit="B")
        elif isinstance(event, FileProgress):
            self.count(f"{event.doing} {event.what}", event.done_bytes, event.total_bytes, unit="B")
        elif isinstance(event, LoadProgress):
            self.close()
            note(event.message)
        elif isinstance(event, Notice):
            self.close()
            note(f"{event.level}: {event.message}" if event.level == "warning" else event.message)
        elif isinstance(event, Queued):
            note(f"waiting for {event.ahead} earlier request(s)")
        elif isinstance(event, PrefillProgress) and event.total >= LONG_PROMPT:
            self.count("reading the prompt", event.done, event.total, unit=" tokens")

    def count(self, what: str, done: int, total: int | None, *, unit: str) -> None:
        """Show that ``done`` of ``total`` (None: unknown) units are through."""
        if self._is_terminal:
            self._move_bar(what, done, total, unit)
            return
        # Bytes come at a rate that changes; of other work the whole run tells more.
        rate = self._rates.setdefault(what, Rate() if unit == "B" else Rate(math.inf))
        rate.add(done, time.monotonic())
        step = done * PLAIN_STEPS // total if total else 0
        if step > self._shown.get(what, -1):
            self._shown[what] = step
            size = (
                _size(done, unit)
                if total is None
                else f"{done / total:.0%} of {_size(total, unit)}"
            )
            speed = as_text(rate, total) if unit == "B" else time_left(rate, total)
            note(f"{what}: {size}, {speed}" if speed and done != total else f"{what}: {size}")

    def close(self) -> None:
        """Take the bars off the terminal's last line."""
        for bar in self._bars.values():
            bar.close()
        self._bars.clear()

    def _move_bar(self, what: str, done: int, total: int | None, unit: str) -> None:
        from tqdm import tqdm

        bar = self._bars.get(what)
        if bar is None:
            bar = self._bars[what] = tqdm(
                desc=what,
                total=total,
                unit=unit,
                unit_scale=True,
                file=sys.stderr,
                leave=unit == "B",
            )
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()


def _size(amount: int, unit: str) -> str:
    return f"{amount / 1e6:.1f} MB" if unit == "B" else f"{amount}{unit}"


def read_answer(
    events: Iterable[Event], progress: Progress, on_text: Callable[[TextDelta], None]
) -> Transcript:
    """Consume a session's stream to its end; the transcript is finished.

    Raises: RequestFailed when the stream ends in Failed.
    """
    transcript = Transcript()
    try:
        for event in events:
            progress(event)
            transcript = transcript.apply(event)
            if isinstance(event, TextDelta):
                on_text(event)
    finally:
        close_stream(events)
        progress.close()
    if transcript.error is not None:
        error = transcript.error
        raise RequestFailed(error.code, error.message, error.hint)
    return transcript


def open_session(config: LoadConfig, progress: Progress) -> Session:
    """Load base and head, with progress.

    Raises: EagleError.
    """
    from eagle_core.headstart import pages_ahead
    from eagle_core.sources import check_load, fetch_first

    check_load(config)
    fetch_first(config, progress)
    with pages_ahead(config) as ahead:
        with quick_imports("eagle_core.session"):
            resolve_device(config.device)  # imports PyTorch alone: a missing GPU is said now
            with models_scanned_once():
                from eagle_core.session import Session

        try:
            return Session.open(config, progress, ahead)
        finally:
            progress.close()


__all__ = ["Progress", "open_session", "read_answer"]
