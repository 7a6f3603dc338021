"""Measured beside this engine: transformers' ``generate`` on the same weights, with its own layers and cache.

Plain, or with its prompt lookup (assisted generation: what followed the last two tokens where they stood
before is checked in one forward).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from eagle_core.bench.config import TRANSFORMERS, TRANSFORMERS_LOOKUP
from eagle_core.bench.methods import Answer, RequestFailed
from eagle_core.config import GenerationConfig
from eagle_core.errors import ConfigError, OutOfMemory
from eagle_core.events import FinishReason
from eagle_core.stats import StatsBuilder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

LOOKED_UP_TOKENS = 10  # what transformers' documentation uses


class TokenClock:
    """A streamer for ``generate`` that notes when each token came."""

    def __init__(self, start_s: float) -> None:
        self.token_ids: list[int] = []
        self.n_steps = 0  # forwards behind the one that read the prompt
        self.stats = StatsBuilder()
        self._start_s = start_s
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take ``value`` i64: the prompt [1, T], once, then what each forward gave, [1] or [1, K]."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        time_s = time.perf_counter() - self._start_s
        ids = value.flatten().tolist()
        if not self.token_ids:
            self.stats.add_prefill(time_s)
        else:
            self.n_steps += 1
        self.token_ids += ids
        self.stats.add_emission(len(ids), time_s)

    def end(self) -> None:
        """Called after the last token."""


class TransformersMethod:
    """``generate`` of transformers with its own cache and its own layers: what others measure against.

    Args: looks_up: assisted by prompt lookup. Its first forward may give several tokens at once, which the
        decode rate counts without their time: a few tokens in favour of the peer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: frozenset[int],
        context_length: int,
        *,
        looks_up: bool = False,
    ) -> None:
        self.name = TRANSFORMERS_LOOKUP if looks_up else TRANSFORMERS
        self._looks_up = looks_up
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
            prompt_lookup_num_tokens=LOOKED_UP_TOKENS if self._looks_up else None,
            **sampling,
        )

    def _answer(self, clock: TokenClock, total_s: float, max_new_tokens: int) -> Answer:
        ids = tuple(clock.token_ids)
        reason: FinishReason = "length" if len(ids) == max_new_tokens else "context"
        if ids and ids[-1] in self._eos_ids:
            reason = "eos"
        clock.stats.n_steps = clock.n_steps
        return Answer(ids, reason, clock.stats.build(total_s))


__all__ = ["TokenClock", "TransformersMethod"]
