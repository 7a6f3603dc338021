"""What a conversation is: messages that point to their parents, one leaf of them in view.

Editing or regenerating adds a sibling and takes nothing away; the path from the root to the active leaf
is the chat that the reader sees and the model gets. Pure values: knows no database and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from eagle_core.events import Origin, Span

Role = Literal["user", "assistant"]
RUN = re.compile(r"([dt])(\d+)")
ORIGINS: dict[str, Origin] = {"d": "draft", "t": "target"}
MAX_TITLE = 60


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``runs`` says who wrote an answer: ``d4,t12`` is 4 drafted characters, then 12 others.

    ``figures`` are an answer's numbers as plain data. An answer that is being written is not finished; found
    so later, it was interrupted.
    """

    id: str
    parent: str | None
    role: Role
    text: str
    runs: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    is_finished: bool = True
    created_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation. ``messages`` are in the order of writing, so a parent comes before its children.

    ``version`` counts the changes; a writer that knows an older one is refused.
    """

    id: str
    title: str
    messages: tuple[Message, ...] = ()
    active: str | None = None
    system_prompt: str = ""
    is_pinned: bool = False
    tags: tuple[str, ...] = ()
    created_s: float = 0.0
    updated_s: float = 0.0
    version: int = 1

    @property
    def path(self) -> tuple[Message, ...]:
        """The messages from the root to the active leaf."""
        return self.path_to(self.active)

    def path_to(self, message_id: str | None) -> tuple[Message, ...]:
        """The messages from the root to ``message_id``; none for None."""
        by_id = {message.id: message for message in self.messages}
        path: list[Message] = []
        while message_id is not None:
            path.append(by_id[message_id])
            message_id = path[-1].parent
        return tuple(reversed(path))

    def versions(self, message: Message) -> tuple[Message, ...]:
        """The message and its siblings: what was written in its place."""
        return tuple(other for other in self.messages if other.parent == message.parent)

    def newest_leaf(self, message_id: str) -> str:
        """The leaf that is reached from a message by always taking the newest child."""
        newest = {message.parent: message.id for message in self.messages}
        while message_id in newest:
            message_id = newest[message_id]
        return message_id

    def below(self, message_id: str) -> frozenset[str]:
        """A message and everything that answers it."""
        found = {message_id}
        for message in self.messages:
            if message.parent in found:
                found.add(message.id)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation in a list; ``snippet`` and ``message`` say where a search found its words."""

    id: str
    title: str
    updated_s: float
    is_pinned: bool = False
    tags: tuple[str, ...] = ()
    snippet: str = ""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """A system prompt with a name, and answer settings if it has any."""

    name: str
    system_prompt: str
    settings: dict[str, Any] = field(default_factory=dict)


def title_of(text: str) -> str:
    """A title from the first message: its first words.

    Example: ``"Explain   recursion\\nplease"`` gives ``"Explain recursion please"``.
    """
    words = " ".join(text.split())
    if len(words) <= MAX_TITLE:
        return words or "New chat"
    return words[:MAX_TITLE].rsplit(" ", 1)[0] + "…"


def runs_of(spans: Iterable[Span]) -> str:
    """Spans as runs: ``(draft 4, target 12)`` is ``d4,t12``. Lengths are code points."""
    return ",".join(f"{span.origin[0]}{span.n_chars}" for span in spans)


def spans_of(runs: str) -> tuple[Span, ...]:
    """The inverse of :func:`runs_of`."""
    return tuple(Span(ORIGINS[sign], int(size)) for sign, size in RUN.findall(runs))


__all__ = [
    "Conversation",
    "Message",
    "Preset",
    "Role",
    "Summary",
    "runs_of",
    "spans_of",
    "title_of",
]
