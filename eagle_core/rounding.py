"""Whether two answers part because of rounding.

In float32 with the compiled kernels answers do not part. Elsewhere a row that is computed beside others
rounds differently from a row alone, and where two tokens are nearly level that decides. A difference is a
rounding tie if the lead of the plain token is within what the precision rounds by; if it is not, something
is wrong.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import psutil
import torch
from torch import Tensor

from eagle_core.config import GenerationConfig
from eagle_core.differences import Difference, first_difference
from eagle_core.engine import PREFILL_CHUNK
from eagle_core.packing import plain_layers
from eagle_core.processors import processors_for
from eagle_core.sampling import position_noise, race_lead
from eagle_core.target import Target

# Rounding as a share of the logits' spread: float32 a hundred-thousandth, 16 bits up to a tenth (measured,
# see docs/lossless.md).
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}
COARSE_ROUNDING = 0.1


def explain_difference(
    target: Target,
    prompt: Sequence[int],
    plain: Sequence[int],
    drafted: Sequence[int],
    config: GenerationConfig,
    eos_ids: frozenset[int] = frozenset(),
) -> Difference | None:
    """Compare two answers under the rules greedy or match, and look at the logits where they part.

    Args:
        prompt: ids that both answer.
        plain, drafted: ids of the answer without and with drafting.
    Returns: None when they are the same. The float32 figure is missing for a quantized model, and where a
        float32 copy does not fit into memory.
    """
    found = first_difference(plain, drafted)
    if found is None or found.plain is None or found.drafted is None:
        return found
    text = [*prompt, *plain[: found.index]]
    logits = _next_logits(target, text)  # [1, V]
    spread = float(logits.std())
    processors = processors_for(config, prompt, eos_ids, target.vocab_size)
    scores = logits
    if processors is not None:
        scores = processors(logits, [list(plain[: found.index])])  # [1, V]
    noise = position_noise(config.seed, len(text), 1)
    return Difference(
        found.index,
        found.plain,
        found.drafted,
        gap=_gap(logits, found),
        gap_float32=_gap_float32(target, text, logits, found),
        lead=race_lead(scores, noise, found.plain, found.drafted, config),
        rounding=ROUNDING.get(target.dtype, COARSE_ROUNDING) * spread,
    )


def _gap(logits: Tensor, found: Difference) -> float:
    return float(logits[0, found.plain] - logits[0, found.drafted])


def _next_logits(target: Target, text: Sequence[int]) -> Tensor:
    """Logits [1, V] f32 on the host of the token after ``text``, its last token read alone."""
    cache = target.new_cache(len(text) + 2)
    ids = torch.tensor(text)  # [T]
    ends = [*range(PREFILL_CHUNK, len(text) - 1, PREFILL_CHUNK), len(text) - 1, len(text)]
    begin = 0
    for end in ends:
        if end > begin:
            output = target.prefill_chunk(ids[begin:end], cache)
        begin = end
    return output.logits.float().cpu()


def _gap_float32(
    target: Target, text: Sequence[int], logits: Tensor, found: Difference
) -> float | None:
    """The gap by a float32 copy of the model; None for a quantized one, or without the memory for it."""
    if target.dtype == torch.float32:
        return _gap(logits, found)
    parameters = list(target.model.parameters())
    n_bytes = 4 * sum(parameter.numel() for parameter in parameters)
    is_plain = all(p.dtype == target.dtype and not p.is_meta for p in parameters)
    if not is_plain or n_bytes > psutil.virtual_memory().available / 2:
        return None
    with plain_layers(target.model):
        model = copy.deepcopy(target.model)
    model.to("cpu", torch.float32)  # type: ignore[arg-type]  # as in loading: hidden overloads
    gap = _gap(_next_logits(Target(model, target.context_length), text), found)
    return gap if math.isfinite(gap) else None


__all__ = ["ROUNDING", "explain_difference"]
