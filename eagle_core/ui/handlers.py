"""What happens on send, edit, regenerate, continue and stop: a session is asked, its events are drawn.

An answer runs in a pump's thread; the handler draws the latest transcript about fifteen times a second.
Leaving the page, Stop and changing the chat all set the request's cancel event; the engine looks at it
before every step. Gradio closes the handler of a page that is gone, but only where it yields: so now and then
it yields nothing new. (An unload listener would make every page hold a connection for as long as it is open,
and a browser opens six to one server, for all its tabs.)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import gradio as gr

from eagle_core.certificate.records import last_certificate
from eagle_core.errors import ConfigError, EagleError, HistoryError, StaleConversation
from eagle_core.transcript import Transcript
from eagle_core.ui import render, view
from eagle_core.ui.backend import ChatSession, SessionSlot
from eagle_core.ui.controls import Settings, read_settings
from eagle_core.ui.frames import Frame, busy_box, error_notice, idle_box, notices_html
from eagle_core.ui.pump import Pump
from eagle_core.ui.rooms import Room, Rooms, Turn, messages_of
from eagle_core.ui.writer import AnswerWriter, Plan, begin

logger = logging.getLogger(__name__)

# Figures that change faster than this cannot be read.
FIGURES_S = 0.24
MAX_SEED = 2**63
# So much of an answer is lost at most when the machine fails.
SAVE_S = 2.0
OPENING_POLL_S = 0.05
# A page that is gone is noticed so soon.
SIGN_OF_LIFE_S = 0.5
EXAMPLES = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain recursion with a small Python example.",
    "List five ways to save energy at home, with one sentence each.",
    "What is the difference between weather and climate?",
)


def reproducible_box(info: Any) -> Any:
    """The switch as the session has it; nothing is to be chosen where float32 is exact anyway."""
    return gr.update(value=info.reproducible, interactive=info.dtype != "float32")


def header_of(session: ChatSession | None) -> str:
    """The title line; with what is loaded and verified once a session is open."""
    if session is None:
        return render.header_html(None)
    info = session.info
    return render.header_html(info, last_certificate(info.base, info.head, info.precision))


class Handlers:
    """The page's event handlers. One instance per app; all state is in the rooms."""

    def __init__(self, slot: SessionSlot, rooms: Rooms) -> None:
        self.slot = slot
        self.rooms = rooms

    async def send(
        self, prompt: str, request: gr.Request, *values: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Send what is in the message box, with the attached files."""
        room = self.rooms.get(tab_of(request))
        if not prompt.strip() and not room.attachments:
            hint = "Type a message first, then press Enter."
            yield Frame(notice=render.notice_html("info", hint)).updates()
            return
        plan = Plan(room.leaf, room.prompt_of(prompt), box=prompt, files=tuple(room.attachments))
        async with aclosing(self._checked_answer(room, plan, values)) as frames:
            async for frame in frames:
                yield frame.updates()

    async def answer(
        self, event: gr.EventData, request: gr.Request, *values: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Answer again, answer an edited message, or continue an answer, as the page's script says."""
        room = self.rooms.get(tab_of(request))
        plan = plan_of(room, event._data or {})
        if isinstance(plan, str):
            yield self.frame(room, notice=render.notice_html("info", plan)).updates()
            return
        async with aclosing(self._checked_answer(room, plan, values)) as frames:
            async for frame in frames:
                yield frame.updates()

    async def stop(self, request: gr.Request) -> None:
        """Stop the answer in progress."""
        self.rooms.stop(tab_of(request))

    def poll_opening(self) -> tuple[Any, ...]:
        """Header, notice, status, message box, reproducible switch and timer while the session opens."""
        session, opening = self.slot.session, self.slot.opening
        if session is not None:
            box = gr.update(interactive=True, placeholder="Message the model")
            status = render.status_html(None)
            switch = reproducible_box(session.info)
            return header_of(session), "", status, box, switch, gr.update(active=False)
        timer = gr.update(active=not opening.has_failed)
        return gr.skip(), render.opening_html(opening), gr.skip(), gr.skip(), gr.skip(), timer

    def set_reproducible(self, is_on: bool) -> tuple[Any, ...]:
        """Header and notice after rows are computed alike alone and beside others, or not any more."""
        session = self.slot.session
        if session is None:
            return gr.skip(), render.notice_html("info", f"{self.slot.opening.message}.")
        try:
            session.set_reproducible(is_on)
        except EagleError as error:
            return gr.skip(), error_notice(error)
        info = session.info
        why = render.notice_html("info", info.rounding_reason) if info.rounding_reason else ""
        return header_of(session), why

    def absent(self) -> Frame:
        """No model is here: what is being done, or why it failed; the page looks on until one is."""
        return Frame(notice=render.opening_html(self.slot.opening), timer=gr.update(active=True))

    def frame(self, room: Room, settings: Settings | None = None, **parts: Any) -> Frame:
        """A frame with the whole conversation, its tools, and the context's use if the settings are known."""
        shown = None
        session = self.slot.session
        if session is not None and settings is not None:
            try:
                shown = view.measure(session, view.turns_of(room.conversation), settings)
                room.n_left_out = shown.first
            except EagleError as error:
                logger.debug("the chat could not be measured: %s", error.code)
        state = view.page_state(room, shown, self.rooms.is_written)
        chat = render.chat_value(view.turns_of(room.conversation))
        return Frame(**{"chat": chat, "state": state, **parts})

    def library(self, room: Room) -> dict[str, Any]:
        """The list of conversations. Raises: HistoryError."""
        state = view.library_state(room, room.saved.search(room.query))
        if room.copies is not None:
            state["kept"] = room.copies.changes(room.saved)
        return state

    def library_if_any(self, room: Room) -> dict[str, Any] | None:
        """The list, or None when it cannot be read: an answer goes on without it."""
        try:
            return self.library(room)
        except HistoryError as error:
            logger.warning("the chats could not be listed: %s", error.code)
            return None

    async def _checked_answer(
        self, room: Room, plan: Plan, values: Sequence[Any]
    ) -> AsyncGenerator[Frame, None]:
        """Answer if the settings are right and the room is free, once the session is open."""
        try:
            settings = read_settings(values)
        except ConfigError as error:
            yield self.frame(room, notice=error_notice(error))
            return
        if room.is_busy:
            hint = "An answer is in progress. Stop it first, or wait for it."
            yield Frame(notice=render.notice_html("info", hint))
            return
        settings, plan = as_another_version(room, settings, plan)
        cancel = room.cancel = threading.Event()
        try:
            if self.slot.is_opening:
                yield Frame(notice=render.opening_html(self.slot.opening), box=busy_box())
            while self._waits_for_model(room, cancel):
                await self._opening_goes_on(room, cancel)
                yield Frame()
            session = self._taken(room, cancel)
            if session is None:
                yield Frame(notice=self._why_not_open(), box=idle_box())
                return
            writer = await asyncio.to_thread(begin, room, plan, settings, session)
        except EagleError as error:
            room.cancel = None
            if isinstance(error, StaleConversation) and room.conversation is not None:
                room.show(room.store.load(room.conversation.id))
            yield self.frame(room, settings, notice=error_notice(error), box=idle_box())
            return
        except BaseException:  # the page was closed meanwhile
            room.cancel = None
            raise
        if room.cancel is cancel:
            writer.enter(room)
        async with aclosing(self._answer(session, room, writer, settings, cancel)) as frames:
            async for frame in frames:
                yield frame

    def _waits_for_model(self, room: Room, cancel: threading.Event) -> bool:
        return self.slot.is_opening and room.cancel is cancel and not cancel.is_set()

    async def _opening_goes_on(self, room: Room, cancel: threading.Event) -> None:
        """Wait until the session is open or nobody wants it, but no longer than the page may be gone."""
        end_s = asyncio.get_running_loop().time() + SIGN_OF_LIFE_S
        while self._waits_for_model(room, cancel) and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(OPENING_POLL_S)

    def _taken(self, room: Room, cancel: threading.Event) -> ChatSession | None:
        """The session; None, the room free again, if it is not open or one stopped meanwhile."""
        session = self.slot.session
        if session is not None and room.cancel is cancel and not cancel.is_set():
            return session
        if room.cancel is cancel:
            room.cancel = None
        return None

    def _why_not_open(self) -> str:
        if self.slot.opening.has_failed and self.slot.session is None:
            return render.opening_html(self.slot.opening)
        return render.notice_html("info", "Stopped before the answer began.")

    async def _answer(
        self,
        session: ChatSession,
        room: Room,
        writer: AnswerWriter,
        settings: Settings,
        cancel: threading.Event,
    ) -> AsyncGenerator[Frame, None]:
        messages = messages_of(writer.sent, settings.system_prompt)
        pump = Pump(
            lambda: session.chat(messages, settings.generation, settings.draft, cancel=cancel)
        )
        pace = self.rooms.paces.new()
        artist = Artist(writer, room.chat_id, session, pace.key)
        try:
            pump.start()
            yield self.frame(
                room,
                settings,
                status=render.status_html(pump.transcript),
                notice="",
                header=header_of(session),
                box=busy_box() if writer.plan.box is None else busy_box(value=""),
                library=self.library_if_any(room),
            )
            frame_s, now_s = 0.0, asyncio.get_running_loop().time
            drawn, begun_s, saved_s = pump.transcript, now_s(), now_s()
            while not pump.is_done and room.cancel is cancel:
                await asyncio.sleep(pace.next_s(frame_s))
                is_new = pump.transcript is not drawn
                if room.cancel is not cancel or not (is_new or now_s() - begun_s > SIGN_OF_LIFE_S):
                    continue
                drawn, begun_s = pump.transcript, now_s()
                yield artist.live_frame(drawn) if is_new else Frame()
                frame_s = now_s() - begun_s
                if now_s() - saved_s > SAVE_S:
                    saved_s = now_s()
                    await asyncio.to_thread(writer.save, drawn)
            cancel.set()
            await asyncio.to_thread(pump.join, 5.0)
            is_shown = room.cancel is cancel
            self._settle(room, writer, pump.transcript, settings, session, cancel)
            if is_shown:
                yield self._last_frame(room, artist, pump.transcript, settings)
            elif not room.is_busy:
                yield self._frame_of_another(room, settings)
        finally:
            cancel.set()
            self.rooms.paces.drop(pace)
            if not writer.is_settled:  # the page was closed: keep what has come
                try:
                    await asyncio.to_thread(
                        pump.join, 5.0
                    )  # a step later it says itself how it ended
                finally:
                    self._settle(room, writer, pump.transcript, settings, session, cancel)

    def _settle(
        self,
        room: Room,
        writer: AnswerWriter,
        transcript: Transcript,
        settings: Settings,
        session: ChatSession,
        cancel: threading.Event,
    ) -> None:
        """Keep the answer, or take back a request that wrote nothing."""
        conversation = writer.settle(transcript, session.info, settings.generation.temperature)
        if room.writing == writer.answer_id:
            room.writing = None
        if room.cancel is cancel:
            room.cancel = None
            room.conversation = conversation

    def _frame_of_another(self, room: Room, settings: Settings) -> Frame:
        """What is in view now, drawn anew: frames of an answer that was left may have come after it."""
        room.chat_id += 1
        return self.frame(
            room,
            settings,
            channel=render.empty_channel(room.chat_id),
            status=render.status_html(None),
            details=render.details_html(None),
            box=idle_box(),
            library=self.library_if_any(room),
        )

    def _last_frame(
        self, room: Room, artist: Artist, transcript: Transcript, settings: Settings
    ) -> Frame:
        """The final frame: a request that wrote nothing gives its prompt and files back."""
        writer = artist.writer
        gives_back = writer.wrote_nothing and writer.plan.box is not None
        if gives_back:
            room.attachments = list(writer.plan.files)
        notices = notices_html(transcript) + writer.plan.note
        if writer.problem is not None:
            notices += error_notice(writer.problem)
        return self.frame(
            room,
            settings,
            channel=artist.channel(transcript) if transcript.text else None,
            status=render.status_html(transcript),
            details=render.details_html(transcript),
            notice=notices,
            box=idle_box(value=writer.plan.box) if gives_back else idle_box(),
            library=self.library_if_any(room),
        )


def plan_of(room: Room, data: dict[str, Any]) -> Plan | str:
    """What the page's script asks for, or why it cannot be."""
    conversation = room.conversation
    messages = {m.id: m for m in conversation.messages} if conversation is not None else {}
    message = messages.get(str(data.get("message")))
    if conversation is None or message is None:
        return "This message is not there any more."
    match data.get("do"):
        case "edit" if message.role == "user":
            text = str(data.get("text", ""))
            if not text.strip():
                return "An edited message needs some text; nothing was changed."
            return Plan(message.parent, text, changes_view=True)
        case "regenerate" if message.role == "assistant":
            return Plan(message.parent, changes_view=True)
        case "regenerate":
            return Plan(message.id, changes_view=True)
        case "continue" if message.role == "assistant" and message.id == conversation.active:
            return Plan(message.parent, continued=message)
        case _:
            return "Only the last answer of a chat can be continued."


def as_another_version(room: Room, settings: Settings, plan: Plan) -> tuple[Settings, Plan]:
    """Settings and plan of an answer that may have earlier versions: each has a seed of its own."""
    if plan.text is not None or plan.continued is not None or room.conversation is None:
        return settings, plan
    n_earlier = sum(
        message.parent == plan.parent and message.role == "assistant" and bool(message.text)
        for message in room.conversation.messages
    )
    generation = settings.generation
    if generation.temperature > 0:
        seed = (generation.seed + n_earlier) % MAX_SEED
        return replace(settings, generation=replace(generation, seed=seed)), plan
    if not n_earlier or room.knows_greedy:
        return settings, plan
    room.knows_greedy = True
    hint = "Raise the temperature in Settings for another one."
    note = render.notice_html(
        "info", "At temperature 0 the same settings give the same answer.", hint
    )
    return settings, replace(plan, note=note)


class Artist:
    """Draws one answer: every frame's chat and side channel, and the figures less often."""

    def __init__(
        self, writer: AnswerWriter, chat_id: int, session: ChatSession, pace_key: str
    ) -> None:
        self.writer, self.pace_key = writer, pace_key
        self.chat_id = chat_id
        self.turns = writer.turns
        self.index = sum(turn.role == "assistant" for turn in self.turns)
        self.lines = render.TokenLines(session.token_text)
        self._rows = render.chat_value(self.turns)
        self._shown_s = -FIGURES_S

    def channel(self, transcript: Transcript) -> dict[str, Any] | None:
        """The side channel once there are tokens."""
        if not transcript.tokens:
            return None
        lines = self.lines.update(transcript.tokens)
        prompt = self.turns[-1].text if self.turns else ""
        whole = self.writer.whole(transcript)
        channel = render.side_channel(self.chat_id, self.index, prompt, whole, lines)
        return {**channel, "pace": self.pace_key, "sent_ms": round(1000 * time.time())}

    def live_frame(self, transcript: Transcript) -> Frame:
        """A frame while the answer grows."""
        now_s = asyncio.get_running_loop().time()
        has_figures = not transcript.tokens or now_s - self._shown_s >= FIGURES_S
        if has_figures:
            self._shown_s = now_s
        text = self.writer.whole(transcript).text
        answer = render.chat_value([Turn("assistant", text)])
        return Frame(
            chat=[*self._rows, *answer] if transcript.text else None,
            channel=self.channel(transcript),
            status=render.status_html(transcript) if has_figures else None,
            notice=notices_html(transcript) or None,
        )


def tab_of(request: gr.Request) -> str:
    """Which browser tab a request comes from."""
    return str(request.session_hash)


__all__ = ["EXAMPLES", "Handlers", "header_of"]
