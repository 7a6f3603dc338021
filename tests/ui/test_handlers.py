"""The page's handlers, driven as the page drives them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.errors import ModelNotFound
from eagle_core.events import Event
from eagle_core.history import SqliteHistory
from eagle_core.ui import render
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.handlers import Handlers
from eagle_core.ui.rooms import Rooms
from tests.support.chat_page import DEFAULTS, tab, wait_for
from tests.support.fake_session import FakeSession


def handlers_on(session: FakeSession) -> Handlers:
    return Handlers(SessionSlot(session), Rooms(lambda: SqliteHistory(None)))  # type: ignore[arg-type]


async def collect(frames: AsyncIterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [frame async for frame in frames]


def run(frames: AsyncIterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return asyncio.run(collect(frames))


def is_skip(value: Any) -> bool:
    return isinstance(value, dict) and value.get("__type__") == "update" and len(value) == 1


def test_an_answer_streams_and_is_kept() -> None:
    session = FakeSession(default="Some *text* with <b>.", step_s=0.05)
    handlers = handlers_on(session)
    frames = run(handlers.send("hi", tab("a"), *DEFAULTS))
    texts = [frame[0][-1]["content"][0]["text"] for frame in frames if not is_skip(frame[0])]
    assert len(texts) > 3
    assert texts[-1] == "Some *text* with &lt;b>."
    channel = frames[-1][1]
    assert channel["text"] == "Some *text* with <b>."
    assert channel["index"] == 0
    assert channel["is_over"]
    assert sum(int(run[1:]) for run in channel["runs"].split(",")) == len(channel["text"])
    room = handlers.rooms.get("a")
    assert [turn.role for turn in room.turns] == ["user", "assistant"]
    assert room.turns[1].text == "Some *text* with <b>."
    assert not room.is_busy
    run(handlers.send("more", tab("a"), *DEFAULTS))
    assert [message["content"] for message in session.seen[1]] == ["hi", room.turns[1].text, "more"]


def test_nothing_is_sent_for_an_empty_prompt() -> None:
    session = FakeSession()
    frames = run(handlers_on(session).send("  \n", tab("a"), *DEFAULTS))
    assert len(frames) == 1
    assert "Type a message first" in frames[0][4]
    assert session.seen == []


def test_a_prompt_that_is_too_long_comes_back() -> None:
    session = FakeSession()
    handlers = handlers_on(session)
    run(handlers.send("hi", tab("a"), *DEFAULTS))
    long = "x" * 5000
    last = run(handlers.send(long, tab("a"), *DEFAULTS))[-1]
    assert last[5]["value"] == long
    assert "the context holds" in last[4]
    assert "Shorten the message" in last[4]
    assert [turn.text for turn in handlers.rooms.get("a").turns] == ["hi", "Hello!"]


def test_wrong_settings_become_a_notice() -> None:
    session = FakeSession()
    frames = run(handlers_on(session).send("hi", tab("a"), *DEFAULTS[:11], "0 zz", *DEFAULTS[12:]))
    assert "zz" in frames[0][4]
    assert session.seen == []


def test_stop_keeps_the_text_and_frees_the_engine() -> None:
    session = FakeSession(default="word " * 400, step_s=0.02)
    handlers = handlers_on(session)

    async def scenario() -> tuple[list[Any], float]:
        frames, stopped_s = [], 0.0
        async for frame in handlers.send("hi", tab("a"), *DEFAULTS):
            frames.append(frame)
            if len(frames) == 6:
                stopped_s = time.monotonic()
                await handlers.stop(tab("a"))
        return frames, stopped_s

    frames, stopped_s = asyncio.run(scenario())
    assert session.freed_at - stopped_s < 0.5
    assert frames[-1][1]["footer"].endswith("stopped")
    turns = handlers.rooms.get("a").turns
    assert turns[-1].role == "assistant"
    assert 0 < len(turns[-1].text) < 2000


def test_a_closed_page_frees_the_engine() -> None:
    session = FakeSession(default="word " * 400, step_s=0.02)
    handlers = handlers_on(session)

    async def scenario() -> float:
        frames = handlers.send("hi", tab("a"), *DEFAULTS)
        for _ in range(5):
            await anext(frames)
        closed_s = time.monotonic()
        await frames.aclose()  # type: ignore[attr-defined]
        return closed_s

    closed_s = asyncio.run(scenario())
    wait_for(lambda: not session.is_busy)
    assert session.freed_at - closed_s < 0.5
    assert not handlers.rooms.get("a").is_busy


def test_tabs_wait_for_each_other_and_never_mix() -> None:
    session = FakeSession({"one": "first " * 30, "two": "second"}, step_s=0.01)
    handlers = handlers_on(session)

    async def scenario() -> list[list[tuple[Any, ...]]]:
        first = asyncio.create_task(collect(handlers.send("one", tab("a"), *DEFAULTS)))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(collect(handlers.send("two", tab("b"), *DEFAULTS)))
        return [await first, await second]

    _, second = asyncio.run(scenario())
    statuses = [frame[2] for frame in second if isinstance(frame[2], str)]
    assert any("Waiting: 1 request ahead" in status for status in statuses)
    assert [turn.text for turn in handlers.rooms.get("a").turns] == ["one", "first " * 30]
    assert [turn.text for turn in handlers.rooms.get("b").turns] == ["two", "second"]
    assert [len(seen) for seen in session.seen] == [1, 1]


def test_a_second_send_in_one_tab_waits_for_the_user() -> None:
    session = FakeSession(default="word " * 100, step_s=0.02)
    handlers = handlers_on(session)

    async def scenario() -> list[tuple[Any, ...]]:
        first = asyncio.create_task(collect(handlers.send("one", tab("a"), *DEFAULTS)))
        await asyncio.sleep(0.1)
        second = await collect(handlers.send("two", tab("a"), *DEFAULTS))
        await handlers.stop(tab("a"))
        await first
        return second

    second = asyncio.run(scenario())
    assert len(second) == 1
    assert "An answer is in progress" in second[0][4]


def test_details_show_depths_and_times() -> None:
    session = FakeSession(default="word " * 30)
    last = run(handlers_on(session).send("hi", tab("a"), *DEFAULTS))[-1]
    assert "depth 2" in last[3]
    assert "prefill" in last[3]
    assert "4096" in last[3]
    for name, meaning in (render.PARTS | render.FACTS).items():
        assert f'title="{meaning}"' in last[3], name
    assert last[3].count(f'title="{render.BY_DEPTH}"') == last[3].count(">depth ")


def test_what_is_sent_while_the_model_loads_is_answered_when_it_is_there() -> None:
    slot = SessionSlot()
    handlers = Handlers(slot, Rooms(lambda: SqliteHistory(None)))

    async def scenario() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        first = asyncio.create_task(collect(handlers.send("one", tab("a"), *DEFAULTS)))
        await asyncio.sleep(0.1)
        second = await collect(handlers.send("two", tab("a"), *DEFAULTS))
        assert not first.done()
        slot.session = FakeSession(default="Here it is.")  # type: ignore[assignment]
        return await first, second

    frames, refused = asyncio.run(scenario())
    assert "Loading the model" in frames[0][4]
    assert frames[0][5]["stop_btn"]
    assert "Here it is." in str(frames[-1][0])
    assert "An answer is in progress" in refused[0][4]


def test_a_message_that_waits_for_the_model_can_be_stopped() -> None:
    handlers = Handlers(SessionSlot(), Rooms(lambda: SqliteHistory(None)))

    async def scenario() -> list[tuple[Any, ...]]:
        waiting = asyncio.create_task(collect(handlers.send("one", tab("a"), *DEFAULTS)))
        await asyncio.sleep(0.1)
        await handlers.stop(tab("a"))
        return await waiting

    frames = asyncio.run(scenario())
    assert "Stopped before the answer began" in frames[-1][4]
    assert frames[-1][5]["submit_btn"]
    assert not handlers.rooms.is_busy


def test_a_message_that_waits_is_told_why_the_model_does_not_come() -> None:
    slot = SessionSlot()
    handlers = Handlers(slot, Rooms(lambda: SqliteHistory(None)))

    def fail(_: Any) -> Any:
        time.sleep(0.2)
        raise ModelNotFound("the model is not there", hint="look for it elsewhere")

    async def scenario() -> list[tuple[Any, ...]]:
        slot.open_in_background(fail)
        return await collect(handlers.send("one", tab("a"), *DEFAULTS))

    frames = asyncio.run(scenario())
    assert "the model is not there" in frames[-1][4]
    assert "look for it elsewhere" in frames[-1][4]
    assert not handlers.rooms.is_busy


def test_loading_is_polled_until_ready() -> None:
    slot = SessionSlot()
    handlers = Handlers(slot, Rooms(lambda: SqliteHistory(None)))
    assert handlers.poll_opening()[-1]["active"]
    assert "Loading the model" in handlers.set_reproducible(False)[1]
    slot.session = FakeSession()  # type: ignore[assignment]
    assert "answers may part" in handlers.set_reproducible(False)[0]
    header, _, status, box, switch, timer = handlers.poll_opening()
    assert switch["value"] is False
    assert switch["interactive"]
    assert "Ready" in status
    assert "fake-135M" in header
    assert "a row can round differently" in header
    assert box["interactive"]
    assert not timer["active"]
    assert handlers.set_reproducible(True)[1] == ""


def test_events_type_is_complete() -> None:
    session = FakeSession()
    events: list[Event] = list(
        session.chat([{"role": "user", "content": "hi"}], GenerationConfig(), DraftConfig())
    )
    assert type(events[0]).__name__ == "Started"
    assert type(events[-1]).__name__ == "Finished"
