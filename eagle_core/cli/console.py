"""The terminal: results on stdout, everything else on stderr, colours where they are wanted."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from eagle_core.errors import EagleError
from eagle_core.events import Span
from eagle_core.stats import Stats

# Accepted draft tokens: underlined as well as coloured, for eyes and terminals without colour.
DRAFT_STYLE = "\x1b[4;36m"
DIM_STYLE = "\x1b[2m"
RESET = "\x1b[0m"


def printable(text: str) -> str:
    """``text`` without control characters, which could drive the terminal; line ends and tabs stay."""
    return "".join(
        c if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") else "\ufffd" for c in text
    )


def use_utf8() -> None:
    """Write UTF-8 whatever the system's code page is, so that no answer can fail to print."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def write(text: str) -> None:
    """Write a part of the result to stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_line(text: str = "") -> None:
    """Write a line of the result to stdout."""
    write(text + "\n")


def write_json(data: Any) -> None:
    """Write the result as one line of JSON: the last line of stdout under ``--json``."""
    write_line(json.dumps(data, ensure_ascii=False, default=str))


def note(text: str) -> None:
    """Write a line that is no result to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def report_error(error: EagleError, *, as_json: bool) -> None:
    """Say what went wrong in one sentence and what to do; under ``--json`` on stdout too."""
    note(f"error: {error}")
    if as_json:
        detail = {"code": error.code, "message": error.message, "hint": error.hint}
        write_json({"error": detail})


def use_colour(stream: IO[str]) -> bool:
    """Whether ``stream`` is a terminal that takes colours, and the user did not turn them off."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def styled(text: str, style: str, *, has_colour: bool) -> str:
    """``text`` in a style. Line ends stay outside it: an underline would run on to the margin."""
    if not has_colour or not text:
        return text
    return "\n".join(f"{style}{line}{RESET}" if line else "" for line in text.split("\n"))


def coloured_text(text: str, spans: tuple[Span, ...], *, has_colour: bool) -> str:
    """``text`` with the accepted draft tokens marked."""
    parts, start = [], 0
    for span in spans:
        part = text[start : start + span.n_chars]
        is_draft = span.origin == "draft"
        parts.append(styled(part, DRAFT_STYLE, has_colour=has_colour) if is_draft else part)
        start += span.n_chars
    return "".join(parts)


def stats_line(stats: Stats) -> str:
    """An answer's figures in one line."""
    parts = [f"{stats.n_tokens} tokens"]
    if stats.decode_tok_s is not None:
        parts.append(f"{stats.decode_tok_s:.1f} tokens/s")
    if stats.tau is not None:
        parts.append(f"{stats.tau:.2f} tokens per step")
    if stats.ttft_s is not None:
        parts.append(f"first after {stats.ttft_s:.2f} s")
    return " | ".join(parts)


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Within this block the first Ctrl+C sets the event, and only a second one interrupts."""
    stop = threading.Event()

    def handle(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return
    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def interrupted_by_termination() -> Iterator[None]:
    """Within this block a polite kill is like Ctrl+C: what was started is ended first."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


__all__ = [
    "DIM_STYLE",
    "DRAFT_STYLE",
    "RESET",
    "coloured_text",
    "interrupted_by_termination",
    "note",
    "printable",
    "report_error",
    "stats_line",
    "stop_on_interrupt",
    "styled",
    "use_colour",
    "use_utf8",
    "write",
    "write_json",
    "write_line",
]
