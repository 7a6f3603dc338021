"""What each browser tab looks at, kept on the server: what the page shows is never read back."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from eagle_core.history import Conversation, HistoryStore, SqliteHistory
from eagle_core.ui.attachments import Attachment, with_attachments
from eagle_core.ui.copies import BrowserCopies
from eagle_core.ui.pace import Paces

if TYPE_CHECKING:
    from eagle_core.session import Message

MAX_ROOMS = 256


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, as typed or as generated."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(slots=True)
class Room:
    """One tab. ``cancel`` belongs to the answer in progress; ``chat_id`` counts what was brought into view.

    ``saved`` keeps chats; a private chat has a store of its own that nothing else sees and nothing writes.
    ``n_left_out`` messages of the conversation were not sent, because the context is full.
    ``knows_greedy``: it was told that temperature 0 gives the same answer again.
    ``copies``: its browser keeps the chats.
    """

    saved: HistoryStore
    private: HistoryStore | None = None
    conversation: Conversation | None = None
    chat_id: int = 0
    cancel: threading.Event | None = None
    writing: str | None = None
    attachments: list[Attachment] = field(default_factory=list)
    knows_greedy: bool = False
    n_left_out: int = 0
    query: str = ""
    copies: BrowserCopies | None = None

    @property
    def store(self) -> HistoryStore:
        """Where this tab's chat is kept."""
        return self.private if self.private is not None else self.saved

    @property
    def is_busy(self) -> bool:
        """Whether an answer is in progress."""
        return self.cancel is not None

    @property
    def turns(self) -> list[Turn]:
        """The messages in view."""
        path = self.conversation.path if self.conversation is not None else ()
        return [Turn(message.role, message.text) for message in path]

    @property
    def leaf(self) -> str | None:
        """The last message in view."""
        return self.conversation.active if self.conversation is not None else None

    def stop(self) -> None:
        """Ask the answer in progress to end."""
        if self.cancel is not None:
            self.cancel.set()

    def show(self, conversation: Conversation | None) -> None:
        """Bring a conversation or an empty page into view; an answer in progress ends and keeps its text."""
        self.stop()
        self.cancel = None
        self.conversation = conversation
        self.n_left_out = 0
        self.chat_id += 1

    def set_private(self, is_private: bool) -> None:
        """Start a new chat that is kept nowhere, or one that is kept again."""
        self.show(None)
        if self.private is not None:
            self.private.close()
        self.private = SqliteHistory(None) if is_private else None

    def prompt_of(self, text: str) -> str:
        """What is sent for a typed message: the attached files come before it."""
        return with_attachments(text, self.attachments)


def messages_of(turns: list[Turn], system_prompt: str) -> list[Message]:
    """The turns for the model, after the system prompt if there is one."""
    messages: list[Message] = [{"role": turn.role, "content": turn.text} for turn in turns]
    if system_prompt.strip():
        return [{"role": "system", "content": system_prompt}, *messages]
    return messages


class Rooms:
    """The rooms by tab id, the longest unused dropped beyond ``MAX_ROOMS``.

    Args:
        store_for_tab: gives a new tab the place where its chats are kept; one and the same on a machine of
            one's own, one for each tab where strangers share the app.
        keeps_in_browser: that place is forgotten, and each tab's browser has a copy.
    """

    def __init__(
        self, store_for_tab: Callable[[], HistoryStore], keeps_in_browser: bool = False
    ) -> None:
        self._store_for_tab, self._keeps_in_browser = store_for_tab, keeps_in_browser
        self.paces = Paces()
        self._rooms: OrderedDict[str, Room] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tab: str) -> Room:
        """The tab's room, made on the first call."""
        with self._lock:
            room = self._rooms.get(tab)
            if room is None:
                copies = BrowserCopies() if self._keeps_in_browser else None
                room = self._rooms[tab] = Room(self._store_for_tab(), copies=copies)
            self._rooms.move_to_end(tab)
            idle = [key for key, other in self._rooms.items() if not other.is_busy and key != tab]
            for key in idle[: max(len(self._rooms) - MAX_ROOMS, 0)]:
                del self._rooms[key]
            return room

    def is_written(self, message_id: str) -> bool:
        """Whether some tab is writing this answer right now."""
        with self._lock:
            return any(room.writing == message_id for room in self._rooms.values())

    @property
    def is_busy(self) -> bool:
        """Whether an answer is in progress in some tab."""
        with self._lock:
            return any(room.is_busy for room in self._rooms.values())

    def stop(self, tab: str) -> None:
        """Stop the tab's answer, if there is one. The conversation stays: a sleeping phone comes back."""
        with self._lock:
            room = self._rooms.get(tab)
        if room is not None:
            room.stop()

    def stop_all(self) -> None:
        """Stop every answer."""
        with self._lock:
            rooms = list(self._rooms.values())
        for room in rooms:
            room.stop()


__all__ = ["MAX_ROOMS", "Room", "Rooms", "Turn", "messages_of"]
