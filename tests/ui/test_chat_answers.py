"""Answers without a browser: versions, edits, continuing, stopping, two tabs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import gradio as gr
import pytest

from eagle_core.errors import HistoryError
from eagle_core.history import Message
from eagle_core.ui.frames import Frame
from tests.support.chat_page import DEFAULTS, Page, frame_of, run
from tests.support.fake_session import FakeSession


def test_figures_name_the_precision_of_the_weights(page: Page) -> None:
    session = page.session
    session.info = dataclasses.replace(session.info, dtype="float32", quantization="int8")
    (_, shown) = page.send("q").state["turns"]
    assert "int8" in [part["value"] for part in shown["line"]]
    assert "float32" not in [part["value"] for part in shown["line"]]


def test_an_answer_is_kept_with_origins_and_figures(page: Page) -> None:
    frame = page.send("q")
    (summary,) = page.store.search()
    kept = page.store.load(summary.id)
    question, answer = kept.path
    assert (question.text, answer.text) == ("q", "first answer")
    assert answer.is_finished
    assert {"d", "t"} == {run[0] for run in answer.runs.split(",")}
    assert sum(int(run[1:]) for run in answer.runs.split(",")) == len(answer.text)
    assert answer.figures["finish_reason"] == "eos"
    assert answer.figures["n_drafted_tokens"] < answer.figures["n_tokens"]
    (shown,) = [turn for turn in frame.state["turns"] if turn["role"] == "assistant"]
    words = " ".join(f"{part['value']} {part['label']}" for part in shown["line"])
    for word in (
        "tok/s",
        "first token",
        "temperature 0.0",
        "τ",
        "drafted",
        "complete",
        "bfloat16",
        "seed 0",
    ):
        assert word in words
    assert dict(shown["details"])["model"] == "fake-135M"
    assert shown["counts"][0] == answer.figures["n_drafted_tokens"]
    assert frame.library["items"][0]["title"] == "q"
    assert frame.library["current"] == kept.id


def test_regenerate_makes_versions_that_can_be_turned(page: Page) -> None:
    page.send("q")
    page.session.answers["q"] = "second answer"
    question, first = page.room().conversation.path
    frame = page.answer("regenerate", first.id)
    assert page.texts() == ["q", "second answer"]
    turn = frame.state["turns"][1]
    assert (turn["version"], turn["n_versions"], turn["before"]) == (2, 2, first.id)
    assert page.session.seen[-1] == [{"role": "user", "content": "q"}]
    back = page.act("version", message=first.id)
    assert page.texts() == ["q", "first answer"]
    assert back.state["chat"] != frame.state["chat"]
    assert [row["content"][0]["text"] for row in back.chat] == page.texts()
    assert page.store.load(question.id and page.room().conversation.id).active == first.id


def test_each_version_has_a_seed_of_its_own(page: Page) -> None:
    warm = (True, 0.8, 1.0, 5, *DEFAULTS[4:])
    page.send("q", values=warm)
    for n_earlier in (1, 2):
        last = page.room().conversation.path[1]
        frame = page.answer("regenerate", last.id, values=warm)
        assert page.session.generations[-1][0].seed == 5 + n_earlier
        words = [part["value"] for part in frame.state["turns"][1]["line"]]
        assert f"seed {5 + n_earlier}" in words
        assert "same answer" not in frame.notice


def test_regenerating_at_temperature_0_is_explained_once(page: Page) -> None:
    page.send("q")
    answer = page.room().conversation.path[1]
    assert "the same settings give the same answer" in page.answer("regenerate", answer.id).notice
    assert page.answer("regenerate", answer.id).notice == ""
    assert {generation.seed for generation, _ in page.session.generations} == {0}


def test_edit_keeps_the_old_version_below_it(page: Page) -> None:
    page.send("q")
    page.send("more")
    question = page.room().conversation.path[0]
    page.answer("edit", question.id, text="other")
    assert page.texts() == ["other", "another answer"]
    page.act("version", message=question.id)
    assert page.texts() == ["q", "first answer", "more", "Hello!"]
    frame = page.answer("edit", question.id, text="  ")
    assert "needs some text" in frame.notice
    assert len(page.room().conversation.messages) == 6


def test_continue_goes_on_in_the_same_answer(page: Page) -> None:
    page.send("q")
    answer = page.room().conversation.path[1]
    frame = page.answer("continue", answer.id)
    assert page.texts() == ["q", "first answer And so on."]
    assert page.session.seen[-1][-1] == {"role": "assistant", "content": "first answer"}
    kept = page.store.load(page.room().conversation.id).path[1]
    assert kept.id == answer.id
    assert kept.runs.startswith(answer.runs.rsplit(",", 1)[0])
    assert sum(int(run[1:]) for run in kept.runs.split(",")) == len(kept.text)
    assert frame.channel["text"] == kept.text
    page.session.continued = ""
    page.answer("continue", answer.id)
    again = page.store.load(page.room().conversation.id).path[1]
    assert (again.text, again.is_finished) == (kept.text, True)
    page.send("more")
    assert "last answer" in page.answer("continue", answer.id).notice


def test_an_answer_edited_by_hand_is_a_version(page: Page) -> None:
    page.send("q")
    answer = page.room().conversation.path[1]
    page.act("edit-answer", message=answer.id, text="my own")
    assert page.texts() == ["q", "my own"]
    assert page.room().conversation.path[1].runs == ""
    page.send("next")
    assert page.session.seen[-1][1]["content"] == "my own"
    assert "needs some text" in page.act("edit-answer", message=answer.id, text=" ").notice


def test_delete_and_branch(page: Page) -> None:
    page.send("q")
    page.send("more")
    answer = page.room().conversation.path[1]
    original = page.room().conversation.id
    page.act("branch", message=answer.id)
    assert page.texts() == ["q", "first answer"]
    assert page.room().conversation.id != original
    assert len(page.store.search()) == 2
    page.act("open", chat=original)
    page.act("delete-message", message=page.room().conversation.path[2].id)
    assert page.texts() == ["q", "first answer"]
    frame = page.act("delete-message", message=page.room().conversation.path[0].id)
    assert frame.chat == []
    assert page.room().conversation is None
    assert len(page.store.search()) == 1


def test_a_request_that_writes_nothing_leaves_no_trace(page: Page) -> None:
    page.session.answers["silent"] = ""
    frame = page.send("silent")
    assert page.store.search() == []
    assert page.room().conversation is None
    assert frame.box["value"] == "silent"
    page.send("q")
    before = page.store.load(page.room().conversation.id).path
    page.send("silent")
    page.session.answers["q"] = ""
    page.answer("regenerate", before[0].id)
    page.answer("regenerate", before[1].id)
    after = page.store.load(page.room().conversation.id)
    assert after.path == before
    assert [m for m in after.messages if not m.text] == []


def test_stop_during_the_prefill_frees_the_engine() -> None:
    page = Page(FakeSession(default="never", prefill_s=20.0))

    async def scenario() -> tuple[list[Frame], float]:
        frames, stopped_s = [], 0.0
        async for updates in page.handlers.send("hi", page.tab("a"), *DEFAULTS):
            frames.append(frame_of(updates))
            if stopped_s == 0.0 and "Reading the prompt" in str(frames[-1].status):
                stopped_s = time.monotonic()
                await page.handlers.stop(page.tab("a"))
        return frames, stopped_s

    frames, stopped_s = asyncio.run(scenario())
    assert page.session.freed_at - stopped_s < 0.5
    assert "Stopped before the answer began" in frames[-1].notice
    assert frames[-1].box["value"] == "hi"
    assert page.store.search() == []


def test_another_chat_while_an_answer_streams_keeps_its_text() -> None:
    page = Page(FakeSession(default="word " * 300, step_s=0.02))

    async def scenario() -> list[Frame]:
        frames = []
        async for updates in page.handlers.send("hi", page.tab("a"), *DEFAULTS):
            frames.append(frame_of(updates))
            if len(frames) == 5:
                event = gr.EventData(None, {"do": "new"})
                await page.actions.act(event, page.tab("a"), *DEFAULTS)
        return frames

    frames = asyncio.run(scenario())
    assert frames[-1].chat == []
    assert frames[-1].state["turns"] == []
    assert frames[-1].box["submit_btn"]
    assert frames[-1].channel["chat"] == frames[-1].state["chat"]
    assert not page.room().is_busy
    (summary,) = page.store.search()
    answer = page.store.load(summary.id).path[1]
    assert answer.is_finished
    assert answer.figures["finish_reason"] == "cancelled"
    assert answer.text.startswith("word word")


def test_the_text_is_kept_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_core.ui.handlers.SAVE_S", 0.05)
    page = Page(FakeSession(default="word " * 200, step_s=0.02))

    async def scenario() -> tuple[Message, Any]:
        frames = page.handlers.send("hi", page.tab("a"), *DEFAULTS)
        for _ in range(12):
            await anext(frames)
        (summary,) = page.store.search()
        conversation = page.store.load(summary.id)
        # Another tab opens it meanwhile: it is told that somebody writes.
        event = gr.EventData(None, {"do": "open", "chat": summary.id})
        other = frame_of(await page.actions.act(event, page.tab("b"), *DEFAULTS))
        await frames.aclose()  # type: ignore[attr-defined]
        return conversation.path[1], other.state["turns"][1]

    partial, seen = asyncio.run(scenario())
    chat = page.room("b").conversation.id
    frame = page.act("refresh", tab="b", chat=chat)
    assert frame.state["turns"][1]["is_finished"]
    assert len(page.texts("b")[1]) > len(partial.text)
    assert page.act("refresh", tab="b", chat="other").state is None
    assert not partial.is_finished
    assert partial.text.startswith("word")
    assert seen["is_written"]
    (summary,) = page.store.search()
    assert page.store.load(summary.id).path[1].is_finished  # a closed tab keeps what has come


def test_the_tab_that_continues_an_answer_shows_neither_another_tab_nor_old_figures(
    page: Page,
) -> None:
    page.send("q")
    answer = page.room().conversation.path[1]
    event = gr.EventData(None, {"do": "continue", "message": answer.id})
    first, *_, last = run(page.handlers.answer(event, page.tab("a"), *DEFAULTS))
    growing, done = first.state["turns"][1], last.state["turns"][1]
    assert (growing["is_written"], growing["is_finished"], growing["line"]) == (False, True, [])
    assert (done["is_written"], done["is_finished"]) == (False, True)
    assert done["line"][0]["value"] == "continuation:"


def test_a_stale_tab_is_shown_what_happened(page: Page) -> None:
    page.send("q")
    chat = page.room().conversation.id
    page.act("open", tab="b", chat=chat)
    page.send("from a")
    frame = page.send("from b", tab="b")
    assert "changed in another tab" in frame.notice
    assert "nothing was overwritten" in frame.notice
    assert page.texts("b") == ["q", "first answer", "from a", "Hello!"]
    assert page.texts("a") == page.texts("b")
    page.send("from b", tab="b")
    assert page.texts("b")[-2:] == ["from b", "Hello!"]
    frame = page.act("delete-message", message=page.room("a").conversation.path[0].id)
    assert "changed in another tab" in frame.notice
    assert page.texts("a")[-1] == "Hello!"


def test_an_answer_that_cannot_be_kept_is_shown_all_the_same(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(message: Message) -> None:
        raise HistoryError("the disk is full", hint="free some space")

    monkeypatch.setattr(page.store, "fill", full)
    frame = page.send("q")
    assert "The disk is full" in frame.notice
    assert frame.chat[-1]["content"][0]["text"] == "first answer"

    def broken(query: str = "") -> Any:
        raise HistoryError("the chat history could not be used")

    monkeypatch.setattr(page.store, "search", broken)
    frame = page.answer("regenerate", page.room().conversation.path[1].id)
    assert frame.library is None
    assert frame.chat[-1]["content"][0]["text"] == "first answer"
    assert "could not be used" in page.act("search", query="x").notice
