"""Keeping conversations: the interface, and SQLite behind it.

Every change of a conversation's messages names the version that the writer saw. If another tab changed the
conversation meanwhile, the change is refused and nothing is lost. An answer that is being written belongs to
its writer alone, so filling it needs no version.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from eagle_core.errors import HistoryError, StaleConversation
from eagle_core.folders import data_folder
from eagle_core.history.records import Conversation, Message, Preset, Role, Summary, title_of
from eagle_core.history.schema import open_database
from eagle_core.history.words import holds, snippet_of, words_of

FILE_NAME = "history.sqlite3"
MAX_FOUND = 200
# The trigram index finds words of at least three characters.
MIN_INDEXED = 3


class HistoryStore(Protocol):
    """What the app needs of a place for conversations. See :class:`SqliteHistory` for the contract."""

    notice: str
    is_kept: bool

    def search(self, query: str = "") -> list[Summary]: ...

    def load(self, conversation_id: str) -> Conversation: ...

    def create(self, system_prompt: str = "", title: str = "") -> Conversation: ...

    def add(self, conversation: Conversation, keeps_id: bool = False) -> Conversation: ...

    def append(
        self, conversation: Conversation, parent: str | None, role: Role, text: str,
        is_finished: bool = True,
    ) -> Conversation: ...  # fmt: skip

    def fill(self, message: Message) -> None: ...

    def reopen(self, conversation: Conversation, message_id: str) -> Conversation: ...

    def select(self, conversation: Conversation, leaf: str) -> Conversation: ...

    def remove(
        self, conversation: Conversation, message_id: str, active: str | None = None
    ) -> Conversation: ...

    def branch(self, conversation: Conversation, message_id: str) -> Conversation: ...

    def describe(self, conversation_id: str, **changes: Any) -> None: ...

    def delete(self, conversation_id: str) -> None: ...

    def presets(self) -> list[Preset]: ...

    def save_preset(self, preset: Preset) -> None: ...

    def delete_preset(self, name: str) -> None: ...

    def close(self) -> None: ...


def open_history(path: Path | None = None) -> SqliteHistory:
    """The user's history; by default ``history.sqlite3`` in the data folder.

    Raises: HistoryError with what to do.
    """
    return SqliteHistory(path if path is not None else data_folder() / FILE_NAME)


class SqliteHistory:
    """Conversations in one SQLite file, or in memory alone for ``path`` None (a private chat).

    Safe to use from any thread, and by several processes at once. Every method that changes something is
    one transaction, and raises HistoryError when the database refuses. ``notice`` is what the user should
    know about opening the file; empty for nothing. ``is_kept`` is False where chats end with the program.
    """

    def __init__(self, path: Path | None) -> None:
        opened = open_database(path)
        self.path = path
        self.is_kept = path is not None
        self.notice = opened.notice
        self._has_index = opened.has_index
        self._connection = opened.connection
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def __del__(self) -> None:
        """A store in memory is dropped with its tab."""
        if hasattr(self, "_connection"):
            self._connection.close()

    # ---- reading -----------------------------------------------------------------------------------

    def search(self, query: str = "") -> list[Summary]:
        """All conversations, pinned ones first, then the latest; with a query those that hold all its words.

        Words match anywhere in a title, a tag or one message, whatever the case.
        """
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT * FROM conversations ORDER BY is_pinned DESC, updated_s DESC, rowid DESC"
            ).fetchall()
            words = words_of(query)
            found = self._found(words) if words else {}
        summaries = []
        for row in rows:
            named = f"{row['title']} {' '.join(json.loads(row['tags']))}"
            hit = found.get(row["id"])
            if words and hit is None and not holds(named, words):
                continue
            summaries.append(summary_of(row, hit, words))
        return summaries

    def load(self, conversation_id: str) -> Conversation:
        """One conversation.

        Raises: HistoryError when it is gone.
        """
        with self._reading() as connection:
            return self._load(connection, conversation_id)

    def presets(self) -> list[Preset]:
        """The user's own presets, by name."""
        with self._reading() as connection:
            rows = connection.execute("SELECT * FROM presets ORDER BY name").fetchall()
        return [Preset(r["name"], r["system_prompt"], json.loads(r["settings"])) for r in rows]

    # ---- writing -----------------------------------------------------------------------------------

    def create(self, system_prompt: str = "", title: str = "") -> Conversation:
        """A new, empty conversation."""
        return self.add(Conversation("", title, system_prompt=system_prompt))

    def add(self, conversation: Conversation, keeps_id: bool = False) -> Conversation:
        """Keep a copy under new ids, for an import or a branch. Times that are 0 become now.

        Args: keeps_id: the conversation comes back, under the id that it had; its messages get new ones.
        """
        now_s = time.time()
        ids = {message.id: new_id() for message in conversation.messages}
        copy_id = conversation.id if keeps_id else new_id()
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)",
                (
                    copy_id, conversation.title, conversation.system_prompt, conversation.is_pinned,
                    to_text(conversation.tags), ids.get(conversation.active or ""),
                    conversation.created_s or now_s, conversation.updated_s or now_s,
                ),
            )  # fmt: skip
            for message in conversation.messages:
                parent = ids[message.parent] if message.parent is not None else None
                insert(
                    connection,
                    copy_id,
                    dataclasses.replace(
                        message,
                        id=ids[message.id],
                        parent=parent,
                        created_s=message.created_s or now_s,
                    ),
                )
            return self._load(connection, copy_id)

    def append(
        self,
        conversation: Conversation,
        parent: str | None,
        role: Role,
        text: str,
        is_finished: bool = True,
    ) -> Conversation:
        """Write a message below ``parent``, a sibling of what is there; it becomes the active leaf.

        The first user message names a conversation that has no title.
        Raises: StaleConversation.
        """
        message = Message(new_id(), parent, role, text, "", {}, is_finished, time.time())
        with self._changing(conversation) as connection:
            insert(connection, conversation.id, message)
            set_active(connection, conversation.id, message.id)
            if not conversation.title and role == "user":
                connection.execute(
                    "UPDATE conversations SET title = ? WHERE id = ? AND title = ''",
                    (title_of(text), conversation.id),
                )
            return self._load(connection, conversation.id)

    def fill(self, message: Message) -> None:
        """Write an answer's text so far; only the one that began it does so.

        Raises: HistoryError when it was deleted, or is finished already.
        """
        with self._writing() as connection:
            changed = connection.execute(
                "UPDATE messages SET text = ?, runs = ?, figures = ?, is_finished = ? "
                "WHERE id = ? AND NOT is_finished",
                (
                    message.text, message.runs, to_text(message.figures), message.is_finished,
                    message.id,
                ),
            )  # fmt: skip
            if changed.rowcount != 1:
                raise HistoryError(
                    "the answer has no place in the history any more",
                    hint="its chat was deleted in another tab; copy the text if it matters",
                )

    def reopen(self, conversation: Conversation, message_id: str) -> Conversation:
        """Let a finished answer be filled again, to continue it.

        Raises: StaleConversation.
        """
        with self._changing(conversation) as connection:
            connection.execute("UPDATE messages SET is_finished = 0 WHERE id = ?", (message_id,))
            return self._load(connection, conversation.id)

    def select(self, conversation: Conversation, leaf: str) -> Conversation:
        """Bring another leaf into view.

        Raises: StaleConversation.
        """
        with self._changing(conversation, is_edit=False) as connection:
            set_active(connection, conversation.id, leaf)
            return self._load(connection, conversation.id)

    def remove(
        self, conversation: Conversation, message_id: str, active: str | None = None
    ) -> Conversation:
        """Delete a message and all that answers it.

        ``active`` comes into view; if None, what was in view, else a sibling, else the parent.
        Raises: StaleConversation.
        """
        gone = conversation.below(message_id)
        message = next(other for other in conversation.messages if other.id == message_id)
        if active is None and conversation.active not in gone:
            active = conversation.active
        if active is None:
            others = [other for other in conversation.versions(message) if other.id != message_id]
            active = conversation.newest_leaf(others[-1].id) if others else message.parent
        with self._changing(conversation) as connection:
            connection.execute("DELETE FROM messages WHERE id = ?", (message_id,))
            set_active(connection, conversation.id, active)
            return self._load(connection, conversation.id)

    def branch(self, conversation: Conversation, message_id: str) -> Conversation:
        """A new conversation with the messages up to ``message_id``."""
        path = conversation.path_to(message_id)
        return self.add(
            dataclasses.replace(
                conversation,
                title=f"{conversation.title} (branch)",
                messages=tuple(dataclasses.replace(m, is_finished=True) for m in path),
                active=message_id,
                is_pinned=False,
                created_s=0.0,
                updated_s=0.0,
            )
        )

    def describe(self, conversation_id: str, **changes: Any) -> None:
        """Set ``title``, ``is_pinned``, ``tags`` or ``system_prompt``.

        Raises: HistoryError when the conversation is gone.
        """
        allowed = {"title", "is_pinned", "tags", "system_prompt"}
        assert changes.keys() <= allowed, changes
        values = {k: to_text(v) if k == "tags" else v for k, v in changes.items()}
        columns = ", ".join(f"{name} = ?" for name in values)
        with self._writing() as connection:
            changed = connection.execute(
                f"UPDATE conversations SET {columns} WHERE id = ?",  # noqa: S608 - names from a fixed set
                (*values.values(), conversation_id),
            )
            if changed.rowcount != 1:
                raise gone_error()

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation; one that is gone already is no error."""
        with self._writing() as connection:
            connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))

    def save_preset(self, preset: Preset) -> None:
        """Keep a preset, in place of one of the same name."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO presets VALUES (?, ?, ?)",
                (preset.name, preset.system_prompt, to_text(preset.settings)),
            )

    def delete_preset(self, name: str) -> None:
        """Delete a preset."""
        with self._writing() as connection:
            connection.execute("DELETE FROM presets WHERE name = ?", (name,))

    # ---- inside ------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise database_error(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is written, or nothing."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _changing(
        self, conversation: Conversation, is_edit: bool = True
    ) -> Iterator[sqlite3.Connection]:
        """A transaction on the version of a conversation that the caller saw."""
        with self._writing() as connection:
            changed = connection.execute(
                "UPDATE conversations SET version = version + 1, "
                "updated_s = CASE WHEN ? THEN ? ELSE updated_s END WHERE id = ? AND version = ?",
                (is_edit, time.time(), conversation.id, conversation.version),
            )
            if changed.rowcount != 1:
                self._load(connection, conversation.id)
                raise StaleConversation(
                    "this chat was changed in another tab or window",
                    hint="It is shown as it is now, nothing was overwritten; send again if it still fits.",
                )
            yield connection

    def _load(self, connection: sqlite3.Connection, conversation_id: str) -> Conversation:
        row = connection.execute(
            "SELECT * FROM conversations WHERE id = ?", (conversation_id,)
        ).fetchone()
        if row is None:
            raise gone_error()
        messages = connection.execute(
            "SELECT * FROM messages WHERE conversation = ? ORDER BY number", (conversation_id,)
        )
        return Conversation(
            id=row["id"],
            title=row["title"],
            messages=tuple(message_of(message) for message in messages),
            active=row["active"],
            system_prompt=row["system_prompt"],
            is_pinned=bool(row["is_pinned"]),
            tags=tuple(json.loads(row["tags"])),
            created_s=row["created_s"],
            updated_s=row["updated_s"],
            version=row["version"],
        )

    def _found(self, words: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The first message of each conversation that holds all words: its id and text."""
        # A zero byte would end the index's query early.
        indexed = [word for word in words if len(word) >= MIN_INDEXED and "\0" not in word]
        if self._has_index and indexed:
            quoted = " AND ".join('"' + word.replace('"', '""') + '"' for word in indexed)
            rows = self._connection.execute(
                "SELECT m.* FROM words JOIN messages m ON m.number = words.rowid WHERE words MATCH ? "
                "ORDER BY m.number",
                (quoted,),
            )
        else:
            rows = self._connection.execute("SELECT * FROM messages ORDER BY number")
        found: dict[str, tuple[str, str]] = {}
        for row in rows:
            if row["conversation"] not in found and holds(row["text"], words):
                found[row["conversation"]] = (row["id"], row["text"])
                if len(found) == MAX_FOUND:
                    break
        return found


def new_id() -> str:
    """An id that no other message or conversation has."""
    return uuid.uuid4().hex


def to_text(value: Mapping[str, Any] | Sequence[str]) -> str:
    """Plain data as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def insert(connection: sqlite3.Connection, conversation_id: str, message: Message) -> None:
    """Write a new message."""
    connection.execute(
        "INSERT INTO messages (id, conversation, parent, role, text, runs, figures, is_finished, created_s) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            message.id, conversation_id, message.parent, message.role, message.text, message.runs,
            to_text(message.figures), message.is_finished, message.created_s,
        ),
    )  # fmt: skip


def set_active(connection: sqlite3.Connection, conversation_id: str, leaf: str | None) -> None:
    """Set the leaf in view."""
    connection.execute("UPDATE conversations SET active = ? WHERE id = ?", (leaf, conversation_id))


def message_of(row: sqlite3.Row) -> Message:
    """A message from its row."""
    return Message(
        id=row["id"],
        parent=row["parent"],
        role=row["role"],
        text=row["text"],
        runs=row["runs"],
        figures=json.loads(row["figures"]),
        is_finished=bool(row["is_finished"]),
        created_s=row["created_s"],
    )


def summary_of(row: sqlite3.Row, hit: tuple[str, str] | None, words: Sequence[str]) -> Summary:
    """A conversation's line in the list."""
    message, text = hit if hit is not None else (None, "")
    return Summary(
        id=row["id"],
        title=row["title"] or "New chat",
        updated_s=row["updated_s"],
        is_pinned=bool(row["is_pinned"]),
        tags=tuple(json.loads(row["tags"])),
        snippet=snippet_of(text, words[0]) if text else "",
        message=message,
    )


def gone_error() -> HistoryError:
    """The error for a conversation that was deleted."""
    return HistoryError(
        "this chat is not in the history any more",
        hint="it was deleted in another tab or window; choose another one, or start a new chat",
    )


def database_error(error: sqlite3.Error) -> HistoryError:
    """What the database refused, for the user."""
    is_full = "full" in str(error)
    return HistoryError(
        f"the chat history could not be used: {error}",
        hint="free some disk space, then try again"
        if is_full
        else "try again; if it stays so, restart the app",
    )


__all__ = ["FILE_NAME", "HistoryStore", "SqliteHistory", "open_history"]
