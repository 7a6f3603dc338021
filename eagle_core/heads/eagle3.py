"""The EAGLE-3 head (arXiv 2503.01840): fused features of several layers, and a vocabulary of its own.

The target's states of a low, a middle and a high layer are fused by ``fc`` into one vector g. A decoder layer
whose attention reads [norm(embedding); norm(g)] makes the next state, its residual stream starting at g;
``lm_head(norm(state))`` scores the draft vocabulary. Where the target has not been yet, the head's own state,
before ``norm``, stands in for g.

Variants: a norm over the concatenated features, or one for each (Eagle 3.1); a residual stream that starts at
norm(g); the state fed back after ``norm``; norms on queries and keys (a Qwen3 block); a draft window; further
plain layers.

Index example: as for EAGLE-1, g_0 stands beside t_1 at position 0 and the scores are those of t_2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from eagle_core.heads.base import (
    CACHE_ARGUMENT,
    VOCABULARY_KEY,
    DraftHead,
    replace_projections,
)


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Shapes and switches of a head.

    ``feature_layers``: which of the target's states are fused (``capture``). ``vocab_size`` is the target's;
    ``draft_vocab_size`` 0 means that all of it is scored. ``window`` 0 means that a row sees all before it.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    feature_layers: tuple[int, ...]
    vocab_size: int
    draft_vocab_size: int = 0
    n_layers: int = 1
    own_embedding: bool = False
    own_lm_head: bool = True
    fc_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    window: int = 0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    hidden_act: str = "silu"

    def to_json(self) -> dict[str, Any]:
        """A config.json that this engine, SGLang and vLLM understand.

        Layer ids are written twice, each in the place where its readers count that way: outputs of layers in
        ``eagle_config``, states at the top level.
        """
        states = list(self.feature_layers)
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size or self.vocab_size,
            "attention_bias": self.qkv_bias,
            "norm_before_residual": self.norm_before_residual,
            "fc_norm": self.fc_norm,
            "norm_before_fc": self.norm_before_fc,
            "norm_output": self.norm_output,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "hidden_act": self.hidden_act,
            "tie_word_embeddings": False,
            "eagle_aux_hidden_state_layer_ids": states,
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": [state - 1 for state in states],
            },
            **({"rope_scaling": dict(self.rope_scaling)} if self.rope_scaling else {}),
            **self._window_json(),
        }

    def _window_json(self) -> dict[str, Any]:
        if not self.window:
            return {}
        kinds = ["sliding_attention"] * self.n_layers
        return {"sliding_window": self.window, "layer_types": kinds}


class FusingLayer(nn.Module):
    """The first layer: attention over [embedding; feature], each normed, with the feature as the residual."""

    def __init__(self, config: Eagle3Config, llama: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = _attention(config, llama, 0, 2 * config.hidden_size)
        self.mlp: nn.Module = LlamaMLP(llama)  # type: ignore[no-untyped-call]
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._norm_before_residual = config.norm_before_residual

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        *,
        attention_mask: Tensor | None,
        position_embeddings: tuple[Tensor, Tensor],
        **cache: Any,
    ) -> Tensor:
        """[B, T, D] each -> [B, T, D]."""
        normed = self.hidden_norm(features)
        residual = normed if self._norm_before_residual else features
        hidden = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)  # [B, T, 2 D]
        attended = self.self_attn(
            hidden, attention_mask=attention_mask, position_embeddings=position_embeddings, **cache
        )[0]  # [B, T, D]
        hidden = residual + attended
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle3Head(DraftHead):
    """Multi-layer feature fusion and direct token prediction."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        self.config = config
        self.feature_layers, self.window = config.feature_layers, config.window
        width, n_fused = config.hidden_size, len(config.feature_layers)
        fused_width = n_fused * config.target_hidden_size
        self.fc = nn.Linear(fused_width, width, bias=config.fc_bias)
        self.input_norm = self._norm(fused_width) if config.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(self._norm(config.target_hidden_size) for _ in range(n_fused))
            if config.fc_norm
            else None
        )
        self.layers = nn.ModuleList([FusingLayer(config, self._llama)])
        for index in range(1, config.n_layers):
            layer = LlamaDecoderLayer(self._llama, index)
            layer.self_attn = _attention(config, self._llama, index, width)
            self.layers.append(layer)
        self.norm = self._norm(width)
        n_scored = config.draft_vocab_size or config.vocab_size
        if config.own_lm_head:
            self.lm_head = nn.Linear(width, n_scored, bias=False)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.reset_rotary()
        self.set_vocabulary(config.draft_vocab_size)

    def _norm(self, width: int) -> LlamaRMSNorm:
        return LlamaRMSNorm(width, eps=self.config.rms_norm_eps)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start with the last fused layer's state as the prediction: fc copies it, the layers add nothing."""
        if self.config.hidden_size == self.config.target_hidden_size:
            width = self.config.hidden_size
            self.fc.weight.zero_()
            self.fc.weight[:, -width:] = torch.eye(width, dtype=torch.float32)
        if self.fc.bias is not None:
            self.fc.bias.zero_()
        layer: Any
        for layer in self.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()

    def fuse(self, features: Tensor) -> Tensor:
        """The target's states side by side, [.., n D'] -> g [.., D]."""
        features = features.to(self.norm.weight)  # its device and dtype
        if self.fc_norm is not None:
            parts = torch.split(features, self.config.target_hidden_size, dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, dim=-1)
        if self.input_norm is not None:
            features = self.input_norm(features)
        fused: Tensor = self.fc(features)
        return fused

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        position_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Predict the states that follow.

        Args:
            embeddings: [B, T, D], embedding of the token one step ahead of each feature.
            features: [B, T, D], fused features of the target (:meth:`fuse`) or the head's own earlier states.
            position_ids: [B, T] i64, the features' positions.
            attention_mask: [B or 1, 1, T, S] additive or bool; None: causal over what the cache holds.
            cache: a transformers Cache with one layer per decoder layer, or None.
        Returns: [B, T, D] states, before ``norm`` (after it with ``norm_output``).
        Source: arXiv 2503.01840, section 3.
        """
        rotary = self.rotary(features, position_ids)
        kwargs = {CACHE_ARGUMENT: cache} if cache is not None else {}
        first, *others = self.layers
        hidden: Tensor = first(
            embeddings,
            features,
            attention_mask=attention_mask,
            position_embeddings=rotary,
            **kwargs,
        )
        for layer in others:
            hidden = layer(
                hidden, attention_mask=attention_mask, position_embeddings=rotary, **kwargs
            )  # [B, T, D]
        if self.config.norm_output:
            hidden = self.norm(hidden)
        return hidden

    def normed(self, hidden: Tensor) -> Tensor:
        """What the LM head scores."""
        if self.config.norm_output:
            return hidden
        scored: Tensor = self.norm(hidden)
        return scored

    def published(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and config.json as EAGLE-3 heads are published: ``midlayer``, ``d2t`` offsets, ``t2d``."""
        tensors = dict(self.state_dict())
        ids = tensors.pop(VOCABULARY_KEY, None)
        if self.n_layers == 1:
            tensors = {k.replace("layers.0.", "midlayer.", 1): v for k, v in tensors.items()}
        if ids is not None:
            known = torch.zeros(self.config.vocab_size, dtype=torch.bool, device=ids.device)
            known[ids] = True
            tensors |= {"d2t": ids - torch.arange(len(ids), device=ids.device), "t2d": known}
        return tensors, self.config.to_json()


def _attention(config: Eagle3Config, llama: LlamaConfig, index: int, width: int) -> Any:
    """Attention of layer ``index`` that reads ``width`` numbers per row."""
    attention: Any = (
        Qwen3Attention(llama, index)  # type: ignore[arg-type]  # it reads the fields that both have
        if config.qk_norm
        else LlamaAttention(llama, index)
    )
    names = ("q_proj", "k_proj", "v_proj")
    if width != config.hidden_size or config.qkv_bias:
        replace_projections(attention, names, width, bias=config.qkv_bias)
    if config.output_bias:
        in_width = config.n_heads * config.head_dim
        replace_projections(attention, ("o_proj",), in_width, bias=True)
    return attention


def default_feature_layers(n_layers: int) -> tuple[int, ...]:
    """A low, a middle and a high state of a base with ``n_layers`` layers, as published heads take them."""
    wanted = (2, n_layers // 2, n_layers - 3)
    return tuple(min(max(state, 0), n_layers) for state in wanted)


__all__ = ["Eagle3Config", "Eagle3Head", "default_feature_layers"]
