"""What the tests in a real browser share: their marks, and steps of a visit to the chat page."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

MARKS = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    # Gradio's own bookkeeping, and sockets that a closing browser leaves to the event loop.
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TIMEOUT_MS = 60_000
BOX = "#box textarea"
SETTLED = """() => { const now = window.eaglePage?.peek();
return now?.turns !== undefined && !now.is_busy &&
document.querySelectorAll('#chat .turn').length === now.turns.length &&
document.querySelectorAll('#chat .message-row').length === now.turns.length &&
document.querySelector('#box .submit-button') !== null }"""
NEXT_FRAMES = """() => new Promise(done =>
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))"""
PAINTED_TEXT = """() => [...(CSS.highlights.get('eagle-draft') ?? [])].map(r =>
    r.startContainer.nodeValue.slice(r.startOffset, r.endOffset)).join('')"""


def watch(page: Any, url: str) -> Any:
    """Note what the page asks of other machines in ``page.foreign``, its script errors in ``page.errors``."""
    page.set_default_timeout(TIMEOUT_MS)
    page.foreign, page.errors = [], []
    page.on("request", lambda r: None if is_local(r.url, url) else page.foreign.append(r.url))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    return page


def is_local(address: str, url: str) -> bool:
    """Whether an address belongs to the app itself."""
    return address.startswith((url, "data:", "blob:", "file:"))


def load(page: Any, url: str) -> Any:
    """Open the chat page and wait until it can be used."""
    watch(page, url).goto(url)
    ready(page)
    return page


def ready(page: Any) -> None:
    """Wait until the chat page can be used."""
    page.wait_for_selector(f"{BOX}:not([disabled])")
    page.wait_for_selector("#chat [role=log]")
    page.wait_for_function("document.body.dataset.view === 'chat'")
    page.wait_for_function("window.eaglePage.peek().chat !== undefined")


def send(page: Any, text: str) -> None:
    """Type a message and press Enter."""
    page.fill(BOX, text)
    page.press(BOX, "Enter")


def talk(page: Any, text: str) -> None:
    """Send and wait for the whole answer with its tools and colors."""
    n_turns = len(texts(page))
    send(page, text)
    page.wait_for_function("n => window.eaglePage.peek().turns.length >= n", arg=n_turns + 2)
    settled(page)


def settled(page: Any) -> None:
    """Wait until no answer is in progress and everything is drawn."""
    page.wait_for_function(SETTLED)
    drawn(page)


def drawn(page: Any) -> None:
    """Wait until the frames that are due are drawn."""
    page.evaluate(NEXT_FRAMES)


def wait_free(session: Any, within_s: float = 10.0) -> None:
    """Wait until a fake session answers nobody."""
    end_s = time.monotonic() + within_s
    while session.is_busy:
        assert time.monotonic() < end_s, "the session is still busy"
        time.sleep(0.01)


def slowdown() -> float:
    """How much longer work takes now than on a machine with nothing else to do; 1.0 there."""
    wall_s, own_s = time.monotonic(), time.thread_time()
    while time.thread_time() - own_s < 0.1:
        pass
    return max(1.0, (time.monotonic() - wall_s) / (time.thread_time() - own_s))


def texts(page: Any) -> list[str]:
    """The messages in view, as they were written."""
    return [str(text) for text in page.evaluate("window.eaglePage.peek().turns.map(t => t.text)")]


def wait_texts(page: Any, expected: list[str]) -> None:
    """Wait until these are the messages in view."""
    page.wait_for_function(
        "want => JSON.stringify(window.eaglePage.peek().turns?.map(t => t.text)) === want",
        arg=json.dumps(expected, separators=(",", ":"), ensure_ascii=False),
    )
    settled(page)


def tool(page: Any, row: int, name: str) -> None:
    """Press one of the tools under a message."""
    page.locator("#chat .message-row").nth(row).hover()
    page.locator("#chat .message-row").nth(row).locator(f".tool[aria-label='{name}']").click()


def choose(page: Any, name: str, choice: str) -> None:
    """Take an option of a chat in the list."""
    entry = page.locator("#chat-list li", has_text=name)
    entry.hover()
    entry.locator("summary").click()
    entry.locator(".choices button", has_text=choice).click()


def still(page: Any, selector: str) -> None:
    """Wait until a drawer has come to rest."""
    page.wait_for_function(
        "selector => document.querySelector(selector).getAnimations().length === 0", arg=selector
    )
    drawn(page)


def wait_painted(page: Any) -> None:
    """Wait until drafted words are colored."""
    page.wait_for_function("(CSS.highlights.get('eagle-draft')?.size ?? 0) > 0")


def report(page: Any) -> Any:
    """How well each answer could be colored."""
    return page.evaluate("window.eagleChat.report()")


def n_painted(page: Any) -> int:
    """Ranges that are colored."""
    return int(page.evaluate("CSS.highlights.get('eagle-draft')?.size ?? 0"))
