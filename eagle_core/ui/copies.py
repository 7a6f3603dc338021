"""Chats that are kept in the visitor's own browser, where strangers share the app: the server forgets them.

The server sends what changed; the browser keeps it, an entry per chat, and sends it all when the page loads.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping
from typing import Any

from eagle_core.errors import HistoryError
from eagle_core.history import HistoryStore, from_json, to_json

logger = logging.getLogger(__name__)

MAX_CHATS = 500
MAX_CHARS = 12_000_000  # a browser keeps about 5 million characters for one address
ID = re.compile(r"[0-9A-Za-z-]{8,64}")


class BrowserCopies:
    """What one tab's browser has of the tab's chats."""

    def __init__(self) -> None:
        self._sent: dict[str, str] = {}

    def changes(self, store: HistoryStore) -> dict[str, Any]:
        """What the browser has to write and to remove to have the store's chats. Raises: HistoryError."""
        now = {found.id: to_json([store.load(found.id)]) for found in store.search()}
        put = {key: text for key, text in now.items() if self._sent.get(key) != text}
        drop = [key for key in self._sent if key not in now]
        self._sent = now
        return {"put": put, "drop": drop}

    def restore(self, store: HistoryStore, kept: Any) -> int:
        """Take over what a browser sends; returns how many entries could not be read.

        A browser may send anything, so every entry is checked as a file from elsewhere is.
        """
        entries = kept if isinstance(kept, Mapping) else {}
        n_wrong = n_chars = 0
        for key, text in list(entries.items())[:MAX_CHATS]:
            n_chars += len(text) if isinstance(text, str) else 0
            if not isinstance(text, str) or not ID.fullmatch(str(key)) or n_chars > MAX_CHARS:
                n_wrong += 1
                continue
            try:
                (conversation,) = from_json(text)
                store.add(dataclasses.replace(conversation, id=key), keeps_id=True)
            except (HistoryError, ValueError):
                logger.debug("a chat from a browser could not be read")
                n_wrong += 1
                continue
            self._sent[key] = text
        return n_wrong


__all__ = ["BrowserCopies"]
