"""Many tabs of one browser, which opens six connections to one server for all of them.

Run with ``-m browser``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from eagle_core.history import SqliteHistory
from eagle_core.ui import launch
from tests.support.browser import MARKS, load, send, settled, slowdown, texts
from tests.support.fake_session import FakeSession

pytestmark = MARKS

N_TABS = 12
SOON_S = 0.5  # in which Stop frees the engine
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def session() -> FakeSession:
    """Writes long answers, slowly."""
    return FakeSession(default="word " * 2000, step_s=0.02)


@pytest.fixture(scope="module")
def tabs(browser: Any, session: FakeSession) -> Iterator[list[Any]]:
    """The chat page, open in many tabs of one browser."""
    history = SqliteHistory(None)
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)  # type: ignore[arg-type]
    context = browser.new_context()
    yield [load(context.new_page(), str(app.local_url)) for _ in range(N_TABS)]
    context.close()
    app.close()


def ask(page: Any) -> None:
    """Look at the tab, and send something."""
    page.bring_to_front()
    send(page, "hi")
    page.wait_for_selector("#box .stop-button")


def stop(page: Any, session: FakeSession) -> None:
    """Look at the tab, and press Stop: this answer ends soon, as soon as this machine allows now."""
    page.bring_to_front()
    freed_at, started_s = session.freed_at, time.monotonic()
    page.evaluate("document.querySelector('#box .stop-button').click()")
    while session.freed_at == freed_at:
        assert time.monotonic() - started_s < PATIENCE_S, "Stop was not heard"
        time.sleep(0.01)
    assert session.freed_at - started_s < SOON_S * slowdown()
    settled(page)
    assert texts(page)[-1][:1] == "w"  # what came is kept


def all_ask(tabs: list[Any], session: FakeSession) -> None:
    """All tabs wait for answers, the first of them while its prompt is read."""
    session.prefill_s = 300.0
    for page in tabs:
        ask(page)
    tabs[-1].wait_for_selector(f"#status >> text=Waiting: {len(tabs) - 1} requests ahead")


def test_one_of_many_tabs_answers_and_stops(tabs: list[Any], session: FakeSession) -> None:
    for page in (tabs[0], tabs[-1]):
        ask(page)
        page.wait_for_selector("#chat .message.bot")
        stop(page, session)
        assert page.errors == []


def test_every_tab_stops_while_all_wait_for_answers(tabs: list[Any], session: FakeSession) -> None:
    all_ask(tabs, session)
    session.prefill_s = 0.0
    for page in tabs:
        page.bring_to_front()
        page.wait_for_function("window.eaglePage.peek().turns.at(-1)?.text")  # its turn came
        stop(page, session)
    assert [page.errors for page in tabs] == [[]] * N_TABS


def test_closed_tabs_leave_the_queue(tabs: list[Any], session: FakeSession) -> None:
    all_ask(tabs, session)
    last = tabs[-1]
    for page in tabs[1:-1]:  # with connections of their own, and without
        page.close()
    last.wait_for_selector("#status >> text=Waiting: 1 request ahead")
    tabs[0].close()
    last.wait_for_selector("#status >> text=Reading the prompt")
    session.prefill_s = 0.0
    stop(last, session)
