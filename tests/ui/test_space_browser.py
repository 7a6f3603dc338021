"""A shared app in a real browser: the visitor's browser keeps the chats. Run with ``-m browser``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from eagle_core.ui.app import Running, serve
from eagle_core.ui.shared import Limited, Limits
from tests.support.fake_session import FakeSession

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    # Gradio's own bookkeeping, and sockets that a closing browser leaves to the event loop.
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

sync_api = pytest.importorskip("playwright.sync_api")

BOX = "#box textarea"
CHATS = "#chat-list [data-id]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    executable = shutil.which("chromium") or os.environ.get("CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def running() -> Iterator[Running]:
    limits = Limits()
    session = Limited(FakeSession(default="Kept words.", step_s=0.0), limits)  # type: ignore[arg-type]
    served = serve(session, limits=limits)
    yield served
    served.close()


def visit(context: Any, running: Running) -> Any:
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(running.url)
    page.wait_for_selector(f"{BOX}:not([disabled])")
    page.wait_for_function("document.body.dataset.view === 'chat'")
    return page


def test_a_visitor_finds_the_chats_again_and_nobody_else_does(
    browser: Any, running: Running
) -> None:
    mine, other = browser.new_context(), browser.new_context()
    page = visit(mine, running)
    assert "answers end after 512 tokens" in page.inner_text("#limits")
    page.fill(BOX, "Remember this")
    page.press(BOX, "Enter")
    page.wait_for_function(
        "!window.eaglePage.peek().is_busy && document.querySelector('#chat .stats')"
    )
    assert page.locator(CHATS).count() == 1
    page.close()
    again = visit(mine, running)  # another tab, for which the server knows nothing
    again.wait_for_selector(CHATS)
    again.locator(f"{CHATS} button.open").first.click()
    again.wait_for_selector("#chat >> text=Kept words.")
    stranger = visit(other, running)
    stranger.wait_for_selector("#chat-list >> text=This browser keeps them")
    assert stranger.locator(CHATS).count() == 0
    mine.close()
    other.close()
