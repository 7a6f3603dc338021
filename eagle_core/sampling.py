"""From logits to a token: temperature, top-k, top-p, min-p, and the random numbers of a draw.

The noise depends on (seed, absolute position) alone, and is computed on the host: with the same seed
every drafter, and none, meets the same number at the same place, on every device. What the drafts of the
rule ``sampling`` are drawn with, and what decides on them, comes from two other streams of the same seed.
Probabilities are float32, always. Knows nothing of trees, nor of processors that look at earlier tokens
(``processors``).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eagle_core.config import GenerationConfig
from eagle_core.errors import ModelError
from eagle_core.kernels.ops import has_kernels, likeliest
from eagle_core.kernels.ops import head_starts as kernel_head_starts
from eagle_core.kernels.ops import race as kernel_race

_MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: consecutive counters land far apart
MOST_LIKELY = 1024  # tokens that are looked at before the whole vocabulary is sorted
_NOISE_BITS = 24  # what float32 holds exactly: no rounding can turn a number below 1 into 1
# Whose numbers: "draft" draws candidates, "accept" decides on them. Neither knows the other's.
_STREAMS = {"draft": 0xA0761D6478BD642F, "accept": 0xE7037ED1A0B428DB}


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
    return _uniform([_mix((key + position * _GOLDEN) & _MASK_64) for position in positions])


def stream_noise(
    stream: Literal["draft", "accept"], seed: int, first_position: int, n_positions: int, n: int
) -> Tensor:
    """Uniform numbers of another stream: ``n`` for each of some consecutive positions.

    Returns: [n_positions, n] f32 on the host, multiples of 2**-24 in [0, 1).
    """
    key = _mix((seed + _GOLDEN) & _MASK_64) ^ _STREAMS[stream]
    hashes: list[int] = []
    for position in range(first_position, first_position + n_positions):
        row = _mix((key + position * _GOLDEN) & _MASK_64)
        hashes += [_mix((row + (i + 1) * _GOLDEN) & _MASK_64) for i in range(n)]
    return _uniform(hashes).reshape(n_positions, n)


def _uniform(hashes: list[int]) -> Tensor:
    """The upper bits of 64-bit hashes as f32 in [0, 1)."""
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
    return _keep_likely(scores, config).softmax(dim=-1)


def _keep_likely(scores: Tensor, config: GenerationConfig) -> Tensor:
    """transformers' own rules for which tokens of [R, V] stay, in ``generate``'s order."""
    if config.top_k == 0 and config.top_p >= 1 and config.min_p == 0:
        return scores
    no_tokens: Any = torch.empty((scores.shape[0], 0), dtype=torch.long, device=scores.device)
    if config.top_k > 0:
        scores = TopKLogitsWarper(config.top_k)(no_tokens, scores)
    if config.top_p < 1:
        scores = TopPLogitsWarper(config.top_p)(no_tokens, scores)
    if config.min_p > 0:
        scores = MinPLogitsWarper(config.min_p)(no_tokens, scores)
    return scores


def choose(logits: Tensor, noise: Tensor, config: GenerationConfig) -> tuple[Tensor, Tensor]:
    """The target's token for every row: a function of the row, its noise and the settings alone.

    Args:
        logits: [R, V], any float dtype.
        noise: [R] f32 in [0, 1), not used at temperature 0.
    Returns: tokens [R] i64 and the target's probability for each, [R] f32.
    """
    check_logits(logits)
    if config.temperature == 0:
        if logits.dtype == torch.float32 and logits.device.type == "cpu" and has_kernels():
            best, chances = zip(*map(likeliest, logits.contiguous()), strict=True)
            return torch.tensor(best), torch.tensor(chances, dtype=torch.float32)
        tokens = logits.argmax(dim=-1)  # [R]
        scores = logits.float()
        chosen = scores.gather(1, tokens.unsqueeze(1)).squeeze(1)  # [R]
        return tokens, (chosen - scores.logsumexp(dim=-1)).exp()
    likely = _likely_tokens(logits, config)
    if likely is not None:
        ids, probabilities = likely  # [R, K] each
        places = race(probabilities, noise, ids).unsqueeze(1)  # [R, 1]
        return ids.gather(1, places).squeeze(1), probabilities.gather(1, places).squeeze(1)
    probabilities = to_probabilities(logits, config)
    tokens = race(probabilities, noise)
    return tokens, probabilities.gather(1, tokens.unsqueeze(1)).squeeze(1)


def _likely_tokens(logits: Tensor, config: GenerationConfig) -> tuple[Tensor, Tensor] | None:
    """The tokens that top-k, top-p and min-p leave, found without sorting the vocabulary.

    Returns: ids [R, K] i64 and their probabilities [R, K] f32, 0 for those that are left out; None where all
        tokens stay, where more than K may, or where looking would wait for a device.
    """
    has_cut = config.top_k > 0 or config.top_p < 1 or config.min_p > 0
    n_likely = min(config.top_k or MOST_LIKELY, MOST_LIKELY)
    if not has_cut or config.top_k > MOST_LIKELY or logits.device.type != "cpu":
        return None
    if n_likely >= logits.shape[1]:
        return None
    scores = logits.float()
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / config.temperature
    best = scores.topk(n_likely, dim=-1)  # [R, K]
    everything = best.values if config.top_k > 0 else scores
    shares = (best.values - everything.logsumexp(dim=-1, keepdim=True)).exp()  # [R, K]
    is_kept = torch.ones_like(shares, dtype=torch.bool)
    if config.top_p < 1:
        is_kept = shares.cumsum(dim=-1) - shares < config.top_p
    if config.min_p > 0:
        is_kept &= shares >= config.min_p * shares[:, :1]
    if config.top_k == 0 and bool(is_kept[:, -1].any()):
        return None
    return best.indices, best.values.masked_fill(~is_kept, -math.inf).softmax(dim=-1)


def race(probabilities: Tensor, noise: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Draw from each row by an exponential race: token i arrives at time E_i / p_i, the first one wins.

    That is an exact draw (the Gumbel-max trick in other words), and it is robust: when rounding moves the
    probabilities by a millionth, the winner changes only if two arrivals lie that close. Inverting the
    cumulative distribution is not: its sum over a large vocabulary carries the rounding of every token, and
    there one answer in eighty came out differently.

    Args:
        probabilities: [R, V] f32.
        noise: [R] f32 in [0, 1), multiples of 2**-24; the key from which a row's E_i are hashed.
        tokens: [R, V] i64, the tokens that the columns stand for; None: in order.
    Returns: [R] i64, columns; never one of probability 0.
    """
    is_plain = probabilities.dtype == torch.float32 and probabilities.device.type == "cpu"
    if tokens is None and is_plain and has_kernels():
        rows = zip(probabilities.contiguous(), _keys(noise).tolist(), strict=True)
        return torch.tensor([kernel_race(row, key) for row, key in rows], dtype=torch.long)
    return (probabilities / _arrivals(probabilities, noise, tokens)).argmax(dim=-1)


def head_starts(noise: Tensor, tokens: Tensor) -> Tensor:
    """How early tokens arrive in the race of a position: -log E_i, Gumbel numbers.

    The token that is drawn is the one of the highest log p_i + its head start; who guesses p can guess it.

    Args: noise: [] f32, the position's, on the host; tokens: [C] i64, on any device.
    Returns: [C] f32 on the device of ``tokens``.
    """
    if tokens.device.type == "cpu" and has_kernels():
        return kernel_head_starts(tokens, int(_keys(noise)))
    arrivals = _arrivals(tokens[None], noise.reshape(1).to(tokens.device), tokens)[0]  # [C]
    return -arrivals.log()


def _keys(noise: Tensor) -> Tensor:
    """What a race is hashed from, i64 in the noise's shape: its whole number of 2**-24, and one."""
    return (noise.double() * 2.0**_NOISE_BITS).long() + 1


def _arrivals(probabilities: Tensor, noise: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Exponential numbers E_i for every token of every row, [R, V] f32, hashed from the rows' noise."""
    keys = _keys(noise).unsqueeze(1)  # [R, 1]
    if tokens is None:
        tokens = torch.arange(probabilities.shape[1], device=probabilities.device)  # [V]
    hashed = _mix_tensor((keys << 32) + tokens)  # [R, V] i64
    uniform = (
        (hashed & 0xFFFFFFFF).float() + 0.5
    ) * 2.0**-32  # [R, V] f32; small numbers stay exact
    return -torch.log1p(-uniform)  # [R, V] f32, exponential


def race_lead(
    logits: Tensor, noise: Tensor, first: int, second: int, config: GenerationConfig
) -> float | None:
    """How far ahead token ``first`` of ``second`` is where a token is chosen, in logits.

    At temperature 0 that is the difference of their logits; above it their difference in the race of
    :func:`race`: T * (log(p / E) of the first - that of the second).

    Args: logits: [1, V]; noise: [1] f32, the position's.
    Returns: None where a cut (top-k, top-p, min-p) leaves one of them no probability.
    """
    pair = torch.tensor([[first, second]], device=logits.device)  # [1, 2]
    scores = logits.float().gather(1, pair)[0]  # [2]
    if config.temperature == 0:
        return float(scores[0] - scores[1])
    chances = to_probabilities(logits, config).gather(1, pair)  # [1, 2]
    if not bool((chances > 0).all()):
        return None
    times = _arrivals(chances, noise.to(logits.device), pair)[0]  # [2]
    return float(scores[0] - scores[1] - config.temperature * (times[0] / times[1]).log())


def draw_candidates(
    probabilities: Tensor, noise: Tensor, n_draws: int, *, with_replacement: bool
) -> Tensor:
    """Draw several candidates from each row, in the order in which they are to be tried.

    Without replacement they are the first ``n_draws`` tokens to arrive in one race: the same law as drawing
    one after the other, each from what the earlier ones left (Efraimidis and Spirakis, 2006).

    Args:
        probabilities: [R, C] f32.
        noise: [R, n_draws] f32; a draw without replacement needs the first column only.
    Returns: [R, n_draws] i64; -1 where no token of positive probability is left.
    """
    if with_replacement:
        draws = [race(probabilities, noise[:, i]) for i in range(n_draws)]
        return torch.stack(draws, dim=1) if draws else noise.new_zeros(noise.shape).long()
    n_known = min(n_draws, probabilities.shape[1])
    first = (probabilities / _arrivals(probabilities, noise[:, 0])).topk(n_known, dim=-1)
    columns = first.indices.masked_fill(first.values <= 0, -1)  # [R, n_known]
    return torch.nn.functional.pad(columns, (0, n_draws - n_known), value=-1)


def draw_in_rounds(
    probabilities: Tensor,
    draft: Tensor,
    candidates: Tensor,
    accept: Tensor,
    noise: Tensor,
    *,
    vocabulary: Tensor | None = None,
    with_replacement: bool = False,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of the paper for R nodes at once: multi-round speculative sampling.

    Each candidate in turn is accepted with probability min(1, p / q); after a rejection p becomes
    norm(max(0, p - q)). When all are rejected the token is drawn from what is left of p. Without
    replacement q loses the rejected token and is normalised anew. The token's law is p, exactly.

    Args:
        probabilities: [R, V] f32, the target's p.
        draft: [R, C] f32, the distribution q that a row's candidates were drawn from.
        candidates: [R, K] i64, columns of q as :func:`draw_candidates` gave them; -1: no draw.
        accept: [R, K] f32 in [0, 1), one number for each round.
        noise: [R] f32, the key of the last draw.
        vocabulary: [C] i64, the distinct tokens that the columns of q stand for; None: C = V, in order.
    Returns: tokens [R] i64, and whether each of them was a candidate, [R] bool.
    Source: arXiv 2401.15077, appendix A.2; without replacement: SpecInfer, arXiv 2305.09781.
    """
    chosen = torch.full_like(noise, -1, dtype=torch.long).unsqueeze(1)  # [R, 1]
    is_host = noise.device.type == "cpu"
    for i in range(candidates.shape[1]):
        if is_host and bool((chosen >= 0).all()):  # elsewhere looking would cost more than it saves
            break
        has_draw = candidates[:, i : i + 1] >= 0  # [R, 1]
        column = candidates[:, i : i + 1].clamp(min=0)  # [R, 1]
        token = column if vocabulary is None else vocabulary[column]  # [R, 1]
        p, q = probabilities.gather(1, token), draft.gather(1, column)  # [R, 1] each
        is_open = (chosen < 0) & has_draw & (q > 0)
        is_accepted = is_open & (accept[:, i : i + 1] * q < p)
        rest = _minus(probabilities, draft, vocabulary)  # [R, V]
        total = rest.sum(dim=1, keepdim=True)  # [R, 1]
        # Nothing is left of p where p = q up to rounding: then every draw from q is one from p.
        is_accepted |= is_open & (total <= 0)
        chosen = torch.where(is_accepted, token, chosen)
        probabilities = torch.where(is_open & ~is_accepted, rest / total, probabilities)
        if not with_replacement:
            left = draft.scatter(1, column, 0.0)  # [R, C]
            left = left / left.sum(dim=1, keepdim=True)  # all drawn: nan, and never open again
            draft = torch.where(has_draw, left, draft)
    chosen = chosen.squeeze(1)  # [R]
    is_drafted = chosen >= 0
    return torch.where(is_drafted, chosen, race(probabilities, noise)), is_drafted


def _minus(probabilities: Tensor, draft: Tensor, vocabulary: Tensor | None) -> Tensor:
    """max(0, p - q), [R, V] f32, with the columns of q at their tokens."""
    if vocabulary is None:
        return (probabilities - draft).clamp(min=0)
    return probabilities.index_add(1, vocabulary, draft, alpha=-1).clamp(min=0)


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


__all__ = [
    "check_finite",
    "choose",
    "draw_candidates",
    "draw_in_rounds",
    "head_starts",
    "position_noise",
    "race",
    "race_lead",
    "stream_noise",
    "to_probabilities",
]
