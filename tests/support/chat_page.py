"""Drives the chat page without a browser, as the browser does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import gradio as gr

from eagle_core.config import TreeConfig
from eagle_core.history import SqliteHistory
from eagle_core.ui.actions import Actions
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.frames import Frame
from eagle_core.ui.handlers import Handlers
from eagle_core.ui.rooms import Rooms
from tests.support.fake_session import FakeSession

TREE = TreeConfig()
# Top-k, min-p, three penalties, shortest answer, biases, stop strings, rule, replacement.
ADVANCED = (0, 0.0, 1.0, 0.0, 0.0, 0, "", "", "auto", False)
DEFAULTS = (
    True, 0.0, 1.0, 0, 512, "", TREE.policy, TREE.depth, TREE.branching, TREE.size, TREE.lookup, "",
    *ADVANCED, "drop",
)  # fmt: skip
SYSTEM_PROMPT = 5  # place in the panel's values
MAX_NEW = 4


class Page:
    """One app and its tabs, driven as the browser drives it."""

    def __init__(self, session: FakeSession, store: SqliteHistory | None = None) -> None:
        self.session = session
        self.store = store or SqliteHistory(None)
        rooms = Rooms(lambda: self.store)
        self.handlers = Handlers(SessionSlot(session), rooms)  # type: ignore[arg-type]
        self.actions = Actions(self.handlers)

    def tab(self, name: str) -> Any:
        return SimpleNamespace(session_hash=name)

    def room(self, tab: str = "a") -> Any:
        return self.handlers.rooms.get(tab)

    def send(self, text: str, tab: str = "a", values: tuple[Any, ...] = DEFAULTS) -> Frame:
        return run(self.handlers.send(text, self.tab(tab), *values))[-1]

    def answer(
        self, do: str, message: str, tab: str = "a", values: tuple[Any, ...] = DEFAULTS, **data: Any
    ) -> Frame:
        event = gr.EventData(None, {"do": do, "message": message, **data})
        return run(self.handlers.answer(event, self.tab(tab), *values))[-1]

    def act(
        self, do: str, tab: str = "a", values: tuple[Any, ...] = DEFAULTS, **data: Any
    ) -> Frame:
        event = gr.EventData(None, {"do": do, **data})
        return frame_of(asyncio.run(self.actions.act(event, self.tab(tab), *values)))

    def texts(self, tab: str = "a") -> list[str]:
        return [turn.text for turn in self.room(tab).turns]


def frame_of(updates: tuple[Any, ...]) -> Frame:
    """The frame that made these updates: what was left out is None again."""
    is_left_out = [isinstance(u, dict) and u == {"__type__": "update"} for u in updates]
    parts = [None if out else update for out, update in zip(is_left_out, updates, strict=True)]
    return Frame(**dict(zip([spec.name for spec in fields(Frame)], parts, strict=True)))


async def collect(frames: AsyncIterator[tuple[Any, ...]]) -> list[Frame]:
    return [frame_of(updates) async for updates in frames]


def run(frames: AsyncIterator[tuple[Any, ...]]) -> list[Frame]:
    return asyncio.run(collect(frames))


def changed(position: int, value: Any) -> tuple[Any, ...]:
    return (*DEFAULTS[:position], value, *DEFAULTS[position + 1 :])


def tab(name: str) -> Any:
    return SimpleNamespace(session_hash=name)


def wait_for(is_true: Any, timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)
