"""The chat page without a browser: versions, branches, files, list, context, presets, private chats."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from eagle_core.config import GenerationConfig
from eagle_core.errors import ConfigError, HistoryError
from eagle_core.history import Conversation, Message, Preset, SqliteHistory, Summary, from_json
from eagle_core.ui import presets, view
from eagle_core.ui.actions import Actions, file_name
from eagle_core.ui.app import stores
from eagle_core.ui.attachments import MAX_FILE_BYTES, read_attachment, with_attachments
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.controls import read_settings
from eagle_core.ui.frames import Frame
from eagle_core.ui.handlers import Handlers
from eagle_core.ui.rooms import Rooms
from tests.support.fake_session import FakeSession
from tests.ui.test_ui_units import DEFAULTS

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


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(FakeSession({"q": "first answer", "other": "another answer"}, step_s=0.0))
    yield made
    made.store.close()


# ---- answers ---------------------------------------------------------------------------------------


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


# ---- the context -----------------------------------------------------------------------------------


def test_the_oldest_turns_are_left_out_visibly() -> None:
    page = Page(FakeSession(default="word " * 60, step_s=0.0, context_length=400))
    values = changed(MAX_NEW, 100)
    for number in range(7):
        frame = page.send(f"question {number}", values=values)
    sent = page.session.seen[-1]
    assert sent[-1]["content"] == "question 6"
    assert 1 < len(sent) < 13
    assert sent[0]["role"] == "user"
    flags = [turn["is_sent"] for turn in frame.state["turns"]]
    assert flags[0] is False
    assert flags[-1] is True
    assert frame.state["meter"]["n_left_out"] == flags.count(False)
    assert sum(n for _, n in frame.state["meter"]["parts"]) <= 400
    stop = (*values[:-1], "stop")
    n_requests = len(page.session.seen)
    frame = page.send("one more", values=stop)
    assert "no longer fits the context" in frame.notice
    assert len(page.session.seen) == n_requests
    assert page.texts()[-1].startswith("word")


def test_the_meter_counts_the_system_prompt(page: Page) -> None:
    empty = page.act("measure").state["meter"]
    assert empty["used"] == 0
    full = page.act("measure", values=changed(SYSTEM_PROMPT, "x" * 14000)).state["meter"]
    assert full["used"] == 4 + 3500
    assert full["level"] in ("high", "full")
    assert dict(map(tuple, full["parts"]))["system prompt"] == full["used"]


# ---- files -----------------------------------------------------------------------------------------


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_a_file_goes_into_the_message(page: Page) -> None:
    frame = page.act("attach", name="dir/a.py", content=encoded(b"print('``` and ````')\r\n"))
    assert frame.state["attachments"] == [{"name": "a.py", "n_bytes": 22}]
    page.act("attach", name="b.md", content=encoded("# Ü".encode("utf-16")))
    page.act("detach", index=1)
    frame = page.send("What does it do?")
    assert frame.state["attachments"] == []
    content = page.session.seen[-1][-1]["content"]
    assert content == "`a.py`:\n\n`````python\nprint('``` and ````')\n`````\n\nWhat does it do?"
    assert page.texts()[0] == content
    assert page.store.search()[0].title == "What does it do?"


def test_files_come_back_with_a_message_that_was_not_answered(page: Page) -> None:
    page.act("attach", name="a.txt", content=encoded(b"x" * 3000))
    frame = page.send("too long")
    assert frame.box["value"] == "too long"
    assert [file["name"] for file in frame.state["attachments"]] == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\x00\x00", "not a text file"),
        ("a.txt", b"abc\x00def", "not a text file"),
        ("a.txt", b"caf\xe9", "not a text file"),
        ("a.txt", b" \n", "is empty"),
        ("a.txt", b"x" * (MAX_FILE_BYTES + 1), "too large"),
    ],
)
def test_a_wrong_file_is_refused(page: Page, name: str, content: bytes, words: str) -> None:
    frame = page.act("attach", name=name, content=encoded(content))
    assert words in frame.notice
    assert f"The file {name} " in frame.notice
    assert "<span>" in frame.notice  # the next step
    assert page.room().attachments == []


def test_a_file_that_the_browser_did_not_read() -> None:
    with pytest.raises(ConfigError, match="at most 256 kB"):
        read_attachment("big.bin", "", 5_000_000)
    with pytest.raises(ConfigError, match="damaged"):
        read_attachment("a.txt", "no base64!")
    assert read_attachment("<b>`.txt", encoded(b"x")).name == "_b__.txt"
    assert with_attachments("hi", []) == "hi"


def test_there_is_a_limit_of_files(page: Page) -> None:
    for _ in range(8):
        page.act("attach", name="a.txt", content=encoded(b"x"))
    assert "attached already" in page.act("attach", name="a.txt", content=encoded(b"x")).notice


# ---- the list --------------------------------------------------------------------------------------


def test_the_list_can_be_searched_and_ordered(page: Page) -> None:
    page.send("q")
    first = page.room().conversation.id
    page.act("new")
    assert page.room().conversation is None
    page.send("other")
    second = page.room().conversation.id
    items = page.act("pin", chat=first, is_on=True).library["items"]
    assert [item["id"] for item in items] == [first, second]
    assert items[0]["group"] == "Pinned"
    assert items[1]["group"] == "Today"
    items = page.act("rename", chat=first, title="  A\n better   name ").library["items"]
    assert items[0]["title"] == "A better name"
    items = page.act("tags", chat=second, tags="work, , idea,work").library["items"]
    assert items[1]["tags"] == ["work", "idea"]
    found = page.act("search", query="another").library["items"]
    assert [item["id"] for item in found] == [second]
    assert "another answer" in found[0]["snippet"]
    page.act("search", query="")
    opened = page.act("open", chat=first)
    assert opened.system_prompt == ""
    assert page.texts() == ["q", "first answer"]
    deleted = page.act("delete", chat=first)
    assert deleted.chat == []
    assert [item["id"] for item in deleted.library["items"]] == [second]
    assert "not in the history" in page.act("open", chat=first).notice


def test_a_hit_in_another_branch_is_brought_into_view(page: Page) -> None:
    page.send("q")
    first = page.room().conversation.path[1]
    page.session.answers["q"] = "second one"
    page.answer("regenerate", first.id)
    page.act("new")
    (hit,) = page.act("search", query="first").library["items"]
    page.act("open", chat=hit["id"], message=hit["message"])
    assert page.texts() == ["q", "first answer"]


def test_a_long_list_is_cut() -> None:
    store = SqliteHistory(None)
    room = Rooms(lambda: store).get("a")
    found = [Summary(str(number), "t", 0.0) for number in range(view.MAX_LISTED + 3)]
    listed = view.library_state(room, found)
    assert (len(listed["items"]), listed["n_more"]) == (view.MAX_LISTED, 3)
    assert not listed["is_kept"]


def test_days_have_names() -> None:
    now_s = time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1))
    hour = 3600
    names = {0: "Today", 13: "Yesterday", 24 * 3: "Last 7 days", 24 * 40: "January 2026"}
    for hours, name in names.items():
        assert view.group_of(Summary("1", "t", now_s - hours * hour), now_s) == name
    assert view.group_of(Summary("1", "t", now_s, is_pinned=True), now_s) == "Pinned"


def test_export_and_import(page: Page) -> None:
    page.send("q", values=changed(SYSTEM_PROMPT, "Be kind."))
    chat = page.room().conversation
    download = page.act("export", chat=chat.id, format="json").library["download"]
    assert download["name"] == "q.json"
    (read,) = from_json(download["text"])
    assert read.path[1].runs == chat.path[1].runs
    markdown = page.act("export", chat=chat.id, format="md").library["download"]
    assert markdown["name"] == "q.md"
    frame = page.act("import", name="q.md", text=markdown["text"])
    assert "1 chat was imported" in frame.notice
    assert frame.system_prompt == "Be kind."
    assert page.texts() == ["q", "first answer"]
    page.act("import", name="x.json", text=page.act("export-all").library["download"]["text"])
    assert len(page.store.search()) == 4
    frame = page.act("import", name="x.json", text="{}")
    assert "no chat that can be imported" in frame.notice
    assert len(page.store.search()) == 4
    page.act("new")
    assert "no chat to export" in page.act("export").notice


def test_figures_of_an_imported_file_are_only_shown(page: Page) -> None:
    figures: dict[str, Any] = {
        "tau": "<b>", "ttft_s": True, "n_tokens": [1], "model": "<img src=x>" * 20, "n_steps": None,
        "acceptance_at_depth": {"a": 1}, "finish_reason": 7, "decode_tok_s": 12.34,
    }  # fmt: skip
    shown = view.figures_view(Message("1", None, "assistant", "x", figures=figures))
    assert shown["line"][0]["value"] == "12.3"
    assert shown["line"][2]["value"] == "–"
    assert shown["counts"] == [0, 0]
    assert all(len(value) <= 80 for _, value in shown["details"])
    json.dumps(shown)


@pytest.mark.parametrize(
    ("n_cached", "is_shown"), [(0, True), (68, True), (69, False), (None, False)]
)
def test_a_prefill_rate_needs_enough_tokens(n_cached: int | None, is_shown: bool) -> None:
    figures = {"n_prompt_tokens": 100, "n_cached_tokens": n_cached, "prefill_tok_s": 400.0}
    shown = view.figures_view(Message("1", None, "assistant", "x", figures=figures))
    assert ("tok/s prefill" in [part["label"] for part in shown["line"]]) is is_shown
    assert shown["line"][0]["value"] != "continuation:"


def test_a_private_chat_leaves_no_trace(page: Page, tmp_path: Path) -> None:
    page.send("q")
    frame = page.act("private", is_on=True)
    assert frame.state["is_private"]
    assert frame.chat == []
    page.send("secret")
    page.send("other")
    assert page.texts()[0] == "secret"
    assert page.store.search("secret") == []
    assert len(page.store.search()) == 1
    download = page.act("export", format="md").library["download"]
    assert "secret" in download["text"]
    frame = page.act("private", is_on=False)
    assert not frame.state["is_private"]
    assert page.room().conversation is None
    page.act("private", is_on=True)
    page.act("open", chat=page.store.search()[0].id)
    assert page.room().private is None


def test_a_reloaded_tab_shows_its_chat_again(page: Page) -> None:
    page.send("q")
    chat = page.room().conversation.id
    frame = page.act("start", tab="reloaded", chat=chat)
    assert [row["content"][0]["text"] for row in frame.chat] == ["q", "first answer"]
    frame = page.act("start", tab="fresh")
    assert frame.chat is None
    assert len(frame.library["items"]) == 1
    page.store.delete(chat)
    assert page.act("start", tab="third", chat=chat).library["items"] == []


def test_a_set_aside_history_is_told_on_every_page(page: Page) -> None:
    page.store.notice = "The chat history could not be read."
    assert "could not be read" in page.act("start").notice


def test_unknown_actions_and_messages(page: Page) -> None:
    assert "unknown" in page.act("format-disk").notice
    assert "not there any more" in page.act("branch", message="x").notice
    assert "not there any more" in page.answer("regenerate", "x").notice


def test_messages_rest_while_an_answer_is_written(page: Page) -> None:
    page.send("q")
    page.room().cancel = threading.Event()
    frame = page.act("delete-message", message=page.room().conversation.path[0].id)
    assert "in progress" in frame.notice
    assert page.texts() == ["q", "first answer"]


def test_names_of_files() -> None:
    assert file_name("What is <b>?") == "What-is-b"
    assert file_name("../../x") == "x"
    assert file_name("///") == "chat"


# ---- presets ---------------------------------------------------------------------------------------


def test_presets_are_kept_and_chosen(page: Page) -> None:
    values = changed(SYSTEM_PROMPT, "Arr.")
    values = (*values[:1], 0.7, *values[2:])
    choices, notice = page.actions.save_preset("Pirate", page.tab("a"), *values)
    assert "Pirate" in choices["choices"]
    assert "is kept" in notice
    assert page.store.presets() == [Preset("Pirate", "Arr.", {"temperature": 0.7})]
    prompt, temperature, *rest = page.actions.choose_preset("Pirate", page.tab("a"))
    assert (prompt, temperature) == ("Arr.", 0.7)
    assert all(value == gr.skip() for value in rest)
    assert page.actions.choose_preset("nobody", page.tab("a"))[0] == gr.skip()
    assert "no name" in page.actions.save_preset(" ", page.tab("a"), *values)[1]
    assert "of your own" in page.actions.delete_preset("Concise", page.tab("a"))[1]
    choices, _ = page.actions.delete_preset("Pirate", page.tab("a"))
    assert choices["value"] == presets.NO_PRESET
    assert page.actions.list_presets(page.tab("a"))["choices"] == presets.names_of(presets.BUILT_IN)


def test_built_in_presets_are_valid() -> None:
    names = presets.names_of(presets.BUILT_IN)
    assert len(set(names)) == len(names) >= 5
    for preset in presets.BUILT_IN:
        assert presets.kept_settings(preset.settings) == preset.settings
    assert presets.kept_settings({"temperature": 99, "seed": 3, "top_p": 0.5}) == {"top_p": 0.5}
    preset = presets.preset_from("  my \n own ", "x", GenerationConfig(top_k=4, seed=7))
    assert preset == Preset("my own", "x", {"top_k": 4})


# ---- where chats are kept ----------------------------------------------------------------------------


def test_strangers_do_not_share_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_DATA", str(tmp_path))
    alone = stores("127.0.0.1", None)
    assert alone() is alone()
    assert (tmp_path / "history.sqlite3").exists()
    alone().close()
    shared = stores("0.0.0.0", None)
    one, other = shared(), shared()
    one.create(title="mine")
    assert other.search() == []
    monkeypatch.setenv("EAGLE_DATA", str(tmp_path / "history.sqlite3"))
    broken = stores("localhost", None)()
    assert "not kept this time" in broken.notice


def test_a_system_prompt_belongs_to_its_chat(page: Page) -> None:
    page.send("q", values=changed(SYSTEM_PROMPT, "Be kind."))
    assert page.session.seen[-1][0] == {"role": "system", "content": "Be kind."}
    chat = page.room().conversation.id
    page.act("new")
    assert page.act("open", chat=chat).system_prompt == "Be kind."
    page.send("other", values=changed(SYSTEM_PROMPT, "Be brief."))
    assert page.store.load(chat).system_prompt == "Be brief."


def test_an_interrupted_answer_says_so(page: Page) -> None:
    conversation = page.store.append(page.store.create(), None, "user", "q")
    conversation = page.store.append(conversation, conversation.active, "assistant", "", False)
    page.store.fill(replace(conversation.path[1], text="half an"))
    frame = page.act("open", chat=conversation.id)
    turn = frame.state["turns"][1]
    assert (turn["is_finished"], turn["is_written"]) == (False, False)
    page.answer("continue", turn["id"])
    assert page.texts() == ["q", "half an And so on."]


def test_views_of_nothing() -> None:
    assert view.visible(None) == []
    assert view.turns_of(Conversation("1", "t")) == []
    settings = read_settings(DEFAULTS)
    fit = view.measure(FakeSession(), [], settings)  # type: ignore[arg-type]
    assert (fit.n_tokens, fit.length) == (0, 4096)
