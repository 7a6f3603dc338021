"""What happens on send, retry, edit, stop and new chat: a session is asked, its events are drawn.

An answer runs in a pump's thread; the handler draws the latest transcript about fifteen times a second.
Leaving the page, Stop and New chat all set the request's cancel event; the engine looks at it before
every step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from eagle_core.certificate.records import last_certificate
from eagle_core.errors import ConfigError
from eagle_core.transcript import Transcript
from eagle_core.ui import render
from eagle_core.ui.backend import ChatSession, SessionSlot
from eagle_core.ui.controls import Settings, read_settings
from eagle_core.ui.markdown import unescaped
from eagle_core.ui.pump import Pump
from eagle_core.ui.rooms import Room, Rooms, Turn

logger = logging.getLogger(__name__)

FRAME_S = 1 / 15
# Figures that change faster than this cannot be read.
FIGURES_S = 0.24
EXAMPLES = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain recursion with a small Python example.",
    "List five ways to save energy at home, with one sentence each.",
    "What is the difference between weather and climate?",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One update of the page; what is left out stays as it is."""

    chat: Any = None
    channel: Any = None
    status: Any = None
    details: Any = None
    notice: Any = None
    box: Any = None

    def updates(self) -> tuple[Any, ...]:
        """Values in the order of the page's outputs."""
        parts = (self.chat, self.channel, self.status, self.details, self.notice, self.box)
        return tuple(gr.skip() if part is None else part for part in parts)


def idle_box(**changes: Any) -> Any:
    """The message box, ready to send."""
    return gr.update(submit_btn=True, stop_btn=False, **changes)


def busy_box(**changes: Any) -> Any:
    """The message box with its Stop button."""
    return gr.update(submit_btn=False, stop_btn=True, **changes)


class Handlers:
    """The page's event handlers. One instance per app; all state is in the rooms."""

    def __init__(self, slot: SessionSlot, rooms: Rooms) -> None:
        self.slot = slot
        self.rooms = rooms

    async def send(
        self, prompt: str, request: gr.Request, *values: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Send what is in the message box."""
        room = self.rooms.get(tab_of(request))
        if not prompt.strip():
            hint = "Type a message first, then press Enter."
            yield Frame(notice=render.notice_html("info", hint)).updates()
            return
        turns = [*room.turns, Turn("user", prompt)]
        async for frame in self._checked_answer(room, turns, prompt, values):
            yield frame.updates()

    async def retry(self, request: gr.Request, *values: Any) -> AsyncIterator[tuple[Any, ...]]:
        """Answer the latest user message again."""
        room = self.rooms.get(tab_of(request))
        turns = list(room.turns)
        while turns and turns[-1].role == "assistant":
            turns.pop()
        if not turns:
            yield Frame(notice=render.notice_html("info", "There is nothing to retry.")).updates()
            return
        async for frame in self._checked_answer(room, turns, None, values):
            yield frame.updates()

    async def edit(
        self, edited: gr.EditData, request: gr.Request, *values: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Replace a user message and answer from there."""
        room = self.rooms.get(tab_of(request))
        index = edited.index if isinstance(edited.index, int) else edited.index[0]
        text = plain(str(edited.value), room.turns[index].text) if index < len(room.turns) else ""
        if not text.strip():
            message = "An edited message needs some text; nothing was changed."
            yield Frame(
                chat=render.chat_value(room.turns), notice=render.notice_html("info", message)
            ).updates()
            return
        turns = [*room.turns[:index], Turn("user", text)]
        async for frame in self._checked_answer(room, turns, text, values):
            yield frame.updates()

    async def stop(self, request: gr.Request) -> None:
        """Stop the answer in progress."""
        self.rooms.stop(tab_of(request))

    async def leave(self, request: gr.Request) -> None:
        """A tab was closed or reloaded."""
        self.rooms.stop(tab_of(request))

    async def new_chat(self, request: gr.Request) -> tuple[Any, ...]:
        """Forget the conversation and start over."""
        room = self.rooms.get(tab_of(request))
        room.clear()
        return new_chat_frame(room).updates()

    def poll_opening(self) -> tuple[Any, ...]:
        """Header, notice, message box and timer while the session opens."""
        session, opening = self.slot.session, self.slot.opening
        if session is not None:
            box = gr.update(interactive=True, placeholder="Message the model")
            status = render.status_html(None)
            info = session.info
            header = render.header_html(info, last_certificate(info.base, info.head, info.dtype))
            return header, "", status, box, gr.update(active=False)
        timer = gr.update(active=not opening.has_failed)
        return gr.skip(), render.opening_html(opening), gr.skip(), gr.skip(), timer

    async def _checked_answer(
        self, room: Room, turns: list[Turn], prompt: str | None, values: Sequence[Any]
    ) -> AsyncIterator[Frame]:
        """Answer ``turns`` if the settings are right, the session is open and the room is free."""
        session = self.slot.session
        try:
            settings = read_settings(values)
        except ConfigError as error:
            yield Frame(
                chat=render.chat_value(room.turns),
                notice=render.notice_html("error", str(error)),
            )
            return
        if session is None or room.is_busy:
            hint = (
                "The model is still loading; send again in a moment."
                if session is None and not self.slot.opening.has_failed
                else "The model could not be loaded; the reason is shown above."
                if session is None
                else "An answer is in progress. Stop it first, or wait for it."
            )
            yield Frame(notice=render.notice_html("info", hint))
            return
        async for frame in self._answer(session, room, turns, prompt, settings):
            yield frame

    async def _answer(
        self,
        session: ChatSession,
        room: Room,
        turns: list[Turn],
        prompt: str | None,
        settings: Settings,
    ) -> AsyncIterator[Frame]:
        before, chat_id, cancel = room.turns, room.chat_id, threading.Event()
        room.turns, room.cancel = turns, cancel
        messages = room.messages(settings.system_prompt)
        pump = Pump(
            lambda: session.chat(messages, settings.generation, settings.draft, cancel=cancel)
        )
        artist = Artist(turns, chat_id, session)
        try:
            pump.start()
            yield Frame(
                chat=render.chat_value(turns),
                status=render.status_html(pump.transcript),
                notice="",
                box=busy_box() if prompt is None else busy_box(value=""),
            )
            drawn = pump.transcript
            while not pump.is_done and room.chat_id == chat_id:
                await asyncio.sleep(FRAME_S)
                if pump.transcript is not drawn and room.chat_id == chat_id:
                    drawn = pump.transcript
                    yield artist.live_frame(drawn)
            if room.chat_id == chat_id:
                yield artist.last_frame(pump.transcript, before, prompt)
            else:
                yield new_chat_frame(room)
        finally:
            cancel.set()
            if room.chat_id == chat_id:
                room.turns, room.cancel = artist.turns_after(pump.transcript, before), None


class Artist:
    """Draws one answer: every frame's chat and side channel, and the figures less often."""

    def __init__(self, turns: list[Turn], chat_id: int, session: ChatSession) -> None:
        self.turns = turns
        self.chat_id = chat_id
        self.index = sum(turn.role == "assistant" for turn in turns)
        self.lines = render.TokenLines(session.token_text)
        self._shown_s = -FIGURES_S

    def turns_after(self, transcript: Transcript, before: list[Turn]) -> list[Turn]:
        """The conversation with the answer; a request that wrote nothing leaves it as it was before."""
        if not transcript.text:
            return before
        return [*self.turns, Turn("assistant", transcript.text)]

    def channel(self, transcript: Transcript) -> dict[str, Any] | None:
        """The side channel once there are tokens."""
        if not transcript.tokens:
            return None
        lines = self.lines.update(transcript.tokens)
        prompt = self.turns[-1].text
        return render.side_channel(self.chat_id, self.index, prompt, transcript, lines)

    def live_frame(self, transcript: Transcript) -> Frame:
        """A frame while the answer grows."""
        now_s = asyncio.get_running_loop().time()
        has_figures = not transcript.tokens or now_s - self._shown_s >= FIGURES_S
        if has_figures:
            self._shown_s = now_s
        return Frame(
            chat=render.chat_value(self.turns_after(transcript, [])) if transcript.text else None,
            channel=self.channel(transcript),
            status=render.status_html(transcript) if has_figures else None,
            notice=notices_html(transcript) or None,
        )

    def last_frame(self, transcript: Transcript, before: list[Turn], prompt: str | None) -> Frame:
        """The final frame: a request that wrote nothing gives its prompt back to the message box."""
        gives_back = not transcript.text and prompt is not None
        return Frame(
            chat=render.chat_value(self.turns_after(transcript, before)),
            channel=self.channel(transcript) if transcript.text else None,
            status=render.status_html(transcript),
            details=render.details_html(transcript),
            notice=notices_html(transcript),
            box=idle_box(value=prompt) if gives_back else idle_box(),
        )


def new_chat_frame(room: Room) -> Frame:
    """The page after New chat; a dropped answer draws it again, over its own frames still on their way."""
    if room.turns:
        return Frame(chat=render.chat_value(room.turns))
    return Frame(
        chat=[],
        channel=render.empty_channel(room.chat_id),
        status=render.status_html(None),
        details=render.details_html(None),
        notice="",
        box=idle_box(),
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


def plain(edited: str, original: str) -> str:
    """An edited message as typed: the page offers the escaped form for editing."""
    return edited if "&lt;" in original or "&#33;" in original else unescaped(edited)


def tab_of(request: gr.Request) -> str:
    """Which browser tab a request comes from."""
    return str(request.session_hash)


__all__ = ["EXAMPLES", "Handlers"]
