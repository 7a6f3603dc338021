"""The app on the real default model, which must be on this machine, for tests in a real browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
from eagle_core.events import Queued, Started
from eagle_core.history import SqliteHistory
from eagle_core.session import Session
from eagle_core.ui.app import Running, serve
from tests.support.browser import drawn, still, talk, texts
from tests.support.hostile import spare_port

FIELD = "input[type=number], textarea, input[type=text], input:not([type])"
SECTIONS = {"Draft tree": "#policy", "Advanced sampling": "#top-k"}


@contextmanager
def serving_default(history: SqliteHistory, **load: Any) -> Iterator[Running]:
    """The app, as ``eagle-chat serve`` runs it; skips the tests where the model is not on this machine."""
    config = LoadConfig(offline=True, **load)
    running = serve(
        lambda on_event: Session.open(config, on_event), "127.0.0.1", spare_port(), history,
        settings=config,
    )  # fmt: skip
    try:
        while running.slot.is_opening:
            time.sleep(0.1)
        if running.slot.session is None:
            opening = running.slot.opening
            pytest.skip(f"the default model is not on this machine: {opening.message}")
        yield running
    finally:
        running.close()


def configure(page: Any, **values: Any) -> None:
    """Set fields of the settings, named by their ids: a box by True or False, a choice by its name."""
    if page.get_attribute("body", "data-settings") != "open":
        page.click("[data-drawer=settings]")
        page.wait_for_selector("#drafting")
        still(page, "#settings")
    for title, inside in SECTIONS.items():
        if not page.is_visible(inside):
            page.click(f"#settings button:has-text('{title}')")
            page.wait_for_selector(inside)
    for name, value in values.items():
        place = page.locator(f"#{name.replace('_', '-')}")
        if isinstance(value, bool):
            place.locator("input").set_checked(value)
        elif place.locator("input[type=radio]").count():
            place.locator("label", has_text=value).click()
        else:
            field = place.locator(FIELD).first
            field.fill(str(value))
            field.press("Tab")
    drawn(page)


def fresh(page: Any) -> None:
    """Begin a new chat."""
    page.click("#new-chat")
    page.wait_for_selector("#chat .example")


def ask(page: Any, text: str) -> str:
    """The answer in a new chat."""
    fresh(page)
    talk(page, text)
    return texts(page)[1]


def line(page: Any) -> str:
    """The figures under the last answer."""
    return str(page.locator("#chat .stats summary").last.inner_text()).replace("\n", " ")


class NextRequest(threading.Thread):
    """Another user's request, which waits for the one in the page."""

    def __init__(self, session: Any) -> None:
        super().__init__(daemon=True)
        self.session, self.is_queued, self.started_s = session, threading.Event(), 0.0

    def run(self) -> None:
        messages = [{"role": "user", "content": "Hi"}]
        one = GenerationConfig(max_new_tokens=1)
        for event in self.session.chat(messages, one, DraftConfig("none")):
            if isinstance(event, Queued):
                self.is_queued.set()
            elif isinstance(event, Started):
                self.started_s = time.monotonic()
