"""From the target's logits to its next token: temperature, top-p, and one random number per position.

The noise depends on (seed, absolute position) alone, and is computed on the host: with the same seed
every drafter, and none, meets the same number at the same place, on every device. Probabilities are
float32, always. Knows nothing of trees.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import TopPLogitsWarper

from eagle_core.config import GenerationConfig
from eagle_core.errors import ModelError

_MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: consecutive counters land far apart
_NOISE_BITS = 24  # what float32 holds exactly: no rounding can turn a number below 1 into 1


def _mix(value: int) -> int:
    """splitmix64's finaliser: every input bit reaches every output bit of 64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def position_noise(seed: int, first_position: int, n_positions: int) -> Tensor:
    """Uniform numbers in [0, 1) for consecutive absolute positions.

    Args:
        seed: any integer; its low 64 bits count.
        first_position: position of the first number, >= 0.
        n_positions: how many.
    Returns: [n_positions] f32 on the host, multiples of 2**-24.
    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    key = _mix((seed + _GOLDEN) & _MASK_64)
    positions = range(first_position, first_position + n_positions)
    hashes = (_mix((key + position * _GOLDEN) & _MASK_64) for position in positions)
    steps = torch.tensor([value >> (64 - _NOISE_BITS) for value in hashes], dtype=torch.float32)
    return steps * 2.0**-_NOISE_BITS


def to_probabilities(logits: Tensor, config: GenerationConfig) -> Tensor:
    """The distribution that a token is drawn from.

    Args: logits: [R, V], any float dtype.
    Returns: [R, V] f32. Temperature 0 gives the plain softmax.
    """
    check_logits(logits)
    scores = logits.float()  # [R, V] f32
    if config.temperature == 0:
        return scores.softmax(dim=-1)
    # The likeliest token is shifted to 0 first, so that no temperature can overflow.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / config.temperature
    if config.top_p < 1:
        scores = _keep_top_p(scores, config.top_p)
    return scores.softmax(dim=-1)


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """transformers' own rule for which tokens of [R, V] stay, so that the two agree."""
    no_tokens = torch.empty((scores.shape[0], 0), dtype=torch.long, device=scores.device)
    kept: Tensor = TopPLogitsWarper(top_p)(no_tokens, scores)
    return kept


def choose(logits: Tensor, noise: Tensor, config: GenerationConfig) -> tuple[Tensor, Tensor]:
    """The target's token for every row: a function of the row, its noise and the settings alone.

    Args:
        logits: [R, V], any float dtype.
        noise: [R] f32 in [0, 1), not used at temperature 0.
    Returns: tokens [R] i64 and the target's probability for each, [R] f32.
    """
    check_logits(logits)
    if config.temperature == 0:
        tokens = logits.argmax(dim=-1)  # [R]
        scores = logits.float()
        chosen = scores.gather(1, tokens.unsqueeze(1)).squeeze(1)  # [R]
        return tokens, (chosen - scores.logsumexp(dim=-1)).exp()
    probabilities = to_probabilities(logits, config)
    tokens = invert(probabilities, noise)
    return tokens, probabilities.gather(1, tokens.unsqueeze(1)).squeeze(1)


def invert(probabilities: Tensor, noise: Tensor) -> Tensor:
    """The inverse of the cumulative distribution, in vocabulary order.

    The noise is scaled by the total as it was summed, so it never falls off the end. A parallel sum
    need not rise monotonically, so a binary search would not do; tokens of probability 0 are left out.

    Args: probabilities: [R, V] f32; noise: [R] f32 in [0, 1).
    Returns: [R] i64.
    Example: probabilities [0.25, 0, 0.75]: noise 0.24 gives 0, noise 0.25 gives 2.
    """
    cumulative = probabilities.cumsum(dim=-1).masked_fill_(probabilities <= 0, 0)  # [R, V]
    total = cumulative.amax(dim=-1)  # [R]
    beyond = cumulative > (noise * total).unsqueeze(1)  # [R, V] bool
    return beyond.to(torch.uint8).argmax(dim=-1)


def check_logits(logits: Tensor) -> None:
    """Raises: ModelError unless ``logits`` are [R, V] floats."""
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ModelError(
            "the logits have an unknown form", expected="[R, V] floats", got=_form(logits)
        )


def check_finite(probabilities: list[float]) -> None:
    """Raises: ModelError when the model computed something that is no number."""
    if not all(map(math.isfinite, probabilities)):
        raise ModelError(
            "the model's output is not a number",
            expected="finite logits",
            got="nan",
            hint="load the model as float32 or bfloat16",
        )


def _form(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"


__all__ = ["check_finite", "choose", "invert", "position_noise", "to_probabilities"]
