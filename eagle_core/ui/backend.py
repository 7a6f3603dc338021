"""What the app needs of a session, and the slot that holds one while it is being opened."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.differences import Difference
from eagle_core.errors import EagleError
from eagle_core.events import DownloadProgress, Event, LoadProgress

if TYPE_CHECKING:
    from eagle_core.session import Message, SessionInfo

logger = logging.getLogger(__name__)


class ChatSession(Protocol):
    """The part of :class:`eagle_core.session.Session` that the app uses."""

    @property
    def info(self) -> SessionInfo:
        """What is loaded."""
        ...

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a chat in the model's own template."""
        ...

    def token_text(self, token_id: int) -> str:
        """Printable form of one token."""
        ...

    def chat(
        self,
        messages: Sequence[Message],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Events of one answer."""
        ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat in the model's own template."""
        ...

    def forget(self) -> None:
        """Drop the cached prompt, so that the next answer reads all of its own."""
        ...

    def explain_difference(
        self,
        prompt_ids: Sequence[int],
        plain: Sequence[int],
        drafted: Sequence[int],
        generation: GenerationConfig,
    ) -> Difference | None:
        """Where two answers to a prompt part, and why."""
        ...

    def set_reproducible(self, is_on: bool) -> None:
        """Compute rows alike alone and beside others, or not."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


OpenSession = Callable[[Callable[[Event], None]], ChatSession]


@dataclass(frozen=True, slots=True)
class Opening:
    """How far opening the session got. ``share`` is the downloaded part of ``what``, None while unknown."""

    message: str
    share: float | None = None
    hint: str = ""
    has_failed: bool = False


class SessionSlot:
    """Holds the session; opens it in a thread of its own, so the page is there while a model downloads."""

    def __init__(self, session: ChatSession | None = None) -> None:
        self.session = session
        self.opening = Opening("Loading the model")
        self._is_closed = False
        self._lock = threading.Lock()

    def open_in_background(self, open_session: OpenSession) -> None:
        """Start opening; :attr:`session` is set, or :attr:`opening` says what failed."""
        threading.Thread(
            target=self._open, args=(open_session,), name="open-session", daemon=True
        ).start()

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
            logger.error("the session could not be opened: %s", error)
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
        if isinstance(event, DownloadProgress):
            share = event.done_bytes / event.total_bytes if event.total_bytes else None
            done = f"{event.done_bytes / 1e6:.0f}"
            total = f" of {event.total_bytes / 1e6:.0f}" if event.total_bytes else ""
            self.opening = Opening(f"Downloading {event.what}: {done}{total} MB", share)
        elif isinstance(event, LoadProgress):
            self.opening = Opening(event.message)


__all__ = ["ChatSession", "OpenSession", "Opening", "SessionSlot"]
