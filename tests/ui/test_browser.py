"""The page in a real browser: colors, figures, Stop, queue, inert text. Run with ``-m browser``."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from eagle_core.history import SqliteHistory
from eagle_core.ports import free_port
from eagle_core.ui import app as ui_app
from eagle_core.ui import launch
from tests.support.browser import (
    BOX,
    MARKS,
    PAINTED_TEXT,
    drawn,
    n_painted,
    ready,
    report,
    send,
    settled,
    talk,
    wait_free,
)
from tests.support.fake_session import FakeSession
from tests.support.nasty_markdown import ATTACK, CORPUS

pytestmark = MARKS

LONG = "This answer goes on and on, word after word. " * 60


@pytest.fixture(scope="module")
def session() -> FakeSession:
    answers = {"attack": ATTACK, "long": LONG, **CORPUS}
    return FakeSession(answers, default="Short answer.", step_s=0.02)


@pytest.fixture(scope="module")
def url(session: FakeSession) -> Iterator[str]:
    history = SqliteHistory(None)
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)  # type: ignore[arg-type]
    yield str(app.local_url)
    app.close()


def test_an_answer_is_colored_and_measured(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    talk(page, "code")
    (answer,) = report(page)
    assert answer["isPainted"]
    assert answer["matched"] == answer["total"] > 0
    assert n_painted(page) == answer["nRanges"] > 5
    assert page.locator("#chat .md code.language-python").count() == 1
    assert page.locator("#chat .md span.token-d").count() == 0
    assert "tok/s" in page.inner_text("#chat .stats")
    assert "τ" in page.inner_text("#chat .stats")
    footer = page.locator("#chat .message.bot").get_attribute("data-footer")
    assert footer.endswith("complete")
    page.uncheck("#views [data-colors]")
    page.wait_for_function("!CSS.highlights.has('eagle-draft')")
    page.check("#views [data-colors]")
    page.wait_for_function("CSS.highlights.has('eagle-draft')")
    assert page.errors == []
    assert page.foreign == []


def test_tokens_view_is_exact(open_page: Any) -> None:
    page = open_page()
    talk(page, "emoji")
    page.click("#views button[data-view=tokens]")
    text = page.evaluate("document.querySelector('#tokens .flow').textContent")
    assert text.replace("↵\n", "\n") == CORPUS["emoji"]
    (answer,) = report(page)
    assert page.locator("#tokens .token-d").count() == answer["counts"]["d"] > 0
    assert page.locator("#tokens .token-t").count() == answer["counts"]["t"] > 0
    assert page.locator("#tokens .step").count() > 5
    page.locator("#tokens .token-d").first.hover()
    tip = page.inner_text("#token-tip")
    assert "drafted at depth 1" in tip
    assert "p = " in tip
    assert page.errors == []


def test_live_figures_and_stop(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    send(page, "long")
    page.wait_for_selector("#status .figure.now >> text=tok/s now")
    page.wait_for_function("CSS.highlights.has('eagle-draft')")
    page.click("[data-drawer=settings]")
    page.fill("#seed input", "3")  # settings stay usable while an answer streams
    started_s = time.monotonic()
    page.evaluate("document.querySelector('#box .stop-button').click()")
    wait_free(session)
    assert session.freed_at - started_s < 0.5
    settled(page)
    footer = page.locator("#chat .message.bot").get_attribute("data-footer")
    assert footer.endswith("stopped")
    assert "stopped" in page.inner_text("#status")
    talk(page, "again")
    assert [message["role"] for message in session.seen[-1]] == ["user", "assistant", "user"]
    assert session.generations[-1][0].seed == 3


def test_escape_stops(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    send(page, "long")
    page.wait_for_selector("#chat .message.bot")
    page.keyboard.press("Escape")
    settled(page)
    assert not session.is_busy


def test_a_closed_tab_frees_the_engine(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    send(page, "long")
    page.wait_for_selector("#chat .message.bot")
    assert session.is_busy
    page.close()
    wait_free(session)


def test_a_second_user_waits_and_never_mixes(open_page: Any, session: FakeSession) -> None:
    first, second = open_page(), open_page()
    send(first, "long")
    first.wait_for_selector("#chat .message.bot")
    send(second, "plain")
    second.wait_for_selector("#status >> text=Waiting: 1 request ahead")
    first.click("#box .stop-button")
    settled(first)
    settled(second)
    assert "Another line" in second.inner_text("#chat")
    assert "Another line" not in first.inner_text("#chat")
    assert len(session.seen[-1]) == 1


def test_new_chat_while_streaming(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    send(page, "long")
    page.wait_for_selector("#chat .message.bot")
    page.click("#new-chat")
    page.wait_for_selector("#chat .example")
    wait_free(session)
    page.wait_for_selector("#box .submit-button")
    drawn(page)
    assert page.locator("#chat .message.bot").count() == 0
    talk(page, "plain")
    assert page.locator("#chat .message.bot").count() == 1
    assert len(session.seen[-1]) == 1


def test_regenerate(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    talk(page, "plain")
    n_requests = len(session.seen)
    page.click("#chat .bot-row [aria-label=Regenerate]")
    page.wait_for_function("window.eaglePage.peek().turns[1]?.n_versions === 2")
    settled(page)
    assert len(session.seen) == n_requests + 1
    assert [message["content"] for message in session.seen[-1]] == ["plain"]
    assert page.locator("#chat .message.bot").count() == 1


def test_an_example_is_sent(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    page.locator("#chat .example").first.click()
    page.wait_for_function("window.eaglePage.peek().turns.length === 2")
    settled(page)
    assert "lighthouse" in session.seen[-1][-1]["content"]


def test_nothing_and_too_much(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    n_requests = len(session.seen)
    page.press(BOX, "Enter")
    page.wait_for_selector("#notice >> text=Type a message first")
    assert len(session.seen) == n_requests
    long = "much " * 600
    send(page, long)
    page.wait_for_selector("#notice >> text=Shorten the message")
    page.wait_for_selector("#box .submit-button")
    assert page.input_value(BOX) == long
    talk(page, "plain")
    assert page.locator("#notice .notice").count() == 0


def test_attacks_stay_text(open_page: Any) -> None:
    page = open_page()
    talk(page, "attack")
    page.click("#views button[data-view=tokens]")
    page.wait_for_selector("#tokens .token-t")
    page.click("#views button[data-view=chat]")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#chat .md img").count() == 0
    assert page.locator("#chat .md :is(style, script, iframe, form, input, svg a)").count() == 0
    assert page.locator("#chat .md a[href^='javascript']").count() == 0
    assert page.is_visible("#box textarea")
    # Nothing that a message holds may lie above the message box.
    hit = page.evaluate(
        """() => { const r = document.querySelector('#box textarea').getBoundingClientRect();
        return document.elementFromPoint(r.x + 20, r.y + r.height / 2).closest('#box') !== null }"""
    )
    assert hit
    assert page.foreign == []
    assert page.errors == []


def test_a_port_that_is_taken_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        found = iter([taken, taken, free_port("127.0.0.1", 0)])
        monkeypatch.setattr(ui_app, "free_port", lambda host, wanted: next(found))
        app = launch(FakeSession(), open_browser=False, prevent_thread_lock=True)  # type: ignore[arg-type]
        try:
            assert str(taken) not in app.local_url
            with urllib.request.urlopen(app.local_url) as answer:
                assert answer.status == 200
        finally:
            app.close()


@pytest.mark.parametrize("name", list(CORPUS))
def test_nasty_markdown(open_page: Any, name: str) -> None:
    page = open_page()
    talk(page, name)
    (answer,) = report(page)
    ratio = answer["matched"] / answer["total"]
    assert answer["isPainted"] == (ratio >= 0.98)
    painted = "".join(page.evaluate(PAINTED_TEXT).split())
    if not answer["isPainted"]:
        assert painted == ""
        assert "see Tokens" in page.inner_text("#views")
        return
    drafted = iter(drafted_text(CORPUS[name]))
    assert all(sign in drafted for sign in painted), (
        "painted text is no subsequence of drafted text"
    )


def drafted_text(text: str) -> str:
    """The characters that the fake session drafts, without white space."""
    from tests.support.fake_session import grouped, pieces

    tokens = [token for group in grouped(pieces(text), True) for token in group]
    drafted = "".join(piece for piece, origin, _ in tokens if origin == "draft")
    return "".join(drafted.split())


def test_dark_and_narrow(open_page: Any) -> None:
    page = open_page(color_scheme="dark")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    ready(page)
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    talk(page, "table")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#box").bounding_box()
    assert box["y"] + box["height"] <= 844


def test_loading_is_shown_and_failure_explained(browser: Any) -> None:
    from eagle_core.errors import DownloadError
    from eagle_core.events import DownloadProgress

    seen = threading.Event()

    def open_slowly(on_event: Any) -> Any:
        on_event(DownloadProgress("the model", 45_000_000, 90_000_000))
        seen.wait(60)
        raise DownloadError("the download failed", hint="Check the connection and start again.")

    history = SqliteHistory(None)
    app = launch(open_slowly, open_browser=False, prevent_thread_lock=True, history=history)
    page = browser.new_page()
    try:
        page.goto(app.local_url)
        page.wait_for_selector("#notice >> text=45.0 MB of 90.0 MB")
        assert page.inner_text("#notice .pace") == "50%"
        page.fill(BOX, "What is said before the model is there")
        page.keyboard.press("Enter")
        page.wait_for_selector("#box .stop-button")
        seen.set()
        page.wait_for_selector("#notice .error >> text=Check the connection")
        page.wait_for_selector("#box .submit-button")
        assert page.input_value(BOX) == "What is said before the model is there"
    finally:
        page.close()
        app.close()
