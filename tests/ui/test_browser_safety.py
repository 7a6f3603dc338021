"""Hostile answers and a cut network in a real browser. Run with ``-m browser``."""

from __future__ import annotations

from typing import Any

from tests.support.browser import MARKS, is_local, load, ready, settled, talk, texts
from tests.support.fake_session import FakeSession
from tests.support.nasty_markdown import HOSTILE

pytestmark = MARKS


def test_hostile_answers_stay_text(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    session.answers.update({f"hostile {name}": text for name, text in HOSTILE.items()})
    for name, text in HOSTILE.items():
        talk(page, f"hostile {name}")
        assert_harmless(page, name)
        assert texts(page)[-1] == text
    page.reload()
    ready(page)
    page.wait_for_function(f"window.eaglePage.peek().turns?.length === {2 * len(HOSTILE)}")
    settled(page)
    assert_harmless(page, "all of them after a reload")
    assert page.errors == []


def assert_harmless(page: Any, name: str) -> None:
    assert page.evaluate("window.hacked") is None, name
    active = "script, style, link, meta, base, iframe, object, embed, video, audio, img, image"
    assert page.locator(f"#chat .message :is({active})").count() == 0, name
    shown = "#chat .message :is(form, input, select, textarea):visible"
    assert page.locator(shown).count() == 0, name
    links = page.evaluate(
        "[...document.querySelectorAll('#chat .message a[href]')].map(a => [a.protocol, a.target, a.rel])"
    )
    for protocol, target, rel in links:
        assert protocol in ("http:", "https:", ":"), name  # ":" is an address that cannot be parsed
        assert target == "_blank", name
        assert "noopener" in rel, name
    covered = page.evaluate(
        """() => { const box = document.querySelector('#box textarea').getBoundingClientRect();
        return !document.elementFromPoint(box.x + 20, box.y + box.height / 2).closest('#box'); }"""
    )
    assert not covered, name
    assert page.is_visible("#new-chat"), name
    assert page.foreign == [], name


def test_it_works_with_the_network_cut(open_page: Any, browser: Any) -> None:
    """Whatever the page asks for beyond its own address fails, and it asks for nothing."""
    page = open_page()
    origin = page.url.rstrip("/")
    asked: list[str] = []
    fresh = browser.new_context()
    fresh.on("request", lambda request: asked.append(request.url))
    fresh.route(
        "**/*",
        lambda route: route.continue_() if is_local(route.request.url, origin) else route.abort(),
    )
    other = load(fresh.new_page(), origin)
    talk(other, "two")
    other.click("[data-drawer=settings]")
    settled(other)
    assert len(asked) > 10
    assert [url for url in asked if not is_local(url, origin)] == []
    assert other.errors == []
    fonts = other.evaluate(
        "[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family)"
    )
    assert all("KaTeX" in family for family in fonts)
    fresh.close()
