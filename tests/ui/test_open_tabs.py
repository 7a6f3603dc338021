"""What an open tab costs, and how one that is gone is noticed, without a browser."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eagle_core.config import LoadConfig
from eagle_core.history import SqliteHistory
from eagle_core.ui.app import build_app
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.handlers import Handlers
from eagle_core.ui.rooms import Rooms
from tests.support.chat_page import DEFAULTS, tab, wait_for
from tests.support.fake_session import LONG, FakeSession

pytestmark = [
    pytest.mark.usefixtures("_gradio_cleans_up"),
    # Sockets and event loops that Gradio leaves to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N_ALL = 10**6


async def leave_after(frames: Any, n_frames: int) -> None:
    """Take some frames as Gradio does; then close as it does when the page is gone."""
    async for _ in frames:
        n_frames -= 1
        if not n_frames:
            break
    await frames.aclose()


def test_a_page_that_is_only_open_holds_no_connection() -> None:
    app = build_app(FakeSession(), SqliteHistory(None))  # type: ignore[arg-type]
    assert app.config["connect_heartbeat"] is False


def test_a_page_that_waits_for_its_turn_can_be_left() -> None:
    async def two_pages() -> None:
        writing = asyncio.create_task(
            leave_after(handlers.send("long", tab("a"), *DEFAULTS), N_ALL)
        )
        while not session.is_busy:
            await asyncio.sleep(0.01)
        # The first frame, "waiting", and two that say nothing.
        await leave_after(handlers.send("other", tab("b"), *DEFAULTS), 4)
        assert not handlers.rooms.get("b").is_busy
        assert session.is_busy, "the answer of the other page goes on"
        handlers.rooms.stop("a")
        await writing

    session = FakeSession({"long": LONG}, step_s=0.4)
    handlers = Handlers(SessionSlot(session), Rooms(lambda: SqliteHistory(None)))  # type: ignore[arg-type]
    asyncio.run(two_pages())
    wait_for(lambda: not session.is_busy)
    assert [seen[-1]["content"] for seen in session.seen] == ["long"]


def test_what_was_written_for_a_page_that_is_gone_is_kept_as_stopped() -> None:
    session = FakeSession({"long": LONG}, step_s=0.05)
    handlers = Handlers(SessionSlot(session), Rooms(lambda: SqliteHistory(None)))  # type: ignore[arg-type]
    asyncio.run(leave_after(handlers.send("long", tab("a"), *DEFAULTS), 6))
    assert not session.is_busy
    conversation = handlers.rooms.get("a").conversation
    assert conversation is not None
    answer = conversation.path[-1]
    assert answer.text
    assert LONG.startswith(answer.text)
    assert answer.is_finished
    assert answer.figures is not None
    assert answer.figures["finish_reason"] == "cancelled"


def test_a_page_that_waits_for_the_model_can_be_left() -> None:
    slot = SessionSlot()
    slot.config = LoadConfig()
    handlers = Handlers(slot, Rooms(lambda: SqliteHistory(None)))
    asyncio.run(leave_after(handlers.send("hi", tab("a"), *DEFAULTS), 3))
    room = handlers.rooms.get("a")
    assert not room.is_busy
    assert room.conversation is None, "a question that nobody waits for any more is not begun"
