"""A session that strangers share: nobody takes it for long, and nobody changes it for the others."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle_core.compare import OnProgress, Prompt, Race, Setup
from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.differences import Difference
from eagle_core.errors import ConfigError
from eagle_core.events import Event, Notice
from eagle_core.ui.backend import ChatSession, races_of

if TYPE_CHECKING:
    from eagle_core.session import Message, SessionInfo

FIXED = "this app is shared, so its model and how it computes are fixed"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one visitor may ask for.

    ``max_prompts``: of one comparison. ``max_waiting``: requests that may wait; the next one is refused.
    ``n_gpu_s``: seconds of a GPU's time that a request may take, None where there is no such budget.
    """

    max_new_tokens: int = 512
    max_prompts: int = 3
    max_waiting: int = 24
    n_gpu_s: int | None = None

    @property
    def words(self) -> str:
        """The limits as the page says them."""
        budget = (
            "One request at a time is answered; the others see their place in the queue."
            if self.n_gpu_s is None
            else "A request waits until a GPU is free and takes it for at most "
            f"{self.n_gpu_s} seconds of your own daily quota."
        )
        return (
            f"You share this app with others: answers end after {self.max_new_tokens} tokens. {budget} "
            "Your chats are kept in this browser only."
        )


class Limited:
    """A session within limits."""

    def __init__(self, session: ChatSession, limits: Limits) -> None:
        self._session, self._limits = session, limits

    @property
    def info(self) -> SessionInfo:
        """What is loaded."""
        return self._session.info

    def chat(
        self,
        messages: Sequence[Message],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Events of one answer, which may be shorter than asked for; then a notice says so."""
        within = self.within(generation)
        if (
            within is not generation
            and generation.max_new_tokens != GenerationConfig().max_new_tokens
        ):
            yield Notice(
                "info", f"Answers of this shared app end after {within.max_new_tokens} tokens."
            )
        yield from self._session.chat(messages, within, draft, cancel=cancel)

    def races(
        self,
        prompts: Sequence[Prompt],
        setups: Sequence[Setup],
        cancel: threading.Event,
        on_progress: OnProgress,
    ) -> Iterator[Race]:
        """Races on the first prompts, with answers as long as allowed."""
        within = [
            dataclasses.replace(setup, generation=self.within(setup.generation)) for setup in setups
        ]
        few = prompts[: self._limits.max_prompts]
        return races_of(self._session, few, within, cancel, on_progress)

    def within(self, generation: GenerationConfig) -> GenerationConfig:
        """The settings with a shorter answer if need be."""
        most = self._limits.max_new_tokens
        if generation.max_new_tokens <= most:
            return generation
        fewest = min(generation.min_new_tokens, most)
        return dataclasses.replace(generation, max_new_tokens=most, min_new_tokens=fewest)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a chat in the model's own template."""
        return self._session.count_tokens(messages)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat in the model's own template."""
        return self._session.encode_chat(messages)

    def token_text(self, token_id: int) -> str:
        """Printable form of one token."""
        return self._session.token_text(token_id)

    def forget(self) -> None:
        """Drop the cached prompt."""
        self._session.forget()

    def explain_difference(
        self,
        prompt_ids: Sequence[int],
        plain: Sequence[int],
        drafted: Sequence[int],
        generation: GenerationConfig,
    ) -> Difference | None:
        """Where two answers part, and why."""
        return self._session.explain_difference(prompt_ids, plain, drafted, generation)

    def set_reproducible(self, is_on: bool) -> None:  # noqa: ARG002 - the protocol's
        """Raises: ConfigError always: it would change the answers of all visitors."""
        raise ConfigError(FIXED, hint="install it on a machine of yours to change this")

    def use_template(self, name: str) -> None:  # noqa: ARG002 - the protocol's
        """Raises: ConfigError always."""
        raise ConfigError(FIXED, hint="install it on a machine of yours to change this")

    def close(self) -> None:
        """Free the model."""
        self._session.close()


__all__ = ["Limited", "Limits"]
