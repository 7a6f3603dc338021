"""Where two answers part, and by how little the model preferred one token to the other there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that two answers do not share; None for an answer that ended before it.

    ``gap`` is the plain token's logit minus the drafted one's, ``gap_float32`` the same in float32; None
    where it is not known. ``spread`` is the standard deviation of the logits: what a gap is measured by.
    """

    index: int
    plain: int | None
    drafted: int | None
    gap: float | None = None
    gap_float32: float | None = None
    spread: float | None = None


def first_difference(
    plain: Sequence[int],
    drafted: Sequence[int],
    logits: Tensor | None = None,
    logits_float32: Tensor | None = None,
) -> Difference | None:
    """Compare two answers to one prompt.

    Args:
        plain: ids of the answer without drafting.
        drafted: ids of the answer with it.
        logits: [T, V] in the model's precision; row i is what token i of ``plain`` was chosen from.
        logits_float32: the same from the model in float32.
    Returns: None when they are the same.

    Example: (5, 6, 7) and (5, 6, 8) part at index 2, with gap logits[2, 7] - logits[2, 8].
    """
    for index, (left, right) in enumerate(zip_longest(plain, drafted)):
        if left != right:
            return Difference(
                index,
                left,
                right,
                _gap(logits, index, left, right),
                _gap(logits_float32, index, left, right),
                None if logits is None or index >= len(logits) else _spread(logits[index]),
            )
    return None


def _gap(logits: Tensor | None, index: int, left: int | None, right: int | None) -> float | None:
    if logits is None or left is None or right is None or index >= len(logits):
        return None
    row = logits[index].float()  # [V]
    return float(row[left] - row[right])


def _spread(row: Tensor) -> float:
    return float(torch.std(row.float()))


__all__ = ["Difference", "first_difference"]
