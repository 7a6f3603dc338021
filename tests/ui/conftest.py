"""The chat page without a browser; and a real browser, an app on a session without a model, and its pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core.config import LoadConfig
from eagle_core.errors import EagleError
from eagle_core.history import SqliteHistory
from eagle_core.ui import launch
from tests.support.browser import TIMEOUT_MS, ready, watch
from tests.support.chat_page import Page
from tests.support.fake_session import ANSWERS, FakeSession


@pytest.fixture
def page() -> Iterator[Page]:
    """The chat page without a browser, on a session that knows two prompts."""
    made = Page(FakeSession({"q": "first answer", "other": "another answer"}, step_s=0.0))
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. One for each file: other tests run event loops of their own in this thread."""
    sync_api = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium") or os.environ.get("CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    """The app on the real default model, for all tests of a file."""
    from tests.support.default_app import serving_default

    with serving_default(SqliteHistory(None)) as running:
        yield running


@pytest.fixture
def session() -> FakeSession:
    """What the app talks to; a file may say more."""
    return FakeSession(dict(ANSWERS), default="Some answer.", step_s=0.005)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SqliteHistory]:
    """Where the app keeps its chats."""
    store = SqliteHistory(tmp_path / "history.sqlite3")
    yield store
    store.close()


@pytest.fixture
def url(session: FakeSession, history: SqliteHistory) -> Iterator[str]:
    """The address of an app of this test alone; a file may have one for all its tests."""
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)  # type: ignore[arg-type]
    yield str(app.local_url)
    app.close()


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """Opens pages, each a visitor of its own: ``path`` below the app, size, and a context's options."""
    contexts = []

    def make(path: str = "", width: int = 1280, height: int = 860, **options: Any) -> Any:
        viewport = {"width": width, "height": height}
        context = browser.new_context(viewport=viewport, accept_downloads=True, **options)
        contexts.append(context)
        page = watch(context.new_page(), url)
        page.goto(url.rstrip("/") + path)
        if not path:
            ready(page)
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def default_model_page(browser: Any, history: SqliteHistory) -> Iterator[Any]:
    """The app on the real default model, which must be on this machine, in a page of its own."""
    from eagle_core.session import Session

    try:
        session = Session.open(LoadConfig(offline=True))
    except EagleError as error:
        pytest.skip(f"the default model is not on this machine: {error.message}")
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    watch(page, str(app.local_url)).set_default_timeout(4 * TIMEOUT_MS)
    page.address = str(app.local_url).rstrip("/")
    page.session = session
    page.goto(page.address)
    ready(page)
    yield page
    page.close()
    app.close()
    session.close()
