"""Messages: versions, branches, Markdown, files, settings, a full context. Run with ``-m browser``."""

from __future__ import annotations

import time
from typing import Any

from tests.support.browser import (
    MARKS,
    n_painted,
    ready,
    send,
    settled,
    talk,
    texts,
    tool,
    wait_texts,
)
from tests.support.fake_session import ANSWERS, FakeSession

pytestmark = MARKS


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


def test_settings_outlive_a_reload_and_can_be_reset(open_page: Any, session: FakeSession) -> None:
    page = open_page(width=1500)
    page.click("[data-drawer=settings]")
    page.fill("#temperature input[type=number]", "0.7")
    page.uncheck("#drafting input")
    page.fill("#system-prompt textarea", "Be kind.")
    page.click("#settings button:has-text('Draft tree')")
    page.click("#policy label:has-text('chain')")
    page.uncheck("#views [data-colors]")
    page.wait_for_function(
        "localStorage.getItem('eagle-panel')?.includes('chain') &&"
        " localStorage.getItem('eagle-panel').includes('kind')"
    )
    page.reload()
    ready(page)
    wait_value(page, "#temperature input[type=number]", "0.7")
    wait_value(page, "#system-prompt textarea", "Be kind.")
    assert not page.is_checked("#drafting input")
    assert not page.is_checked("#views [data-colors]")
    talk(page, "one")
    generation, draft = session.generations[-1]
    assert (generation.temperature, draft.drafter, draft.tree.policy) == (0.7, "none", "chain")
    assert session.seen[-1][0] == {"role": "system", "content": "Be kind."}
    page.click("#reset-settings")
    wait_value(page, "#temperature input[type=number]", "0")
    page.wait_for_function(
        "JSON.stringify(JSON.parse(localStorage.getItem('eagle-panel')).settings) === '{}'"
    )
    page.check("#private-switch")
    page.wait_for_function("document.body.dataset.private === 'on'")
    page.fill("#system-prompt textarea", "A secret.")
    page.press("#system-prompt textarea", "Tab")
    talk(page, "one")
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    assert page.errors == []


def wait_value(page: Any, selector: str, value: str) -> None:
    page.wait_for_function(
        "([selector, value]) => document.querySelector(selector)?.value === value",
        arg=[selector, value],
    )


def test_the_context_bar_follows_a_growing_answer(open_page: Any, session: FakeSession) -> None:
    session.step_s = 0.02
    page = open_page()
    send(page, "long")
    shown = (
        "Number(document.querySelector('#meter [role=meter]')?.getAttribute('aria-valuenow') ?? 0)"
    )
    page.wait_for_function(f"{shown} > 60 && window.eaglePage.peek().is_busy")
    kept = page.inner_text("#meter .kept")
    page.wait_for_function(f"{shown} > 120")
    assert number_in(page.inner_text("#meter .kept")) < number_in(kept) < 512
    page.keyboard.press("Escape")
    settled(page)


def number_in(text: str) -> int:
    return int("".join(sign for sign in text if sign.isdigit()))


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
    wait_copied(page, "def f(x):\n    return x + 1\n")
    assert page.foreign == []


def test_copy_gives_what_was_written(open_page: Any) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    talk(page, "raw")
    tool(page, 1, "Copy")
    wait_copied(page, ANSWERS["raw"])


def wait_copied(page: Any, text: str) -> None:
    is_there = "async want => (await navigator.clipboard.readText()).trim() === want.trim()"
    page.wait_for_function(is_there, arg=text)
