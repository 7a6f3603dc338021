"""Logits processors: what earlier tokens and fixed settings do to the scores, at every node of a tree alike.

A node's context is its own path: prompt, answer so far, and the drafted tokens from the pending one down
to the node. So a tree's node is scored as plain decoding would score the same prefix. The classes and
their order are those of transformers' ``generate``, which runs presence and frequency penalties where a
caller's own processors run: after the others, before temperature, top-k, top-p and min-p (``sampling``).
They act at temperature 0, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from eagle_core.config import GenerationConfig
from eagle_core.errors import ConfigError


class CountPenalty(LogitsProcessor):
    """Presence and frequency penalty by OpenAI's formula: score - n * frequency - (n > 0) * presence.

    n counts the token in the answer; the prompt does not count.

    Args: n_prompt: tokens at the start of the context that are not the answer's.
    """

    def __init__(self, presence: float, frequency: float, n_prompt: int) -> None:
        self._presence, self._frequency, self._n_prompt = presence, frequency, n_prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Contexts [R, T] i64 and scores [R, V] f32 -> scores [R, V] f32."""
        answer = input_ids[:, self._n_prompt :]  # [R, T - n_prompt]
        counts = torch.zeros_like(scores).scatter_add_(
            1, answer, torch.ones_like(answer, dtype=scores.dtype)
        )  # [R, V]
        return scores - self._frequency * counts - self._presence * (counts > 0)


def count_penalty(config: GenerationConfig, n_prompt: int) -> list[LogitsProcessor]:
    """The processor that transformers does not have, or none when it would do nothing."""
    if config.presence_penalty == 0 and config.frequency_penalty == 0:
        return []
    return [CountPenalty(config.presence_penalty, config.frequency_penalty, n_prompt)]


class Processors:
    """The processors of one request, with the tokens that they look at.

    Args:
        prompt_ids: the context so far; :meth:`extend` adds the answer's tokens.
        eos_ids: tokens that ``min_new_tokens`` holds back.
    """

    def __init__(
        self, config: GenerationConfig, prompt_ids: Sequence[int], eos_ids: frozenset[int]
    ) -> None:
        self._config, self._eos_ids = config, sorted(eos_ids)
        self._n_prompt = len(prompt_ids)
        self._ids = torch.tensor(prompt_ids, dtype=torch.long)  # [T], on the host
        self._by_device: dict[torch.device, list[LogitsProcessor]] = {}

    def extend(self, token_ids: Iterable[int]) -> None:
        """Take over tokens that became part of the answer."""
        self._ids = torch.cat((self._ids, torch.tensor(list(token_ids), dtype=torch.long)))

    def __call__(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Scores of nodes, each under its own context.

        Args:
            logits: [R, V], any float dtype.
            paths: for each row the drafted tokens that follow the context, the node's own last.
        Returns: [R, V] f32.
        """
        scores = logits.float()
        by_length: dict[int, list[int]] = {}
        for row, path in enumerate(paths):
            by_length.setdefault(len(path), []).append(row)
        if len(by_length) == 1:
            return self._process(scores, paths)
        processed = torch.empty_like(scores)
        for rows in by_length.values():
            index = torch.tensor(rows, device=scores.device)
            processed[index] = self._process(scores[index], [paths[row] for row in rows])
        return processed

    def _process(self, scores: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Scores [R, V] f32 of nodes whose paths have one length."""
        drafted = torch.tensor(paths, dtype=torch.long).reshape(len(paths), -1)  # [R, depth]
        contexts = torch.cat((self._ids.expand(len(paths), -1), drafted), dim=1)  # [R, T + depth]
        contexts = contexts.to(scores.device)
        for process in self._on(scores.device):
            scores = process(contexts, scores)
        return scores

    def _on(self, device: torch.device) -> list[LogitsProcessor]:
        if device not in self._by_device:
            self._by_device[device] = self._build(device)
        return self._by_device[device]

    def _build(self, device: torch.device) -> list[LogitsProcessor]:
        config, found = self._config, list[LogitsProcessor]()
        if config.logit_bias:
            bias: list[list[list[int] | float]] = [
                [[token], value] for token, value in config.logit_bias
            ]
            found.append(SequenceBiasLogitsProcessor(bias))
        if config.repetition_penalty != 1:
            found.append(RepetitionPenaltyLogitsProcessor(float(config.repetition_penalty)))
        if config.min_new_tokens > 0 and self._eos_ids:
            found.append(
                MinNewTokensLengthLogitsProcessor(
                    self._n_prompt, config.min_new_tokens, self._eos_ids, device=str(device)
                )
            )
        return found + count_penalty(config, self._n_prompt)


def processors_for(
    config: GenerationConfig,
    prompt_ids: Sequence[int],
    eos_ids: frozenset[int],
    vocab_size: int,
) -> Processors | None:
    """The processors that the settings ask for; None when no score would change, as by default.

    Raises: ConfigError when a bias is meant for a token that the model does not have.
    """
    unknown = [token for token, _ in config.logit_bias if token >= vocab_size]
    if unknown:
        raise ConfigError(
            "logit_bias names a token that the model does not have",
            expected=f"ids below {vocab_size}",
            got=", ".join(map(str, unknown)),
            hint="token ids belong to one model: look them up again",
        )
    is_active = (
        config.logit_bias
        or config.repetition_penalty != 1
        or (config.min_new_tokens > 0 and eos_ids)
        or config.presence_penalty != 0
        or config.frequency_penalty != 0
    )
    return Processors(config, prompt_ids, eos_ids) if is_active else None


__all__ = ["CountPenalty", "Processors", "count_penalty", "processors_for"]
