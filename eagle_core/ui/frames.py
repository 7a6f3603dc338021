"""One update of the page, and the parts of it that handlers share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import gradio as gr

from eagle_core.errors import EagleError
from eagle_core.transcript import Transcript
from eagle_core.ui import render


@dataclass(frozen=True, slots=True)
class Frame:
    """One update of the page; what is left out stays as it is. Fields are in the order of the outputs.

    ``state`` and ``library`` go to the page's script, the others to components. ``header`` says what is
    loaded; ``timer`` looks how far a model that is being loaded is.
    """

    chat: Any = None
    channel: Any = None
    status: Any = None
    details: Any = None
    notice: Any = None
    box: Any = None
    state: Any = None
    library: Any = None
    system_prompt: Any = None
    header: Any = None
    timer: Any = None

    def updates(self) -> tuple[Any, ...]:
        """Values in the order of the page's outputs."""
        parts = [getattr(self, spec.name) for spec in fields(self)]
        return tuple(gr.skip() if part is None else part for part in parts)


def idle_box(**changes: Any) -> Any:
    """The message box, ready to send."""
    return gr.update(submit_btn=True, stop_btn=False, **changes)


def busy_box(**changes: Any) -> Any:
    """The message box with its Stop button."""
    return gr.update(submit_btn=False, stop_btn=True, **changes)


def error_notice(error: EagleError) -> str:
    """An error as the page shows it: what happened, and the next step."""
    first = error.message.split(" ", 1)[0]
    is_name = "/" in first or "-" in first  # of a model: it stays as it is written
    message = error.what if is_name else f"{error.what[:1].upper()}{error.what[1:]}"
    if not message.endswith((".", "!", "?")):
        message += "."
    hint = error.hint[:1].upper() + error.hint[1:]
    return render.notice_html(
        "error", message, hint if hint.endswith((".", "!", "?")) else f"{hint}."
    )


def notices_html(transcript: Transcript) -> str:
    """What the user should know about a request: the engine's notices, and how it failed."""
    parts = [render.notice_html(notice.level, notice.message) for notice in transcript.notices]
    if transcript.error is not None:
        parts.append(render.notice_html("error", transcript.error.message, transcript.error.hint))
    elif transcript.is_over and not transcript.text:
        was_stopped = transcript.finish_reason == "cancelled"
        message = (
            "Stopped before the answer began." if was_stopped else "The model answered nothing."
        )
        parts.append(render.notice_html("info", message, "Your message is back in the box."))
    return "".join(parts)


__all__ = ["Frame", "busy_box", "error_notice", "idle_box", "notices_html"]
