"""Batches for head training: right-padded conversations of like length, in an order that a seed fixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle_core.train.dataset import FeatureFolder, Sequence

SHARDS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of the head and what it should predict; index i holds the pair (f_i, t_{i+1}).

    next_tokens [B, T] i64; features [B, T, D] f32, or [B, T, n D] where heads fuse the states of n layers;
    targets [B, T, D] f32, targets[:, i] = f_{i+1}; weights [B, T] f32, 1
    where f_{i+1} scores a token of the answer.
    """

    next_tokens: Tensor
    features: Tensor
    targets: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return Batch(
            self.next_tokens.to(device),
            self.features.to(device),
            self.targets.to(device),
            self.weights.to(device),
        )

    @property
    def n_tokens(self) -> int:
        """Positions that count."""
        return int(self.weights.sum())


def make_batch(rows: list[Sequence], *, has_prompts: bool = False) -> Batch:
    """Stack conversations; one of n tokens gives n - 1 pairs. ``has_prompts``: prompt tokens count, too."""
    width = max(len(row.token_ids) for row in rows) - 1
    dim = rows[0].features.shape[1]
    next_tokens = torch.zeros(len(rows), width, dtype=torch.long)  # [B, T]
    inputs = [row.features if row.layer_features is None else row.layer_features for row in rows]
    features = torch.zeros(len(rows), width, inputs[0].shape[1])  # [B, T, n D]
    targets = torch.zeros(len(rows), width, dim)  # [B, T, D]
    weights = torch.zeros(len(rows), width)  # [B, T]
    for b, row in enumerate(rows):
        n = len(row.token_ids) - 1
        next_tokens[b, :n] = row.token_ids[1:]
        features[b, :n] = inputs[b][:-1]
        targets[b, :n] = row.features[1:]
        # f_{i+1} scores token i + 2: the first that counts is the answer's first, the last is token n.
        first = 0 if has_prompts else max(row.response_start - 2, 0)
        weights[b, first : n - 1] = 1.0
    return Batch(next_tokens, features, targets, weights)


def group_rows(rows: list[Sequence], batch_tokens: int) -> list[list[Sequence]]:
    """Cut rows into groups of like length whose padded size stays within ``batch_tokens``."""
    groups: list[list[Sequence]] = []
    current: list[Sequence] = []
    for row in sorted((r for r in rows if len(r.token_ids) > 2), key=lambda r: len(r.token_ids)):
        if current and (len(current) + 1) * len(row.token_ids) > batch_tokens:
            groups.append(current)
            current = []
        current.append(row)
    return [*groups, current] if current else groups


def epoch_batches(
    folder: FeatureFolder,
    shards: list[Path],
    batch_tokens: int,
    *,
    seed: int,
    epoch: int,
    skip: int = 0,
    has_prompts: bool = False,
    has_layers: bool = False,
) -> Iterator[Batch]:
    """One pass over ``shards`` in the order fixed by (seed, epoch), without the first ``skip`` batches."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(shards))
    for start in range(0, len(order), SHARDS_AT_ONCE):
        rows: list[Sequence] = []
        for index in order[start : start + SHARDS_AT_ONCE]:
            rows += folder.read(shards[index], has_layers=has_layers)
        groups = group_rows(rows, batch_tokens)
        for index in random.permutation(len(groups)):
            if skip > 0:
                skip -= 1
                continue
            yield make_batch(groups[index], has_prompts=has_prompts)


__all__ = ["Batch", "epoch_batches", "group_rows", "make_batch"]
