"""What is measured, and this engine as a method: a session with one drafter.

All methods answer the same prompt ids and keep time by the same definitions (``eagle_core.stats``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.errors import DraftError, EagleError
from eagle_core.events import Event, Failed, Finished, FinishReason, Notice, Started
from eagle_core.stats import Stats

if TYPE_CHECKING:
    from eagle_core.session import Session


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method made of a prompt, of which ``n_cached_tokens`` were still in the KV cache."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    n_cached_tokens: int = 0
    peak_memory_bytes: int = 0  # of a program of its own; 0: this process


class Method(Protocol):
    """One way to answer."""

    name: str

    def answer(self, prompt_ids: Sequence[int], generation: GenerationConfig) -> Answer:
        """Answer a prompt.

        Raises: EagleError when there is no full answer to measure.
        """
        ...


class RequestFailed(EagleError):
    """A request that a method could not answer; carries the code that the engine gave."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class SessionMethod:
    """This engine with one drafter. Every answer reads its whole prompt: what is cached is dropped."""

    def __init__(self, name: str, session: Session, draft: DraftConfig) -> None:
        self.name = name
        self._session = session
        self._draft = draft

    def answer(self, prompt_ids: Sequence[int], generation: GenerationConfig) -> Answer:
        """Answer a prompt.

        Raises: RequestFailed; DraftError when another drafter than the wanted one did the work,
            which would time the wrong thing.
        """
        self._session.forget()
        events = self._session.generate(prompt_ids, generation, self._draft)
        try:
            return self._read(events)
        finally:
            close_stream(events)

    def _read(self, events: Iterator[Event]) -> Answer:
        notices: list[str] = []
        n_cached_tokens = 0
        for event in events:
            if isinstance(event, Notice):
                notices.append(event.message)
            elif isinstance(event, Started):
                n_cached_tokens = event.n_cached_tokens
                if event.drafter != self._draft.drafter:
                    raise DraftError(
                        "; ".join(notices) or "the wanted drafter was not used",
                        expected=self._draft.drafter,
                        got=event.drafter,
                        hint="choose the head with --head",
                    )
            elif isinstance(event, Failed):
                raise RequestFailed(event.code, event.message, event.hint)
            elif isinstance(event, Finished):
                return Answer(event.token_ids, event.reason, event.stats, n_cached_tokens)
        raise RequestFailed("error", "the answer ended without a result", "")


def close_stream(events: Iterable[Event]) -> None:
    """End a session's stream now, so that it gives the engine back even while an error travels up."""
    close = getattr(events, "close", None)
    if close is not None:
        close()


__all__ = [
    "Answer",
    "Method",
    "RequestFailed",
    "SessionMethod",
    "close_stream",
]
