"""The panels beside the chat: there is always room to read. Run with ``-m browser``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.browser import BOX, MARKS, ready, send, settled, still, talk, wait_free
from tests.support.fake_session import FakeSession

pytestmark = MARKS

MIN_READ = 560  # pixels of the chat's column
PANELS = ("chats", "settings", "details")


def shown(page: Any) -> list[str]:
    """The panels in sight."""
    return [name for name in PANELS if page.get_attribute("body", f"data-{name}") == "open"]


def press(page: Any, name: str) -> None:
    """Press a panel's button and wait until the panels rest."""
    page.click(f"[data-drawer={name}]")
    for panel in PANELS:
        still(page, f"#{panel}")


def focused(page: Any) -> str:
    """The name of what has the focus."""
    return str(page.evaluate("document.activeElement.getAttribute('aria-label')"))


@pytest.mark.parametrize("width", [960, 1024, 1215, 1280, 1440])
def test_the_chat_keeps_its_room_whatever_is_open(open_page: Any, width: int) -> None:
    page = open_page(width=width, height=800)
    talk(page, "one")
    height = page.locator("#chat").bounding_box()["height"]
    for name in ("settings", "details", "chats", "settings"):
        if page.get_attribute("body", f"data-{name}") != "open":
            press(page, name)
        assert name in shown(page)
        assert ("chats" in shown(page) and len(shown(page)) == 2) == (width >= 1216), shown(page)
        box = page.locator("#chat").bounding_box()
        assert box["width"] >= MIN_READ
        assert box["height"] > height - 80  # the line of switches may take a second row
        for panel in shown(page):  # nothing covers the chat
            place = page.locator(f"#{panel}").bounding_box()
            assert place["x"] + place["width"] <= box["x"] or place["x"] >= box["x"] + box["width"]
    assert page.errors == []


def test_what_made_room_comes_back(open_page: Any) -> None:
    page = open_page(width=1100)
    assert shown(page) == ["chats"]
    press(page, "settings")
    assert shown(page) == ["settings"]
    page.set_viewport_size({"width": 1400, "height": 800})
    page.wait_for_function("document.body.dataset.chats === 'open'")
    assert shown(page) == ["chats", "settings"]
    page.set_viewport_size({"width": 1100, "height": 800})
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    page.reload()
    ready(page)
    page.wait_for_function("document.body.dataset.settings === 'open'")
    assert shown(page) == ["settings"]
    page.click("#settings [data-close]")
    assert shown(page) == ["chats"]
    assert focused(page) == "Settings"  # back on the button that opened it
    press(page, "details")
    page.keyboard.press("Control+b")
    assert shown(page) == ["chats"]


def test_on_a_small_page_a_panel_is_a_dialog(open_page: Any, session: FakeSession) -> None:
    session.step_s = 0.03
    page = open_page(width=900, height=800)
    send(page, "long")
    page.wait_for_selector("#chat .message.bot")
    press(page, "settings")
    assert shown(page) == ["settings"]
    assert page.get_attribute("#settings", "role") == "dialog"
    assert page.get_attribute("#settings", "aria-modal") == "true"
    assert focused(page) == "Close settings"
    assert page.evaluate("document.querySelector('#main').inert")
    for _ in range(40):  # Tab never reaches what lies behind
        page.keyboard.press("Tab")
        assert not page.evaluate("document.querySelector('#main').contains(document.activeElement)")
    page.focus("#settings [data-close]")
    page.keyboard.press("Escape")
    assert shown(page) == []
    assert focused(page) == "Settings"
    assert session.is_busy  # that Escape was for the panel
    page.keyboard.press("Escape")
    settled(page)
    wait_free(session)
    press(page, "chats")
    page.mouse.click(880, 400)  # beside it
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    press(page, "details")
    page.set_viewport_size({"width": 1300, "height": 800})
    page.wait_for_function("document.body.dataset.chats === 'open'")
    assert page.get_attribute("#details", "role") == "region"
    page.fill(BOX, "the page can be used again")
    assert page.errors == []


def test_details_show_the_latest_answer(open_page: Any) -> None:
    page = open_page()
    press(page, "details")
    assert "Figures of the next answer appear here" in page.inner_text("#details")
    talk(page, "long")
    page.wait_for_selector("#details >> text=Accepted by depth")
    tracks = page.evaluate(
        "[...document.querySelectorAll('#details .details section')].map(section =>"
        " new Set([...section.querySelectorAll('.track')].map(t => t.offsetWidth)).size)"
    )
    assert tracks == [1, 1, 0]  # bars of one section share a scale
