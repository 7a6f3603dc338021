"""Many tabs of one browser, which opens six connections to one server for all of them.

Run with ``-m browser``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import MARKS, load, send, settled, slowdown, texts, wait_free
from tests.support.fake_session import FakeSession

pytestmark = MARKS

N_TABS = 12
SOON_S = 0.5  # in which Stop frees the engine


@pytest.fixture
def session() -> FakeSession:
    """Writes long answers, slowly."""
    return FakeSession(default="word " * 2000, step_s=0.02)


@pytest.fixture
def tabs(browser: Any, url: str) -> Iterator[list[Any]]:
    """The chat page, open in many tabs of one browser."""
    context = browser.new_context()
    yield [load(context.new_page(), url) for _ in range(N_TABS)]
    context.close()


def stop(page: Any, session: FakeSession) -> None:
    """Press Stop; the engine is free soon, as soon as this machine allows now."""
    started_s = time.monotonic()
    page.evaluate("document.querySelector('#box .stop-button').click()")
    wait_free(session)
    assert session.freed_at - started_s < SOON_S * slowdown()


def test_one_of_many_tabs_answers_and_stops(tabs: list[Any], session: FakeSession) -> None:
    for page in (tabs[0], tabs[-1]):
        send(page, "hi")
        page.wait_for_selector("#chat .message.bot")
        stop(page, session)
        settled(page)
        assert texts(page)[1].startswith("word")
        assert page.errors == []
