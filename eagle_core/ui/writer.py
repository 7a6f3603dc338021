"""Keeps one answer in the history while it grows, and takes back a request that wrote nothing."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle_core.errors import HistoryError
from eagle_core.events import Span
from eagle_core.history import Conversation, HistoryStore, Message, runs_of, spans_of
from eagle_core.history.figures import figures_of
from eagle_core.history.records import title_of
from eagle_core.transcript import Transcript, joined
from eagle_core.ui import view
from eagle_core.ui.attachments import Attachment
from eagle_core.ui.backend import ChatSession
from eagle_core.ui.controls import Settings
from eagle_core.ui.rooms import Room, Turn

if TYPE_CHECKING:
    from eagle_core.session import SessionInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """A request before it is made.

    ``parent`` is the message that it stands below, ``text`` a user's message to write first, ``continued`` an
    answer that goes on. ``box`` and ``files`` go back to the message box if nothing is written.
    ``note`` is a notice to show at the end.
    """

    parent: str | None
    text: str | None = None
    continued: Message | None = None
    box: str | None = None
    files: tuple[Attachment, ...] = ()
    changes_view: bool = False
    note: str = ""


def begin(room: Room, plan: Plan, settings: Settings, session: ChatSession) -> AnswerWriter:
    """Write the user's message and an empty answer, before the model is asked.

    Raises: ContextOverflow, StaleConversation, HistoryError, ModelError; then nothing was changed.
    """
    before, store = room.conversation, room.store
    path = before.path_to(plan.parent) if before is not None else ()
    turns = [Turn(m.role, m.text) for m in path if m.role == "user" or m.text]
    if plan.text is not None:
        turns.append(Turn("user", plan.text))
    sent = list(turns)
    if plan.continued is not None:
        sent.append(Turn("assistant", plan.continued.text))
    fit = view.measure(session, sent, settings, settings.overflow)
    conversation = before
    if conversation is None:
        title = title_of(plan.box) if plan.box and plan.box.strip() else ""
        conversation = store.create(settings.system_prompt, title)
    if before is not None and before.system_prompt != settings.system_prompt:
        store.describe(before.id, system_prompt=settings.system_prompt)
    if plan.continued is not None:
        conversation = store.reopen(conversation, plan.continued.id)
        answer = plan.continued
    else:
        parent = plan.parent
        if plan.text is not None:
            conversation = store.append(conversation, parent, "user", plan.text)
            parent = conversation.active
        conversation = store.append(conversation, parent, "assistant", "", is_finished=False)
        answer = conversation.path[-1]
    return AnswerWriter(store, plan, before, conversation, answer, turns, sent[fit.first :])


class AnswerWriter:
    """One answer on its way into the history. ``problem`` is why it could not be kept, if it could not.

    ``turns`` is what stands above the answer; ``sent`` is what the model gets, the oldest left out if need
    be.
    """

    def __init__(
        self,
        store: HistoryStore,
        plan: Plan,
        before: Conversation | None,
        conversation: Conversation,
        answer: Message,
        turns: list[Turn],
        sent: list[Turn],
    ) -> None:
        self.plan, self.turns, self.sent = plan, turns, sent
        self.problem: HistoryError | None = None
        self.wrote_nothing = self.is_settled = False
        self._store = store
        self._before, self._conversation, self._answer = before, conversation, answer

    @property
    def answer_id(self) -> str:
        """The message that is written."""
        return self._answer.id

    def enter(self, room: Room) -> None:
        """Bring what was begun into view."""
        room.attachments = []
        room.conversation, room.writing = self._conversation, self._answer.id
        room.chat_id += self.plan.changes_view

    def whole(self, transcript: Transcript) -> Transcript:
        """The transcript with the text that a continued answer had before."""
        if self.plan.continued is None:
            return transcript
        old = self.plan.continued
        return dataclasses.replace(
            transcript,
            text=old.text + transcript.text,
            spans=joined(full_spans(old), transcript.spans),
        )

    def save(self, transcript: Transcript) -> None:
        """Keep the text so far; an error is remembered, not raised."""
        self._fill(self._message(transcript))

    def settle(
        self, transcript: Transcript, info: SessionInfo, temperature: float
    ) -> Conversation | None:
        """Keep the finished answer; returns the conversation as it is now, None for no conversation."""
        self.is_settled = True
        try:
            if transcript.text:
                name = info.base.rstrip("/").rsplit("/", 1)[-1]
                figures = figures_of(transcript, name, info.precision, temperature)
                if self.plan.continued is not None:
                    figures["is_continuation"] = True
                message = self._message(transcript)
                self._fill(dataclasses.replace(message, figures=figures, is_finished=True))
            else:
                self.wrote_nothing = True
                if not self._take_back():
                    return None
            return (
                self._store.load(self._conversation.id) if not self.problem else self._conversation
            )
        except HistoryError as error:
            self._note(error)
            return self._conversation

    def _message(self, transcript: Transcript) -> Message:
        whole = self.whole(transcript)
        return dataclasses.replace(
            self._answer, text=whole.text, runs=runs_of(whole.spans), is_finished=False
        )

    def _fill(self, message: Message) -> None:
        self._conversation = with_message(self._conversation, message)
        try:
            self._store.fill(message)
        except HistoryError as error:
            self._note(error)

    def _take_back(self) -> bool:
        """Undo what :func:`begin` wrote; False when the conversation is gone with it."""
        if self.plan.continued is not None:
            self._store.fill(dataclasses.replace(self.plan.continued, is_finished=True))
            return True
        if self._before is None:
            self._store.delete(self._conversation.id)
            return False
        added = self._answer
        if self.plan.text is not None and added.parent is not None:
            added = next(m for m in self._conversation.messages if m.id == added.parent)
        self._store.remove(self._conversation, added.id, self._before.active)
        return True

    def _note(self, error: HistoryError) -> None:
        if self.problem is None:
            logger.warning("an answer could not be kept: %s", error.code)
            self.problem = error


def full_spans(message: Message) -> tuple[Span, ...]:
    """A message's spans; text of unknown origin counts as the model's."""
    spans = spans_of(message.runs)
    missing = len(message.text) - sum(span.n_chars for span in spans)
    return joined(spans, (Span("target", missing),)) if missing > 0 else spans


def with_message(conversation: Conversation, message: Message) -> Conversation:
    """The conversation with one message in place of the one of its id."""
    messages = tuple(message if old.id == message.id else old for old in conversation.messages)
    return dataclasses.replace(conversation, messages=messages)


__all__ = ["AnswerWriter", "Plan", "begin"]
