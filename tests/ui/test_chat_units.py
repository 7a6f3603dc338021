"""The list of chats without a browser: search, export, private chats, where they are kept."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_core.history import Message, SqliteHistory, Summary, from_json
from eagle_core.ui import view
from eagle_core.ui.actions import file_name
from eagle_core.ui.app import stores
from eagle_core.ui.rooms import Rooms
from tests.support.chat_page import SYSTEM_PROMPT, Page, changed


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
    assert found[0]["found"]["snippet"] == ["", "another", " answer"]
    assert found[0]["found"]["tags"] == [["work"], ["idea"]]
    assert "found" not in page.act("search", query="").library["items"][0]
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


def test_an_interrupted_answer_says_so(page: Page) -> None:
    conversation = page.store.append(page.store.create(), None, "user", "q")
    conversation = page.store.append(conversation, conversation.active, "assistant", "", False)
    page.store.fill(replace(conversation.path[1], text="half an"))
    frame = page.act("open", chat=conversation.id)
    turn = frame.state["turns"][1]
    assert (turn["is_finished"], turn["is_written"]) == (False, False)
    page.answer("continue", turn["id"])
    assert page.texts() == ["q", "half an And so on."]
