"""The chat page in a real browser on the real default model. Run with ``-m "browser and slow"``."""

from __future__ import annotations

import time
from typing import Any

import pytest

from eagle_core.history import SqliteHistory
from tests.support.browser import (
    BOX,
    MARKS,
    n_painted,
    ready,
    report,
    send,
    settled,
    slowdown,
    talk,
    texts,
    tool,
    wait_texts,
)
from tests.support.default_app import NextRequest

pytestmark = [*MARKS, pytest.mark.slow]


def test_a_day(default_model_page: Any, history: SqliteHistory) -> None:
    page = default_model_page
    page.click("[data-drawer=settings]")
    page.fill("#max-new-tokens input", "40")
    talk(page, "What is the capital of France?")
    first = texts(page)[1]
    assert "Paris" in first
    (answer,) = report(page)
    assert answer["isPainted"]
    assert answer["counts"]["d"] + answer["counts"]["t"] > 3
    tool(page, 1, "Regenerate")
    wait_texts(page, ["What is the capital of France?", first])  # same seed, same answer
    assert "2 / 2" in page.inner_text("#chat .bot-row .versions")
    tool(page, 0, "Edit")
    page.fill(".editor textarea", "Write a long story about a lighthouse.")
    page.click(".editor .primary")
    page.wait_for_function(
        "window.eaglePage.peek().turns[0].n_versions === 2 && !window.eaglePage.peek().is_busy"
    )
    settled(page)
    story = texts(page)[1]
    tool(page, 1, "Continue")
    page.wait_for_function(
        "n => window.eaglePage.peek().turns[1]?.text.length > n && !window.eaglePage.peek().is_busy",
        arg=len(story),
    )
    settled(page)
    assert texts(page)[1].startswith(story)
    page.fill("#max-new-tokens input", "512")
    send(page, "Go on for many pages.")
    page.wait_for_function("document.querySelectorAll('#chat .bot-row')[1]?.innerText.length > 100")
    page.keyboard.press("Escape")
    page.wait_for_function("!window.eaglePage.peek().is_busy")
    settled(page)
    assert "stopped" in page.inner_text("#chat .bot-row >> nth=1 >> .stats")
    page.reload()
    ready(page)
    page.wait_for_function("window.eaglePage.peek().turns?.length === 4")
    settled(page)
    assert n_painted(page) > 0
    (summary,) = history.search("lighthouse")
    assert history.load(summary.id).path[1].figures["tau"] > 1


LONG_PROMPT = "The keeper walked slowly down to the beach, where a bottle lay open. " * 260


def test_stop_frees_the_engine_while_a_long_prompt_is_read(default_model_page: Any) -> None:
    """From the press to the next request's start, while about 4,000 tokens are read."""
    page = default_model_page
    for press in (lambda: page.keyboard.press("Escape"), lambda: page.click("#box .stop-button")):
        next_request = NextRequest(page.session)
        page.fill(BOX, LONG_PROMPT)
        page.press(BOX, "Enter")
        page.wait_for_selector("#status >> text=/Reading the prompt: [1-9]/")
        next_request.start()
        assert next_request.is_queued.wait(60)
        factor = slowdown()
        pressed_s = time.monotonic()
        press()
        next_request.join(120)
        took_s = next_request.started_s - pressed_s
        print(f"{took_s:.2f} s; other work makes everything {factor:.1f} times as long")
        assert 0 < took_s < 0.5 * max(factor, slowdown())
        page.wait_for_selector("#notice >> text=Stopped before the answer began")
        page.wait_for_function("document.querySelector('#box textarea').value.length > 1000")
