"""Folds a stream of events in a thread of its own, so that drawing never slows decoding.

Every event is folded; whoever draws looks at the latest transcript as often as it likes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context

from eagle_core.events import Event, Failed
from eagle_core.transcript import Transcript


class Pump:
    """Runs one stream to its end. ``transcript`` is an immutable snapshot and may be read at any time."""

    def __init__(self, open_stream: Callable[[], Iterator[Event]]) -> None:
        self.transcript = Transcript()
        self._open_stream = open_stream
        self._is_done = threading.Event()
        # A shared GPU is asked for in the name of the visitor whose request this is.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="answer", daemon=True
        )

    @property
    def is_done(self) -> bool:
        """Whether the last event has been folded."""
        return self._is_done.is_set()

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, at most ``timeout_s``; not at all if it was never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            for event in self._open_stream():
                self.transcript = self.transcript.apply(event)
        finally:
            if not self.transcript.is_over:
                self.transcript = self.transcript.apply(
                    Failed("internal", "The answer ended unexpectedly", "The log has the details.")
                )
            self._is_done.set()


__all__ = ["Pump"]
