"""What the app needs of a session, and the slot that holds one while it is being opened."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from eagle_core.compare import (
    OneModel,
    OnProgress,
    Prompt,
    Race,
    RaceSession,
    Setup,
    run_races,
)
from eagle_core.config import LoadConfig
from eagle_core.errors import EagleError
from eagle_core.events import Event, LoadProgress
from eagle_core.fit import Machine
from eagle_core.machine import give_back_memory
from eagle_core.progress import ProgressReader

if TYPE_CHECKING:
    from eagle_core.session import Message

logger = logging.getLogger(__name__)


class ChatSession(RaceSession, Protocol):
    """The part of :class:`eagle_core.session.Session` that the app uses."""

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a chat in the model's own template."""
        ...

    def set_reproducible(self, is_on: bool) -> None:
        """Compute rows alike alone and beside others, or not."""
        ...

    def use_template(self, name: str) -> None:
        """Chat by another template from now on."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


@runtime_checkable
class RacesItself(Protocol):
    """A session that runs races its own way."""

    def races(
        self,
        prompts: Sequence[Prompt],
        setups: Sequence[Setup],
        cancel: threading.Event,
        on_progress: OnProgress,
    ) -> Iterator[Race]:
        """As :func:`eagle_core.compare.run_races`."""
        ...


def races_of(
    session: RaceSession,
    prompts: Sequence[Prompt],
    setups: Sequence[Setup],
    cancel: threading.Event,
    on_progress: OnProgress,
) -> Iterator[Race]:
    """Races on a session, its own way if it has one."""
    if isinstance(session, RacesItself):
        return session.races(prompts, setups, cancel, on_progress)
    return run_races(OneModel(session), prompts, setups, cancel, on_progress)


@runtime_checkable
class KnowsMachine(Protocol):
    """A session whose engine looks at the machine: this process needs no torch then."""

    def machine(self, device: str | None = None) -> Machine:
        """As :func:`eagle_core.machine.this_machine`."""
        ...


OnEvent = Callable[[Event], None]
OpenSession = Callable[[OnEvent], ChatSession]
Wait = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Opening:
    """How far opening the session got.

    ``share`` is the part of this stage that is through, None while unknown; ``figures`` are share, speed and
    time left as text.
    """

    message: str
    share: float | None = None
    hint: str = ""
    has_failed: bool = False
    figures: str = ""


class SessionSlot:
    """Holds the session; opens it in a thread of its own, so the page is there while a model downloads."""

    def __init__(self, session: ChatSession | None = None) -> None:
        self.session = session
        self.config: LoadConfig | None = None  # how it was loaded, where that is known
        self.opening = Opening("Loading the model")
        self._is_closed = False
        self._open_session: OpenSession | None = None  # opens what is loaded once more
        self._reader = ProgressReader()
        self._lock = threading.Lock()

    @property
    def is_opening(self) -> bool:
        """Whether a session is on its way."""
        return self.session is None and not self.opening.has_failed

    def open_in_background(self, open_session: OpenSession) -> None:
        """Start opening; :attr:`session` is set, or :attr:`opening` says what failed."""
        self._open_session = open_session
        threading.Thread(
            target=self._open, args=(open_session,), name="open-session", daemon=True
        ).start()

    @property
    def can_lend(self) -> bool:
        """Whether what is loaded can be let go for a while, and opened again."""
        return None not in (self.session, self.config, self._open_session)

    def lend(self, message: str, wait: Wait) -> None:
        """Let the session go for a while; :meth:`take_back` opens it again.

        Args: message: what the pages say meanwhile. wait: as for :meth:`swap`.
        """
        wait()
        self.opening = Opening(message)
        with self._lock:
            old, self.session = self.session, None
        if old is not None:
            old.close()
        del old
        give_back_memory()

    def take_back(self) -> None:
        """Open what was lent again; :attr:`opening` says if that fails."""
        if self._open_session is not None and not self._is_closed:
            self._open(self._open_session)

    def swap(
        self,
        open_session: OpenSession,
        on_event: OnEvent,
        beside: bool,
        wait: Wait,
        config: LoadConfig | None = None,
    ) -> None:
        """Open another session in place of this one. A running answer is waited for, never cut.

        Args:
            beside: both find room in memory: this one goes once the other is open. Else it goes first, and is
                opened again when the other cannot be.
            wait: returns when nobody uses this session; may raise Cancelled.
            config: how the other one is loaded.
        Raises: what opening or waiting raises. This session is kept then, or being opened again.
        """

        def report(event: Event) -> None:
            self._on_event(event)
            on_event(event)

        reopen = self._open_session
        if self.session is not None and (beside or reopen is None):
            self._put_beside(open_session, report, wait)
        else:
            if self.session is not None:
                wait()
            self._replace(open_session, report, reopen)
        self._open_session, self.config = open_session, config

    def _put_beside(self, open_session: OpenSession, report: OnEvent, wait: Wait) -> None:
        new = open_session(report)
        try:
            wait()
        except EagleError:
            new.close()
            raise
        with self._lock:
            old, self.session = self.session, new
        if old is not None:
            old.close()
        del old
        give_back_memory()

    def _replace(
        self, open_session: OpenSession, report: OnEvent, reopen: OpenSession | None
    ) -> None:
        self.opening = Opening("Loading another model")
        with self._lock:
            old, self.session = self.session, None
        had_session = old is not None
        if old is not None:
            old.close()  # waits for the answer in progress
        del old
        give_back_memory()
        try:
            new = open_session(report)
        except Exception as error:
            if had_session and reopen is not None:
                # What was loaded of the new model is held by the error's frames.
                traceback.clear_frames(error.__traceback__)
                give_back_memory()
                report(LoadProgress("opening the model that was in use again"))
                self._open(reopen)
            else:
                hint = error.hint if isinstance(error, EagleError) else ""
                self.opening = Opening(str(error), hint=hint, has_failed=True)
            raise
        with self._lock:
            if not self._is_closed:
                self.session = new
                return
        new.close()

    def close(self) -> None:
        """Close the session, also one that is still being opened."""
        with self._lock:
            self._is_closed, session, self.session = True, self.session, None
        if session is not None:
            session.close()

    def _open(self, open_session: OpenSession) -> None:
        try:
            session = open_session(self._on_event)
        except EagleError as error:
            # The page and the terminal say more; a log gets no paths.
            logger.error("the session could not be opened: %s", error.code)
            self.opening = Opening(error.message, hint=error.hint, has_failed=True)
            return
        except Exception as error:  # the session's boundary: the page must say what happened
            logger.exception("the session could not be opened")
            self.opening = Opening(
                f"The model could not be loaded: {error or type(error).__name__}",
                hint="The log has the details; `eagle-chat doctor` checks the installation.",
                has_failed=True,
            )
            return
        with self._lock:
            if not self._is_closed:
                self.session = session
                return
        session.close()

    def _on_event(self, event: Event) -> None:
        shown = self._reader.read(event)
        if shown is not None:
            self.opening = Opening(shown.message, shown.share, figures=shown.figures)


__all__ = [
    "ChatSession",
    "KnowsMachine",
    "OpenSession",
    "Opening",
    "RacesItself",
    "SessionSlot",
    "races_of",
]
