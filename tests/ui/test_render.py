"""What the page shows, without a browser: safe Markdown, runs, figures, notices, contrast."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from eagle_core.events import Span
from eagle_core.history import Message
from eagle_core.history.figures import figures_of
from eagle_core.stats import Stats
from eagle_core.transcript import SeenToken, Transcript
from eagle_core.ui import page, render, view
from eagle_core.ui.markdown import safe_markdown, unescaped


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a < b and c > d", "a < b and c > d"),
        ("<b>x</b>", "&lt;b>x&lt;/b>"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
        ("`<b>` <i>", "`<b>` &lt;i>"),
        ("``a ` <b>`` <i>", "``a ` <b>`` &lt;i>"),
        ("`open <b>", "`open &lt;b>"),
        ("```html\n<b>\n```\n<i>", "```html\n<b>\n```\n&lt;i>"),
        ("```\n<b>", "```\n<b>"),
        ("~~~\n<b>\n```\n<i>\n~~~\n<u>", "~~~\n<b>\n```\n<i>\n~~~\n&lt;u>"),
        ("- item\n  ```c\n  #include <a.h>\n  ```\n", "- item\n  ```c\n  #include <a.h>\n  ```\n"),
        ("> ```\n> <b>\n<i>", "> ```\n> <b>\n&lt;i>"),
        ("text\n\n    <b>\n", "text\n\n    <b>\n"),
        ("text\n    <b>\n", "text\n    &lt;b>\n"),
        ("![a](http://x/y.png)", "&#33;[a](http://x/y.png)"),
        ("`![a](u)`", "`![a](u)`"),
        (r"\<b>", r"\<b>"),
        ("```mermaid\ngraph TD\n```", "```text\ngraph TD\n```"),
        ("> - ~~~ Mermaid\n> x", "> - ~~~ text\n> x"),
        ("the word mermaid", "the word mermaid"),
        (r"\\<b>", r"\\&lt;b>"),
        ("<!-- x -->", "&lt;!-- x -->"),
        ("$$a<b$$ <b>", "$$a< b$$ &lt;b>"),
        ("- ```\n<img src=x>\n```\n`<b>`", "- ```\n&lt;img src=x>\n```\n`<b>`"),
        ("- a\n\n  ```\n  <b>\n\n  <i>\n  ```\n<u>", "- a\n\n  ```\n  <b>\n\n  <i>\n  ```\n&lt;u>"),
        ("text\n    ```\n<b>", "text\n    ```\n&lt;b>"),
        ("", ""),
        ("\tx\n\n", "\tx\n\n"),
    ],
)
def test_safe_markdown(text: str, safe: str) -> None:
    assert safe_markdown(text) == safe


def test_escaping_can_be_undone() -> None:
    text = "see <b> and ![a](u)"
    assert unescaped(safe_markdown(text)) == text


def test_runs_count_utf16_units() -> None:
    spans = (Span("draft", 2), Span("target", 1))
    assert render.utf16_runs("a😀b", spans) == "d3,t1"
    assert render.utf16_runs("abc", spans) == "d2,t1"


def test_token_lines_only_grow() -> None:
    lines = render.TokenLines(lambda token_id: f"<{token_id}>\n")
    one = SeenToken(1, "target", 0, 0.5, 0)
    two = SeenToken(2, "draft", 1, 0.123456, 1, 4, 0.98765)
    first = lines.update((one,))
    second = lines.update((one, two))
    assert second.startswith(first)
    assert [json.loads(line) for line in second.splitlines()] == [
        [1, "t", 0, 0, 0.5, "<1>\n", None, None],
        [2, "d", 1, 1, 0.1235, "<2>\n", 4, 0.9877],
    ]


def test_drafting_that_paused_itself_is_told() -> None:
    plain = replace(
        Transcript(), phase="finished", finish_reason="eos", drafter="eagle",
        tokens=(SeenToken(1, "target", 0, 0.5, 0), SeenToken(2, "target", 0, 0.5, 1)),
        stats=Stats(n_tokens=2, n_steps=1),
    )  # fmt: skip
    assert "Drafting paused: plain decoding was faster here." in render.details_html(plain)
    assert "drafting paused" in render.status_html(plain)
    off = replace(plain, drafter="none")
    assert "No drafting in this answer." in render.details_html(off)
    assert "paused" not in render.status_html(off)
    kept = figures_of(plain, "m", "float32", 0.0)
    shown = view.figures_view(Message("1", None, "assistant", "x", figures=kept))
    assert "drafting paused" in [part["value"] for part in shown["line"]]
    assert dict(shown["details"])["drafting"] == render.PAUSED


def test_status_of_a_waiting_request() -> None:
    from eagle_core.events import Queued

    assert "Waiting: 1 request ahead" in render.status_html(Transcript().apply(Queued(1)))
    assert "Waiting: 3 requests ahead" in render.status_html(Transcript().apply(Queued(3)))


def test_notices_are_escaped() -> None:
    html = render.notice_html("error", "<img src=x>", "<b>")
    assert "<img" not in html
    assert "<b>&lt;img" in html


def luminance(color: tuple[float, float, float]) -> float:
    """WCAG's relative luminance of a color in 0..255."""
    parts = [c / 255 for c in color]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(text: str) -> tuple[float, float, float]:
    red, green, blue = (float(int(text[i : i + 2], 16)) for i in (1, 3, 5))
    return red, green, blue


@pytest.mark.parametrize(
    ("selector", "pages", "text"),
    [
        (r"^::highlight", ("#ffffff", "#f4f6fa", "#f1f5f9"), "#1f2937"),  # page and code, light
        (r"^\.dark ::highlight", ("#020617", "#0b1220", "#1e293b"), "#f1f5f9"),  # and dark
    ],
)
def test_drafted_text_is_told_by_more_than_its_hue(
    selector: str, pages: tuple[str, ...], text: str
) -> None:
    """WCAG: text 4.5 to 1 on its tint; the underline, which carries the meaning, 3 to 1."""
    style = page.text_of("tokens.css")
    rule = re.search(selector + r"\(eagle-draft\) \{(.*?)\}", style, re.MULTILINE | re.DOTALL)
    assert rule is not None
    *tint, alpha = (float(n) for n in re.findall(r"[\d.]+", rule[1].split("rgba")[1].split(")")[0]))
    underline = re.search(r"underline 2px (#\w{6})", rule[1])
    assert underline is not None
    for ground in pages:
        mixed = [alpha * t + (1 - alpha) * g for t, g in zip(tint, rgb(ground), strict=True)]
        under = (mixed[0], mixed[1], mixed[2])
        assert contrast(rgb(text), under) >= 4.5
        assert contrast(rgb(underline[1]), rgb(ground)) >= 3
