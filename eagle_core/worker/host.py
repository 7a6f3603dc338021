"""The engine's side: opens the session, and answers calls until the page's process is gone.

Started as ``python -m eagle_core.worker``. The engine is imported before anything is asked.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from eagle_core.errors import EagleError
from eagle_core.events import Event, StepDone
from eagle_core.startup import models_scanned_once, quick_imports
from eagle_core.worker.channel import Call, Channel, Done, Item, Refused, Stop

if TYPE_CHECKING:
    from eagle_core.config import LoadConfig
    from eagle_core.session import Session

logger = logging.getLogger(__name__)

METHODS = frozenset({
    "count_tokens", "encode_chat", "explain_difference", "forget", "set_reproducible", "token_text",
    "use_template",
})  # fmt: skip
OpenSession = Callable[["LoadConfig", Callable[[Event], None]], Any]


class Host:
    """Answers the calls of one channel. ``open_session`` is set before the first of them is answered."""

    open_session: OpenSession

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._session: Session | None = None
        self._stops: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._spelled: set[int] = set()

    def answer(self, call: Call) -> None:
        """Answer a call; whatever goes wrong is its answer."""
        try:
            value = self._do(call)
            info = None if self._session is None else self._session.info
            reply: Done | Refused = Done(call.number, value, info)
        except EagleError as error:
            reply = Refused(call.number, error)
        except (OSError, EOFError):  # nobody listens any more
            raise
        except Exception as error:
            logger.exception("a call failed")
            reply = Refused(call.number, unexpected(error))
        self._channel.send(reply)

    def stop(self, number: int) -> None:
        """Let the call with this number end, also one that has not begun."""
        self.flag(number).set()

    def flag(self, number: int) -> threading.Event:
        """What says that a call shall end."""
        with self._lock:
            return self._stops.setdefault(number, threading.Event())

    def _open(self, call: Call) -> None:
        (config,) = call.arguments
        self._session = self.open_session(
            config, lambda event: self._channel.send(Item(call.number, event))
        )

    def _do(self, call: Call) -> Any:
        if call.method == "open":
            self._open(call)
            return None
        session = self._session
        assert session is not None, "open comes first"
        if call.method == "machine":
            from eagle_core.machine import this_machine

            return this_machine(*call.arguments)
        if call.method == "chat":
            try:
                for event in session.chat(*call.arguments, cancel=self.flag(call.number)):
                    self._channel.send(Item(call.number, event, self._spell(session, event)))
            finally:
                with self._lock:
                    self._stops.pop(call.number, None)
            return None
        assert call.method in METHODS, call.method
        return getattr(session, call.method)(*call.arguments)

    def _spell(self, session: Session, event: Event) -> dict[int, str]:
        """Texts of an event's tokens that were not told before."""
        if not isinstance(event, StepDone):
            return {}
        new = {token.id for token in event.tokens} - self._spelled
        self._spelled |= new
        return {token: session.token_text(token) for token in new}


def unexpected(error: Exception) -> EagleError:
    """An error that nobody foresaw, for the other side."""
    return EagleError(
        f"{type(error).__name__}: {error}",
        hint="The log has the details; `eagle-chat doctor` checks the installation.",
    )


def listen(
    channel: Channel, calls: SimpleQueue[Call], host: Host, leave: Callable[[], None]
) -> None:
    """Take in calls and stops until the other side is gone, then ``leave``."""
    try:
        while True:
            message = channel.receive()
            if isinstance(message, Stop):
                host.stop(message.number)
            else:
                calls.put(message)
    except EOFError:
        leave()


def take_pipes() -> Channel:
    """The process's own input and output as a channel; what others print goes to its errors."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without a terminal
        os.dup2(nothing, 1)
    return Channel(reader, writer)


def open_with_engine() -> OpenSession:
    """What opens sessions; the engine is imported now, which takes seconds."""
    with quick_imports("eagle_core.session"), models_scanned_once():
        from eagle_core.rehearsal import rehearse_in_background
        from eagle_core.session import Session

    class Rehearsed(Session):
        """Rehearses by itself, and anew when it computes in another way: that takes another time."""

        def set_reproducible(self, is_on: bool) -> None:
            super().set_reproducible(is_on)
            rehearse_in_background(self.rehearse)

    def open_session(config: LoadConfig, on_event: Callable[[Event], None]) -> Session:
        session = Rehearsed.open(config, on_event)
        rehearse_in_background(session.rehearse)
        return session

    return open_session


def run(prepare: Callable[[], OpenSession] = open_with_engine) -> None:
    """Serve the process that started this one; ends with it.

    Args: prepare: gives what opens sessions.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the other one's affair
    os.environ.pop("PYTHONSAFEPATH", None)  # was meant for this start alone
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    channel = take_pipes()
    calls: SimpleQueue[Call] = SimpleQueue()
    host = Host(channel)
    # Threads of the engine may be in the middle of something: nothing is left to be tidied by them.
    threading.Thread(
        target=listen, args=(channel, calls, host, lambda: os._exit(0)), name="listen", daemon=True
    ).start()
    host.open_session = prepare()
    while True:
        call = calls.get()
        if call.method == "open":
            host.answer(call)
        else:
            threading.Thread(
                target=host.answer, args=(call,), name=call.method, daemon=True
            ).start()


__all__ = ["METHODS", "Host", "listen", "run"]
