"""The Models page in a real browser: fetch, cancel, resume, load, delete, template, token. ``-m browser``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core import own_models
from eagle_core.config import LoadConfig
from eagle_core.history import SqliteHistory
from eagle_core.ui import launch
from tests.support.browser import MARKS
from tests.support.fake_session import FakeSession
from tests.support.hub_server import HubServer
from tests.support.loopback import Files, serving, tiny_pair
from tests.support.page_checks import CONTRAST, UNNAMED

pytestmark = MARKS

SLOW = (1024, 0.1)  # 10 KB in a second
TOKEN = "hf_secretsecret"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def server(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with a pair that is called "tiny"."""
    with serving(files, tmp_path, monkeypatch) as server:
        own_models.add({"name": "tiny", "title": "Tiny", "base": "org/base", "head": "org/head"})
        yield server


class Opener:
    """Opens fake sessions that are called as the model that was asked for."""

    def __init__(self) -> None:
        self.configs: list[LoadConfig] = []
        self.template: str | None = "own"

    def __call__(self, config: LoadConfig, on_event: Any) -> Any:
        self.configs.append(config)
        session = FakeSession()
        session.info = dataclasses.replace(
            session.info, base=config.base, chat_template=self.template
        )
        return session


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def session() -> FakeSession:
    return FakeSession(default="word " * 60, step_s=0.05)


@pytest.fixture
def page(browser: Any, server: HubServer, opener: Opener, session: FakeSession) -> Iterator[Any]:
    app = launch(
        session,  # type: ignore[arg-type]
        open_browser=False,
        prevent_thread_lock=True,
        history=SqliteHistory(None),
        open_model=opener,
    )
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    page.address = str(app.local_url).rstrip("/")
    page.goto(f"{page.address}/models")
    page.wait_for_selector("#models .model")
    yield page
    context.close()
    app.close()


def card(name: str) -> str:
    return f"#models [data-model='{name}']"


def press(page: Any, name: str, do: str) -> None:
    page.click(f"{card(name)} button[data-do={do}]")


def test_a_download_shows_progress_is_cancelled_resumed_and_deleted(
    page: Any, server: HubServer
) -> None:
    assert "not known yet" in page.inner_text(card("tiny"))
    server.repos["org/base"].trickles["model.safetensors"] = SLOW
    press(page, "tiny", "fetch")
    page.wait_for_selector("#models-work progress[value]")
    page.wait_for_selector("#models-work .pace >> text=/\\d+% · .* MB.s/")
    page.reload()  # a page that comes later sees it, too
    page.wait_for_selector("#models-work progress[value]")
    page.click("#models-work button[data-do=cancel]")
    page.wait_for_selector("#models-notice .notice >> text=/stopped/i")
    page.wait_for_selector(f"{card('tiny')} >> text=partly here")
    server.repos["org/base"].trickles.clear()
    press(page, "tiny", "fetch")
    page.wait_for_selector("#models-notice >> text=tiny is on this machine now")
    assert any(server.ranges("model.safetensors"))  # it went on where it was
    page.wait_for_selector(f"{card('tiny')} button[data-do=delete]")
    press(page, "tiny", "delete")
    page.wait_for_selector("#models-notice >> text=were deleted")
    page.wait_for_selector(f"{card('tiny')} button[data-do=fetch]")
    assert page.errors == []


def test_another_model_is_loaded_once_the_answer_is_complete(
    page: Any, session: FakeSession, opener: Opener
) -> None:
    chat = page.context.new_page()
    chat.goto(page.address)
    chat.wait_for_selector("#box textarea:not([disabled])")
    chat.wait_for_function("document.body.dataset.view === 'chat'")
    chat.fill("#box textarea", "hello")
    chat.press("#box textarea", "Enter")
    chat.wait_for_selector("#chat .bot >> text=word")
    opener.template = None
    press(page, "tiny", "load")
    page.wait_for_selector("#models-work >> text=Waiting for the answer")
    page.wait_for_selector("#models-notice >> text=tiny is in use")
    assert not session.is_busy
    assert opener.configs[0].base == "tiny"
    assert chat.inner_text("#chat .bot").count("word") == 60  # the answer was not cut
    page.wait_for_selector("#models-loaded >> text=In use: tiny")
    assert page.locator(f"{card('tiny')} button[data-do=delete]:not(:disabled)").count() == 0
    page.click("#template-name input")
    page.click("[role=option] >> text=vicuna")
    page.click("#template-use")
    page.wait_for_selector("#models-notice >> text=in the manner of vicuna")
    page.wait_for_selector("#models-template", state="hidden")


def test_any_pair_is_checked_and_loaded_in_a_chosen_precision(page: Any, opener: Opener) -> None:
    page.fill("#model-name input, #model-name textarea", "org/base")
    page.fill("#model-head input, #model-head textarea", "org/head")
    page.click("#model-check")
    page.wait_for_selector("#models-card .model >> text=/Fits|slow/")
    page.wait_for_function(
        "document.querySelector('#model-precision input').value.includes('recommended')"
    )
    page.click("#model-precision input")
    page.click("[role=option] >> text=bfloat16")
    page.click("#model-load")
    page.wait_for_selector("#models-notice >> text=org/base is in use")
    (config,) = opener.configs
    assert (config.base, config.head, config.dtype) == ("org/base", "org/head", "bfloat16")
    assert config.quantization == "none"


def test_the_pair_in_use_is_known_when_it_is_checked(page: Any, opener: Opener) -> None:
    press(page, "tiny", "load")
    page.wait_for_selector("#models-loaded >> text=In use: tiny")
    page.fill("#model-name input, #model-name textarea", "org/base")  # the same, by another name
    page.fill("#model-head input, #model-head textarea", "org/head")
    page.click("#model-check")
    page.wait_for_selector("#models-card .chip.now >> text=in use, in bfloat16")
    assert page.locator("#models-card button[data-do=load]").count() == 0
    assert page.locator("#models-card button[data-do=delete]").is_disabled()
    assert "once another model is loaded" in page.inner_text("#models-card")
    page.click("#models-card button[data-do=choose]")
    page.wait_for_function(
        "document.querySelector('#model-precision input').value.includes('exact weights')"
    )
    page.click("#model-precision input")
    page.click("[role=option] >> text=/bfloat16.*in use/")
    page.click("#model-load")
    page.wait_for_selector("#models-notice >> text=org/base is in use, in bfloat16")
    assert len(opener.configs) == 1
    page.click("#model-precision input")
    page.click("[role=option] >> text=float32")
    page.click("#model-load")
    page.wait_for_selector("#models-loaded >> text=In use: org/base")
    assert [config.dtype for config in opener.configs][1:] == ["float32"]
    assert page.errors == []


def test_mistakes_are_named_with_a_next_step(page: Any, server: HubServer) -> None:
    page.click("#model-load")
    page.wait_for_selector("#models-notice >> text=Name a model first")
    page.fill("#model-name input, #model-name textarea", "org/nothing")
    page.click("#model-check")
    page.wait_for_selector("#models-notice .error >> text=Check the spelling")
    server.repos["org/base"].refuse, server.repos["org/base"].refuse_code = 403, "GatedRepo"
    press(page, "tiny", "fetch")
    page.wait_for_selector("#models-notice .error >> text=is gated")
    page.wait_for_selector("#models-notice >> text=under Access token")


def test_a_token_is_kept_for_the_user_alone(page: Any, tmp_path: Path) -> None:
    page.fill("#token input", TOKEN)
    page.click("#token-save")
    page.wait_for_selector("#models-notice >> text=The token of tester is kept")
    assert page.input_value("#token input") == ""
    assert TOKEN not in page.content()
    assert (tmp_path / "token").read_text() == TOKEN
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    page.click("#token-forget")
    page.wait_for_selector("#token-state >> text=No token is kept")
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_legible_on_a_phone(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector("#models .model")
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(UNNAMED) == []
    if shots := os.environ.get("MODELS_SHOTS"):
        page.screenshot(path=Path(shots) / f"models-{scheme}-phone.png")
        page.set_viewport_size({"width": 1280, "height": 860})
        page.wait_for_timeout(300)
        page.screenshot(path=Path(shots) / f"models-{scheme}.png", full_page=True)
        page.click(f"{card('tiny')} button[data-do=check]")
        page.wait_for_selector("#models-card .model")
        page.click(f"{card('qwen2-72b')} button[data-do=fetch]")
        page.wait_for_timeout(2000)
        page.screenshot(path=Path(shots) / f"models-{scheme}-scrolled.png")
