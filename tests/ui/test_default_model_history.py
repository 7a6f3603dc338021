"""Kept chats and a full context on the real default model. Run with ``-m "browser and slow"``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core.history import Conversation, Message, SqliteHistory
from tests.support.browser import (
    BOX,
    MARKS,
    choose,
    load,
    n_painted,
    ready,
    send,
    settled,
    talk,
    texts,
    wait_texts,
)
from tests.support.default_app import ask, configure, fresh, line, serving_default

pytestmark = [*MARKS, pytest.mark.slow]

CONTEXT = 320  # tokens: a chat outgrows it after a few turns
YESTERDAY = ("Which fish do puffins like?", "Puffins like herring and sand eels.")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteHistory]:
    store = SqliteHistory(tmp_path_factory.mktemp("history") / "history.sqlite3")
    question, answer = YESTERDAY
    messages = (Message("q", None, "user", question), Message("a", "q", "assistant", answer))
    then_s = time.time() - 24 * 3600
    store.add(Conversation("", question, messages, "a", created_s=then_s, updated_s=then_s))
    yield store
    store.close()


@pytest.fixture(scope="module")
def app(history: SqliteHistory) -> Iterator[Any]:
    with serving_default(history, context_length=CONTEXT) as running:
        yield running


@pytest.fixture
def page(browser: Any, app: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1500, "height": 860}, accept_downloads=True)
    page = load(context.new_page(), app.url)
    configure(page, max_new_tokens=24)
    yield page
    assert page.errors == []
    assert page.foreign == []
    context.close()


def test_yesterdays_chat_is_found_and_goes_on(page: Any, history: SqliteHistory) -> None:
    page.wait_for_selector("#chat-list h2 >> text=Yesterday")
    page.fill("#search", "herring")
    page.wait_for_selector("#chat-list .snippet >> text=herring")
    page.click("#chat-list .open")
    wait_texts(page, list(YESTERDAY))
    page.fill("#search", "")
    talk(page, "What do they look like?")
    page.wait_for_selector("#chat-list h2 >> text=Today")
    choose(page, "puffins", "Rename")
    page.fill("dialog input", "Birds of the sea")
    page.press("dialog input", "Enter")
    page.wait_for_selector("#chat-list >> text=Birds of the sea")
    choose(page, "Birds", "Pin")
    page.wait_for_selector("#chat-list h2 >> text=Pinned")
    choose(page, "Birds", "Tags")
    page.fill("dialog input", "nature")
    page.click("dialog .primary")
    page.wait_for_selector("#chat-list .tag >> text=nature")
    shown = texts(page)
    assert len(shown) == 4
    page.reload()
    ready(page)
    wait_texts(page, shown)
    page.wait_for_selector("#chat-list h2 >> text=Pinned")
    assert n_painted(page) > 0
    assert "tok/s" in line(page)
    (summary,) = history.search("nature")
    assert summary.title == "Birds of the sea"


def test_chats_leave_and_come_back_as_files(page: Any, history: SqliteHistory) -> None:
    answer = ask(page, "Name two rivers.")
    files = {}
    for kind in ("Markdown", "JSON"):
        with page.expect_download() as found:
            choose(page, "Name two rivers", f"Export as {kind}")
        files[found.value.suggested_filename] = Path(found.value.path()).read_bytes()
    assert answer in files["Name-two-rivers.md"].decode()
    (kept,) = json.loads(files["Name-two-rivers.json"])["conversations"]
    assert kept["messages"][1]["figures"]["tau"] >= 1
    choose(page, "Name two rivers", "Delete")
    page.click("dialog .primary")
    page.wait_for_selector("#chat .example")
    assert history.search("rivers") == []
    for name, content in files.items():
        page.set_input_files("#import-file", {"name": name, "mimeType": "", "buffer": content})
        page.wait_for_selector("#notice >> text=1 chat was imported")
        wait_texts(page, ["Name two rivers.", answer])
        assert ("tok/s" in page.inner_text("#chat .bot-row")) == name.endswith(".json")
        fresh(page)
        page.wait_for_function("!document.querySelector('#notice .notice')")
    assert len(history.search("rivers")) == 2


def test_a_private_chat_is_kept_nowhere(page: Any, history: SqliteHistory) -> None:
    page.check("#private-switch")
    page.wait_for_function("document.body.dataset.private === 'on'")
    talk(page, "Is a walrus heavy?")
    assert history.search("walrus") == []
    page.reload()
    ready(page)
    assert texts(page) == []
    assert page.locator("#chat-list >> text=walrus").count() == 0


def test_a_chat_that_outgrows_the_context_says_so(page: Any) -> None:
    configure(page, max_new_tokens=32)
    fresh(page)
    filler = "word " * 40
    for number in range(6):
        talk(page, f"Question {number}: {filler}")
    page.wait_for_selector("#chat .divider")
    assert "older messages are not sent" in page.inner_text("#chat .divider")
    assert page.get_attribute("#meter", "data-level") == "full"
    assert "left out" in page.inner_text("#meter")
    assert page.locator("#chat .left-out").count() >= 2
    configure(page, overflow="stop")
    send(page, f"One more: {filler}")
    page.wait_for_selector("#notice .error")
    print(page.inner_text("#notice"))
    settled(page)
    assert len(texts(page)) == 12
    assert page.input_value(BOX).startswith("One more")
    configure(page, overflow="drop")
    page.fill(BOX, "")
    send(page, "much " * 400)
    page.wait_for_selector("#notice >> text=Shorten")
    print(page.inner_text("#notice"))
    page.fill(BOX, "")
    talk(page, "Thanks.")
    assert len(texts(page)) == 14
