"""Seeing drafts in a real browser: a long answer at speed, the Tokens view, a comparison. ``-m browser``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core.history import SqliteHistory
from eagle_core.ui import launch
from tests.support.browser import MARKS, report, send
from tests.support.fake_session import FakeSession
from tests.support.nasty_markdown import ATTACK, FIBONACCI

pytestmark = MARKS

PARAGRAPH = "The keeper walked **slowly** down to the beach, where a `bottle` lay *open*.\n\n"
LONG = (
    f"{PARAGRAPH}## A heading\n\n- one item\n- two `items`\n\n{FIBONACCI}\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
) * 28
N_TOKENS = 4000
STEP_S = 2.67 / 200  # the fake session's steps yield 2.67 tokens
WATCH_TASKS = """() => {
  const seen = window.seen_ = {tasks: [], loops: [], frames: []};
  new PerformanceObserver(list => seen.tasks.push(...list.getEntries().map(task => task.duration)))
    .observe({entryTypes: ['longtask']});
  new MutationObserver(() => {
    const answer = window.eagleChat.report().at(-1);
    if (answer) seen.frames.push(answer.counts.d + answer.counts.t);
  }).observe(document.querySelector('#chat'), {childList: true, subtree: true, characterData: true});
  const loop = () => {
    const begin = performance.now();
    let sum = 0;
    for (let i = 0; i < 2e6; i += 1) sum += i % 7;
    seen.loops.push(performance.now() - begin);
    return sum;
  };
  window.loop_ = setInterval(loop, 150);
}"""
TASKS = "() => { clearInterval(window.loop_); return window.seen_; }"
SHORT = "A **short** answer with `code`, and a second sentence.\n\nAnd a last line."


@pytest.fixture(scope="module")
def session() -> FakeSession:
    answers = {"long": LONG, "attack": ATTACK}
    return FakeSession(answers, default=SHORT, step_s=STEP_S, context_length=8192)


@pytest.fixture(scope="module")
def url(session: FakeSession) -> Iterator[str]:
    history = SqliteHistory(None)
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)  # type: ignore[arg-type]
    yield str(app.local_url)
    app.close()


def test_a_long_answer_at_speed_stays_cheap_and_complete(
    open_page: Any, session: FakeSession
) -> None:
    """No task of the page takes 100 ms, and what it takes of the processor does not grow with the answer.

    Other work on the machine makes every task longer. A loop of known work, run again and again meanwhile,
    says how much; processor time needs no such correction.
    """
    page = open_page()
    page.click("[data-drawer=settings]")
    page.fill("#max-new-tokens input", str(N_TOKENS))
    page.press("#max-new-tokens input", "Tab")
    page.click("[data-drawer=settings]")
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent_s() -> float:
        metrics = tools.send("Performance.getMetrics")["metrics"]
        return next(float(m["value"]) for m in metrics if m["name"] == "TaskDuration")

    page.evaluate(WATCH_TASKS)
    spent = [spent_s()]
    started_s = time.monotonic()
    send(page, "long")
    marks = (N_TOKENS // 2, N_TOKENS)
    for n_tokens in marks:
        page.wait_for_function(
            "n => { const a = window.eagleChat.report().at(-1); return a && a.counts.d + a.counts.t >= n }",
            arg=n_tokens,
        )
        spent.append(spent_s())
    took_s = time.monotonic() - started_s
    page.wait_for_selector("#chat .stats")
    answer = report(page)[-1]
    n_tokens = answer["counts"]["d"] + answer["counts"]["t"]
    assert N_TOKENS <= n_tokens < N_TOKENS + 4  # the fake session ends with a whole step
    assert answer["isPainted"]
    assert answer["matched"] == answer["total"] > 5000
    assert answer["nRanges"] > 1000
    first, second = spent[1] - spent[0], spent[2] - spent[1]
    # If every frame took the whole answer, the second half would cost three times the first.
    assert second < 1.8 * first + 0.5
    assert (
        first + second < 12
    )  # seconds of the main thread; with the whole answer in every frame it was 24
    assert_smooth(page.evaluate(TASKS), took_s)
    assert page.errors == []
    page.click("#views button[data-view=tokens]")
    page.wait_for_function(
        "n => document.querySelectorAll('#tokens .step > span').length === n", arg=n_tokens
    )
    shown = page.evaluate("document.querySelector('#tokens .flow').textContent")
    assert LONG.startswith(shown.replace("↵\n", "\n"))
    assert len(shown) > 2 * N_TOKENS


def assert_smooth(seen: dict[str, list[float]], took_s: float) -> None:
    """What the page's tasks took, against the loop of known work."""
    loops = sorted(seen["loops"])
    # Nothing interrupted the fastest loop; the slow ones show what an interrupted task takes more.
    slowdown = loops[int(0.95 * len(loops))] / loops[0]
    n_frames = len(set(seen["frames"]))
    longest = max(seen["tasks"], default=0.0)
    figures = (
        f"{n_frames} frames, {took_s:.1f} s; {len(seen['tasks'])} tasks over 50 ms, longest {longest:.0f} ms;"
        f" other work makes a task {slowdown:.1f} times as long"
    )
    print(figures)
    assert 8 < n_frames <= 20 * took_s, figures
    n_late = sum(task > 100 * slowdown for task in seen["tasks"])
    assert n_late <= 0.02 * n_frames, figures


def test_tokens_are_explored_with_the_keyboard(open_page: Any) -> None:
    page = open_page()
    send(page, "short")
    page.wait_for_selector("#chat .stats")
    page.click("#views button[data-view=tokens]")
    page.wait_for_selector("#tokens .token-d")
    page.locator("#tokens .step > span").first.focus()
    assert "by the model · prefill" in page.inner_text("#token-tip")
    page.keyboard.press("ArrowDown")
    tip = page.inner_text("#token-tip")
    assert "drafted at depth 1 · node 1 · step 1 · draft p = 0.700 · model p = 0.600" in tip
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "by the model · step 1" in page.inner_text("#token-tip")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.nextElementSibling === null")
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "token-tip"
    assert page.locator("#tokens [tabindex='0']").count() == 1
    assert page.errors == []


def start_race(page: Any, prompt: str) -> None:
    page.wait_for_selector("#race-go")
    page.fill("#race-prompt textarea", prompt)
    page.click("#race-go")


def test_a_race_is_run_replayed_and_saved(
    open_page: Any, session: FakeSession, tmp_path: Path
) -> None:
    page = open_page()
    page.wait_for_selector("#box textarea:not([disabled])")
    page.click("#views a:has-text('Compare')")
    n_requests = len(session.seen)
    start_race(page, "short")
    page.wait_for_selector(".race .lane")
    assert len(session.seen) == n_requests + 4  # two to warm up, two that count
    page.wait_for_selector(".race .done.first")
    page.wait_for_function("document.querySelectorAll('.race .done:not(:empty)').length === 2")
    lanes = page.locator(".race .lane")
    assert "Plain decoding" in lanes.nth(0).inner_text()
    assert "first" in lanes.nth(1).inner_text()
    texts = page.evaluate("[...document.querySelectorAll('.race .text')].map(t => t.textContent)")
    assert texts == [SHORT, SHORT]
    assert lanes.nth(0).locator(".d").count() == 0
    assert lanes.nth(1).locator(".d").count() > 3
    card = page.inner_text(".race .card")
    assert "Identical answers" in card
    assert float(card.split("×")[0].splitlines()[-1]) > 1.5
    with page.expect_download() as download:
        page.click("#race-save")
    saved = tmp_path / "comparison.html"
    download.value.save_as(saved)
    assert page.errors == []
    assert page.foreign == []
    alone = page.context.new_page()
    alone.goto(saved.as_uri())
    alone.click("text=To the end")
    assert alone.inner_text(".race .card") == card
    assert (
        alone.evaluate("[...document.querySelectorAll('.race .text')].map(t => t.textContent)")
        == texts
    )


def test_hostile_texts_stay_texts_in_a_race(open_page: Any) -> None:
    page = open_page("/compare")
    start_race(page, "attack")
    page.wait_for_selector(".race .lane")
    page.click("text=To the end")
    assert page.inner_text(".race .text >> nth=0").strip() != ""
    assert page.evaluate("document.querySelector('.race .text').textContent") == ATTACK
    assert page.evaluate("window.hacked") is None
    assert page.locator(".race :is(img, iframe, form, svg, style)").count() == 0
    assert page.foreign == []


def test_a_race_can_be_stopped_and_mistakes_are_named(open_page: Any, session: FakeSession) -> None:
    page = open_page("/compare")
    start_race(page, "long")
    page.wait_for_selector("#race-status >> text=Measuring")
    stopped_s = time.monotonic()
    page.click("#race-stop")
    page.wait_for_selector("#race-notice >> text=Stopped before")
    while session.is_busy:
        assert time.monotonic() - stopped_s < 5
        time.sleep(0.02)
    start_race(page, "  ")
    page.wait_for_selector("#race-notice >> text=Write a prompt first")


def test_a_batch_has_a_plot(open_page: Any) -> None:
    page = open_page("/compare", width=390, height=844, color_scheme="dark")
    page.wait_for_selector("#race-batch")
    page.click("#race-batch")
    page.wait_for_selector(".race .rates tbody tr")
    n_prompts = page.locator(".race .rates tbody tr").count()
    assert n_prompts >= 5
    assert page.locator(".race .plot .bar-row").count() == 2 * n_prompts
    assert f"{n_prompts} of {n_prompts} answers identical" in page.inner_text(".race .cards")
    row = page.locator(".race .rates button").nth(2)
    named = row.inner_text().rstrip("…")
    row.click()
    assert len(named) > 10
    assert named in page.inner_text(".race .prompt")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.errors == []


@pytest.mark.slow
def test_the_default_model_races(default_model_page: Any) -> None:
    page = default_model_page
    page.goto(f"{page.address}/compare")
    page.wait_for_selector("#race-go")
    page.fill("#race-max-new-tokens input", "48")
    page.press("#race-max-new-tokens input", "Tab")
    start_race(page, "List three fruits and repeat the list.")
    page.wait_for_selector(".race .lane")
    page.click("text=To the end")
    card = page.inner_text(".race .card")
    assert "Identical answers" in card
    assert "decoding speed" in card
    assert page.locator(".race .lane >> nth=1").locator(".d").count() > 0
