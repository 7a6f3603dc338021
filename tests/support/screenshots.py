"""Takes the README's pictures of the chat page with the real default model.

``python -m tests.support.screenshots [folder]``, best on a machine with nothing else to do. It keeps no chat.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from eagle_core.config import LoadConfig
from eagle_core.history import Conversation, Message, SqliteHistory
from eagle_core.session import Session
from eagle_core.ui import launch

DAY_S = 24 * 3600
EARLIER = (
    ("Trip to the sea", 0, ("travel",)),
    ("Letter to the landlord", 1, ()),
    ("Why is the sky blue?", 3, ("physics",)),
    ("Names for a cat", 5, ()),
)
QUESTIONS = ("Explain recursion with a small Python example.", "List three uses of it.")
SETTLED = """n => { const now = window.eaglePage?.peek();
return now?.turns?.length === n && !now.is_busy && document.querySelectorAll('#chat .turn').length === n }"""


def history() -> SqliteHistory:
    """Some chats of earlier days, in memory."""
    store = SqliteHistory(None)
    for title, n_days, tags in EARLIER:
        then_s = time.time() - n_days * DAY_S
        messages = (
            Message("q", None, "user", title),
            Message("a", "q", "assistant", "An answer."),
        )
        store.add(
            Conversation(
                "", title, messages, "a", is_pinned=n_days == 0, tags=tags,
                created_s=then_s, updated_s=then_s,
            )
        )  # fmt: skip
    return store


def settle(page: Any, n_turns: int) -> None:
    """Wait until the chat is drawn."""
    page.wait_for_function(SETTLED, arg=n_turns)
    page.wait_for_timeout(800)


def take(page: Any, folder: Path) -> None:
    """Light, dark with settings, and a phone."""
    page.wait_for_selector("#box textarea:not([disabled])")
    page.wait_for_selector("#chat .example")
    for number, question in enumerate(QUESTIONS, start=1):
        page.fill("#box textarea", question)
        page.press("#box textarea", "Enter")
        settle(page, 2 * number)
    page.screenshot(path=folder / "chat.png")
    page.click("[data-theme]")
    page.click("[data-drawer=settings]")
    page.wait_for_timeout(700)
    page.screenshot(path=folder / "chat-dark.png")
    page.click("[data-drawer=settings]")
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    settle(page, 2 * len(QUESTIONS))
    page.screenshot(path=folder / "chat-phone.png")


def main(folder: Path) -> None:
    """Serve, take the pictures, stop."""
    session = Session.open(LoadConfig(offline=True))
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history())
    try:
        with sync_playwright() as playwright:
            executable = shutil.which("chromium") or os.environ.get("CHROMIUM")
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(200_000)
            page.goto(str(app.local_url))
            take(page, folder)
            browser.close()
    finally:
        app.close()
        session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("assets/screenshots"))
