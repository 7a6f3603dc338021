"""The list of chats: what is kept, other tabs, reloads, another chat meanwhile. Run with ``-m browser``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle_core.history import SqliteHistory
from tests.support.browser import (
    BOX,
    MARKS,
    choose,
    load,
    ready,
    send,
    settled,
    talk,
    texts,
    wait_free,
    wait_painted,
    wait_texts,
)
from tests.support.fake_session import ANSWERS, LONG, FakeSession

pytestmark = MARKS


def test_the_theme_reaches_compare_and_old_tokens_are_explained(open_page: Any) -> None:
    page = open_page()
    talk(page, "one")
    page.click("[data-theme]")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.reload()
    ready(page)
    wait_texts(page, ["one", "First answer."])
    page.click("[data-view='tokens']")
    page.wait_for_selector("#tokens h3 >> text=probabilities are not kept")
    page.wait_for_selector("#tokens .token-d")
    assert page.evaluate("document.querySelector('#tokens .flow').textContent") == "First answer."
    page.locator("#tokens .token-d").first.focus()
    assert "drafted · the step and probabilities" in page.inner_text("#token-tip")
    page.click("#views a[href='compare']")
    page.wait_for_selector("#compare [data-theme] svg")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.click("#compare [data-theme]")
    assert not page.evaluate("document.body.classList.contains('dark')")
    assert page.errors == []


def test_the_list_of_chats(open_page: Any, history: SqliteHistory) -> None:
    page = open_page()
    talk(page, "one")
    page.click("#new-chat")
    page.wait_for_selector("#chat .example")
    talk(page, "two")
    names = lambda: page.locator("#chat-list .name").all_inner_texts()  # noqa: E731
    assert names() == ["two", "one"]
    choose(page, "one", "Pin")
    page.wait_for_selector("#chat-list h2 >> text=Pinned")
    assert names() == ["one", "two"]
    choose(page, "one", "Rename")
    page.fill("dialog input", "My <b>lighthouse</b>")
    page.press("dialog input", "Enter")
    page.wait_for_selector("#chat-list >> text=My <b>lighthouse</b>")
    choose(page, "two", "Tags")
    page.fill("dialog input", "work, ideas")
    page.click("dialog .primary")
    page.wait_for_selector("#chat-list .tag >> text=ideas")
    page.fill("#search", "code")
    page.wait_for_function("document.querySelectorAll('#chat-list li').length === 1")
    assert "Second answer with" in page.inner_text("#chat-list .snippet")
    page.fill("#search", "nowhere")
    page.wait_for_selector("#chat-list >> text=No chat holds these words")
    page.fill("#search", "")
    page.click("#chat-list .open >> text=lighthouse")
    wait_texts(page, ["one", "First answer."])
    with page.expect_download() as found:
        choose(page, "lighthouse", "Export as Markdown")
    exported = Path(found.value.path()).read_text(encoding="utf-8")
    assert found.value.suggested_filename == "My-blighthouseb.md"
    assert "First answer." in exported
    choose(page, "lighthouse", "Delete")
    page.click("dialog .primary")
    page.wait_for_function("document.querySelectorAll('#chat-list li').length === 1")
    assert page.evaluate("window.eaglePage.peek().turns.length") == 0
    page.set_input_files(
        "#import-file", {"name": "x.md", "mimeType": "", "buffer": exported.encode()}
    )
    page.wait_for_selector("#notice >> text=1 chat was imported")
    wait_texts(page, ["one", "First answer."])
    page.set_input_files("#import-file", {"name": "x.json", "mimeType": "", "buffer": b"{"})
    page.wait_for_selector("#notice .error >> text=no chat that can be imported")
    with page.expect_download() as found:
        page.click("#export-all")
    assert len(json.loads(Path(found.value.path()).read_text())["conversations"]) == 2
    page.check("#private-switch")
    page.wait_for_function("document.body.dataset.private === 'on'")
    talk(page, "edited")
    assert [summary.title for summary in history.search("edited")] == []
    assert len(history.search()) == 2
    assert page.errors == []
    assert page.foreign == []


def test_a_reload_and_a_stale_tab(open_page: Any, history: SqliteHistory) -> None:
    page = open_page()
    talk(page, "one")
    page.reload()
    ready(page)
    wait_texts(page, ["one", "First answer."])
    assert "tok/s" in page.inner_text("#chat .stats")
    other = load(page.context.new_page(), page.url)
    other.click("#chat-list .open")
    wait_texts(other, ["one", "First answer."])
    talk(page, "two")
    send(other, "edited")
    other.wait_for_selector("#notice .error >> text=changed in another tab")
    settled(other)
    assert texts(other) == texts(page)
    assert other.input_value(BOX) == "edited"
    talk(other, "edited")
    (summary,) = history.search()
    assert [m.text for m in history.load(summary.id).path] == texts(other)


def test_another_chat_while_an_answer_is_written(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    talk(page, "two")
    page.click("#new-chat")
    page.wait_for_selector("#chat .example")
    session.step_s = 0.03
    send(page, "long")
    page.wait_for_function("document.querySelector('#chat .bot-row')?.innerText.length > 100")
    page.click("#chat-list .open >> text=two")
    wait_texts(page, ["two", ANSWERS["two"]])
    wait_free(session)
    page.wait_for_selector("#box .submit-button")
    wait_painted(page)  # the answer that was left may have drawn a last frame meanwhile
    assert "on and on" not in page.inner_text("#chat")
    page.click("#chat-list .open >> text=long")
    page.wait_for_function("window.eaglePage.peek().turns?.[0]?.text === 'long'")
    settled(page)
    assert "stopped" in page.inner_text("#chat .stats")


def test_a_reload_while_an_answer_is_written(open_page: Any, session: FakeSession) -> None:
    session.step_s = 0.03
    page = open_page()
    send(page, "long")
    page.wait_for_function("document.querySelector('#chat .bot-row')?.innerText.length > 100")
    page.reload()
    ready(page)
    page.wait_for_function("window.eaglePage.peek().turns?.[1]?.is_finished")
    settled(page)
    assert LONG.startswith(texts(page)[1])
    assert len(texts(page)[1]) > 100
    assert "stopped" in page.inner_text("#chat .stats")
    wait_free(session)
