"""One long piece of work on models at a time, in a thread of its own: its progress, cancelling it, its end.

Knows no model: what is done is a function that reports events. Whoever looks may come late or again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from eagle_core.errors import EagleError
from eagle_core.events import Event
from eagle_core.progress import ProgressReader

logger = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class State:
    """How far a piece of work is. ``done`` is what to say of its good end, ``error`` of a bad one.

    ``share`` is the part that is through, None while unknown; ``pace`` is speed and time left as text.
    """

    title: str = ""
    message: str = ""
    share: float | None = None
    pace: str = ""
    is_running: bool = False
    is_stopping: bool = False
    done: str = ""
    error: EagleError | None = None


class Work:
    """Does one thing at a time; :attr:`state` may be read at any time."""

    def __init__(self) -> None:
        self.state = State()
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        self._reader = ProgressReader()
        self._lock = threading.Lock()

    def start(self, title: str, run: Callable[[OnEvent, threading.Event], str]) -> bool:
        """Start ``run`` unless something is going on; whether it was started.

        Args: run: gets where to report events, and what is set when it shall stop; returns what to say.
        """
        with self._lock:
            if self.state.is_running:
                return False
            self._cancel, self._reader = threading.Event(), ProgressReader()
            self.state = State(title, "Starting", is_running=True)
            self._thread = threading.Thread(
                target=self._run, args=(run,), name="model-work", daemon=True
            )
            self._thread.start()
        return True

    def cancel(self) -> None:
        """Ask the work to stop; what arrived of a download is kept."""
        with self._lock:
            if self.state.is_running:
                self._cancel.set()
                self.state = replace(self.state, is_stopping=True)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.state.is_running

    def _run(self, run: Callable[[OnEvent, threading.Event], str]) -> None:
        title = self.state.title
        try:
            end = State(title, done=run(self._on_event, self._cancel))
        except EagleError as error:
            logger.info("work on models failed: %s", error.code)
            end = State(title, error=error)
        # Not swallowed: it is logged, and what the page shows says where to look.
        except Exception as problem:
            logger.exception("work on models failed")
            message = f"something went wrong: {type(problem).__name__}"
            hint = "try again; the log has the details"
            end = State(title, error=EagleError(message, hint=hint))
        self.state = end

    def _on_event(self, event: Event) -> None:
        shown = self._reader.read(event)
        if shown is not None:
            message, share, pace = shown.message, shown.share, shown.pace
            self._show(replace(self.state, message=message, share=share, pace=pace))

    def _show(self, state: State) -> None:
        with self._lock:
            self.state = replace(state, is_stopping=self._cancel.is_set())


__all__ = ["State", "Work"]
