"""axe-core finds nothing serious on any page, light or dark. Run with ``-m browser``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.axe import serious_problems
from tests.support.browser import MARKS, drawn, still, talk
from tests.support.fake_session import FakeSession
from tests.support.nasty_markdown import FIBONACCI

pytestmark = MARKS

ANSWER = (
    "# Title\n\nSome `code`, *words* and a [link](https://example.org).\n\n"
    f"{FIBONACCI}\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession(default=ANSWER, step_s=0.0, context_length=8192)


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check(page: Any, where: str) -> None:
    drawn(page)
    problems = serious_problems(page)
    assert problems == [], f"{where}:\n" + "\n".join(problems)


def test_chat(open_page: Any, scheme: str) -> None:
    page = open_page(width=1500, color_scheme=scheme)
    check(page, "an empty chat")
    talk(page, "one")
    page.click("#chat .stats summary")
    check(page, "a chat with an answer")
    page.click("[data-drawer=details]")
    still(page, "#details")
    check(page, "the details")
    page.click("#views button[data-view=tokens]")
    page.wait_for_selector("#tokens .token-d")
    page.locator("#tokens .token-d").first.focus()
    check(page, "the Tokens view")
    page.click("#views button[data-view=chat]")
    page.click("[data-drawer=settings]")
    still(page, "#settings")
    for fold in ("Draft tree", "Advanced sampling"):
        page.click(f"#settings button:has-text('{fold}')")
    page.wait_for_selector("#shape textarea, #shape input")
    check(page, "the settings")
    page.click("[data-help]")
    check(page, "the sheet of keys")
    page.keyboard.press("Escape")
    page.hover("#chat-list li")
    page.click("#chat-list summary")
    check(page, "a chat's options")


def test_a_phone(open_page: Any, scheme: str) -> None:
    page = open_page(width=390, height=844, color_scheme=scheme, has_touch=True)
    talk(page, "one")
    check(page, "a chat")
    page.click("[data-drawer=chats]")
    still(page, "#chats")
    check(page, "the list of chats")
    page.click("#chats [data-close]")
    page.click("[data-drawer=details]")
    still(page, "#details")
    check(page, "the details over the page")


@pytest.mark.parametrize(
    ("path", "sign"), [("/compare", "#race-go"), ("/models", "#models .model")]
)
def test_the_other_pages(open_page: Any, scheme: str, path: str, sign: str) -> None:
    page = open_page(path, color_scheme=scheme)
    page.wait_for_selector(sign)
    check(page, path)
