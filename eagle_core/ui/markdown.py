"""Makes text safe to hand to a Markdown renderer: raw HTML and remote images become plain text.

The one place where message text is escaped. Code keeps its characters, because Markdown shows it as it is.
The renderer's sanitizer, the page's content policy and CSS containment stand behind this; see ``page``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LINE = re.compile(r"[^\n]*\n|[^\n]+")
PREFIX = r"[ \t]*(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]+|>)*[ \t]*"
OPENING_FENCE = re.compile(rf"^({PREFIX})(`{{3,}}(?=[^`]*$)|~{{3,}})")
CLOSING_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*$")
# The renderer would draw it, and a drawing's labels may hold images and styles: it is shown as code.
DIAGRAM = re.compile(rf"^({PREFIX}(?:`{{3,}}|~{{3,}})[ \t]*)mermaid", re.IGNORECASE | re.MULTILINE)
LIST_ITEM = re.compile(r"^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")
CODE_SPAN = re.compile(r"(?<![`\\])(`+)(?!`)((?:(?!\n[ \t]*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
MATH = re.compile(r"\$\$.{1,2000}?\$\$|\\\[.{1,2000}?\\\]|\\\(.{1,2000}?\\\)", re.DOTALL)
# A tag, a comment or a declaration starts with one of these after "<"; "a < b" stays as it is.
TAG_OR_IMAGE = re.compile(r"(\\*)(<(?=[A-Za-z/!?])|!(?=\[))")
TAG = re.compile(r"<(?=[A-Za-z/!?])")
ENTITIES = {"<": "&lt;", "!": "&#33;"}


def safe_markdown(text: str) -> str:
    """The text with raw HTML shown instead of run, images shown as links, and diagrams as their code.

    Example: ``<b>x</b> `<b>` ![a](u)`` gives ``&lt;b>x&lt;/b> `<b>` &#33;[a](u)``.
    """
    safe = "".join(
        part if is_code else escape_outside_spans(part) for part, is_code in code_blocks(text)
    )
    return DIAGRAM.sub(r"\1text", safe)


def unescaped(text: str) -> str:
    """Undo :func:`safe_markdown` for text that held no such entities before."""
    return text.replace("&lt;", "<").replace("&#33;[", "![")


def code_blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Split into consecutive parts; True marks the lines of fenced and indented code."""
    reader = LineReader()
    part, is_code = "", False
    for line in LINE.findall(text):
        line_is_code = reader.read(line.rstrip("\r\n"))
        if line_is_code != is_code and part:
            yield part, is_code
            part = ""
        part, is_code = part + line, line_is_code
    if part:
        yield part, is_code


@dataclass(slots=True)
class LineReader:
    """Tells code from prose, line by line. In doubt a line is prose, whose tags are escaped."""

    fence: str = ""
    fence_indent: int = 0
    is_quoted: bool = False
    is_list: bool = False
    is_doubtful: bool = False
    was_blank: bool = True
    was_indented: bool = False

    def read(self, line: str) -> bool:
        """Whether the line belongs to code."""
        if self.is_doubtful:
            return False
        if self.fence:
            return self._inside_fence(line)
        opening = OPENING_FENCE.match(line)
        if opening and (self.is_list or indent_of(line) < 4):
            self.fence, self.is_quoted = opening[2], ">" in opening[1]
            self._note_list(line)
            is_nested = self.is_list and (bool(LIST_ITEM.match(line)) or indent_of(line) >= 2)
            self.fence_indent = 1 if is_nested else 0
            self.was_blank = self.was_indented = False
            return True
        is_blank = not line.strip()
        is_indented = indent_of(line) >= 4 and not self.is_list and not is_blank
        is_code = is_indented and (self.was_blank or self.was_indented)
        self._note_list(line)
        self.was_blank, self.was_indented = is_blank, is_code
        return is_code

    def _inside_fence(self, line: str) -> bool:
        closing = CLOSING_FENCE.match(line)
        if self.is_quoted and not line.lstrip().startswith(">"):
            self.fence = ""
            return self.read(line)
        if closing and closing[1][0] == self.fence[0] and len(closing[1]) >= len(self.fence):
            self.fence = ""
        elif line.strip() and indent_of(line) < self.fence_indent:
            # Renderers differ on whether a list item's fence goes on here: from now on nothing is code.
            self.is_doubtful = True
            return False
        return True

    def _note_list(self, line: str) -> None:
        if LIST_ITEM.match(line):
            self.is_list = True
        elif line.strip() and not line[0].isspace():
            self.is_list = False


def indent_of(line: str) -> int:
    """Columns of white space before the text, tabs to multiples of four."""
    wide = line.expandtabs(4)
    return len(wide) - len(wide.lstrip(" "))


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


__all__ = ["safe_markdown", "unescaped"]
