"""The chat page in a real browser, flow by flow: messages, list of chats, files, keys, phone, accessibility.

Run with ``-m browser``. With ``AXE`` set to the path of axe-core's ``axe.min.js`` that checks the page, too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core.history import SqliteHistory
from eagle_core.ui import launch
from tests.support.fake_session import FakeSession
from tests.support.nasty_markdown import HOSTILE
from tests.support.page_checks import CONTRAST, UNNAMED
from tests.ui.test_browser import BOX, browser, is_local, n_painted, pytestmark, send

__all__ = ["browser", "pytestmark"]  # the fixture and the marks of the other browser tests

LONG = "This answer goes on and on, word after word. " * 40
ANSWERS = {
    "one": "First answer.", "two": "Second answer with `code`.", "edited": "Answer to the edited message.",
    "raw": "See <b>bold</b> & ![image](http://x.invalid/y.png)", "long": LONG, "silent": "",
}  # fmt: skip


@pytest.fixture
def session() -> FakeSession:
    return FakeSession(dict(ANSWERS), default="Some answer.", step_s=0.005)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SqliteHistory]:
    store = SqliteHistory(tmp_path / "history.sqlite3")
    yield store
    store.close()


@pytest.fixture
def open_page(browser: Any, session: FakeSession, history: SqliteHistory) -> Iterator[Any]:
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)  # type: ignore[arg-type]
    contexts = []

    def make(width: int = 1280, height: int = 860, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True, **options
        )
        contexts.append(context)
        return load(context.new_page(), str(app.local_url))

    yield make
    for context in contexts:
        context.close()
    app.close()


def load(page: Any, url: str) -> Any:
    page.set_default_timeout(60_000)
    page.foreign, page.errors = [], []
    page.on("request", lambda r: None if is_local(r.url, url) else page.foreign.append(r.url))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(url)
    ready(page)
    return page


def ready(page: Any) -> None:
    page.wait_for_selector(f"{BOX}:not([disabled])")
    page.wait_for_selector("#chat [role=log]")
    page.wait_for_function("window.eaglePage.peek().chat !== undefined")


def talk(page: Any, text: str) -> None:
    """Send and wait for the whole answer with its tools."""
    n_rows = page.locator("#chat .message-row").count()
    send(page, text)
    page.wait_for_function("n => window.eaglePage.peek().turns.length >= n", arg=n_rows + 2)
    settled(page)


def settled(page: Any) -> None:
    page.wait_for_function(
        """() => { const now = window.eaglePage.peek(); return !now.is_busy &&
        document.querySelectorAll('#chat .turn').length === now.turns.length &&
        document.querySelectorAll('#chat .message-row').length === now.turns.length }"""
    )
    page.wait_for_timeout(120)


def test_the_theme_reaches_compare_and_old_tokens_are_explained(open_page: Any) -> None:
    page = open_page()
    talk(page, "one")
    page.click("[data-theme]")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.reload()
    ready(page)
    wait_texts(page, ["one", "First answer."])
    page.click("[data-view='tokens']")
    page.wait_for_selector("#tokens .old-note >> text=are not kept")
    page.click("#views a[href='compare']")
    page.wait_for_selector("#compare [data-theme] svg")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.click("#compare [data-theme]")
    assert not page.evaluate("document.body.classList.contains('dark')")
    assert page.errors == []


def test_wrong_numbers_are_told_in_the_page(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    page.click("[data-drawer='settings']")
    for field, typed, words in (
        ("#max-new-tokens", "-5", "Longest answer is out of range"),
        ("#seed", "", "Seed is empty"),
    ):
        usual = page.input_value(f"{field} input")
        page.fill(f"{field} input", typed)
        page.keyboard.press("Tab")
        send(page, "one")
        page.wait_for_selector(f"#notice .error >> text={words}")
        page.fill(f"{field} input", usual)
        page.keyboard.press("Tab")
    assert session.seen == []
    assert page.locator(".toast-wrap .error").count() == 0
    talk(page, "one")
    assert page.errors == []


def texts(page: Any) -> list[str]:
    return [str(text) for text in page.evaluate("window.eaglePage.peek().turns.map(t => t.text)")]


def tool(page: Any, row: int, name: str) -> None:
    page.locator("#chat .message-row").nth(row).hover()
    page.locator("#chat .message-row").nth(row).locator(f".tool[aria-label='{name}']").click()


def wait_texts(page: Any, expected: list[str]) -> None:
    page.wait_for_function(
        "want => JSON.stringify(window.eaglePage.peek().turns?.map(t => t.text)) === want",
        arg=json.dumps(expected, separators=(",", ":"), ensure_ascii=False),
    )
    settled(page)


def test_versions_branches_and_deletion(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    talk(page, "one")
    assert "seed 0" in page.inner_text("#chat .stats summary")
    page.click("#chat .stats summary")
    assert "end to end" in page.inner_text("#chat .stats dl")
    session.answers["one"] = "Another first answer."
    tool(page, 1, "Regenerate")
    wait_texts(page, ["one", "Another first answer."])
    assert "2 / 2" in page.inner_text("#chat .bot-row .versions")
    tool(page, 1, "Previous version")
    wait_texts(page, ["one", "First answer."])
    assert "First answer." in page.inner_text("#chat .bot-row .message")
    assert n_painted(page) > 0  # the origins of kept answers are colored as live ones are
    tool(page, 0, "Edit")
    assert page.input_value(".editor textarea") == "one"
    page.fill(".editor textarea", "edited")
    page.press(".editor textarea", "Control+Enter")
    wait_texts(page, ["edited", "Answer to the edited message."])
    tool(page, 0, "Previous version")
    wait_texts(page, ["one", "Another first answer."])
    tool(page, 1, "Previous version")
    wait_texts(page, ["one", "First answer."])
    tool(page, 1, "Continue")
    wait_texts(page, ["one", "First answer. And so on."])
    assert session.seen[-1][-1] == {"role": "assistant", "content": "First answer."}
    tool(page, 1, "Branch into a new chat")
    page.wait_for_selector("#chat-list >> text=one (branch)")
    settled(page)
    tool(page, 1, "Delete")
    page.click("dialog >> text=Cancel")
    assert len(texts(page)) == 2
    tool(page, 1, "Delete")
    page.click("dialog .primary")
    wait_texts(page, ["one"])
    tool(page, 0, "Answer")
    wait_texts(page, ["one", "Another first answer."])
    tool(page, 1, "Edit")
    page.fill(".editor textarea", "By hand.")
    page.click(".editor .primary")
    wait_texts(page, ["one", "By hand."])
    assert page.errors == []
    assert page.foreign == []


def test_the_list_of_chats(open_page: Any, history: SqliteHistory) -> None:
    page = open_page()
    talk(page, "one")
    page.click("#new-chat")
    page.wait_for_selector("#chat .example")
    talk(page, "two")
    names = lambda: page.locator("#chat-list .name").all_inner_texts()  # noqa: E731
    assert names() == ["two", "one"]
    choose(page, "one", "Pin")
    page.wait_for_selector("#chat-list h2 >> text=Pinned")
    assert names() == ["one", "two"]
    choose(page, "one", "Rename")
    page.fill("dialog input", "My <b>lighthouse</b>")
    page.press("dialog input", "Enter")
    page.wait_for_selector("#chat-list >> text=My <b>lighthouse</b>")
    choose(page, "two", "Tags")
    page.fill("dialog input", "work, ideas")
    page.click("dialog .primary")
    page.wait_for_selector("#chat-list .tag >> text=ideas")
    page.fill("#search", "code")
    page.wait_for_function("document.querySelectorAll('#chat-list li').length === 1")
    assert "Second answer with" in page.inner_text("#chat-list .snippet")
    page.fill("#search", "nowhere")
    page.wait_for_selector("#chat-list >> text=No chat holds these words")
    page.fill("#search", "")
    page.click("#chat-list .open >> text=lighthouse")
    wait_texts(page, ["one", "First answer."])
    with page.expect_download() as found:
        choose(page, "lighthouse", "Export as Markdown")
    exported = Path(found.value.path()).read_text(encoding="utf-8")
    assert found.value.suggested_filename == "My-blighthouseb.md"
    assert "First answer." in exported
    choose(page, "lighthouse", "Delete")
    page.click("dialog .primary")
    page.wait_for_function("document.querySelectorAll('#chat-list li').length === 1")
    assert page.evaluate("window.eaglePage.peek().turns.length") == 0
    page.set_input_files(
        "#import-file", {"name": "x.md", "mimeType": "", "buffer": exported.encode()}
    )
    page.wait_for_selector("#notice >> text=1 chat was imported")
    wait_texts(page, ["one", "First answer."])
    page.set_input_files("#import-file", {"name": "x.json", "mimeType": "", "buffer": b"{"})
    page.wait_for_selector("#notice .error >> text=no chat that can be imported")
    with page.expect_download() as found:
        page.click("#export-all")
    assert len(json.loads(Path(found.value.path()).read_text())["conversations"]) == 2
    page.check("#private-switch")
    page.wait_for_function("document.body.dataset.private === 'on'")
    talk(page, "edited")
    assert [summary.title for summary in history.search("edited")] == []
    assert len(history.search()) == 2
    assert page.errors == []
    assert page.foreign == []


def choose(page: Any, name: str, choice: str) -> None:
    entry = page.locator("#chat-list li", has_text=name)
    entry.hover()
    entry.locator("summary").click()
    entry.locator(".choices button", has_text=choice).click()


def test_a_reload_and_a_stale_tab(open_page: Any, history: SqliteHistory) -> None:
    page = open_page()
    talk(page, "one")
    page.reload()
    ready(page)
    wait_texts(page, ["one", "First answer."])
    assert "tok/s" in page.inner_text("#chat .stats")
    other = load(page.context.new_page(), page.url)
    other.click("#chat-list .open")
    wait_texts(other, ["one", "First answer."])
    talk(page, "two")
    send(other, "edited")
    other.wait_for_selector("#notice .error >> text=changed in another tab")
    settled(other)
    assert texts(other) == texts(page)
    assert other.input_value(BOX) == "edited"
    talk(other, "edited")
    (summary,) = history.search()
    assert [m.text for m in history.load(summary.id).path] == texts(other)


def test_another_chat_while_an_answer_is_written(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    talk(page, "two")
    page.click("#new-chat")
    page.wait_for_selector("#chat .example")
    session.step_s = 0.03
    send(page, "long")
    page.wait_for_function("document.querySelector('#chat .bot-row')?.innerText.length > 100")
    page.click("#chat-list .open >> text=two")
    wait_texts(page, ["two", ANSWERS["two"]])
    page.wait_for_timeout(800)
    assert not session.is_busy
    assert page.is_visible("#box .submit-button")
    assert n_painted(page) > 0
    assert "on and on" not in page.inner_text("#chat")
    page.click("#chat-list .open >> text=long")
    page.wait_for_function("window.eaglePage.peek().turns?.[0]?.text === 'long'")
    settled(page)
    assert "stopped" in page.inner_text("#chat .stats")


def test_a_reload_while_an_answer_is_written(open_page: Any, session: FakeSession) -> None:
    session.step_s = 0.03
    page = open_page()
    send(page, "long")
    page.wait_for_function("document.querySelector('#chat .bot-row')?.innerText.length > 100")
    page.reload()
    ready(page)
    page.wait_for_function("window.eaglePage.peek().turns?.[1]?.is_finished")
    settled(page)
    assert LONG.startswith(texts(page)[1])
    assert len(texts(page)[1]) > 100
    assert "stopped" in page.inner_text("#chat .stats")
    assert not session.is_busy


def test_stop_during_a_long_prompt(open_page: Any, session: FakeSession) -> None:
    session.prefill_s = 30.0
    page = open_page()
    send(page, "one")
    page.wait_for_selector("#status >> text=Reading the prompt")
    pressed_s = time.monotonic()
    page.keyboard.press("Escape")
    while session.is_busy:
        assert time.monotonic() - pressed_s < 5
        time.sleep(0.01)
    assert session.freed_at - pressed_s < 0.5
    page.wait_for_selector("#notice >> text=Stopped before the answer began")
    page.wait_for_function("document.querySelector('#box textarea').value === 'one'")
    session.prefill_s = 0.0
    talk(page, "two")
    assert texts(page) == ["two", ANSWERS["two"]]


def test_files(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    code = b"def f():\n    return '```'\n"
    page.set_input_files("#attach-file", {"name": "f.py", "mimeType": "", "buffer": code})
    page.wait_for_selector("#files >> text=f.py")
    page.set_input_files("#attach-file", {"name": "a.png", "mimeType": "", "buffer": b"\x89PNG\0"})
    page.wait_for_selector("#notice .error >> text=a.png is not a text file")
    page.set_input_files(
        "#attach-file", {"name": "big.log", "mimeType": "", "buffer": b"x" * 300_000}
    )
    page.wait_for_selector("#notice .error >> text=big.log is too large")
    assert page.locator("#files .file").count() == 1
    page.click("#files [aria-label='Remove f.py']")
    page.wait_for_function("document.querySelectorAll('#files .file').length === 0")
    page.set_input_files("#attach-file", {"name": "f.py", "mimeType": "", "buffer": code})
    page.wait_for_selector("#files >> text=f.py")
    talk(page, "What is it?")
    assert session.seen[-1][-1]["content"].startswith("`f.py`:\n\n````python\ndef f():")
    assert page.locator("#chat .user-row code.language-python").count() == 1
    assert page.locator("#files .file").count() == 0


def test_keys_and_help(open_page: Any, session: FakeSession) -> None:
    page = open_page()
    talk(page, "one")
    session.answers["one"] = "Another."
    page.press(BOX, "Control+Enter")
    wait_texts(page, ["one", "Another."])
    page.locator("#chat .message").first.click()
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    wait_texts(page, ["one", "First answer."])
    page.keyboard.press("ArrowRight")
    wait_texts(page, ["one", "Another."])
    page.focus(BOX)
    page.press(BOX, "Alt+Enter")
    wait_texts(page, ["one", "Another. And so on."])
    page.press(BOX, "ArrowUp")
    page.wait_for_selector(".editor textarea:focus")
    page.keyboard.press("Escape")
    assert page.locator(".editor").count() == 0
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Control+b")
    assert page.evaluate("document.body.dataset.chats") == "closed"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.wait_for_selector("dialog.help[open] >> text=Regenerate the last answer")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('dialog')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.closest('#box') !== null")
    page.keyboard.press("Control+Shift+O")
    page.wait_for_selector("#chat .example")
    # A candidate of an input method is confirmed with Enter or left with Escape: neither is a command.
    page.evaluate(
        """() => document.querySelector('#box textarea').dispatchEvent(
        new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, isComposing: true, bubbles: true}))"""
    )
    assert page.evaluate("document.activeElement.id") != "search"
    assert page.errors == []


def test_scrolling_yields_to_the_reader(open_page: Any, session: FakeSession) -> None:
    session.step_s = 0.02
    page = open_page(height=600)
    send(page, "long")
    at_end = """() => { const e = document.querySelector('#chat [role=log]');
        const left = e.scrollHeight - e.scrollTop - e.clientHeight;
        return e.scrollHeight > e.clientHeight + 200 && left < 60 }"""
    page.wait_for_function(at_end)
    page.locator("#chat [role=log]").hover()
    page.mouse.wheel(0, -150)
    page.wait_for_selector("#to-end:visible")
    top = page.evaluate("document.querySelector('#chat [role=log]').scrollTop")
    page.wait_for_timeout(900)
    assert page.evaluate("document.querySelector('#chat [role=log]').scrollTop") == top
    page.click("#to-end")
    page.wait_for_function(at_end)
    page.wait_for_timeout(500)
    assert page.evaluate(at_end)
    page.keyboard.press("Escape")
    settled(page)


def test_presets_and_the_context(open_page: Any, session: FakeSession) -> None:
    session.info = type(session.info)(context_length=300)
    page = open_page(width=1500)
    page.click("[data-drawer=settings]")
    page.click("#preset input")
    page.click("[role=option] >> text=Storyteller")
    page.wait_for_function(
        "document.querySelector('#system-prompt textarea').value.startsWith('Write vividly')"
    )
    assert page.input_value("#temperature input[type=number]") == "0.8"
    page.fill("#preset input", "Mine")
    page.press("#preset input", "Tab")
    page.click("#save-preset")
    page.wait_for_selector("#notice >> text=Preset Mine is kept")
    for number in range(5):
        talk(page, f"question {number} " + "word " * 40)
    assert session.seen[-1][0]["content"].startswith("Write vividly")
    assert len(session.seen[-1]) < 10
    page.wait_for_selector("#chat .divider")
    assert "older messages are not sent" in page.inner_text("#chat .divider")
    assert page.locator("#chat .left-out").count() > 0
    assert "left out" in page.inner_text("#meter")
    assert page.get_attribute("#meter", "data-level") == "full"
    assert page.errors == []


def test_phone_and_dark(open_page: Any) -> None:
    page = open_page(width=390, height=844, color_scheme="dark", has_touch=True)
    talk(page, "one")
    assert page.evaluate("document.body.classList.contains('dark')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.dataset.chats") == "closed"
    box = page.locator("#composer").bounding_box()
    assert box["y"] + box["height"] <= 844
    page.click("[data-drawer=chats]")
    page.wait_for_timeout(300)
    page.mouse.click(380, 400)  # beside the drawer
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    page.click("[data-drawer=chats]")
    page.wait_for_timeout(300)
    page.click("#chat-list .open")
    page.wait_for_function("document.body.dataset.chats === 'closed'")
    page.click("[data-theme]")
    assert not page.evaluate("document.body.classList.contains('dark')")
    page.reload()
    ready(page)
    page.wait_for_function("!document.body.classList.contains('dark')")


MARKDOWN = r"""# Title

- one
- two **bold**

| a | b |
|---|---|
| 1 | 2 |

```python
def f(x):
    return x + 1
```

Math $$a^2$$ and \(b^2\) and \[c^2\], but $5 to $6. <b>raw</b> ![a picture](https://evil.example/p.png)
"""


def test_markdown_is_rendered(open_page: Any, session: FakeSession) -> None:
    session.answers["show"] = MARKDOWN
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    talk(page, "show")
    answer = page.locator("#chat .bot-row .message")
    assert answer.locator("h1").count() == 1
    assert answer.locator("li").count() == 2
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert answer.locator("code.language-python .keyword").count() >= 2
    assert answer.locator(".katex").count() == 3
    text = answer.inner_text()
    assert "$5 to $6" in text
    assert "<b>raw</b>" in text
    assert answer.locator("a >> text=a picture").get_attribute("href").endswith("p.png")
    assert answer.locator("img").count() == 0
    answer.locator(".code_wrap").hover()
    answer.locator(".copy_code_button").click()
    page.wait_for_timeout(200)
    assert "return x + 1" in page.evaluate("navigator.clipboard.readText()")
    assert page.foreign == []


def test_copy_gives_what_was_written(open_page: Any) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    talk(page, "raw")
    tool(page, 1, "Copy")
    page.wait_for_timeout(200)
    assert page.evaluate("navigator.clipboard.readText()") == ANSWERS["raw"]


# ---- accessibility -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(open_page: Any, scheme: str) -> None:
    page = open_page(width=1500, color_scheme=scheme)
    talk(page, "two")
    page.click("[data-drawer=settings]")
    page.wait_for_timeout(400)
    poor = page.evaluate(CONTRAST)
    assert poor == [], "\n".join(map(str, poor))
    assert page.evaluate(UNNAMED) == []
    assert page.locator("h1").count() == 1
    assert page.locator("nav[aria-label]").count() == 1
    assert page.get_attribute("#chat [role=log]", "aria-live") == "off"
    assert page.locator(".say[aria-live=polite]").count() == 1
    if os.environ.get("AXE"):
        page.evaluate(Path(os.environ["AXE"]).read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (item["id"], item["nodes"][0]["html"][:150], len(item["nodes"]))
            for item in found["violations"]
            if item["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_screen_readers_are_told_twice_per_answer(open_page: Any, session: FakeSession) -> None:
    session.step_s = 0.01
    page = open_page()
    page.evaluate(
        """() => { window.said = []; const region = document.querySelector('.say');
        const note = () => window.said.push(region.textContent);
        const all = {childList: true, characterData: true, subtree: true};
        new MutationObserver(note).observe(region, all); }"""
    )
    talk(page, "long")
    said = page.evaluate("window.said")
    assert said[0] == "Generating"
    assert "tokens" in said[-1]
    assert len(said) == 2


def test_everything_is_reached_with_the_keyboard(open_page: Any) -> None:
    page = open_page()
    talk(page, "one")
    page.evaluate("document.querySelector('#new-chat').focus()")
    seen = set()
    for _ in range(60):
        seen.add(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText"
            )
        )
        page.keyboard.press("Tab")
    for name in ("New chat", "Search chats", "Copy", "Edit", "Regenerate", "Continue", "Delete", "Settings",
                 "Attach a text file", "Options of one", "Keyboard shortcuts"):  # fmt: skip
        assert any(name in str(text) for text in seen), name


# ---- hostile answers, and a cut network ----------------------------------------------------------------


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
    other.wait_for_timeout(1500)
    assert len(asked) > 10
    assert [url for url in asked if not is_local(url, origin)] == []
    assert other.errors == []
    fonts = other.evaluate(
        "[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family)"
    )
    assert all("KaTeX" in family for family in fonts)
    fresh.close()


@pytest.mark.slow
def test_a_day_with_the_default_model(browser: Any, history: SqliteHistory) -> None:
    from eagle_core.config import LoadConfig
    from eagle_core.errors import EagleError
    from eagle_core.session import Session

    try:
        session = Session.open(LoadConfig(offline=True))
    except EagleError as error:
        pytest.skip(f"the default model is not on this machine: {error.message}")
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    try:
        load(page, str(app.local_url))
        page.set_default_timeout(120_000)
        page.click("[data-drawer=settings]")
        page.fill("#max-new-tokens input", "40")
        talk(page, "What is the capital of France?")
        first = texts(page)[1]
        assert "Paris" in first
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
        page.wait_for_function("document.querySelectorAll('#chat .bot-row').length === 2")
        page.wait_for_timeout(1000)
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
    finally:
        page.close()
        app.close()
        session.close()
