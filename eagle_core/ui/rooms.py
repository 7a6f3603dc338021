"""Conversations, one per browser tab, kept on the server: what the page shows is never read back."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

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
    """One tab's conversation. ``cancel`` belongs to the answer in progress; ``chat_id`` counts the chats."""

    turns: list[Turn] = field(default_factory=list)
    chat_id: int = 0
    cancel: threading.Event | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an answer is in progress."""
        return self.cancel is not None

    def stop(self) -> None:
        """Ask the answer in progress to end."""
        if self.cancel is not None:
            self.cancel.set()

    def clear(self) -> None:
        """Start a new chat; an answer in progress ends and is dropped."""
        self.stop()
        self.cancel = None
        self.turns = []
        self.chat_id += 1

    def messages(self, system_prompt: str) -> list[Message]:
        """The conversation for the model, after the system prompt if there is one."""
        turns: list[Message] = [{"role": turn.role, "content": turn.text} for turn in self.turns]
        if system_prompt.strip():
            return [{"role": "system", "content": system_prompt}, *turns]
        return turns


class Rooms:
    """The rooms by tab id, the longest unused dropped beyond ``MAX_ROOMS``."""

    def __init__(self) -> None:
        self._rooms: OrderedDict[str, Room] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tab: str) -> Room:
        """The tab's room, made on the first call."""
        with self._lock:
            room = self._rooms.setdefault(tab, Room())
            self._rooms.move_to_end(tab)
            idle = [key for key, other in self._rooms.items() if not other.is_busy and key != tab]
            for key in idle[: max(len(self._rooms) - MAX_ROOMS, 0)]:
                del self._rooms[key]
            return room

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


__all__ = ["MAX_ROOMS", "Room", "Rooms", "Turn"]
