"""Comparisons in a real browser: a result as a picture, batches and plots, precisions. ``-m browser``."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from eagle_core.config import LoadConfig
from eagle_core.events import LoadProgress
from eagle_core.history import SqliteHistory
from eagle_core.ui import launch
from tests.support.browser import MARKS
from tests.support.fake_session import FakeSession
from tests.support.hostile import spare_port, watch_page
from tests.support.page_checks import CONTRAST, UNNAMED
from tests.support.tiny_models import save_llama

pytestmark = MARKS

SHORT = "A **short** answer with `code`, and a second sentence.\n\nAnd a last line."
PROMPT = "Why? " + "A rather long question with many words in it. " * 8 + "😀 ‮back‬ <b>x</b>"


def opened(config: LoadConfig, on_event: Any) -> Any:
    """A model in a precision, as the page opens it."""
    on_event(LoadProgress("reading the weights"))
    time.sleep(1.0)  # no model is there sooner, and a slow page shows only what stays for a while
    session = FakeSession(default=SHORT, step_s=0.02)
    dtype = "float32" if config.dtype == "auto" else config.dtype
    session.info = dataclasses.replace(session.info, base=config.base, dtype=dtype)
    return session


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = LoadConfig(base=str(save_llama(tmp_path_factory.mktemp("base"))))
    app = launch(
        lambda on_event: opened(base, on_event), port=spare_port(), open_browser=False,
        prevent_thread_lock=True, history=SqliteHistory(None), open_model=opened, settings=base,
    )  # fmt: skip
    yield str(app.local_url)
    app.close()


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Any]:
    contexts = []

    def make(width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 860}, accept_downloads=True, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(180_000)
        watch_page(page, url)
        page.goto(f"{url.rstrip('/')}/compare")
        page.wait_for_selector("#race-go")
        page.wait_for_selector("#race-precision-0 input")
        return page

    yield make
    for context in contexts:
        context.close()


def race(page: Any, prompt: str) -> None:
    page.fill("#race-prompt textarea", prompt)
    page.click("#race-go")
    page.wait_for_selector(".race .lane")
    page.click(".race >> text=To the end")


def test_a_setup_that_was_looked_at_keeps_the_temperature_of_all(open_page: Any) -> None:
    page = open_page()
    page.locator(".setup >> nth=1 >> text=Tree and temperature").click()
    page.wait_for_selector("#race-temperature-1 :is(input, textarea):visible")
    page.fill("#race-temperature input[type=number]", "0.7")
    race(page, PROMPT)
    abouts = page.locator(".race .lane header .about:first-of-type").all_inner_texts()
    assert len(abouts) == 2
    assert all("temperature 0.7" in about for about in abouts)
    top = page.evaluate("document.querySelector('.race').getBoundingClientRect().top")
    assert -5 < top < 200  # the result is in view, not below the set-ups
    for fact in page.locator(".race :is(.live, .facts) span").all():
        assert len(fact.get_attribute("title") or "") > 10, fact.inner_text()


def test_of_answers_that_end_between_two_frames_the_faster_is_first(open_page: Any) -> None:
    page = open_page()
    page.evaluate(
        """() => { const {mount} = window.eagleRace;
        window.eagleRace.mount = (place, data) => { window.seen = [place, data]; mount(place, data); } }"""
    )
    race(page, "short")
    page.evaluate(
        """() => { const [place, data] = window.seen;
        data.races[0].lanes.forEach((lane, index) => {
          lane.total_ms = index ? 3 : 9;
          for (const moment of lane.moments) moment[0] = 1;
        });
        window.eagleRace.mount(place, data); }"""
    )
    page.wait_for_function("document.querySelectorAll('.race .done:not(:empty)').length === 2")
    done = page.locator(".race .lane .done").all_inner_texts()
    assert ["first" in text for text in done] == [False, True]


def picture_of(page: Any, file: Path) -> np.ndarray[Any, Any]:
    with page.expect_download() as download:
        page.click(".race .picture")
    assert download.value.suggested_filename == "comparison.png"
    download.value.save_as(file)
    with Image.open(file) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)  # [H, W, 3]


def check_picture(pixels: np.ndarray[Any, Any], place: str) -> None:
    height, width, _ = pixels.shape
    assert width == 2400, place
    assert 1200 < height < 3000, place
    assert (pixels[:40] == 255).all(), f"{place}: the edge is white"
    assert (pixels[-40:] == 255).all(), f"{place}: nothing is cut off at the bottom"
    assert (pixels[:, -40:] == 255).all(), f"{place}: nothing is cut off at the right"
    is_inked = (pixels.sum(axis=2) < 600).any(axis=1)  # rows with writing or bars
    assert 0.2 < is_inked.mean() < 0.95, place
    for color in ((100, 116, 139), (0, 114, 178)):  # both lanes' bars
        assert (abs(pixels - color).sum(axis=2) < 12).sum() > 3000, f"{place}: {color}"


def test_a_result_is_saved_as_a_picture(open_page: Any, tmp_path: Path) -> None:
    page = open_page(color_scheme="dark")
    race(page, PROMPT)
    in_app = picture_of(page, tmp_path / "app.png")
    check_picture(in_app, "in the app")
    kept = page.context.new_page()
    with page.expect_download() as download:
        page.click("#race-save")
    saved = tmp_path / "comparison.html"
    download.value.save_as(saved)
    kept.goto(saved.as_uri())
    in_file = picture_of(kept, tmp_path / "file.png")
    assert in_file.shape == in_app.shape
    assert (in_file == in_app).mean() > 0.99  # the same data: the same picture
    about = page.inner_text(".race .model")
    assert "EAGLE chat 0." in about
    assert "UTC" in about
    assert page.foreign == page.errors == []
    keep(tmp_path / "app.png")


def keep(file: Path) -> None:
    """A copy for the eye, where one is wanted."""
    folder = Path("/tmp/eagle-looks")
    if folder.is_dir():
        shutil.copy(file, folder)


def test_a_batch_has_dots_intervals_and_kinds(open_page: Any, tmp_path: Path) -> None:
    page = open_page()
    page.click("#race-batch")
    page.wait_for_selector("#race-status >> text=/of 24 answers · about .* left/")
    page.wait_for_selector(".race .spread")
    n_prompts = page.locator(".race .rates tbody tr").count()
    assert n_prompts == 12
    rows = page.locator(".race .spread tbody tr").count()
    assert rows == 1 + 6 + 1  # all of them, the kinds, the scale
    assert page.locator(".race .spread tr >> nth=0").locator(".dot").count() == n_prompts
    assert page.locator(".race .spread tr >> nth=1").locator(".dot").count() == 2
    assert "95% interval" in page.inner_text(".race .card >> nth=0")
    assert f"{n_prompts} of {n_prompts} answers identical" in page.inner_text(".race .cards")
    page.locator(".race .spread tr >> nth=1").locator(".dot").nth(1).click()
    assert "teacher" in page.inner_text(".race .prompt")
    page.click(".race >> text=To the end")
    check_picture(picture_of(page, tmp_path / "batch.png"), "a batch")
    assert page.evaluate(UNNAMED) == []
    poor = page.evaluate(CONTRAST)
    assert poor == [], "\n".join(map(str, poor))
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.errors == []
    keep(tmp_path / "batch.png")


def test_stop_keeps_what_is_done(open_page: Any) -> None:
    page = open_page()
    page.click("#race-batch")
    page.wait_for_selector("#race-status >> text=/prompt [3-9] of 12/")
    page.click("#race-stop")
    page.wait_for_selector(".race .rates")
    n_kept = page.locator(".race .rates tbody tr").count()
    assert 2 <= n_kept < 12
    assert f"{n_kept} of {n_kept} answers identical" in page.inner_text(".race .cards")
    assert "Stopped" in page.inner_text("#race-status")


def choose(page: Any, place: int, label: str) -> None:
    page.click(f"#race-precision-{place} input")
    page.click(f"[role=option] >> text={label}")


def test_another_precision_is_loaded_for_its_turn(open_page: Any) -> None:
    page = open_page()
    page.wait_for_function(
        "document.querySelector('#race-precision-0 input').value === 'As loaded: float32'"
    )
    choose(page, 1, "bfloat16 (less memory, not faster)")
    page.evaluate(
        """() => { window.said = new Set(); const status = document.querySelector('#race-status');
        new MutationObserver(() => window.said.add(status.innerText))
          .observe(status, {childList: true, subtree: true, characterData: true}); }"""
    )
    race(page, "short")
    assert page.locator(".race .lane h3").all_inner_texts()[0].startswith("Plain decoding, float32")
    assert "EAGLE, bfloat16" in page.inner_text(".race .lane >> nth=1")
    card = page.inner_text(".race .card")
    assert "Another precision is another model" in card
    assert "Here it is the same" in card
    assert "float32 and bfloat16 on cpu" in page.inner_text(".race .model")
    said = " ".join(page.evaluate("[...window.said]"))
    assert "bfloat16" in said
    page.reload()
    page.wait_for_function(
        "document.querySelector('#race-precision-0 input')?.value === 'As loaded: float32'"
    )
    assert page.errors == []
