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
    tokens = race(probabilities, noise)
    return tokens, probabilities.gather(1, tokens.unsqueeze(1)).squeeze(1)


def race(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Draw from each row by an exponential race: token i arrives at time E_i / p_i, the first one wins.

    That is an exact draw (the Gumbel-max trick in other words), and it is robust: when rounding moves the
    probabilities by a millionth, the winner changes only if two arrivals lie that close. Inverting the
    cumulative distribution is not: its sum over a large vocabulary carries the rounding of every token, and
    there one answer in eighty came out differently.

    Args:
        probabilities: [R, V] f32.
        noise: [R] f32 in [0, 1), multiples of 2**-24; the key from which a row's E_i are hashed.
    Returns: [R] i64, never a token of probability 0.
    """
    keys = (noise.double() * 2.0**_NOISE_BITS).long().unsqueeze(1) + 1  # [R, 1]
    tokens = torch.arange(probabilities.shape[1], device=probabilities.device)  # [V]
    hashed = _mix_tensor((keys << 32) + tokens)  # [R, V] i64
    uniform = (
        (hashed & 0xFFFFFFFF).float() + 0.5
    ) * 2.0**-32  # [R, V] f32; small numbers stay exact
    arrival = -torch.log1p(-uniform)  # [R, V] f32, exponential
    return (probabilities / arrival).argmax(dim=-1)


def _mix_tensor(values: Tensor) -> Tensor:
    """splitmix64's finaliser on int64 tensors, whose products wrap; shifts are made logical by a mask."""
    values = values * _signed(_GOLDEN)
    values = (values ^ ((values >> 30) & (_MASK_64 >> 30))) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ ((values >> 27) & (_MASK_64 >> 27))) * _signed(0x94D049BB133111EB)
    return values ^ ((values >> 31) & (_MASK_64 >> 31))


def _signed(value: int) -> int:
    """A 64-bit pattern as int64 reads it."""
    return value - (1 << 64) if value >= 1 << 63 else value


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


__all__ = ["check_finite", "choose", "position_noise", "race", "to_probabilities"]
