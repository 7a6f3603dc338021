"""The app without a browser: rooms, pump, the slot of the session, headers, pace."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from eagle_core.errors import DownloadError
from eagle_core.events import DownloadProgress, FileProgress, LoadProgress
from eagle_core.history import SqliteHistory
from eagle_core.ports import free_port
from eagle_core.ui import page, render
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.pace import FASTEST_S, SLOWEST_S, Pace, Paces, QuietBlocks
from eagle_core.ui.pump import Pump
from eagle_core.ui.rooms import MAX_ROOMS, Rooms, Turn, messages_of
from tests.support.chat_page import wait_for


def test_rooms_keep_tabs_apart_and_forget_the_oldest() -> None:
    rooms = Rooms(lambda: SqliteHistory(None))
    store = rooms.get("a").store
    rooms.get("a").conversation = store.append(store.create(), None, "user", "hello")
    assert rooms.get("a").turns == [Turn("user", "hello")]
    assert rooms.get("b").turns == []
    rooms.get("busy").cancel = threading.Event()
    for number in range(MAX_ROOMS):
        rooms.get(str(number))
    assert rooms.get("busy").is_busy
    assert rooms.get("a").turns == []


def test_system_prompt_comes_first() -> None:
    turns = [Turn("user", "hi")]
    assert messages_of(turns, "  ") == [{"role": "user", "content": "hi"}]
    assert messages_of(turns, "S")[0] == {"role": "system", "content": "S"}


def test_pump_turns_a_broken_stream_into_a_failure() -> None:
    pump = Pump(lambda: iter(()))
    pump.start()
    pump.join(5)
    assert pump.is_done
    assert pump.transcript.error is not None


def test_slot_says_why_opening_failed() -> None:
    slot = SessionSlot()

    def fail(on_event: Any) -> Any:
        on_event(DownloadProgress("model", 5_000_000, 10_000_000))
        on_event(LoadProgress("Converting"))
        raise DownloadError("the download failed", hint="Try again.")

    slot.open_in_background(fail)
    wait_for(lambda: slot.opening.has_failed)
    html = render.opening_html(slot.opening)
    assert "the download failed" in html
    assert "Try again." in html


def test_slot_shows_bytes() -> None:
    slot = SessionSlot()
    slot._on_event(DownloadProgress("<model>", 5_000_000, 10_000_000))
    html = render.opening_html(slot.opening)
    assert "&lt;model&gt;: 5.0 MB of 10.0 MB" in html
    assert 'value="0.500"' in html
    assert "50%" in html
    slot._on_event(FileProgress("unpacking", "model.gguf", 1_000_000, 4_000_000))
    assert slot.opening.message == "Unpacking model.gguf: 1.0 MB of 4.0 MB"
    assert slot.opening.share == 0.25
    slot._on_event(DownloadProgress("model", 5_000_000, None))
    assert slot.opening.share is None


def test_only_this_machine_is_answered() -> None:
    async def hello(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", hello)], middleware=page.middleware("127.0.0.1"))
    client = TestClient(app)
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    answer = client.get("/", headers={"host": "localhost:7860"})
    assert answer.status_code == 200
    assert "img-src 'self'" in answer.headers["content-security-policy"]


def test_a_busy_port_is_left_alone() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = taken.getsockname()[1]
        assert free_port("127.0.0.1", busy) not in (busy, 0)


def test_frames_are_fewer_when_they_take_long() -> None:
    pace = Pace()
    assert pace.next_s(0.0) == FASTEST_S
    assert pace.next_s(0.001) == FASTEST_S
    waits = [pace.next_s(0.03) for _ in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.2, rel=0.01)  # 30 ms are 15% of 200 ms
    assert [pace.next_s(1.0) for _ in range(20)][-1] == SLOWEST_S


def test_a_page_that_lags_gets_fewer_frames_and_recovers() -> None:
    paces = Paces()
    pace = paces.new()
    client = TestClient(Starlette(routes=[paces.route()]))
    assert client.post(f"/eagle/lag/{pace.key}").status_code == 204
    assert client.post("/eagle/lag/unknown").status_code == 204
    slower = pace.next_s(0.0)
    assert slower == pytest.approx(1.6 * FASTEST_S)
    assert FASTEST_S <= pace.next_s(0.0) < slower
    for _ in range(20):
        pace.slow_down()
    assert pace.next_s(0.0) == pytest.approx(8 * FASTEST_S)
    assert [pace.next_s(0.0) for _ in range(100)][-1] == FASTEST_S
    paces.drop(pace)
    client.post(f"/eagle/lag/{pace.key}")
    assert pace.next_s(0.0) == FASTEST_S


def test_a_skipped_output_is_not_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    update_config = SessionState._update_config

    def counted(self: SessionState, key: int) -> None:
        built.append("HTML")
        update_config(self, key)

    monkeypatch.setattr(SessionState, "_update_config", counted)

    async def scenario() -> None:
        with QuietBlocks() as app:
            outputs = [gr.HTML("a"), gr.HTML("b"), gr.HTML("c")]
            gr.Button().click(lambda: None, None, outputs)
        (block_fn,) = app.fns.values()
        built.clear()
        skip, change = gr.skip(), app.postprocess_data
        assert await change(block_fn, [skip, "new", skip], None) == [skip, "new", skip]
        assert await change(block_fn, [skip, skip, skip], None) == [skip, skip, skip]
        assert await change(block_fn, ["x", "y", "z"], None) == ["x", "y", "z"]
        assert built == []
        changed = await change(block_fn, [skip, gr.update(visible=False), "z"], None)
        assert changed[0] == skip
        assert changed[1]["visible"] is False
        assert changed[2] == "z"
        assert built == ["HTML"]

    asyncio.run(scenario())
