"""Which keys a row of a tree sees: additive masks, and the windows of layers that see only a part.

Knows transformers' names for kinds of layers, and no model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Sees = Callable[[Tensor, Tensor], Tensor]  # (query positions, key positions) -> bool, broadcast


class MaskBuffer:
    """One reusable additive mask: only the tree's own columns are rewritten from step to step."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._hidden = torch.finfo(dtype).min
        self._buffer = torch.zeros((0, 0), dtype=dtype, device=device)
        self._dirty = slice(0, 0)

    def write(self, ancestors: Tensor, length: int, capacity: int) -> Tensor:
        """[N, N] bool -> [1, 1, N, length + N] additive; a view that the next call overwrites."""
        n_nodes = ancestors.shape[0]
        end = length + n_nodes
        n_rows, n_columns = self._buffer.shape
        if n_nodes > n_rows or max(end, capacity) > n_columns:
            shape = (max(n_nodes, n_rows), max(end, capacity, n_columns))
            self._buffer = self._buffer.new_zeros(shape)
        else:
            self._buffer[:, self._dirty] = 0
        self._dirty = slice(length, end)
        self._buffer[:n_nodes, length:end].masked_fill_(~ancestors, self._hidden)
        return self._buffer[None, None, :n_nodes, :end]


def limited(full: Tensor, positions: Tensor, length: int, sees: Sees) -> Tensor:
    """``full`` [1, 1, N, S] without the keys that lie outside a layer's window; a new tensor."""
    keys = torch.arange(length, device=positions.device)  # [length]
    keys = torch.cat((keys, positions))  # [S]
    return full.masked_fill(~sees(positions.unsqueeze(1), keys), torch.finfo(full.dtype).min)


def uniform_kind(config: Any) -> str:
    """Kind of all layers of a model that does not list them."""
    if getattr(config, "sliding_window", None) is not None:
        return "sliding_attention"
    if getattr(config, "attention_chunk_size", None) is not None:
        return "chunked_attention"
    return "full_attention"


def visibility(config: Any, kind: str, last_position: int) -> Sees | None:
    """Which keys a layer of this kind sees; None when its window hides nothing yet."""
    if kind == "sliding_attention":
        window = int(config.sliding_window)
        return None if last_position < window else lambda query, key: key > query - window
    if kind == "chunked_attention":
        chunk = int(config.attention_chunk_size)
        return None if last_position < chunk else lambda query, key: key // chunk == query // chunk
    return None


__all__ = ["MaskBuffer", "limited", "uniform_kind", "visibility"]
