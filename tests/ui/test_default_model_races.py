"""The Compare page on the real default model: precisions, batches, files.

Run with ``-m "browser and slow"``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.browser import MARKS, load, ready, send, settled, texts, watch
from tests.support.default_app import configure, line

pytestmark = [*MARKS, pytest.mark.slow]

LENT = "A comparison is using the model in another precision"
TEXTS = "[...document.querySelectorAll('.race .text')].map(t => t.textContent)"


@pytest.fixture
def page(browser: Any, app: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 860}, accept_downloads=True)
    page = open_compare(context, app)
    page.fill("#race-max-new-tokens input", "32")
    page.press("#race-max-new-tokens input", "Tab")
    yield page
    assert page.errors == []
    assert page.foreign == []
    context.close()


def open_compare(context: Any, app: Any) -> Any:
    page = watch(context.new_page(), app.url)
    page.set_default_timeout(120_000)
    page.goto(f"{app.url.rstrip('/')}/compare")
    page.wait_for_function(
        "document.querySelector('#race-precision-0 input')?.value === 'As loaded: float32'"
    )
    return page


def race(page: Any, prompt: str) -> str:
    """Race and wait for the result; returns its first card."""
    page.fill("#race-prompt textarea", prompt)
    page.click("#race-go")
    page.wait_for_selector(".race .lane")
    page.click("text=To the end")
    return str(page.inner_text(".race .cards"))


def choose(page: Any, what: str, place: int, label: str) -> None:
    page.click(f"#race-{what}-{place} input")
    page.click(f"[role=option] >> text={label}")


def test_a_race_is_seen_kept_and_shown_elsewhere(page: Any, browser: Any, tmp_path: Path) -> None:
    card = race(page, "List three fruits and repeat the list.")
    print(card)
    assert "Identical answers" in card
    assert page.locator(".race .lane >> nth=1 >> .d").count() > 0
    top = page.evaluate("document.querySelector('.race').getBoundingClientRect().top")
    assert 0 <= top < 430, "the result is in sight"
    shown = page.evaluate(TEXTS)
    assert shown[0] == shown[1] != ""
    with page.expect_download() as found:
        page.click("#race-save")
    found.value.save_as(tmp_path / "comparison.html")
    with page.expect_download() as found:
        page.click(".race .picture")
    found.value.save_as(tmp_path / "comparison.png")
    with Image.open(tmp_path / "comparison.png") as image:
        assert image.format == "PNG"
        assert image.width == 2400
    elsewhere = browser.new_context(offline=True)
    alone = watch(elsewhere.new_page(), "file:")
    alone.goto((tmp_path / "comparison.html").as_uri())
    alone.click("text=To the end")
    assert alone.inner_text(".race .cards") == card
    assert alone.evaluate(TEXTS) == shown
    assert alone.errors == alone.foreign == []
    elsewhere.close()


def test_three_set_ups_and_what_other_tabs_say_meanwhile(page: Any, app: Any) -> None:
    chat = load(page.context.new_page(), app.url)
    configure(chat, max_new_tokens=12)
    choose(page, "drafter", 2, "EAGLE")
    choose(page, "precision", 2, "int8")
    page.fill("#race-max-new-tokens input", "128")  # long enough to look around meanwhile
    page.fill("#race-prompt textarea", "Write a story about a lighthouse.")
    page.click("#race-go")
    page.wait_for_selector("#race-status >> text=/int8/")
    send(chat, "Hello")
    chat.wait_for_selector(f"#notice >> text={LENT}")
    assert texts(chat) == []
    late = watch(page.context.new_page(), app.url)
    late.goto(app.url)
    late.wait_for_selector(f"#notice >> text=/{LENT}|Opening|Loading|Reading/")
    late.goto(f"{app.url.rstrip('/')}/models")
    page.wait_for_selector(".race .lane >> nth=2")
    page.click("text=To the end")
    cards = page.inner_text(".race .cards")
    print(cards)
    assert "EAGLE, int8 beside Plain decoding, float32" in cards
    assert "Another precision is another model" in cards
    assert "float32 and int8 on cpu" in page.inner_text(".race .model")
    chat.wait_for_function("window.eaglePage.peek().turns.length === 2")  # the model is back
    settled(chat)
    assert "float32" in line(chat)
    late.wait_for_selector("#models-loaded >> text=in float32 on cpu")
    late.goto(app.url)
    ready(late)
    assert chat.errors == late.errors == []


def test_a_batch_is_stopped_half_way(page: Any) -> None:
    page.fill("#race-max-new-tokens input", "8")
    page.press("#race-max-new-tokens input", "Tab")
    page.click("#race-batch")
    page.wait_for_selector("#race-status >> text=/prompt [3-9] of 12/")
    page.click("#race-stop")
    page.wait_for_selector(".race .rates")
    n_kept = page.locator(".race .rates tbody tr").count()
    assert 2 <= n_kept < 12
    assert "Stopped" in page.inner_text("#race-status")
    assert f"{n_kept} of {n_kept} answers identical" in page.inner_text(".race .cards")
