"""Makes text safe to hand to a Markdown renderer: raw HTML and remote images become plain text.

The one place where message text is escaped. Code keeps its characters, because Markdown shows it as it is.
The renderer's sanitizer, the page's content policy and CSS containment stand behind this; see ``page``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LINE = re.compile(r"[^\n]*\n|[^\n]+")
PREFIX = r"[ \t]*(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]+|>)*[ \t]*"
OPENING_FENCE = re.compile(rf"^({PREFIX})(`{{3,}}(?=[^`]*$)|~{{3,}})")
CLOSING_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*$")
LIST_ITEM = re.compile(r"^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")
INDENTED = re.compile(r"^(?: {4}|\t)")
CODE_SPAN = re.compile(r"(?<![`\\])(`+)(?!`)((?:(?!\n[ \t]*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
MATH = re.compile(r"\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)", re.DOTALL)
# A tag, a comment or a declaration starts with one of these after "<"; "a < b" stays as it is.
TAG_OR_IMAGE = re.compile(r"(\\*)(<(?=[A-Za-z/!?])|!(?=\[))")
TAG = re.compile(r"<(?=[A-Za-z/!?])")
ENTITIES = {"<": "&lt;", "!": "&#33;"}


def safe_markdown(text: str) -> str:
    """The text with raw HTML shown instead of run, and images shown as links, outside code.

    Example: ``<b>x</b> `<b>` ![a](u)`` gives ``&lt;b>x&lt;/b> `<b>` &#33;[a](u)``.
    """
    return "".join(
        part if is_code else escape_outside_spans(part) for part, is_code in code_blocks(text)
    )


def code_blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Split into consecutive parts; True marks the lines of fenced and indented code."""
    part: list[str] = []
    fence, is_quoted, is_code, is_list, was_blank, was_indented = "", False, False, False, True, False
    for line in LINE.findall(text):
        bare = line.rstrip("\r\n")
        if fence and is_quoted and not bare.lstrip().startswith(">"):
            fence = ""
        if fence:
            closing = CLOSING_FENCE.match(bare)
            line_is_code = True
            if closing and closing[1][0] == fence[0] and len(closing[1]) >= len(fence):
                fence = ""
        else:
            opening = OPENING_FENCE.match(bare)
            is_blank = not bare.strip()
            is_indented = bool(INDENTED.match(bare)) and not is_list and not is_blank
            line_is_code = bool(opening) or (is_indented and (was_blank or was_indented))
            if opening:
                fence, is_quoted = opening[2], ">" in opening[1]
            if LIST_ITEM.match(bare):
                is_list = True
            elif not is_blank and not bare[0].isspace():
                is_list = False
            was_indented = line_is_code and not opening
            was_blank = is_blank
        if line_is_code != is_code and part:
            yield "".join(part), is_code
            part = []
        is_code = line_is_code
        part.append(line)
    if part:
        yield "".join(part), is_code


def escape_outside_spans(text: str) -> str:
    """Escape outside inline code; inside mathematics a space after "<" is enough and harmless."""
    parts, end = [], 0
    for span in CODE_SPAN.finditer(text):
        parts += [escape_plain(text[end : span.start()]), span[0]]
        end = span.end()
    return "".join(parts) + escape_plain(text[end:])


def escape_plain(text: str) -> str:
    """Escape text that holds no code."""
    parts, end = [], 0
    for math in MATH.finditer(text):
        parts += [escape_tags(text[end : math.start()]), TAG.sub("< ", math[0])]
        end = math.end()
    return "".join(parts) + escape_tags(text[end:])


def escape_tags(text: str) -> str:
    """Replace what would start a tag or an image, unless a backslash already made it plain."""

    def replace(match: re.Match[str]) -> str:
        backslashes, sign = match[1], match[2]
        return match[0] if len(backslashes) % 2 else backslashes + ENTITIES[sign]

    return TAG_OR_IMAGE.sub(replace, text)


__all__ = ["safe_markdown"]
