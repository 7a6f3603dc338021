"""Searching the chats: marked words, keys that walk the hits, the message in sight. For ``-m browser``."""

from __future__ import annotations

from typing import Any

from eagle_core.history import Conversation, Message, SqliteHistory
from tests.support.browser import MARKS, still, talk, wait_texts

pytestmark = MARKS

HOSTILE = "<img src=x onerror=window.hacked=1> & <b>zebra</b>"
PAINTED = """() => [...(CSS.highlights.get('eagle-found') ?? [])].map(r =>
    r.startContainer.nodeValue.slice(r.startOffset, r.endOffset))"""
IN_SIGHT = """selector => { const log = document.querySelector('#chat [role=log]').getBoundingClientRect();
    const box = document.querySelector(selector)?.getBoundingClientRect();
    return box && box.top < log.bottom && box.bottom > log.top }"""


def keep(history: SqliteHistory, title: str, texts: list[str]) -> None:
    """Add a chat of these messages, the oldest first."""
    messages = tuple(
        Message(str(i), str(i - 1) if i else None, "assistant" if i % 2 else "user", text)
        for i, text in enumerate(texts)
    )
    history.add(Conversation("", title, messages, str(len(texts) - 1)))


def test_words_are_marked_as_text(open_page: Any, history: SqliteHistory) -> None:
    keep(history, HOSTILE, ["q", f"The Zebra of {HOSTILE}"])
    page = open_page()
    page.fill("#search", "zebra <b> onerror")
    page.wait_for_selector("#chat-list .snippet mark")
    assert page.inner_text("#chat-list .name") == HOSTILE
    found = {text.lower() for text in page.locator("#chat-list mark").all_inner_texts()}
    assert found == {"onerror", "<b>zebra", "zebra"}
    assert page.locator("#chat-list :is(img, b)").count() == 0
    page.click("#chat-list .open")
    page.wait_for_selector("#chat .message-row.found")
    page.wait_for_function("CSS.highlights.has('eagle-found')")
    assert {text.lower() for text in page.evaluate(PAINTED)} == {"zebra", "<b>", "onerror"}
    assert history.load(history.search()[0].id).path[1].text == f"The Zebra of {HOSTILE}"
    page.fill("#search", "")
    page.wait_for_function("!CSS.highlights.has('eagle-found')")
    assert page.locator("#chat-list mark, #chat .found").count() == 0
    assert page.evaluate("window.hacked") is None
    assert page.errors == []


def test_keys_open_the_first_hit_and_walk_the_list(open_page: Any, history: SqliteHistory) -> None:
    keep(history, "Second", ["owl", "An owl sleeps."])
    keep(history, "First", ["owl", "Owls fly."])
    page = open_page()
    page.keyboard.press("Control+k")
    page.keyboard.type("owl")
    page.keyboard.press("Enter")  # before the list has come
    wait_texts(page, ["owl", "Owls fly."])
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.innerText").startswith("Second")
    page.keyboard.press("Enter")
    wait_texts(page, ["owl", "An owl sleeps."])
    page.wait_for_function("document.activeElement.matches('#chat-list .open')")  # drawn anew
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "search"
    page.fill("#search", "nobody wrote this")
    page.press("#search", "Enter")
    page.wait_for_selector("#chat-list >> text=No chat holds these words")
    assert "No chats found" in page.inner_text("#views .say")
    assert page.evaluate("window.eaglePage.peek().turns.length") == 2
    assert page.errors == []


def test_the_message_that_matched_is_brought_into_sight(
    open_page: Any, history: SqliteHistory
) -> None:
    texts = [f"Text number {i}. " + "It goes on and on. " * 60 for i in range(16)]
    texts[5] += "Here is the heron."
    keep(history, "Long", texts)
    page = open_page(width=390, height=844)
    page.click("[data-drawer=chats]")
    still(page, "#chats")
    page.fill("#search", "heron")
    page.press("#search", "Enter")
    page.wait_for_selector("#chat .message-row.found")
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    page.wait_for_function(
        IN_SIGHT, arg="#chat .message-row.found .turn"
    )  # its end, where the word is
    assert "heron" in page.inner_text("#chat .message-row.found")
    assert page.locator("#chat .message-row.found").count() == 1
    page.locator("#chat [role=log]").hover()
    page.mouse.wheel(0, 4000)  # the reader goes on, and is not pulled back
    page.wait_for_function(f"!({IN_SIGHT})('#chat .message-row.found')")
    talk(page, "one")
    assert page.locator("#chat .message-row.found").count() == 0
    assert page.errors == []
