"""The Models page on the real default model: precisions, swaps, mistakes.

Run with ``-m "browser and slow"``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import MARKS, load, send, settled, talk, texts, watch
from tests.support.default_app import configure, line
from tests.support.page_checks import CONTRAST, UNNAMED

pytestmark = [*MARKS, pytest.mark.slow]

CARD = "#models [data-model='smollm2-135m']"


@pytest.fixture
def chat(browser: Any, app: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = load(context.new_page(), app.url)
    configure(page, max_new_tokens=24)
    page.click("[data-drawer=settings]")
    yield page
    assert page.errors == []
    assert page.foreign == []
    context.close()


@pytest.fixture
def page(chat: Any, app: Any) -> Any:
    """The Models page in another tab of the same visitor."""
    page = watch(chat.context.new_page(), app.url)
    page.goto(f"{app.url.rstrip('/')}/models")
    page.wait_for_selector("#models .model")
    return page


def test_what_fits_what_is_in_use_and_the_theme(page: Any, chat: Any) -> None:
    assert "smollm2-135m with smollm2-135m-eagle3, in float32 on cpu" in page.inner_text(
        "#models-loaded"
    )
    assert page.inner_text(f"{CARD} .pill") == "Fits"
    assert page.inner_text("#models [data-model='qwen2-72b'] .pill") == "Won't fit"
    assert page.locator("#models .model").count() == page.locator("#models .pill").count() > 10
    assert "in use" in page.inner_text(CARD)
    assert page.locator(f"{CARD} button[data-do=delete]:not(:disabled)").count() == 0
    for scheme in ("dark", "light"):
        page.click("#models [data-theme]")
        assert page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.wait_for_function("document.getAnimations().length === 0")  # colors fade over
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(UNNAMED) == []
        page.set_viewport_size({"width": 1280, "height": 860})
        chat.reload()
        chat.wait_for_function(
            "want => document.body.classList.contains('dark') === want", arg=scheme == "dark"
        )
    assert page.errors == []


def load_in(page: Any, precision: str) -> None:
    """Choose a precision of the model in use and press Load."""
    page.click(f"{CARD} button[data-do=choose]")
    page.wait_for_function(
        "document.querySelector('#model-name :is(input, textarea)').value !== ''"
    )
    page.click("#model-precision input")
    page.click(f"[role=option] >> text={precision}")
    page.click("#model-load")


def test_int8_comes_in_place_of_float32_and_goes_again(page: Any, chat: Any, app: Any) -> None:
    """While an answer is written, which is not cut, and while nobody asks anything."""
    old = weakref.ref(app.slot.session.target)
    configure(chat, max_new_tokens=300, min_new_tokens=300)
    send(chat, "Write a story about a lighthouse.")
    chat.wait_for_function("document.querySelector('#chat .bot-row')?.innerText.length > 20")
    load_in(page, "int8")
    assert chat.evaluate("window.eaglePage.peek().is_busy"), "the answer goes on meanwhile"
    page.wait_for_selector("#models-notice >> text=smollm2-135m is in use, in int8")
    page.wait_for_selector("#models-loaded >> text=in int8 on cpu")
    settled(chat)
    assert "reached the longest answer" in line(chat)
    assert "float32" in line(chat)
    gc.collect()
    assert old() is None, "the old model is still held"
    chat.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    chat.wait_for_selector("#header >> text=int8 on cpu")
    configure(chat, max_new_tokens=24, min_new_tokens=0)
    talk(chat, "What is the capital of France?")
    assert "int8" in line(chat)
    assert "Paris" in texts(chat)[-1]
    print(line(chat))
    load_in(page, "float32")
    page.wait_for_selector("#models-notice >> text=smollm2-135m is in use, in float32")
    talk(chat, "And of Italy?")
    assert "float32" in line(chat)
    chat.wait_for_selector("#header >> text=float32 on cpu")


def test_mistakes_have_a_next_step_and_leave_the_model_alone(
    page: Any, chat: Any, app: Any, tmp_path: Path
) -> None:
    session = app.slot.session
    for name, said, step in (
        ("/nowhere/at/all", "does not exist", "Check the path"),
        ("nobody/no-such-model", "is not on this machine", "start it without --offline"),
        ("just some words", "No model is called", "Check the spelling"),
    ):
        page.fill("#model-name :is(input, textarea)", name)
        page.click("#model-load")
        page.wait_for_selector(f"#models-notice .error >> text={said}")
        assert step.lower() in page.inner_text("#models-notice").lower()
        assert app.slot.session is session
    page.click("#model-check")
    page.fill("#model-name :is(input, textarea)", str(tmp_path))  # a folder, but no model's
    page.click("#model-load")
    page.wait_for_selector("#models-notice .error >> text=config.json")
    print(page.inner_text("#models-notice"))
    page.wait_for_selector("#models-loaded >> text=on cpu")
    talk(chat, "What is the capital of France?")
    assert "Paris" in texts(chat)[1]
    assert page.errors == []
