"""What every draft head offers to the drafter, the loader and the trainer, and the parts that heads share.

A head turns the target's features and the tokens one step ahead into hidden states, whose scores say what
comes next; its own states stand in for features where the target has not been yet.
"""

from __future__ import annotations

import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
VOCABULARY_KEY = "draft_vocabulary"
# The layers' name for the cache: the second before transformers 5.24.
CACHE_ARGUMENT = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(LlamaAttention.forward).parameters
)


class BlockShape(Protocol):
    """The shapes of a head's decoder layers."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def hidden_act(self) -> str: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def rope_scaling(self) -> Mapping[str, Any] | None: ...


class DraftHead(nn.Module, ABC):
    """Base of all heads.

    ``draft_vocabulary`` [V'] i64 or None: ids of the tokens that are scored; None: all.
    ``embed_tokens``, ``lm_head``: the head's own, or None: the base's serve.
    ``feature_layers``: the target's states that it fuses (``capture``); none: the one after the final norm.
    ``window``: how many positions a row sees, itself included; 0: all.
    """

    draft_vocabulary: Tensor | None
    layers: nn.ModuleList
    rotary: LlamaRotaryEmbedding

    def __init__(self, block: BlockShape) -> None:
        super().__init__()
        self.n_layers = block.n_layers
        self.hidden_size = block.hidden_size
        self._llama = llama_config(block)
        self.feature_layers: tuple[int, ...] = ()
        self.window = 0
        self.embed_tokens: nn.Embedding | None = None
        self.lm_head: nn.Linear | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights; quantized ones do not count."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def reset_rotary(self) -> None:
        """Make the rotation tables anew; they are in no checkpoint."""
        self.rotary = LlamaRotaryEmbedding(self._llama)

    def _apply(self, fn: Any, recurse: bool = True) -> DraftHead:
        """What moves or casts modules; the rotation's frequencies stay in float32, as positions are long."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        frequencies = self.rotary.inv_freq
        if frequencies.dtype != torch.float32:
            self.reset_rotary()
            self.rotary.to(frequencies.device)
        return self

    def set_vocabulary(self, size: int) -> None:
        """Make room for a draft vocabulary of ``size`` tokens; 0: the whole vocabulary is scored."""
        ids = torch.zeros(size, dtype=torch.long) if size else None
        self.register_buffer(VOCABULARY_KEY, ids)

    @abstractmethod
    def reset_parameters(self) -> None:
        """Weights from which training starts."""

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [.., n D] -> what :meth:`forward` takes, [.., D]."""
        return features

    def normed(self, hidden: Tensor) -> Tensor:
        """What the LM head scores, [.., D], of the states that :meth:`forward` returns."""
        return hidden

    @abstractmethod
    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        position_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Predict the states that follow, [B, T, D]; they are what the next step takes as features."""

    @abstractmethod
    def published(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and config.json in the layout that the family's heads are published in."""

    def save(self, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write ``model.safetensors`` and ``config.json``, each atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        found, config = self.published()
        tensors = {
            key: (value.to(dtype) if value.is_floating_point() else value).contiguous()
            for key, value in found.items()
        }
        part = folder / (WEIGHTS_NAME + ".part")
        save_file(tensors, part, metadata={"format": "pt"})
        os.replace(part, folder / WEIGHTS_NAME)
        part = folder / (CONFIG_NAME + ".part")
        part.write_text(json.dumps(config, indent=1) + "\n")
        os.replace(part, folder / CONFIG_NAME)


def llama_config(block: BlockShape) -> LlamaConfig:
    """The same shapes for transformers' layers."""
    rope = {"rope_type": "default", **(block.rope_scaling or {}), "rope_theta": block.rope_theta}
    # Bounds nothing; transformers compares it with what a scaling stretches.
    length = rope.get("original_max_position_embeddings", 2048) * rope.get("factor", 1)
    return LlamaConfig(
        max_position_embeddings=int(length),
        hidden_size=block.hidden_size,
        intermediate_size=block.intermediate_size,
        num_hidden_layers=block.n_layers,
        num_attention_heads=block.n_heads,
        num_key_value_heads=block.n_kv_heads,
        head_dim=block.head_dim,
        rms_norm_eps=block.rms_norm_eps,
        hidden_act=block.hidden_act,
        rope_parameters=rope,
        attn_implementation="sdpa",  # type: ignore[call-arg]  # taken by the base class
    )


def replace_projections(attention: Any, names: tuple[str, ...], width: int, *, bias: bool) -> None:
    """Linear layers of another input width, or with a bias, in the place of an attention's own."""
    for name in names:
        old: nn.Linear = getattr(attention, name)
        setattr(attention, name, nn.Linear(width, old.out_features, bias=bias))


__all__ = ["BlockShape", "DraftHead", "llama_config", "replace_projections"]
