"""Training losses and the unrolled forward, as pure functions of tensors.

Teacher forcing is one step; further steps feed the head its own predictions, with the attention pattern that
drafting has at that depth (HASS, arXiv 2408.15766; EAGLE-3's training-time test, arXiv 2503.01840).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle_core.heads.base import DraftHead


class UnrollCache:
    """Keeps the keys and values of every unrolled step, with gradients: [B, H, T, d] each."""

    def __init__(self) -> None:
        self._keys: dict[int, list[Tensor]] = {}
        self._values: dict[int, list[Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Append one step; returns all steps so far, [B, H, (j + 1) T, d]."""
        self._keys.setdefault(layer, []).append(keys)
        self._values.setdefault(layer, []).append(values)
        return torch.cat(self._keys[layer], dim=2), torch.cat(self._values[layer], dim=2)


def unroll_mask(n_tokens: int, step: int, device: torch.device | None = None) -> Tensor:
    """Who sees whom at unrolled step ``step``: [T, (step + 1) T] bool.

    Query i sees step 0's keys up to i - step, then the key of step m at i - step + m for m = 1..step: what a
    chain drafted from feature i - step has in its cache.

    Example: T = 3, step 1: query 2 sees keys 0 and 1 of step 0, and key 2 of step 1.
    """
    query = torch.arange(n_tokens, device=device)[:, None]  # [T, 1]
    key = torch.arange(n_tokens, device=device)[None, :]  # [1, T]
    blocks = [key <= query - step]
    blocks += [key == query - step + m for m in range(1, step + 1)]
    mask = torch.cat(blocks, dim=1)  # [T, (step + 1) T]
    # Queries before `step` have no feature to start from; let them see themselves so that softmax is defined.
    mask[:step, step * n_tokens : step * n_tokens + step] |= torch.eye(
        min(step, n_tokens), step, dtype=torch.bool, device=device
    )[:n_tokens]
    return mask


def unrolled_predictions(
    head: DraftHead, embeddings: Tensor, features: Tensor, n_steps: int
) -> list[Tensor]:
    """Predictions of f_{i+1} at every index i, for each unrolled step.

    Args:
        embeddings: [B, T, D], of token i + 1 at index i.
        features: [B, T, n D], the base's features at index i as the head takes them (noise included).
    Returns: ``n_steps`` tensors [B, T, D]; in step j the indices below j are meaningless.
    """
    n_tokens = embeddings.shape[1]
    positions = torch.arange(n_tokens, device=embeddings.device)[None]  # [1, T]
    cache = UnrollCache()
    outputs: list[Tensor] = []
    current = features = head.fuse(features)  # [B, T, D]
    for step in range(n_steps):
        mask = unroll_mask(n_tokens, step, embeddings.device)[None, None]  # [1, 1, T, (j + 1) T]
        out = head(embeddings, current, positions, attention_mask=mask, cache=cache)  # [B, T, D]
        outputs.append(out)
        current = torch.cat((features[:, :1], out[:, :-1]), dim=1)  # [B, T, D]: f^_i at index i
    return outputs


@dataclass(frozen=True, slots=True)
class Losses:
    """Scalars: what is minimised, and its two parts at step 0."""

    total: Tensor
    regression: Tensor
    token: Tensor


def soft_cross_entropy(predicted: Tensor, wanted: Tensor, lm_weight: Tensor) -> Tensor:
    """Mean cross-entropy of the LM head's distribution on predicted features.

    Args: predicted [P, D]; wanted [P, V'] f32, rows sum to 1; lm_weight [V', D] f32.
    """
    return F.cross_entropy(predicted @ lm_weight.T, wanted)


def head_losses(
    outputs: list[Tensor],
    targets: Tensor,
    weights: Tensor,
    chosen: Tensor,
    lm_weight: Tensor,
    *,
    feature_std: float,
    regression_weight: float,
    token_weight: float,
    decay: float,
) -> Losses:
    """SmoothL1 on features + soft cross-entropy, summed over unrolled steps (arXiv 2401.15077, section 3.2).

    Args:
        outputs: per step [B, T, D], predictions of ``targets``; step j is meaningless at indices below j.
        targets: [B, T, D] f32, feature i + 1 at index i.
        weights: [B, T] f32, 1 where a position counts; 0 at indices below len(outputs) - 1.
        chosen: [B, T] bool, the drawn positions for cross-entropy (a subset of the counting ones).
    """
    n_counted = weights.sum().clamp(min=1.0)
    with torch.no_grad():
        wanted = F.softmax(targets[chosen] @ lm_weight.T, dim=-1)  # [P, V']
    regressions, tokens = [], []
    for out in outputs:
        error = F.smooth_l1_loss(out / feature_std, targets / feature_std, reduction="none").mean(
            -1
        )  # [B, T]
        regressions.append((error * weights).sum() / n_counted)
        has_tokens = token_weight > 0 and len(wanted) > 0
        tokens.append(
            soft_cross_entropy(out[chosen], wanted, lm_weight) if has_tokens else out.sum() * 0.0
        )
    total = targets.new_zeros(())
    for step, (regression, token) in enumerate(zip(regressions, tokens, strict=True)):
        total = total + decay**step * (regression_weight * regression + token_weight * token)
    return Losses(total, regressions[0].detach(), tokens[0].detach())


def draft_losses(
    scores: list[Tensor],
    targets: Tensor,
    lm_weight: Tensor,
    vocabulary: Tensor | None,
    *,
    decay: float,
) -> Losses:
    """Soft cross-entropy on the draft vocabulary, summed over unrolled steps (arXiv 2503.01840, section 3.2).

    A position whose most likely token is not in the draft vocabulary does not count.

    Args:
        scores: per step [P, V'], the head's own.
        targets: [P, D] f32, the features that the base scores at these positions with lm_weight [V, D] f32.
        vocabulary: [V'] i64 or None for all.
    """
    with torch.no_grad():
        wanted = targets @ lm_weight.T  # [P, V]
        counts = torch.ones(len(wanted), dtype=torch.bool, device=wanted.device)  # [P]
        if vocabulary is not None:
            counts = torch.isin(wanted.argmax(-1), vocabulary)
            wanted = wanted[:, vocabulary]  # [P, V']
        wanted = F.softmax(wanted[counts], dim=-1)
    losses = [
        F.cross_entropy(found[counts], wanted) if len(wanted) else found.sum() * 0.0
        for found in scores
    ]
    total = targets.new_zeros(())
    for step, loss in enumerate(losses):
        total = total + decay**step * loss
    return Losses(total, targets.new_zeros(()), losses[0].detach())


__all__ = [
    "Losses",
    "UnrollCache",
    "draft_losses",
    "head_losses",
    "soft_cross_entropy",
    "unroll_mask",
    "unrolled_predictions",
]
