"""Conversations that are kept: a tree of messages per conversation, in SQLite, on this machine alone."""

from eagle_core.history.exchange import from_json, from_markdown, to_json, to_markdown
from eagle_core.history.records import (
    Conversation,
    Message,
    Preset,
    Role,
    Summary,
    runs_of,
    spans_of,
)
from eagle_core.history.store import HistoryStore, SqliteHistory, open_history
from eagle_core.history.words import parts_of, words_of

__all__ = [
    "Conversation",
    "HistoryStore",
    "Message",
    "Preset",
    "Role",
    "SqliteHistory",
    "Summary",
    "from_json",
    "from_markdown",
    "open_history",
    "parts_of",
    "runs_of",
    "spans_of",
    "to_json",
    "to_markdown",
    "words_of",
]
