"""The EAGLE-1 head (arXiv 2401.15077, section 3.1): one fully connected layer and a decoder layer.

From the features f_1..f_i and the tokens one step ahead t_2..t_{i+1} it predicts the next feature
f_{i+1}; the base's own LM head turns that into token scores. Keys and semantics are those of the published
checkpoints: concatenation order [embedding; feature], no input norm in layer 0, no final norm,
optional biases.

Index example: for tokens t_0 t_1 t_2 the inputs are (f_0, t_1), (f_1, t_2) at positions 0 and 1, and the
outputs predict f_1 and f_2; the LM head of the latter scores t_3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from eagle_core.heads.base import CACHE_ARGUMENT, DraftHead, replace_projections


@dataclass(frozen=True, slots=True)
class Eagle1Config:
    """Shapes of a head. ``draft_vocab_size`` 0 means that the base's whole vocabulary is scored.

    The norms are variants: on the inputs (HASS with ``add_para_norm``), in front of the first layer and
    before the LM head (speculators' ``layernorms``).
    """

    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_layers: int = 1
    fc_bias: bool = False
    qkv_bias: bool = False
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    hidden_act: str = "silu"
    draft_vocab_size: int = 0
    rope_scaling: Mapping[str, Any] | None = None
    embedding_norm: bool = False
    feature_norm: bool = False
    first_norm: bool = False
    output_norm: bool = False

    def to_json(self) -> dict[str, Any]:
        """The published spelling, a Llama-style config.json."""
        return {
            "architectures": ["Eagle1Head"],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "bias": self.fc_bias,
            "qkv_bias": self.qkv_bias,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "hidden_act": self.hidden_act,
            "draft_vocab_size": self.draft_vocab_size,
            **({"rope_scaling": dict(self.rope_scaling)} if self.rope_scaling else {}),
            **({"layernorms": True} if self.first_norm else {}),
        }


class Eagle1Head(DraftHead):
    """Feature-level autoregression head. Input and output width D are the base's hidden size."""

    def __init__(self, config: Eagle1Config) -> None:
        super().__init__(config)
        self.config = config
        llama, width = self._llama, config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=config.fc_bias)
        self.layers = nn.ModuleList(LlamaDecoderLayer(llama, i) for i in range(config.n_layers))
        first: Any = self.layers[0]
        if not config.first_norm:  # the reference head has no input norm in layer 0
            first.input_layernorm = nn.Identity()
        if config.qkv_bias:
            for layer in self.layers:
                replace_projections(
                    layer.self_attn, ("q_proj", "k_proj", "v_proj"), width, bias=True
                )
        self.embedding_layernorm = self._norm(config.embedding_norm)
        self.hidden_states_layernorm = self._norm(config.feature_norm)
        self.pre_lm_head_layernorm = self._norm(config.output_norm)
        self.reset_rotary()
        self.set_vocabulary(config.draft_vocab_size)

    def _norm(self, is_there: bool) -> nn.Module:
        if not is_there:
            return nn.Identity()
        return LlamaRMSNorm(self.config.hidden_size, eps=self.config.rms_norm_eps)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start as "the next feature equals this one": fc copies the feature, the layer adds nothing.

        Small bases do not train from a random or a copied layer: features are post-norm, with large peaks.
        """
        width = self.config.hidden_size
        self.fc.weight.zero_()
        self.fc.weight[:, width:] = torch.eye(width, dtype=torch.float32)
        if self.fc.bias is not None:
            self.fc.bias.zero_()
        layer: Any
        for layer in self.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        position_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Predict the features that follow.

        Args:
            embeddings: [B, T, D], the base's embedding of the token one step ahead of each feature.
            features: [B, T, D], the base's (or the head's own earlier) features.
            position_ids: [B, T] i64, the features' positions.
            attention_mask: [B or 1, 1, T, S] additive or bool; None: causal over what the cache holds.
            cache: a transformers Cache with one layer per decoder layer, or None.
        Returns: [B, T, D] predicted next features, un-normed.
        Source: arXiv 2401.15077, section 3.1.
        """
        embeddings = self.embedding_layernorm(embeddings)
        features = self.hidden_states_layernorm(features)
        hidden: Tensor = self.fc(torch.cat((embeddings, features), dim=-1))  # [B, T, D]
        rotary = self.rotary(hidden, position_ids)
        kwargs = {CACHE_ARGUMENT: cache} if cache is not None else {}
        for layer in self.layers:
            hidden = layer(
                hidden, attention_mask=attention_mask, position_embeddings=rotary, **kwargs
            )  # [B, T, D]
        return hidden

    def normed(self, hidden: Tensor) -> Tensor:
        """What the base's LM head scores: the predicted features themselves, but for one variant."""
        scored: Tensor = self.pre_lm_head_layernorm(hidden)
        return scored

    def published(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and config.json as EAGLE-1 heads are published."""
        return dict(self.state_dict()), self.config.to_json()


def config_for_base(base: Any, *, n_layers: int = 1, draft_vocab_size: int = 0) -> Eagle1Config:
    """A head shaped like one decoder layer of ``base`` (a transformers text config)."""
    rope = getattr(base, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    n_heads = base.num_attention_heads
    return Eagle1Config(
        hidden_size=base.hidden_size,
        intermediate_size=base.intermediate_size,
        n_heads=n_heads,
        n_kv_heads=getattr(base, "num_key_value_heads", None) or n_heads,
        head_dim=getattr(base, "head_dim", None) or base.hidden_size // n_heads,
        n_layers=n_layers,
        rms_norm_eps=getattr(base, "rms_norm_eps", 1e-6),
        rope_theta=float(theta or getattr(base, "rope_theta", None) or 10_000.0),
        draft_vocab_size=draft_vocab_size,
    )


__all__ = ["Eagle1Config", "Eagle1Head", "config_for_base"]
