"""The first run in a real browser: a better pair is proposed and comes by one press. ``-m browser``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core.config import DEFAULT_BASE
from eagle_core.fit import Machine
from eagle_core.history import SqliteHistory
from eagle_core.ui import launch, model_in_use
from tests.support.browser import MARKS
from tests.support.fake_session import FakeSession
from tests.support.hub_server import HubServer
from tests.support.loopback import serving, tiny_pair
from tests.support.page_checks import CONTRAST, UNNAMED

pytestmark = MARKS

GB = 1_000_000_000


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with tiny weights under the names of the pair that 16 GB of memory are proposed."""
    files = tiny_pair(tmp_path, "Qwen/Qwen3-4B", "AngelSlim/Qwen3-4B_eagle3")
    machine = Machine("cpu", 16 * GB, 16 * GB, "processor")
    monkeypatch.setattr(model_in_use, "this_machine", lambda: machine)
    with serving(files, tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def page(server: HubServer, browser: Any) -> Iterator[Any]:
    """The app on its first run: the default model answers, and nothing else is here."""
    session = FakeSession()
    session.info = dataclasses.replace(session.info, base=DEFAULT_BASE)
    app = launch(
        session,  # type: ignore[arg-type]
        open_browser=False,
        prevent_thread_lock=True,
        history=SqliteHistory(None),
    )
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.set_default_timeout(60_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(str(app.local_url))
    page.wait_for_selector("#proposal .proposal")
    yield page
    page.close()
    app.close()


def test_one_press_fetches_and_loads_what_is_proposed(page: Any, server: HubServer) -> None:
    text = page.inner_text("#proposal")
    assert "Qwen3 4B with its draft head fits this machine" in text
    assert "to fetch" in text
    assert server.log == []  # nothing is asked of the Hub for it
    if shots := os.environ.get("MODELS_SHOTS"):
        page.wait_for_timeout(500)
        page.screenshot(path=Path(shots) / "proposal.png")
    server.repos["Qwen/Qwen3-4B"].trickles["model.safetensors"] = (1 << 12, 0.05)
    page.click("#proposal button[data-do=load]")
    page.wait_for_selector("#proposal progress[value]")
    page.wait_for_selector("#proposal >> text=qwen3-4b is in use")
    assert server.n_transfers["model.safetensors"] == 2  # the base's and the head's
    page.reload()
    page.wait_for_selector("#header >> text=qwen3-4b")  # the real engine, on what was fetched
    assert page.locator("#proposal .proposal").count() == 0
    assert page.errors == []


def test_not_now_is_remembered_and_the_page_stays_legible(page: Any) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 390, "height": 844})
        # The page hears of the scheme a little later, and then its colors fade over.
        page.wait_for_function(
            "dark => document.body.classList.contains('dark') === dark", arg=scheme == "dark"
        )
        page.wait_for_function("document.getAnimations().length === 0")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(UNNAMED) == []
    page.click("#proposal button[data-do=later]")
    page.wait_for_selector("#proposal .proposal", state="hidden")
    page.reload()
    page.wait_for_selector("#proposal .proposal", state="attached")
    page.wait_for_selector("#proposal .proposal", state="hidden")
    assert page.errors == []
