"""The app without a browser: escaping, runs, settings, rooms, pump, handlers, headers."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.errors import ConfigError, DownloadError
from eagle_core.events import DownloadProgress, Event, LoadProgress, Span
from eagle_core.history import Message, SqliteHistory
from eagle_core.history.figures import figures_of
from eagle_core.stats import Stats
from eagle_core.transcript import SeenToken, Transcript
from eagle_core.ui import controls, page, render, view
from eagle_core.ui.app import free_port
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.controls import read_settings
from eagle_core.ui.handlers import Handlers
from eagle_core.ui.markdown import safe_markdown, unescaped
from eagle_core.ui.pace import FASTEST_S, SLOWEST_S, Pace, Paces, QuietBlocks
from eagle_core.ui.pump import Pump
from eagle_core.ui.rooms import MAX_ROOMS, Rooms, Turn, messages_of
from tests.support.fake_session import FakeSession

TREE = TreeConfig()
# Top-k, min-p, three penalties, shortest answer, biases, stop strings, rule, replacement.
ADVANCED = (0, 0.0, 1.0, 0.0, 0.0, 0, "", "", "auto", False)
DEFAULTS = (
    True, 0.0, 1.0, 0, 512, "", TREE.policy, TREE.depth, TREE.branching, TREE.size, TREE.lookup, "",
    *ADVANCED, "drop",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a < b and c > d", "a < b and c > d"),
        ("<b>x</b>", "&lt;b>x&lt;/b>"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
        ("`<b>` <i>", "`<b>` &lt;i>"),
        ("``a ` <b>`` <i>", "``a ` <b>`` &lt;i>"),
        ("`open <b>", "`open &lt;b>"),
        ("```html\n<b>\n```\n<i>", "```html\n<b>\n```\n&lt;i>"),
        ("```\n<b>", "```\n<b>"),
        ("~~~\n<b>\n```\n<i>\n~~~\n<u>", "~~~\n<b>\n```\n<i>\n~~~\n&lt;u>"),
        ("- item\n  ```c\n  #include <a.h>\n  ```\n", "- item\n  ```c\n  #include <a.h>\n  ```\n"),
        ("> ```\n> <b>\n<i>", "> ```\n> <b>\n&lt;i>"),
        ("text\n\n    <b>\n", "text\n\n    <b>\n"),
        ("text\n    <b>\n", "text\n    &lt;b>\n"),
        ("![a](http://x/y.png)", "&#33;[a](http://x/y.png)"),
        ("`![a](u)`", "`![a](u)`"),
        (r"\<b>", r"\<b>"),
        ("```mermaid\ngraph TD\n```", "```text\ngraph TD\n```"),
        ("> - ~~~ Mermaid\n> x", "> - ~~~ text\n> x"),
        ("the word mermaid", "the word mermaid"),
        (r"\\<b>", r"\\&lt;b>"),
        ("<!-- x -->", "&lt;!-- x -->"),
        ("$$a<b$$ <b>", "$$a< b$$ &lt;b>"),
        ("- ```\n<img src=x>\n```\n`<b>`", "- ```\n&lt;img src=x>\n```\n`<b>`"),
        ("- a\n\n  ```\n  <b>\n\n  <i>\n  ```\n<u>", "- a\n\n  ```\n  <b>\n\n  <i>\n  ```\n&lt;u>"),
        ("text\n    ```\n<b>", "text\n    ```\n&lt;b>"),
        ("", ""),
        ("\tx\n\n", "\tx\n\n"),
    ],
)
def test_safe_markdown(text: str, safe: str) -> None:
    assert safe_markdown(text) == safe


def test_escaping_can_be_undone() -> None:
    text = "see <b> and ![a](u)"
    assert unescaped(safe_markdown(text)) == text


def test_runs_count_utf16_units() -> None:
    spans = (Span("draft", 2), Span("target", 1))
    assert render.utf16_runs("a😀b", spans) == "d3,t1"
    assert render.utf16_runs("abc", spans) == "d2,t1"


def test_token_lines_only_grow() -> None:
    lines = render.TokenLines(lambda token_id: f"<{token_id}>\n")
    one = SeenToken(1, "target", 0, 0.5, 0)
    two = SeenToken(2, "draft", 1, 0.123456, 1, 4, 0.98765)
    first = lines.update((one,))
    second = lines.update((one, two))
    assert second.startswith(first)
    assert [json.loads(line) for line in second.splitlines()] == [
        [1, "t", 0, 0, 0.5, "<1>\n", None, None],
        [2, "d", 1, 1, 0.1235, "<2>\n", 4, 0.9877],
    ]


def test_settings_default_to_the_configs() -> None:
    settings = read_settings(DEFAULTS)
    assert settings.generation == GenerationConfig()
    assert settings.draft == DraftConfig()
    assert settings.system_prompt == ""


def test_settings_are_read() -> None:
    shown = (False, 0.7, 0.9, 3, 64, "Be brief.", "static", 2, 3, 9, 5, "0 1 00", *ADVANCED, "stop")
    settings = read_settings(shown)
    assert settings.generation == GenerationConfig(64, 0.7, 0.9, 3)
    assert settings.draft == DraftConfig(
        "none", TreeConfig("static", 2, 3, 9, ((0,), (1,), (0, 0)), 5)
    )
    assert settings.system_prompt == "Be brief."
    assert settings.overflow == "stop"


def test_advanced_settings_are_read() -> None:
    advanced = (40, 0.05, 1.2, 0.5, -0.5, 8, "7:-5 3:2.5", "END\n\\n\\n\n", "sampling", True)
    assert read_settings((*DEFAULTS[:-11], *advanced, "drop")).generation == GenerationConfig(
        top_k=40, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.5,
        min_new_tokens=8, logit_bias={7: -5, 3: 2.5}, stop=("END", "\n\n"), rule="sampling",
        with_replacement=True,
    )  # fmt: skip


def test_every_answer_setting_has_a_control() -> None:
    fields = {*controls.GENERATION_FIELDS, *controls.ADVANCED_FIELDS}
    specs = controls.specs(GenerationConfig)
    assert fields == set(specs)
    made = {name: controls.make_control(specs[name]) for name in controls.ADVANCED_FIELDS}
    assert [control.value for control in made.values()] == list(ADVANCED)
    assert all(control.label and control.info for control in made.values())


@pytest.mark.parametrize(
    ("position", "value", "word"),
    [(12, -1, "Top-k"), (15, None, "Presence"), (18, "7", "logit_bias"),
     (1, 9.0, "Temperature"), (3, None, "Seed"), (4, 0, "out of range"),
     (4, -5, "1 to 1000000"), (11, "0 x1", "x1"),
     (11, "0 11", "no parent")],
)  # fmt: skip
def test_wrong_settings_name_themselves(position: int, value: object, word: str) -> None:
    values = [*DEFAULTS]
    values[position] = value  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=word):
        read_settings(values)


@pytest.mark.parametrize(
    ("payload", "typed"),
    [(None, None), ("", None), ("x", None), (float("nan"), None), (True, None), (-5, -5), ("7", 7), (2.6, 3)],
)  # fmt: skip
def test_a_field_takes_what_is_typed(payload: object, typed: object) -> None:
    async def scenario() -> list[Any]:
        with QuietBlocks() as app:
            seed = controls.make_control(controls.specs(GenerationConfig)["seed"])
            depth = controls.make_control(controls.specs(TreeConfig)["depth"])
            gr.Button().click(lambda *_: None, [seed, gr.Textbox(), depth])
        (block_fn,) = app.fns.values()
        return await app.preprocess_data(block_fn, [payload, "x", payload], SessionState(app))

    assert asyncio.run(scenario()) == [typed, "x", typed]


def test_drafting_that_paused_itself_is_told() -> None:
    plain = replace(
        Transcript(), phase="finished", finish_reason="eos", drafter="eagle",
        tokens=(SeenToken(1, "target", 0, 0.5, 0), SeenToken(2, "target", 0, 0.5, 1)),
        stats=Stats(n_tokens=2, n_steps=1),
    )  # fmt: skip
    assert "Drafting paused: plain decoding was faster here." in render.details_html(plain)
    assert "drafting paused" in render.status_html(plain)
    off = replace(plain, drafter="none")
    assert "No drafting in this answer." in render.details_html(off)
    assert "paused" not in render.status_html(off)
    kept = figures_of(plain, "m", "float32", 0.0)
    shown = view.figures_view(Message("1", None, "assistant", "x", figures=kept))
    assert "drafting paused" in [part["value"] for part in shown["line"]]
    assert dict(shown["details"])["drafting"] == render.PAUSED


def test_a_wrong_number_is_a_notice() -> None:
    session = FakeSession()
    handlers = Handlers(SessionSlot(session), Rooms(lambda: SqliteHistory(None)))  # type: ignore[arg-type]
    values = (*DEFAULTS[:4], -5, *DEFAULTS[5:])
    request: Any = SimpleNamespace(session_hash="a")
    (updates,) = run(handlers.send("hi", request, *values))
    assert "Longest answer is out of range (expected 1 to 1000000; got -5)" in str(updates)
    assert session.seen == []


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
    assert "&lt;model&gt;: 5 of 10 MB" in html
    assert 'value="0.500"' in html
    slot._on_event(DownloadProgress("model", 5_000_000, None))
    assert slot.opening.share is None


def test_status_of_a_waiting_request() -> None:
    from eagle_core.events import Queued

    assert "Waiting: 1 request ahead" in render.status_html(Transcript().apply(Queued(1)))
    assert "Waiting: 3 requests ahead" in render.status_html(Transcript().apply(Queued(3)))


def test_notices_are_escaped() -> None:
    html = render.notice_html("error", "<img src=x>", "<b>")
    assert "<img" not in html
    assert "<b>&lt;img" in html


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


# ---- handlers, driven as the page drives them ------------------------------------------------------


def wait_for(is_true: Any, timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def tab(name: str) -> Any:
    return SimpleNamespace(session_hash=name)


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


def test_loading_is_polled_until_ready() -> None:
    slot = SessionSlot()
    handlers = Handlers(slot, Rooms(lambda: SqliteHistory(None)))
    frames = run(handlers.send("hi", tab("a"), *DEFAULTS))
    assert "still loading" in frames[0][4]
    assert handlers.poll_opening()[-1]["active"]
    assert "still loading" in handlers.set_reproducible(False)[1]
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


def luminance(color: tuple[float, float, float]) -> float:
    """WCAG's relative luminance of a color in 0..255."""
    parts = [c / 255 for c in color]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(text: str) -> tuple[float, float, float]:
    red, green, blue = (float(int(text[i : i + 2], 16)) for i in (1, 3, 5))
    return red, green, blue


@pytest.mark.parametrize(
    ("selector", "pages", "text"),
    [
        (r"^::highlight", ("#ffffff", "#f4f6fa", "#f1f5f9"), "#1f2937"),  # page and code, light
        (r"^\.dark ::highlight", ("#020617", "#0b1220", "#1e293b"), "#f1f5f9"),  # and dark
    ],
)
def test_drafted_text_is_told_by_more_than_its_hue(
    selector: str, pages: tuple[str, ...], text: str
) -> None:
    """WCAG: text 4.5 to 1 on its tint; the underline, which carries the meaning, 3 to 1."""
    style = page.text_of("tokens.css")
    rule = re.search(selector + r"\(eagle-draft\) \{(.*?)\}", style, re.MULTILINE | re.DOTALL)
    assert rule is not None
    *tint, alpha = (float(n) for n in re.findall(r"[\d.]+", rule[1].split("rgba")[1].split(")")[0]))
    # Not the shorthand: WebKit, which draws the desktop window, drops one that has a thickness.
    assert "text-decoration-line: underline;" in rule[1]
    underline = re.search(r"text-decoration-color: (#\w{6});", rule[1])
    assert underline is not None
    for ground in pages:
        mixed = [alpha * t + (1 - alpha) * g for t, g in zip(tint, rgb(ground), strict=True)]
        under = (mixed[0], mixed[1], mixed[2])
        assert contrast(rgb(text), under) >= 4.5
        assert contrast(rgb(underline[1]), rgb(ground)) >= 3
