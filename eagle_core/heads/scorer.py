"""The base's LM head over a draft vocabulary, in the precision and packing of the base."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from eagle_core.packing import packed_if_faster, weight_of


def draft_scorer(
    lm_head: nn.Module, vocabulary: Tensor | None, *, is_int8: bool = False
) -> Callable[[Tensor], Tensor]:
    """Features [R, D] -> logits [R, V'] over the draft vocabulary, or over all tokens without one.

    Args: is_int8: round the scores' weights to 8 bits, where they are a copy.
    """
    weight = getattr(lm_head, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():  # quantized
        return (
            lm_head if vocabulary is None else lambda features: lm_head(features)[..., vocabulary]
        )
    if vocabulary is None:
        return in_dtype(lm_head, weight.dtype)
    weight = weight_of(lm_head)
    if weight.ndim == 2 and not weight.is_meta:
        bias = getattr(lm_head, "bias", None)
        n_scored, width = len(vocabulary), weight.shape[1]
        sliced = nn.Linear(width, n_scored, isinstance(bias, Tensor), weight.device, weight.dtype)
        with torch.no_grad():
            sliced.weight.copy_(weight[vocabulary])
            if isinstance(bias, Tensor):
                sliced.bias.copy_(bias[vocabulary])
        return in_dtype(
            packed_if_faster(
                sliced.requires_grad_(False),
                is_int8=is_int8 or getattr(lm_head, "is_int8", False),
            ),
            weight.dtype,
        )
    return in_dtype(lambda features: lm_head(features)[..., vocabulary], weight.dtype)  # on disk


def in_dtype(score: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """``score`` for features of a head that computes in another precision."""
    return lambda features: score(features.to(dtype))


__all__ = ["draft_scorer", "in_dtype"]
