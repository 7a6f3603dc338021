"""The chat page for everybody: keys, scrolling, phones, dark, screen readers. Run with ``-m browser``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.browser import BOX, MARKS, ready, send, settled, still, talk, wait_texts
from tests.support.fake_session import FakeSession
from tests.support.page_checks import CONTRAST, UNNAMED

pytestmark = MARKS


def test_keys_and_help(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    talk(page, "one")
    session.answers["one"] = "Another."
    page.press(BOX, "Control+Enter")
    wait_texts(page, ["one", "Another."])
    page.locator("#chat .message").first.click()
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    wait_texts(page, ["one", "First answer."])
    page.keyboard.press("ArrowRight")
    wait_texts(page, ["one", "Another."])
    page.focus(BOX)
    page.press(BOX, "Alt+Enter")
    wait_texts(page, ["one", "Another. And so on."])
    page.press(BOX, "ArrowUp")
    page.wait_for_selector(".editor textarea:focus")
    page.keyboard.press("Escape")
    assert page.locator(".editor").count() == 0
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Control+b")
    assert page.evaluate("document.body.dataset.chats") == "closed"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.wait_for_selector("dialog.help[open] >> text=Regenerate the last answer")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('dialog')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.closest('#box') !== null")
    page.keyboard.press("Control+Shift+O")
    page.wait_for_selector("#chat .example")
    # A candidate of an input method is confirmed with Enter or left with Escape: neither is a command.
    page.evaluate(
        """() => document.querySelector('#box textarea').dispatchEvent(
        new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, isComposing: true, bubbles: true}))"""
    )
    assert page.evaluate("document.activeElement.id") != "search"
    assert page.errors == []


def test_scrolling_yields_to_the_reader(open_page: Any, session: FakeSession) -> None:
    session.step_s, session.answers["long"] = 0.1, "a line\n\n" * 400
    page = open_page(height=600)
    send(page, "long")
    at_end = """() => { const e = document.querySelector('#chat [role=log]');
        const left = e.scrollHeight - e.scrollTop - e.clientHeight;
        return e.scrollHeight > e.clientHeight + 200 && left < 60 }"""
    page.wait_for_function(at_end)
    page.locator("#chat [role=log]").hover()
    page.mouse.wheel(0, -150)
    page.wait_for_selector("#to-end:visible")
    top = page.evaluate("document.querySelector('#chat [role=log]').scrollTop")
    wait_growth(page)
    assert page.evaluate("document.querySelector('#chat [role=log]').scrollTop") == top
    page.click("#to-end")
    page.wait_for_function(at_end)
    wait_growth(page)
    page.wait_for_function(at_end)
    page.keyboard.press("Escape")
    settled(page)


def wait_growth(page: Any) -> None:
    """Wait until some more lines of the last answer are there."""
    height = "document.querySelector('#chat [role=log]').scrollHeight"
    page.wait_for_function(f"low => {height} > low", arg=page.evaluate(height) + 60)


def test_phone_and_dark(open_page: Any) -> None:
    page = open_page(width=390, height=844, color_scheme="dark", has_touch=True)
    talk(page, "one")
    assert page.evaluate("document.body.classList.contains('dark')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    edges = page.evaluate(
        "[...document.querySelectorAll('#chat .md')].map(text => text.getBoundingClientRect().right)"
    )
    assert 0 < max(edges) <= page.locator("#chat").bounding_box()["width"]  # no word is cut off
    assert page.evaluate("document.body.dataset.chats") == "closed"
    box = page.locator("#composer").bounding_box()
    assert box["y"] + box["height"] <= 844
    page.click("[data-drawer=chats]")
    still(page, "#chats")
    page.mouse.click(380, 400)  # beside the drawer
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    page.click("[data-drawer=chats]")
    page.click("#chat-list .open")
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    page.click("[data-theme]")
    assert not page.evaluate("document.body.classList.contains('dark')")
    page.reload()
    ready(page)
    page.wait_for_function("!document.body.classList.contains('dark')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(open_page: Any, scheme: str) -> None:
    page = open_page(width=1500, color_scheme=scheme)
    talk(page, "two")
    page.click("[data-drawer=settings]")
    still(page, "#settings")
    poor = page.evaluate(CONTRAST)
    assert poor == [], "\n".join(map(str, poor))
    assert page.evaluate(UNNAMED) == []
    assert page.locator("h1").count() == 1
    assert page.locator("nav[aria-label]").count() == 1
    assert page.get_attribute("#chat [role=log]", "aria-live") == "off"
    assert page.locator(".say[aria-live=polite]").count() == 1


def test_screen_readers_are_told_twice_per_answer(open_page: Any, session: FakeSession) -> None:
    session.step_s = 0.01
    page = open_page()
    page.evaluate(
        """() => { window.said = []; const region = document.querySelector('.say');
        const note = () => window.said.push(region.textContent);
        const all = {childList: true, characterData: true, subtree: true};
        new MutationObserver(note).observe(region, all); }"""
    )
    talk(page, "long")
    said = page.evaluate("window.said")
    assert said[0] == "Generating"
    assert "tokens" in said[-1]
    assert len(said) == 2


def test_everything_is_reached_with_the_keyboard(open_page: Any) -> None:
    page = open_page()
    talk(page, "one")
    page.evaluate("document.querySelector('#new-chat').focus()")
    seen = set()
    for _ in range(60):
        seen.add(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText"
            )
        )
        page.keyboard.press("Tab")
    for name in ("New chat", "Search chats", "Copy", "Edit", "Regenerate", "Continue", "Delete", "Settings",
                 "Attach a text file", "Options of one", "Keyboard shortcuts"):  # fmt: skip
        assert any(name in str(text) for text in seen), name
