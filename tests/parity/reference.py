"""Pieces of reference implementations, in plain torch."""

from __future__ import annotations

import torch


def rms_norm(x, weight, eps):
    """Root-mean-square norm over the last dimension."""
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rotate(x, positions, theta):
    """RoPE on [T, H, d]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half) / half)
    angles = positions[:, None].float() * frequencies  # [T, d / 2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def paths_of(tree):
    """Token paths of all drafted nodes of a tree."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    found = [()]
    for node in range(1, len(tokens)):
        found.append((*found[parents[node]], tokens[node]))
    return found[1:]
