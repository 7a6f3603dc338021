"""A session on ZeroGPU, Hugging Face's GPUs that are lent for one call at a time.

``spaces.GPU`` runs a plain generator in a process that is forked for the call: only there is a GPU. What it
is given and what it yields is pickled, so nothing but plain data crosses. The weights are loaded once in the
process that serves the page, in the thread that imports ``spaces``, which makes their tensors ready for the
lent GPU; caches and self-test are made where the GPU is. A comparison is one call: one visit to the queue.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from eagle_core.compare import OneModel, OnProgress, Prompt, Race, Setup, run_races
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
from eagle_core.differences import Difference
from eagle_core.errors import ConfigError, NoChatTemplate
from eagle_core.events import Event, Failed

if TYPE_CHECKING:
    from eagle_core.session import Message, Session, SessionInfo

logger = logging.getLogger(__name__)

LONGEST_S = 120
STARTUP_S = 15  # forking, moving the weights, the self-test, reading the prompt
SLOW_TOK_S = 25  # what a call is planned with: the GPU is given back when the answer is complete
MAX_REQUESTS = 256
TRY_AGAIN = "Try again in a moment; signed in to Hugging Face you have a larger quota."


def answer_seconds(_slot: int, _messages: Any, generation: GenerationConfig, _draft: Any) -> int:
    """Seconds of GPU that an answer is planned with. Example: 256 tokens, 26 seconds."""
    return min(LONGEST_S, STARTUP_S + math.ceil(generation.max_new_tokens / SLOW_TOK_S))


def race_seconds(_slot: int, prompts: Sequence[Prompt], setups: Sequence[Setup]) -> int:
    """Seconds of GPU that a comparison is planned with: every set-up answers every prompt."""
    n_tokens = len(prompts) * sum(setup.generation.max_new_tokens for setup in setups)
    return min(LONGEST_S, STARTUP_S + math.ceil(n_tokens / SLOW_TOK_S))


class Flags:
    """Stop signals that a forked process sees: shared bytes, without a lock that a fork could copy."""

    def __init__(self) -> None:
        self._bytes = multiprocessing.RawArray("b", MAX_REQUESTS)
        self._free = list(range(MAX_REQUESTS))
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[int]:
        """A flag of one's own, lowered. Raises: ConfigError when too many requests are open."""
        with self._lock:
            if not self._free:
                raise ConfigError("too many requests are waiting", hint="try again in a moment")
            slot = self._free.pop()
        self._bytes[slot] = 0
        try:
            yield slot
        finally:
            with self._lock:
                self._free.insert(0, slot)  # used again as late as possible

    def set(self, slot: int) -> None:
        """Raise a flag."""
        self._bytes[slot] = 1

    def is_set(self, slot: int) -> bool:
        """Whether it is raised."""
        return bool(self._bytes[slot])


class Flag(threading.Event):
    """One flag, as what asks a request to end."""

    def __init__(self, flags: Flags, slot: int) -> None:
        super().__init__()
        self._flags, self._slot = flags, slot

    def is_set(self) -> bool:
        """Whether the request shall end."""
        return self._flags.is_set(self._slot)


class Pair:
    """A base model and a head, loaded once; their session is made in the process that has a GPU."""

    def __init__(self, load: LoadConfig) -> None:
        from eagle_core.chat_text import ChatText
        from eagle_core.loading import load_base
        from eagle_core.loading_head import check_before_download, head_source, load_head

        check_before_download(load)
        self.load, self.base = load, load_base(load)
        source = head_source(load)
        self.head = load_head(source, self.base.model) if source is not None else None
        self.head_name = Path(source).name if source is not None else None
        self.text = ChatText(self.base.tokenizer, load.chat_template, self.base.name)
        self._session: Session | None = None
        self._pid = os.getpid()

    def session(self) -> Session:
        """The session of this process. Called on the GPU's side only."""
        import torch

        from eagle_core.session import Session

        if self._session is None:
            if os.getpid() != self._pid:
                torch.set_num_threads(1)  # the pool of threads does not survive a fork
            self._session = Session(
                self.base, self.head, self.head_name, None, self.load.head_dtype, self.load.chat_template
            )  # fmt: skip
        return self._session

    def info(self) -> SessionInfo:
        """What is loaded, as far as it is known without a GPU; trees are expected to be checked rightly."""
        from eagle_core.session import SessionInfo

        template = None
        with suppress(NoChatTemplate):
            template = self.text.template.name
        parameters = list(self.head.parameters()) if self.head is not None else []
        return SessionInfo(
            base=self.base.name,
            head=self.head_name,
            dtype=str(self.base.model.dtype).removeprefix("torch."),
            device="ZeroGPU",
            context_length=self.base.context_length,
            n_parameters=self.base.model.num_parameters(),
            n_head_parameters=sum(parameter.numel() for parameter in parameters),
            reproducible=self.base.reproducible,
            quantization=self.base.quantization,
            precision_note=self.base.precision_note,
            chat_template=template,
        )


class ZeroSession:
    """The app's session, whose answers and races run where a GPU is lent.

    Args:
        pair: what is loaded.
        gpu: ``spaces.GPU``.
    """

    def __init__(self, pair: Pair, gpu: Callable[..., Any]) -> None:
        self.info = pair.info()
        self._pair, self._flags = pair, Flags()
        flags = self._flags

        def answer(
            slot: int, messages: list[Message], generation: GenerationConfig, draft: DraftConfig
        ) -> Iterator[Event | SessionInfo]:
            session = pair.session()
            yield session.info
            yield from session.chat(messages, generation, draft, cancel=Flag(flags, slot))

        def race(
            slot: int, prompts: list[Prompt], setups: list[Setup]
        ) -> Iterator[Race | SessionInfo]:
            session = pair.session()
            yield session.info
            yield from run_races(
                OneModel(session), prompts, setups, Flag(flags, slot), lambda _: None
            )

        self._answer = gpu(duration=answer_seconds)(answer)
        self._race = gpu(duration=race_seconds)(race)

    def chat(
        self,
        messages: Sequence[Message],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Events of one answer, in one call; an error of the lender is one that the user is told."""
        cancel = cancel if cancel is not None else threading.Event()
        try:
            with self._flags.taken() as slot:
                call = self._answer(slot, list(messages), generation, draft)
                yield from self._stoppable(call, slot, cancel)
        except gr.Error as error:
            logger.warning("the GPU was not lent, or the call failed")
            yield Failed("gpu", plain(error), TRY_AGAIN)
        except ConfigError as error:
            yield Failed.of(error)

    def races(
        self,
        prompts: Sequence[Prompt],
        setups: Sequence[Setup],
        cancel: threading.Event,
        on_progress: OnProgress,  # noqa: ARG002 - the protocol's
    ) -> Iterator[Race]:
        """All set-ups on all prompts, in one call; how far it is cannot be seen from here.

        Raises: ConfigError when no GPU is lent.
        """
        try:
            with self._flags.taken() as slot:
                yield from self._stoppable(
                    self._race(slot, list(prompts), list(setups)), slot, cancel
                )
        except gr.Error as error:
            raise ConfigError(plain(error), hint=TRY_AGAIN) from error

    def _stoppable(self, call: Any, slot: int, cancel: threading.Event) -> Iterator[Any]:
        """What the call yields but for the first, which is about the session; Stop is passed on to it."""
        is_over = threading.Event()

        def pass_on() -> None:
            while not is_over.is_set():
                if cancel.wait(0.05):
                    self._flags.set(slot)
                    return

        threading.Thread(target=pass_on, name="stop", daemon=True).start()
        try:
            for found in call:
                if isinstance(found, type(self.info)):
                    self.info = dataclasses.replace(found, device=self.info.device)
                else:
                    yield found
        finally:
            is_over.set()
            self._flags.set(slot)
            call.close()

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a chat in the model's own template."""
        return len(self.encode_chat(messages))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat in the model's own template."""
        return self._pair.text.encode(messages)[0]

    def token_text(self, token_id: int) -> str:
        """Printable form of one token."""
        return self._pair.text.token_text(token_id)

    def forget(self) -> None:
        """Nothing is cached between calls on this side."""

    def explain_difference(self, *_: Any, **__: Any) -> Difference | None:
        """Raises: ConfigError always: differences are explained inside the call that found them."""
        raise ConfigError("there is no GPU outside a call", hint="compare on the Compare page")

    def set_reproducible(self, is_on: bool) -> None:  # noqa: ARG002 - the protocol's
        """Raises: ConfigError always: the pair and how it computes are fixed."""
        raise ConfigError("how the model computes is fixed here", hint="use a machine of yours")

    def use_template(self, name: str) -> None:  # noqa: ARG002 - the protocol's
        """Raises: ConfigError always."""
        raise ConfigError("the model's template is fixed here", hint="use a machine of yours")

    def close(self) -> None:
        """Nothing is open on this side."""


def plain(error: gr.Error) -> str:
    """The lender's message as text."""
    return str(getattr(error, "message", error))


__all__ = ["Pair", "ZeroSession", "answer_seconds", "race_seconds"]
