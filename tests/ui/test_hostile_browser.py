"""What the model writes can do nothing, and nothing leaves this machine: in a real browser, ``-m browser``.

The browser's only way out is a proxy that writes down what was asked for.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core.history import Conversation, Message, SqliteHistory, from_json, to_json, to_markdown
from eagle_core.ui import launch
from tests.support.fake_session import FakeSession
from tests.support.hostile import (
    COVERED,
    HARM,
    LOOK,
    SAMPLES,
    DeadProxy,
    spare_port,
    watch_page,
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    # Gradio's own bookkeeping, and sockets that a closing browser leaves to the event loop.
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

sync_api = pytest.importorskip("playwright.sync_api")

BOX = "#box textarea"
FRAME = ["body", "#top", "#views", "#box", "#box textarea", "#composer", "#chats", "#header h1"]
CONTROLS = [BOX, "#views [data-view=tokens]", "#new-chat", "[data-theme]", "#private-switch"]
# Where the model's and the user's words are shown.
TEXTS = "#chat .message .md, #chat-list :is(.name, .snippet, .tag)"
EVERYTHING = "\n\n".join(SAMPLES[name] for name in SAMPLES if name != "long-line")
RACE_TEXTS = ".race .text, .race .prompt, .race .words, .race .model"
NEVER_IN_A_RACE = (
    ".race :is(img, svg, iframe, object, form, input, textarea, link, style, script, a)"
)
HOSTILE_PROMPT = EVERYTHING[:1900]


class Talker(FakeSession):
    """Ends an answer only where its text ends."""

    def chat(self, messages: Any, generation: Any, draft: Any, *, cancel: Any = None) -> Any:
        whole = dataclasses.replace(generation, max_new_tokens=8000)
        return super().chat(messages, whole, draft, cancel=cancel)


@pytest.fixture(scope="module")
def proxy() -> Iterator[DeadProxy]:
    found = DeadProxy()
    yield found
    found.close()


@pytest.fixture(scope="module")
def browser(proxy: DeadProxy) -> Iterator[Any]:
    executable = shutil.which("chromium") or os.environ.get("CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=executable,
            args=["--no-sandbox"],
            proxy={"server": proxy.address, "bypass": "127.0.0.1,localhost"},
        )
        yield running
        running.close()


@pytest.fixture(scope="module")
def history() -> Iterator[SqliteHistory]:
    store = SqliteHistory(None)
    yield store
    store.close()


@pytest.fixture(scope="module")
def url(history: SqliteHistory) -> Iterator[str]:
    answers = {"stream": EVERYTHING, HOSTILE_PROMPT: EVERYTHING}
    session = Talker(answers, default="Short.", step_s=0.002)
    app = launch(
        session, port=spare_port(), open_browser=False, prevent_thread_lock=True, history=history
    )  # type: ignore[arg-type]  # fmt: skip
    yield str(app.local_url)
    app.close()


@pytest.fixture
def open_page(browser: Any, url: str, proxy: DeadProxy) -> Iterator[Any]:
    contexts = []
    proxy.asked.clear()

    def make(path: str = "", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1500, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(180_000)
        watch_page(page, url)
        page.goto(url.rstrip("/") + path)
        return page

    yield make
    for context in contexts:
        context.close()
    assert proxy.asked == []


def chat_page(open_page: Any) -> Any:
    page = open_page()
    page.wait_for_selector(f"{BOX}:not([disabled])")
    page.wait_for_function("window.eaglePage?.peek().chat !== undefined")
    return page


def settled(page: Any, n_turns: int) -> None:
    page.wait_for_function(
        """n => { const now = window.eaglePage.peek(); return !now.is_busy && now.turns?.length === n &&
        document.querySelectorAll('#chat .turn').length === n }""",
        arg=n_turns,
    )


def assert_harmless(page: Any, where: str, look: Any, controls: list[str]) -> None:
    harm = page.evaluate(HARM, where)
    assert harm == [], "\n".join(harm)
    assert page.evaluate(LOOK, [part.split(" | ")[0] for part in look[2:]]) == look
    assert page.evaluate(COVERED, controls) == []
    assert page.foreign == []
    assert page.errors == []


def conversation() -> Conversation:
    """A chat in which user and model wrote every sample."""
    messages: list[Message] = []
    for name, text in SAMPLES.items():
        before = messages[-1].id if messages else None
        messages.append(Message(f"q-{name}", before, "user", text))
        runs = f"d{len(text.encode('utf-16-le')) // 2}"
        messages.append(Message(f"a-{name}", f"q-{name}", "assistant", text, runs))
    title = SAMPLES["image"]
    return Conversation("", title, tuple(messages), messages[-1].id, tags=(SAMPLES["script"],))


def test_kept_and_imported_chats_do_nothing(
    open_page: Any, history: SqliteHistory, tmp_path: Path
) -> None:
    """A chat's file is what a stranger may hand over: it is imported, looked at, turned and exported."""
    page = chat_page(open_page)
    look = page.evaluate(LOOK, FRAME)
    file = tmp_path / "chat.json"
    file.write_text(to_json([conversation()]), encoding="utf-8")
    page.set_input_files("#import-file", str(file))
    settled(page, 2 * len(SAMPLES))
    shown = page.evaluate("window.eaglePage.peek().turns.map(turn => turn.text)")
    assert shown == [text for text in SAMPLES.values() for _ in range(2)]
    assert_harmless(page, TEXTS, look, CONTROLS)
    page.evaluate("document.querySelector('#chat [role=log]').scrollTop = 0")
    page.fill("#search", "window")
    page.wait_for_selector("#chat-list .snippet")
    assert_harmless(page, TEXTS, look, CONTROLS)
    page.locator("#chat .message-row").nth(1).hover()
    page.locator("#chat .message-row").nth(1).locator(".tool[aria-label=Edit]").click()
    assert page.input_value(".editor textarea") == SAMPLES["everything"]
    assert page.evaluate("window.hacked") is None
    page.keyboard.press("Escape")
    for scheme in ("file:", "blob:"):
        page.locator(f"#chat .md a[href^='{scheme}']").first.click()
        page.wait_for_selector("#views .say >> text=is not opened")
    assert page.foreign == []


def test_what_is_exported_is_text(open_page: Any, tmp_path: Path) -> None:
    kept = conversation()
    (copy,) = from_json(to_json([kept]))
    assert [m.text for m in copy.messages] == [m.text for m in kept.messages]
    page = open_page()
    for name, text in (("chat.json", to_json([kept])), ("chat.txt", to_markdown(kept))):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        page.goto(file.as_uri())
        assert page.evaluate("document.querySelectorAll('script, img, iframe, form').length") == 0
        assert page.evaluate("window.hacked") is None
        assert "hacked" in page.inner_text("body")


def test_an_answer_does_nothing_while_it_is_written(open_page: Any) -> None:
    """Half of a tag, a fence or a formula is shown, too: every frame is looked at."""
    page = chat_page(open_page)
    look = page.evaluate(LOOK, FRAME)
    page.evaluate(
        f"""() => {{ window.seen = new Set(); window.frames_ = 0; const harm = {HARM};
        const look = () => {{
          window.frames_ += 1;
          harm('#chat .message .md').forEach(e => window.seen.add(e));
        }};
        const all = {{childList: true, subtree: true, characterData: true}};
        new MutationObserver(look).observe(document.querySelector('#chat'), all); }}"""
    )
    page.fill(BOX, "stream")
    page.press(BOX, "Enter")
    page.wait_for_function("window.eaglePage.peek().turns?.length === 2")
    settled(page, 2)
    assert page.evaluate("window.frames_") > 20
    assert page.evaluate("[...window.seen]") == []
    assert page.evaluate("window.eaglePage.peek().turns[1].text") == EVERYTHING
    assert_harmless(page, TEXTS, look, CONTROLS)
    page.click("#views button[data-view=tokens]")
    page.wait_for_function("document.querySelector('#tokens .step:last-child') !== null")
    n_tokens = page.evaluate("window.eagleChat.report()[0].counts")
    page.wait_for_function(
        "n => document.querySelectorAll('#tokens .step > span').length === n",
        arg=n_tokens["d"] + n_tokens["t"],
    )
    page.locator("#tokens .token-d").first.hover()
    assert page.evaluate(HARM, "#tokens .step, #token-tip") == []
    shown = page.evaluate("document.querySelector('#tokens .flow').textContent")
    assert not any(sign in shown for sign in "\x1b\x00\x07\u202e\u2066\u200b\ufeff")
    assert "⟨U+202E⟩" in shown
    assert "⟨U+001B⟩" in shown
    assert page.evaluate(
        "[...document.querySelectorAll('#tokens .line')].every(l => l.scrollWidth < 4000)"
    )
    page.click("#views button[data-view=chat]")
    assert_harmless(page, TEXTS, look, CONTROLS)


def test_a_race_and_its_file_do_nothing(open_page: Any, tmp_path: Path) -> None:
    page = open_page("/compare")
    page.wait_for_selector("#race-go")
    frame = ["body", "#compare", "#race-prompt", "#race-go"]
    look = page.evaluate(LOOK, frame)
    page.fill("#race-prompt textarea", HOSTILE_PROMPT)
    page.wait_for_timeout(300)
    look = page.evaluate(LOOK, frame)
    page.click("#race-go")
    page.wait_for_selector(".race .lane")
    page.click(".race >> text=To the end")
    texts = page.evaluate("[...document.querySelectorAll('.race .text')].map(t => t.textContent)")
    assert texts == [EVERYTHING] * 2
    page.evaluate("scrollTo(0, 0)")
    assert_harmless(page, RACE_TEXTS, look, ["#race-go"])
    assert page.locator(NEVER_IN_A_RACE).count() == 0
    with page.expect_download() as download:
        page.click("#race-save")
    saved = tmp_path / "comparison.html"
    download.value.save_as(saved)
    alone = page.context.new_page()
    watch_page(alone, "file:")
    alone.goto(saved.as_uri())
    alone.click("text=To the end")
    assert alone.evaluate(HARM, RACE_TEXTS) == []
    assert alone.locator(NEVER_IN_A_RACE).count() == 0
    assert alone.foreign == alone.errors == []
    alone.evaluate(
        """() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1';
        document.body.append(s); }"""
    )
    assert alone.evaluate("window.hacked") is None  # the file runs its own scripts and no other


def test_a_whole_session_stays_on_this_machine(
    open_page: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chat, settings, Tokens, Compare, Models: nothing else is asked for, by page or by server."""
    reached: list[Any] = []
    connect = socket.socket.connect

    def noted(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and not str(address[0]).startswith(
            ("127.", "::1", "localhost")
        ):
            reached.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    page = chat_page(open_page)
    page.fill(BOX, "What is **this**? $$x^2$$ https://evil.example/x.png")
    page.press(BOX, "Enter")
    page.wait_for_function("window.eaglePage.peek().turns?.length === 2")
    settled(page, 2)
    page.click("[data-drawer=settings]")
    page.click("#views button[data-view=tokens]")
    page.click("#views a:has-text('Compare')")
    page.wait_for_selector("#race-go")
    page.fill("#race-prompt textarea", "short")
    page.click("#race-go")
    page.wait_for_selector(".race .lane")
    page.click("nav >> text=Models")
    page.wait_for_selector("#models-rows article, #models-rows .card, #models-rows section")
    page.click("nav >> text=Chat")
    page.wait_for_selector(f"{BOX}:not([disabled])")
    fonts = page.evaluate(
        "[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family)"
    )
    assert all("KaTeX" in family for family in fonts)
    hints = "link[rel=preconnect], link[rel=dns-prefetch], link[rel=prefetch]"
    assert page.locator(hints).count() == 0
    assert page.foreign == page.errors == []
    assert reached == []


def test_the_proxy_would_tell(open_page: Any, proxy: DeadProxy) -> None:
    """What the other tests trust in: a request off this machine is seen by both watchers."""
    page = open_page()
    page.route("**/plain", lambda route: route.fulfill(body="<p>x</p>", content_type="text/html"))
    page.goto("http://plain.invalid/plain")
    page.evaluate("new Image().src = 'http://elsewhere.invalid/p.png'")
    end_s = time.monotonic() + 60
    while not any("elsewhere.invalid" in line for line in proxy.asked):
        assert time.monotonic() < end_s, "the proxy saw nothing"
        page.wait_for_timeout(50)
    assert any("elsewhere.invalid" in url for url in page.foreign)
    assert any("elsewhere.invalid" in line for line in proxy.asked)
    proxy.asked.clear()
