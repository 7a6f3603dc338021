"""The attention kernel as an attention implementation of transformers, under the name ``eagle_rows``.

It serves one text on the CPU; everything else goes to PyTorch's fused attention. Row by row it
takes the keys in the order of their positions, so that a tree's row is bit for bit what the same tokens one
by one would give.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from eagle_core.kernels import ops

NAME = "eagle_rows"
SERVED = (torch.float32, torch.bfloat16)
UNKNOWN_EXTRAS = ("softcap", "s_aux", "position_bias", "sinks")  # what the kernel does not compute


def rows_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' signature: query [B, H, N, d], key and value [B, G, S, d] -> [B, N, H, d]."""
    if not _fits(query, key, value, attention_mask, dropout, kwargs):
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out
    mask = None if attention_mask is None else _masks.additive(attention_mask)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.dtype == torch.float32:
        return ops.attention(query[0], key[0], value[0], mask, scale)[None], None
    rows, keys, values = query[0].float(), key[0].float(), value[0].float()
    return ops.attention(rows, keys, values, mask, scale).to(query.dtype)[None], None


class _Masks:
    """The mask of the forward that goes on, made additive once for all of its layers."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor | None] | None = None
        self._lock = threading.Lock()

    def additive(self, mask: Tensor) -> Tensor | None:
        """[1, 1, N, S] -> [N, S] f32; None where it is causal and says no more than the rows' places do."""
        if mask.dtype == torch.float32:
            return mask[0, 0]
        with self._lock:
            if self._last is None or self._last[0] is not mask:
                self._last = (mask, _additive(mask[0, 0]))
            return self._last[1]


_masks = _Masks()


def _additive(mask: Tensor) -> Tensor | None:
    """[N, S] bool or bf16 -> f32, or None when each row sees exactly the keys up to its own."""
    if mask.dtype != torch.bool:
        return mask.float()
    n_rows, n_keys = mask.shape
    if torch.equal(mask, torch.ones_like(mask).tril_(n_keys - n_rows)):
        return None
    return torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(
        ~mask, torch.finfo(torch.float32).min
    )


def _fits(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, extras: Any
) -> bool:
    n_batch, n_heads, n_rows, head_dim = query.shape
    if query.dtype not in SERVED or query.device.type != "cpu" or n_batch != 1:
        return False
    if dropout or query.requires_grad or key.requires_grad:
        return False
    if any(extras.get(name) is not None for name in UNKNOWN_EXTRAS):
        return False
    is_dense = query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    is_square = head_dim == value.shape[-1] and n_heads % key.shape[1] == 0
    has_fit_mask = mask is None or _is_fit_mask(mask, n_rows, key.shape[2])
    return is_dense and is_square and has_fit_mask and ops.can_attend(head_dim)


def _is_fit_mask(mask: Tensor, n_rows: int, n_keys: int) -> bool:
    has_dtype = mask.dtype in (torch.bool, *SERVED)
    return mask.shape == (1, 1, n_rows, n_keys) and mask.stride(-1) == 1 and has_dtype


def use_rows_attention(model: nn.Module) -> bool:
    """Let a model's sdpa layers use the kernel where it serves; says whether there were any.

    Without a compiler, or in another precision or place than float32 and bfloat16 on the CPU, nothing is
    changed. In bfloat16 the attention is computed in float32 and rounded once.
    """
    weight = next(model.parameters())
    if not ops.has_kernels() or weight.dtype not in SERVED or weight.device.type != "cpu":
        return False
    return bool(set_attention(model, "sdpa", NAME))


def uses_rows_attention(config: Any) -> bool:
    """Whether a model or layer with this transformers config has the kernel as its attention."""
    return getattr(config, "_attn_implementation", None) == NAME


def set_attention(model: nn.Module, old: str, new: str) -> list[Any]:
    """Change the attention of all modules that use ``old``; returns the configs that were changed."""
    configs = {id(c): c for module in model.modules() if (c := getattr(module, "config", None))}
    found = [c for c in configs.values() if getattr(c, "_attn_implementation", None) == old]
    for config in found:
        config._attn_implementation = new
    return found


AttentionInterface.register(NAME, rows_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)

__all__ = ["NAME", "rows_attention", "set_attention", "use_rows_attention", "uses_rows_attention"]
