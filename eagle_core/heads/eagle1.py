"""The EAGLE-1 head (arXiv 2401.15077, section 3.1): one fully connected layer and a decoder layer.

From the features f_1..f_i and the tokens one step ahead t_2..t_{i+1} it predicts the next feature
f_{i+1}; the base's own LM head turns that into token scores. Keys and semantics are those of the published
checkpoints: concatenation order [embedding; feature], no input norm in layer 0, no final norm,
optional biases.

Index example: for tokens t_0 t_1 t_2 the inputs are (f_0, t_1), (f_1, t_2) at positions 0 and 1, and the
outputs predict f_1 and f_2; the LM head of the latter scores t_3.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
)

from eagle_core.errors import CheckpointMismatch, IncompatibleHead, ModelNotFound

WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
VOCABULARY_KEY = "draft_vocabulary"
# The layers' name for the cache: the second before transformers 5.24.
CACHE_ARGUMENT = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(LlamaAttention.forward).parameters
)
IGNORED_KEYS = frozenset({"embed_tokens.weight"})  # a frozen copy of the base's embedding


@dataclass(frozen=True, slots=True)
class Eagle1Config:
    """Shapes of a head. ``draft_vocab_size`` 0 means that the base's whole vocabulary is scored."""

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

    @classmethod
    def from_tensors(
        cls, shapes: Mapping[str, tuple[int, ...]], hints: Mapping[str, Any]
    ) -> Eagle1Config:
        """Infer the shapes from a checkpoint's tensors; its config.json is only a hint (engine notes 1.1).

        Raises: IncompatibleHead when the tensors are no EAGLE-1 head.
        """
        try:
            fc = shapes["fc.weight"]
            q = shapes["layers.0.self_attn.q_proj.weight"]
            k = shapes["layers.0.self_attn.k_proj.weight"]
            gate = shapes["layers.0.mlp.gate_proj.weight"]
        except KeyError as error:
            raise IncompatibleHead(
                "the checkpoint is no EAGLE-1 head",
                expected="fc.weight and layers.0.*",
                got=", ".join(sorted(shapes)[:8]) or "no tensors",
                hint="choose an EAGLE or EAGLE-2 head made for this base model",
            ) from error
        if fc[1] != 2 * fc[0]:
            raise IncompatibleHead(
                "the head's first layer does not take [embedding; feature]",
                expected=f"fc.weight [{fc[0]}, {2 * fc[0]}]",
                got=f"{list(fc)}",
                hint="EAGLE-3 heads (three features) are not EAGLE-1 heads",
            )
        n_heads = int(hints.get("num_attention_heads") or max(1, fc[0] // 64))
        head_dim = q[0] // n_heads
        rope = hints.get("rope_parameters") or {}
        layers = {key.split(".")[1] for key in shapes if key.startswith("layers.")}
        return cls(
            hidden_size=fc[0],
            intermediate_size=gate[0],
            n_heads=n_heads,
            n_kv_heads=k[0] // head_dim,
            head_dim=head_dim,
            n_layers=len(layers),
            fc_bias="fc.bias" in shapes,
            qkv_bias="layers.0.self_attn.q_proj.bias" in shapes,
            rms_norm_eps=float(hints.get("rms_norm_eps", 1e-6)),
            rope_theta=float(hints.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
            hidden_act=str(hints.get("hidden_act", "silu")),
            draft_vocab_size=shapes[VOCABULARY_KEY][0] if VOCABULARY_KEY in shapes else 0,
        )

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
        }

    def to_llama(self) -> LlamaConfig:
        """The same shapes for transformers' layers."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            num_key_value_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            hidden_act=self.hidden_act,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            attn_implementation="sdpa",  # type: ignore[call-arg]  # taken by the base class
        )


class Eagle1Head(nn.Module):
    """Feature-level autoregression head. Input and output width D are the base's hidden size."""

    draft_vocabulary: Tensor | None

    def __init__(self, config: Eagle1Config) -> None:
        super().__init__()
        self.config = config
        llama = config.to_llama()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList(LlamaDecoderLayer(llama, i) for i in range(config.n_layers))
        first = self.layers[0]
        first.input_layernorm = nn.Identity()  # the reference head has no input norm in layer 0
        if config.qkv_bias:
            for layer in self.layers:
                _add_qkv_bias(layer)
        self.rotary = LlamaRotaryEmbedding(llama)
        vocabulary = torch.zeros(config.draft_vocab_size, dtype=torch.long)
        self.register_buffer(VOCABULARY_KEY, vocabulary if config.draft_vocab_size else None)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start as "the next feature equals this one": fc copies the feature, the layer adds nothing.

        Small bases do not train from a random or a copied layer: features are post-norm, with large peaks.
        """
        width = self.config.hidden_size
        self.fc.weight.zero_()
        self.fc.weight[:, width:] = torch.eye(width)
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
        hidden: Tensor = self.fc(torch.cat((embeddings, features), dim=-1))  # [B, T, D]
        rotary = self.rotary(hidden, position_ids)
        kwargs = {CACHE_ARGUMENT: cache} if cache is not None else {}
        for layer in self.layers:
            hidden = layer(
                hidden, attention_mask=attention_mask, position_embeddings=rotary, **kwargs
            )  # [B, T, D]
        return hidden

    def save(self, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write ``model.safetensors`` and ``config.json``, each atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            key: (value.to(dtype) if value.is_floating_point() else value).contiguous()
            for key, value in self.state_dict().items()
        }
        part = folder / (WEIGHTS_NAME + ".part")
        save_file(tensors, part, metadata={"format": "pt"})
        os.replace(part, folder / WEIGHTS_NAME)
        part = folder / (CONFIG_NAME + ".part")
        part.write_text(json.dumps(self.config.to_json(), indent=1) + "\n")
        os.replace(part, folder / CONFIG_NAME)

    @classmethod
    def from_state(cls, state: dict[str, Tensor], hints: Mapping[str, Any]) -> Eagle1Head:
        """Build a head from a checkpoint's tensors, strictly: a key too many or too few is an error.

        Raises: IncompatibleHead when it is another kind of head; CheckpointMismatch naming the keys.
        """
        state = {key: value for key, value in state.items() if key not in IGNORED_KEYS}
        config = Eagle1Config.from_tensors({k: tuple(v.shape) for k, v in state.items()}, hints)
        head = cls(config)
        wanted = {key: tuple(value.shape) for key, value in head.state_dict().items()}
        found = {key: tuple(value.shape) for key, value in state.items()}
        if wanted != found:
            differing = sorted(
                k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k)
            )
            raise CheckpointMismatch(
                f"the head's tensors do not fit together: {', '.join(differing)}",
                expected=", ".join(f"{k} {list(wanted[k])}" for k in differing if k in wanted)
                or "nothing more",
                got=", ".join(f"{k} {list(found[k])}" for k in differing if k in found)
                or "nothing",
                hint="the file is damaged or is another kind of head",
            )
        head.load_state_dict(state, strict=True)
        return head

    @classmethod
    def load(cls, folder: Path) -> Eagle1Head:
        """Read a head written by :meth:`save`, in the dtype it was stored in.

        Raises: ModelNotFound, CheckpointMismatch or IncompatibleHead.
        """
        try:
            hints = json.loads((folder / CONFIG_NAME).read_text())
            state = load_file(folder / WEIGHTS_NAME)
        except FileNotFoundError as error:
            raise ModelNotFound(
                f"{folder} holds no head",
                expected=f"{CONFIG_NAME} and {WEIGHTS_NAME}",
                got=str(error),
                hint="name a folder that holds both files, or a Hub id",
            ) from error
        except (SafetensorError, ValueError) as error:
            raise CheckpointMismatch(
                f"the head in {folder} cannot be read",
                expected="an intact safetensors file and JSON config",
                got=str(error),
                hint="fetch or train the head again",
            ) from error
        return cls.from_state(state, hints).to(state["fc.weight"].dtype)


def _add_qkv_bias(layer: Any) -> None:
    attention = layer.self_attn
    for name in ("q_proj", "k_proj", "v_proj"):
        old: nn.Linear = getattr(attention, name)
        setattr(attention, name, nn.Linear(old.in_features, old.out_features, bias=True))


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
