"""How large a model is: its dimensions and parameter counts, from config.json and the tensors' shapes.

Pure: no torch, no file, no network. ``fit`` makes bytes of these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_core.errors import CheckpointMismatch

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
LM_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
DRAFT_VOCABULARY = 32_000  # of the published EAGLE-3 heads
UNKNOWN_CONTEXT = 8192
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A base model's dimensions.

    ``n_linear`` counts the weights of the linear layers that 8-bit and 4-bit loading shrinks: neither
    embeddings and LM head nor fused experts. ``n_active`` counts the weights read for one token: in a
    mixture of experts a part of all. ``is_bfloat16``: bfloat16 holds the weights of the file exactly.
    """

    n_parameters: int
    n_linear: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context_length: int
    n_active: int = 0
    is_tied: bool = False
    is_bfloat16: bool = True

    @property
    def n_read(self) -> int:
        """Weights read to compute one token."""
        return self.n_active or self.n_parameters

    @property
    def n_lm_head(self) -> int:
        """Weights of the LM head, which it may share with the embedding."""
        return self.vocab_size * self.hidden_size


@dataclass(frozen=True, slots=True)
class HeadSize:
    """A draft head's dimensions. ``n_draft_vocabulary`` 0: it scores the base's whole vocabulary.

    ``has_lm_head``: by an LM head of its own, which is among its parameters.
    """

    n_parameters: int
    n_kv_heads: int
    head_dim: int
    n_layers: int = 1
    n_draft_vocabulary: int = 0
    has_lm_head: bool = False


def read_size(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], weight_bytes: int = 0
) -> ModelSize:
    """A model's dimensions.

    Args:
        config: config.json as data.
        tensors: shapes by name, from the safetensors headers; empty when there are none.
        weight_bytes: size of the weight files, from which the parameters are counted without headers.
    Raises: CheckpointMismatch when config.json lacks a dimension.
    """
    text = config.get("text_config") or config
    hidden, heads = _number(text, "hidden_size", "n_embd"), text.get("num_attention_heads") or 0
    kv_heads = text.get("num_key_value_heads") or heads or _number(text, "n_head")
    head_dim = text.get("head_dim") or hidden // (heads or kv_heads)
    vocab = _number(text, "vocab_size")
    is_tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    counts = {name: math.prod(shape) for name, shape in tensors.items()}
    if is_tied:  # some files hold the shared weight twice
        counts = {name: n for name, n in counts.items() if not name.endswith(LM_HEADS)}
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    n_parameters = sum(counts.values()) or weight_bytes // DTYPE_BYTES.get(dtype, 2)
    n_outside = vocab * hidden * (1 if is_tied else 2)
    linear = sum(
        n for name, n in counts.items() if len(tensors[name]) == 2 and _is_linear_weight(name)
    )
    n_experts = sum(n for name, n in counts.items() if ".experts." in name)
    return ModelSize(
        n_parameters=n_parameters,
        n_linear=linear if counts else max(n_parameters - n_outside, 0),
        n_layers=_number(text, "num_hidden_layers", "n_layer"),
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        vocab_size=vocab,
        context_length=text.get("max_position_embeddings") or UNKNOWN_CONTEXT,
        n_active=n_parameters - round(n_experts * (1 - _expert_share(text))),
        is_tied=is_tied,
        is_bfloat16=dtype == "bfloat16",
    )


def _is_linear_weight(name: str) -> bool:
    return (
        name.endswith(".weight") and not name.endswith(EMBEDDINGS + LM_HEADS)
    ) and ".experts." not in name


def _expert_share(config: Mapping[str, Any]) -> float:
    """The part of the experts that one token visits."""
    n_experts = config.get("num_local_experts") or config.get("num_experts")
    n_visited = config.get("num_experts_per_tok")
    return n_visited / n_experts if n_experts and n_visited else 1.0


def read_head_size(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], weight_bytes: int = 0
) -> HeadSize:
    """A head's dimensions; arguments as for :func:`read_size`.

    A frozen copy of the base's embedding does not count: it is not kept in memory.
    """
    inner = config.get("transformer_layer_config") or config
    own = {name: shape for name, shape in tensors.items() if not name.endswith(EMBEDDINGS)}
    heads = inner.get("num_attention_heads") or 1
    hidden = inner.get("hidden_size") or 0
    head_dim = inner.get("head_dim") or hidden // heads
    kv_heads = inner.get("num_key_value_heads") or heads
    keys = next((s for n, s in own.items() if n.endswith("self_attn.k_proj.weight")), None)
    if keys is not None and head_dim:  # tensors tell the truth, configs not always
        kv_heads = max(keys[0] // head_dim, 1)
    itemsize = DTYPE_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    lm_head = next((s for n, s in own.items() if n.endswith(LM_HEADS)), None)
    names = ("draft_vocab_size", "draft_vocabulary_size", "truncated_vocab_size")
    draft = next((config[name] for name in names if config.get(name)), 0)
    return HeadSize(
        n_parameters=sum(map(math.prod, own.values())) or weight_bytes // itemsize,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        n_layers=inner.get("num_hidden_layers") or 1,
        n_draft_vocabulary=lm_head[0] if lm_head is not None else draft,
        has_lm_head=lm_head is not None,
    )


def usual_head(base: ModelSize, method: str, n_parameters: int = 0) -> HeadSize:
    """The dimensions of a published head for ``base``, when only its kind is known.

    One decoder layer of the base's width; EAGLE-3 adds two more features to fuse, attention over twice the
    width, and an LM head of its own.
    """
    hidden, kv = base.hidden_size, base.n_kv_heads * base.head_dim
    layer = base.n_linear // max(base.n_layers, 1)
    if method == "eagle3":
        estimate = 3 * hidden**2 + layer + hidden * (hidden + 2 * kv) + DRAFT_VOCABULARY * hidden
    else:
        estimate = 2 * hidden**2 + layer
    return HeadSize(
        n_parameters=n_parameters or estimate,
        n_kv_heads=base.n_kv_heads,
        head_dim=base.head_dim,
        n_draft_vocabulary=DRAFT_VOCABULARY if method == "eagle3" else 0,
        has_lm_head=method == "eagle3",
    )


def _number(config: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise CheckpointMismatch(
        "config.json does not say how large the model is",
        expected=" or ".join(keys),
        hint="choose a causal language model in transformers' format",
    )


__all__ = ["HeadSize", "ModelSize", "read_head_size", "read_size", "usual_head"]
