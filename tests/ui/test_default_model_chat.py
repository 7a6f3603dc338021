"""Every flow of the chat page on the real default model. Run with ``-m "browser and slow"``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import (
    BOX,
    MARKS,
    drawn,
    ready,
    report,
    send,
    settled,
    slowdown,
    talk,
    texts,
    tool,
    wait_texts,
    watch,
)
from tests.support.default_app import NextRequest, ask, configure, fresh, line
from tests.support.page_checks import CONTRAST, UNNAMED

pytestmark = [*MARKS, pytest.mark.slow]

# How many colored ranges lie in such elements of the last answer.
PAINTED_IN = """place => [...(CSS.highlights.get('eagle-draft') ?? [])].filter(range =>
    range.startContainer.parentElement.closest(place)).length"""
IS_LIVE = "(CSS.highlights.get('eagle-draft')?.size ?? 0) > 0 && window.eaglePage.peek().is_busy"
FACTS = r"drafted at depth \d+ · node \d+ · step \d+ · draft p = (\S+) · model p = (\S+) · id \d+"
SEA = "Tell me about the sea."
TEA = "Write the word tea ten times."
FRANCE = "What is the capital of France?"


@pytest.fixture
def page(browser: Any, app: Any) -> Iterator[Any]:
    page = open_page(browser, app, width=1500)
    yield page
    assert page.errors == []
    assert page.foreign == []
    page.context.close()


def open_page(browser: Any, app: Any, width: int, **options: Any) -> Any:
    """A visitor of their own."""
    context = browser.new_context(viewport={"width": width, "height": 860}, **options)
    page = watch(context.new_page(), app.url)
    page.goto(app.url)
    ready(page)
    return page


def test_answers_are_colored_live_in_prose_lists_and_code(page: Any) -> None:
    configure(page, max_new_tokens=64)
    for prompt, place in (
        ("Repeat this three times: The sea is deep and blue.", "p"),
        (
            "List ten animals that live in the sea, one per line, each line starting with '- '.",
            "li",
        ),
        ("Write a Python function that adds two numbers.", "pre code"),
    ):
        fresh(page)
        send(page, prompt)
        page.wait_for_function(IS_LIVE)
        settled(page)
        (answer,) = report(page)
        print(place, answer["counts"], line(page))
        assert answer["isPainted"]
        assert answer["matched"] == answer["total"] > 0
        assert page.evaluate(PAINTED_IN, f"#chat .bot-row {place}") > 0


def test_the_tokens_view_tells_every_token_by_mouse_and_keyboard(page: Any) -> None:
    configure(page, max_new_tokens=48)
    answer = ask(page, "Write a Python function that adds two numbers.")
    page.click("#views button[data-view=tokens]")
    page.wait_for_selector("#tokens .token-d")
    shown = page.evaluate("document.querySelector('#tokens .flow').textContent")
    assert shown.replace("↵\n", "\n").strip() == answer.strip()
    page.locator("#tokens .token-d").first.hover()
    check_facts(page)
    page.mouse.move(0, 0)
    page.focus("#views button[data-view=tokens]")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#tokens') !== null"):
            break
    assert "by the model · prefill · model p = " in page.inner_text("#token-tip")
    while not page.evaluate("document.activeElement.matches('.token-d')"):
        page.keyboard.press("ArrowRight")
    check_facts(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "token-tip"


def check_facts(page: Any) -> None:
    """A drafted token's tip holds two probabilities, or says that the draft's is not known."""
    found = re.fullmatch(FACTS, page.inner_text("#token-tip"))
    assert found is not None, page.inner_text("#token-tip")
    assert found[1] == "unknown" or 0 <= float(found[1]) <= 1
    assert 0 < float(found[2]) <= 1


def test_versions_branches_continuing_and_deleting(page: Any) -> None:
    configure(page, max_new_tokens=16, temperature=0.8, seed=5)
    first = ask(page, SEA)
    assert "seed 5" in line(page)
    tool(page, 1, "Regenerate")
    page.wait_for_function("window.eaglePage.peek().turns[1]?.n_versions === 2")
    settled(page)
    second = texts(page)[1]
    assert second != first
    assert "seed 6" in line(page)
    tool(page, 1, "Previous version")
    wait_texts(page, [SEA, first])
    tool(page, 1, "Continue")
    page.wait_for_function(
        "n => window.eaglePage.peek().turns[1].text.length > n", arg=len(first) + 10
    )
    settled(page)
    longer = texts(page)[1]
    assert longer.startswith(first)
    assert "continuation" in line(page)
    tool(page, 1, "Branch into a new chat")
    page.wait_for_selector("#chat-list >> text=(branch)")
    wait_texts(page, [SEA, longer])
    tool(page, 0, "Edit")
    page.fill(".editor textarea", "Tell me about the moon.")
    page.click(".editor .primary")
    page.wait_for_function("window.eaglePage.peek().turns[0]?.n_versions === 2")
    settled(page)
    assert texts(page)[0] == "Tell me about the moon."
    tool(page, 0, "Previous version")
    wait_texts(page, [SEA, longer])
    tool(page, 1, "Delete")
    page.click("dialog .primary")
    wait_texts(page, [SEA])


@pytest.mark.parametrize("how", ["Esc", "button"])
def test_stop_frees_the_engine_while_it_writes(page: Any, app: Any, how: str) -> None:
    """From the press to the next request's start."""
    configure(page, max_new_tokens=512)
    fresh(page)
    page.focus(BOX)
    send(page, "Write a very long story about a lighthouse.")
    page.wait_for_function("document.querySelector('#chat .bot-row')?.innerText.length > 60")
    next_request = NextRequest(app.slot.session)
    next_request.start()
    assert next_request.is_queued.wait(60)
    factor = slowdown()
    pressed_s = time.monotonic()
    if how == "Esc":
        page.keyboard.press("Escape")
    else:
        page.click("#box .stop-button")
    next_request.join(60)
    took_s = next_request.started_s - pressed_s
    print(f"{how}: {1000 * took_s:.0f} ms; other work makes everything {factor:.1f} times as long")
    assert 0 < took_s < 0.5 * max(factor, slowdown())
    settled(page)
    assert "stopped" in line(page)
    assert len(texts(page)[1]) > 60


def test_the_same_seed_gives_the_same_text_with_and_without_drafting(page: Any) -> None:
    configure(page, max_new_tokens=40)
    found = {}
    for temperature in (0, 0.8):
        for is_drafted in (True, False):
            configure(page, temperature=temperature, seed=11, drafting=is_drafted)
            found[temperature, is_drafted] = ask(page, SEA)
            figures = line(page)
            print(figures)
            assert ("1.00 τ" in figures) >= (not is_drafted)
            assert ("0% drafted" in figures) >= (not is_drafted)
            assert f"temperature {temperature}" in figures
        assert found[temperature, True] == found[temperature, False]
    assert found[0, True] != found[0.8, True]


def test_every_sampling_setting_takes_effect(page: Any, app: Any) -> None:
    n_tokens = 24
    configure(page, max_new_tokens=n_tokens)
    greedy = ask(page, SEA)
    assert app.slot.session.count_tokens([{"role": "user", "content": greedy}]) > n_tokens
    drawn_once = with_settings(page, max_new_tokens=n_tokens, temperature=1.2, seed=3)
    assert drawn_once != greedy
    assert with_settings(page, max_new_tokens=n_tokens, temperature=1.2, seed=4) != drawn_once
    # Each of these leaves the likeliest token alone.
    for name, value in (("top_p", 0.01), ("top_k", 1), ("min_p", 1)):
        hot = {"max_new_tokens": n_tokens, "temperature": 1.2, "seed": 3, name: value}
        assert with_settings(page, **hot) == greedy, name
    repeated = with_settings(page, TEA, max_new_tokens=n_tokens)
    first_id = app.slot.session.encode(repeated)[0]
    for name, value in (
        ("repetition_penalty", 2), ("presence_penalty", 2), ("frequency_penalty", 2),
        ("logit_bias", f"{first_id}:-50"),
    ):  # fmt: skip
        changed = with_settings(page, TEA, max_new_tokens=n_tokens, **{name: value})
        assert changed != repeated, name
    stop = greedy.split()[4]
    assert with_settings(page, max_new_tokens=n_tokens, stop=stop) == greedy.split(stop)[0]
    assert "stop" in line(page)
    longer = with_settings(page, FRANCE, max_new_tokens=40, min_new_tokens=30)
    page.click("#reset-settings")
    page.wait_for_function("document.querySelector('#max-new-tokens input').value === '512'")
    assert longer.startswith(ask(page, FRANCE))
    assert len(longer) > len(texts(page)[1])
    assert "complete" in line(page)


def with_settings(page: Any, prompt: str = SEA, **values: Any) -> str:
    """The answer with these settings, all others as they come."""
    page.click("#reset-settings")
    page.wait_for_function("document.querySelector('#max-new-tokens input').value === '512'")
    configure(page, **values)
    return ask(page, prompt)


def test_trees_and_rules_change_the_speed_and_not_the_text(page: Any) -> None:
    configure(page, max_new_tokens=32)
    usual = ask(page, SEA)
    for least, most, values in (
        (1, 1, {"policy": "chain", "depth": 1, "lookup": 0}),
        (2, 3, {"policy": "dynamic", "depth": 3, "branching": 3, "size": 9, "lookup": 0}),
        (2, 2, {"policy": "static", "shape": "0 1 00", "lookup": 0}),
    ):
        page.click("#reset-settings")
        page.wait_for_function("document.querySelector('#max-new-tokens input').value === '512'")
        configure(page, max_new_tokens=32, **values)
        assert ask(page, SEA) == usual, values
        page.locator("#chat .stats summary").last.click()
        details = page.locator("#chat .stats dl").last.inner_text()
        n_depths = details.count("accepted at depth")
        print(values, line(page))
        assert least <= n_depths <= most
    configure(page, temperature=0.9, seed=2, rule="sampling", with_replacement=True)
    one = ask(page, SEA)
    assert "sampling" in page.locator("#chat .stats dl").last.text_content()
    assert ask(page, SEA) == one
    configure(page, rule="match")
    assert "match" in (ask(page, SEA) and page.locator("#chat .stats dl").last.text_content())


def test_a_system_prompt_a_preset_and_a_file(page: Any) -> None:
    configure(page, max_new_tokens=24)
    usual = ask(page, "Who are you?")
    page.click("#preset input")
    page.click("[role=option] >> text=Storyteller")
    page.wait_for_function("document.querySelector('#system-prompt textarea').value.length > 10")
    configure(page, temperature=0)
    told = ask(page, "Who are you?")
    assert told != usual
    n_told = n_system(page)
    assert n_told > 5
    configure(page, system_prompt="You are a pirate.")
    assert ask(page, "Who are you?") not in (usual, told)
    assert 5 < n_system(page) < n_told
    page.click("#reset-settings")
    page.wait_for_function("document.querySelector('#system-prompt textarea').value === ''")
    configure(page, max_new_tokens=24)
    fresh(page)
    note = b"# Notes\n\nThe password of the lighthouse is BLUEBIRD.\n"
    page.set_input_files("#attach-file", {"name": "notes.md", "mimeType": "", "buffer": note})
    page.wait_for_selector("#files >> text=notes.md")
    talk(page, "What is the password of the lighthouse?")
    assert "BLUEBIRD" in texts(page)[1]
    assert "notes.md" in page.inner_text("#chat .user-row")


def n_system(page: Any) -> int:
    """Tokens that the context bar gives to the system prompt."""
    return int(page.evaluate("window.eaglePage.peek().meter.parts[0][1]"))


def test_the_keyboard_alone(page: Any) -> None:
    configure(page, max_new_tokens=12, temperature=0.7)
    page.keyboard.press("Control+,")
    assert page.get_attribute("body", "data-settings") == "closed"
    page.keyboard.press("Control+Shift+O")
    page.wait_for_function("document.activeElement.closest('#box') !== null")
    page.keyboard.type(SEA)
    page.keyboard.press("Enter")
    page.wait_for_function("window.eaglePage.peek().turns.length === 2")
    settled(page)
    first = texts(page)[1]
    page.keyboard.press("Control+Enter")
    page.wait_for_function("window.eaglePage.peek().turns[1]?.n_versions === 2")
    settled(page)
    second = texts(page)[1]
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    wait_texts(page, [SEA, first])
    page.keyboard.press("ArrowRight")
    wait_texts(page, [SEA, second])
    page.keyboard.press("/")
    page.keyboard.press("Alt+Enter")
    page.wait_for_function("n => window.eaglePage.peek().turns[1].text.length > n", arg=len(second))
    settled(page)
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(".editor textarea:focus")
    page.keyboard.press("Control+End")
    page.keyboard.type(" In one word.")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("window.eaglePage.peek().turns[0]?.n_versions === 2")
    settled(page)
    assert texts(page)[0] == f"{SEA} In one word."
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.wait_for_selector("dialog.help[open] >> text=Regenerate the last answer")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('dialog')")
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Control+b")
    assert page.get_attribute("body", "data-chats") == "closed"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(browser: Any, app: Any, scheme: str) -> None:
    page = open_page(browser, app, 390, color_scheme=scheme, has_touch=True)
    page.click("[data-drawer=settings]")
    page.locator("#max-new-tokens input").fill("48")
    page.press("#max-new-tokens input", "Tab")
    page.keyboard.press("Escape")
    talk(page, "Write a Python function that adds two numbers.")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#composer").bounding_box()
    assert box["y"] + box["height"] <= 860
    assert page.locator("#chat").bounding_box()["height"] > 0.55 * 860
    drawn(page)
    poor = page.evaluate(CONTRAST)
    assert poor == [], "\n".join(map(str, poor))
    assert page.evaluate(UNNAMED) == []
    assert page.errors == []
    page.context.close()
