"""What is measured: this engine with a drafter, or transformers' own ``generate``, same weights.

All methods answer the same prompt ids and keep time by the same definitions (``eagle_core.stats``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig, from_mapping
from eagle_core.errors import ConfigError, DraftError, EagleError, OutOfMemory
from eagle_core.events import Event, Failed, Finished, FinishReason, Notice, Started
from eagle_core.stats import Stats, StatsBuilder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from eagle_core.session import Session


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method made of a prompt, of which ``n_cached_tokens`` were still in the KV cache."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    n_cached_tokens: int = 0


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


class TokenClock:
    """A streamer for ``generate`` that notes when each token came."""

    def __init__(self, start_s: float) -> None:
        self.token_ids: list[int] = []
        self.stats = StatsBuilder()
        self._start_s = start_s
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take ``value`` [1, T] (the prompt, once) or [1] i64 (a new token)."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        time_s = time.perf_counter() - self._start_s
        ids = value.flatten().tolist()
        if not self.token_ids:
            self.stats.add_prefill(time_s)
        self.token_ids += ids
        self.stats.add_emission(len(ids), time_s)

    def end(self) -> None:
        """Called after the last token."""


class TransformersMethod:
    """``generate`` of transformers with its own cache and its own layers: what others measure against."""

    name = "transformers"

    def __init__(
        self, model: PreTrainedModel, eos_ids: frozenset[int], context_length: int
    ) -> None:
        self._model = model
        self._eos_ids = eos_ids
        self._context_length = context_length

    def answer(self, prompt_ids: Sequence[int], generation: GenerationConfig) -> Answer:
        """Answer a prompt. Its random numbers are transformers' own: sampled tokens differ.

        Raises: RequestFailed when ``generate`` failed; ConfigError on a setting that it does not have;
            OutOfMemory.
        """
        import torch
        from transformers import LogitsProcessorList

        from eagle_core.packing import plain_layers
        from eagle_core.processors import count_penalty

        if generation.stop:
            raise ConfigError(
                "transformers' generate keeps what follows a stop string",
                expected="no --stop for this method",
                got=", ".join(map(repr, generation.stop)),
                hint="leave transformers out of --methods, or drop --stop",
            )
        room = self._context_length - len(prompt_ids)
        if room < 1:
            raise RequestFailed("context-overflow", "the prompt leaves no room in the context", "")
        settings = self._settings(generation, min(generation.max_new_tokens, room))
        devices = [self._model.device] if self._model.device.type == "cuda" else []
        own_layers = plain_layers(self._model)
        with own_layers, torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(generation.seed)
            clock = TokenClock(time.perf_counter())
            ids = torch.tensor([list(prompt_ids)], device=self._model.device)  # [1, T]
            try:
                self._model.generate(  # type: ignore[operator]
                    ids,
                    attention_mask=torch.ones_like(ids),
                    generation_config=settings,
                    logits_processor=LogitsProcessorList(
                        count_penalty(generation, len(prompt_ids))
                    ),
                    streamer=cast(Any, clock),
                )
            except torch.OutOfMemoryError as error:
                raise OutOfMemory(str(error), hint="lower --max-new-tokens") from error
            except (RuntimeError, ValueError) as error:
                raise RequestFailed("transformers", f"generate failed: {error}", "") from error
            total_s = time.perf_counter() - clock._start_s
        return self._answer(clock, total_s, generation.max_new_tokens)

    def _settings(self, generation: GenerationConfig, max_new_tokens: int) -> Any:
        """Only what the user asked for, without a checkpoint's own defaults (penalties, top-k)."""
        from transformers import GenerationConfig as TransformersConfig

        eos = sorted(self._eos_ids)
        sampling: dict[str, Any] = {}
        if generation.temperature > 0:
            sampling = {
                "temperature": float(generation.temperature),
                "top_p": generation.top_p,
                "top_k": generation.top_k,
                "min_p": generation.min_p or None,
            }
        if generation.logit_bias:
            sampling["sequence_bias"] = [[[token], bias] for token, bias in generation.logit_bias]
        if generation.min_new_tokens and eos:
            sampling["min_new_tokens"] = min(generation.min_new_tokens, max_new_tokens)
        return TransformersConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max_new_tokens,
            do_sample=generation.temperature > 0,
            eos_token_id=eos or None,
            pad_token_id=eos[0] if eos else 0,
            use_cache=True,
            repetition_penalty=float(generation.repetition_penalty),
            **sampling,
        )

    def _answer(self, clock: TokenClock, total_s: float, max_new_tokens: int) -> Answer:
        ids = tuple(clock.token_ids)
        reason: FinishReason = "length" if len(ids) == max_new_tokens else "context"
        if ids and ids[-1] in self._eos_ids:
            reason = "eos"
        clock.stats.n_steps = max(len(ids) - 1, 0)  # one forward for each token after the prefill's
        return Answer(ids, reason, clock.stats.build(total_s))


def build_methods(names: Sequence[str], session: Session, tree: TreeConfig) -> list[Method]:
    """The methods called ``names``, all on the session's own weights.

    Raises: ConfigError when "eagle" is wanted and there is no head.
    """
    if "eagle" in names and session.info.head is None:
        raise ConfigError(
            f"no EAGLE head is known for {session.info.base}",
            expected="a head to measure",
            got="none",
            hint="name one with --head, or leave eagle out of --methods",
        )
    methods: list[Method] = []
    for name in names:
        if name == "transformers":
            target = session.target
            eos_ids = target.eos_ids(session.tokenizer)
            methods.append(TransformersMethod(target.model, eos_ids, target.context_length))
        else:
            draft = from_mapping(DraftConfig, {"drafter": name, "tree": tree})
            methods.append(SessionMethod(name, session, draft))
    return methods


__all__ = [
    "Answer",
    "Method",
    "RequestFailed",
    "SessionMethod",
    "TokenClock",
    "TransformersMethod",
    "build_methods",
    "close_stream",
]
