"""From the names and shapes of a checkpoint's tensors to a description of the head in it.

Published heads come in many spellings; the tensors say what a head is, and its config.json only what tensors
cannot: the number of attention heads, the RoPE base, which layers' states are fused. Pure functions: no file,
no module, no weights.

Which states are fused is written in two ways that differ by one (engine notes: SGLang counts the outputs of
layers, vLLM and speculators count states, of which the embedding is the first): the place tells which it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_core.errors import CheckpointMismatch, IncompatibleHead
from eagle_core.heads.eagle1 import Eagle1Config
from eagle_core.heads.eagle3 import Eagle3Config, default_feature_layers
from eagle_core.heads.families import HeadConfig
from eagle_core.heads.refused import (
    WITHOUT_FUSION,
    check_config_is_known,
    check_tensors_are_known,
    refuse,
)

Shapes = Mapping[str, tuple[int, ...]]
ATTENTION = "layers.0.self_attn."
LAYERS_FIELD = "eagle_aux_hidden_state_layer_ids"
ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope")
ROPE_FIELDS = frozenset(
    {
        "rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
        "short_factor", "long_factor",
    }
)  # fmt: skip
# Beginnings of names, and how this engine spells them.
SPELLINGS = (
    ("model.", ""),
    ("midlayer.", "layers.0."),  # EAGLE-3, SpecForge
    ("transformer.", "layers.0."),  # speculators' EAGLE-1
    ("fusion_fc.", "fc."),
    ("enorm.", "embedding_layernorm."),  # vLLM's add_para_norm
    ("hnorm.", "hidden_states_layernorm."),
)
# Tensors that are of no use: copies of the base's, and tables that are made anew.
IGNORED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|verifier_\w+\.weight)$")


@dataclass(frozen=True, slots=True)
class BaseShape:
    """What must be known of a base model to read and to check a head for it."""

    hidden_size: int
    vocab_size: int
    n_layers: int


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """A checkpoint's layout: what kind it is, its shapes, and the names its tensors have in our modules.

    ``keys`` maps the checkpoint's names to ours; ``ignored`` are names of tensors that are not used.
    """

    name: str
    config: HeadConfig
    keys: Mapping[str, str]
    ignored: frozenset[str]


def describe(shapes: Shapes, hints: Mapping[str, Any], base: BaseShape | None = None) -> HeadLayout:
    """Recognise a head.

    Args:
        shapes: name -> shape of all tensors of the checkpoint.
        hints: its config.json.
        base: the base model; without it a head must say itself which states it fuses.
    Raises: IncompatibleHead for other draft models, by name, and for heads that say too little;
        CheckpointMismatch when two tensors have one meaning.
    """
    check_config_is_known(hints)
    check_tensors_are_known(shapes)
    keys = {name: _spelling(name) for name in shapes if not IGNORED.search(name)}
    doubles = {key for key in keys.values() if list(keys.values()).count(key) > 1}
    if doubles:
        raise CheckpointMismatch(
            f"the head has two tensors for {', '.join(sorted(doubles))}",
            expected="one",
            got=", ".join(sorted(name for name, key in keys.items() if key in doubles)),
            hint="fetch the head again, or ask those who converted it",
        )
    found = {key: shapes[name] for name, key in keys.items()}
    flat = flat_hints(hints)
    if is_eagle3(found):
        if "fc.weight" not in found:
            raise refuse(WITHOUT_FUSION)
        return _eagle3_layout(found, keys, shapes, flat, base)
    return _eagle1_layout(found, keys, shapes, flat)


def flat_hints(hints: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what speculators nests in ``transformer_layer_config`` on the same level."""
    nested = hints.get("transformer_layer_config")
    flat = dict(nested) if isinstance(nested, Mapping) else {}
    own = {key: value for key, value in hints.items() if value is not None}
    return flat | own


def is_eagle3(shapes: Shapes) -> bool:
    """Whether the tensors are an EAGLE-3 head's: its attention reads two vectors side by side."""
    q = shapes.get(f"{ATTENTION}q_proj.weight", (0, 0))
    o = shapes.get(f"{ATTENTION}o_proj.weight", (0, 0))
    return "layers.0.hidden_norm.weight" in shapes or (o[0] > 0 and q[-1] == 2 * o[0])


def attention_heads(shapes: Shapes, hints: Mapping[str, Any]) -> tuple[int, int, int]:
    """Query heads, key heads and their width, by the projections' shapes.

    ``head_dim`` in a config is believed last: some published ones are wrong, the number of heads seldom.
    Raises: IncompatibleHead when nothing fits.
    """
    q, k = shapes[f"{ATTENTION}q_proj.weight"][0], shapes[f"{ATTENTION}k_proj.weight"][0]
    n_heads, n_kv = hints.get("num_attention_heads"), hints.get("num_key_value_heads")
    widths = [shapes.get(f"{ATTENTION}q_norm.weight", (0,))[0]]
    widths += [q // n for n in (n_heads,) if n and q % n == 0]
    widths += [k // n for n in (n_kv,) if n and k % n == 0]
    widths += [int(hints.get("head_dim") or 0)]
    widths += [] if n_heads else [64]
    for width in widths:
        if width and q % width == 0 and k % width == 0 and (q // width) % (k // width) == 0:
            return q // width, k // width, width
    raise IncompatibleHead(
        "the head's attention has shapes that its config does not explain",
        expected=f"num_attention_heads that divides {q}, num_key_value_heads that divides {k}",
        got=f"{n_heads} and {n_kv}",
        hint="the weights and config.json must be of one head",
    )


def rope(hints: Mapping[str, Any], head_dim: int) -> tuple[float, dict[str, Any] | None]:
    """The RoPE base, and how positions are scaled (None: not at all).

    A head's own ``max_position_embeddings`` bounds nothing: positions go as far as the base's context. Not
    taken is "dynamic", whose angles depend on the longest text that a head has seen so far: what is drawn
    from its guesses would depend on earlier chats.
    Raises: IncompatibleHead for a scaling that the head's layers cannot do.
    """
    new, old = hints.get("rope_parameters"), hints.get("rope_scaling")
    fields = dict(new if isinstance(new, Mapping) else old if isinstance(old, Mapping) else {})
    theta = float(hints.get("rope_theta") or fields.get("rope_theta") or 10_000.0)
    kind = str(fields.get("rope_type") or fields.get("type") or "default")
    kind = {"mrope": "default", "su": "longrope"}.get(
        kind, kind
    )  # text has one position, not three
    partial = float(
        hints.get("partial_rotary_factor") or fields.get("partial_rotary_factor") or 1.0
    )
    if kind not in ROPE_KINDS or partial != 1.0:
        raise IncompatibleHead(
            "the head rotates positions in a way that is not known here",
            expected=", ".join(ROPE_KINDS),
            got=f"{kind}, of {partial:g} of the width",
            hint="choose another head for this base",
        )
    if kind == "default":
        return theta, None
    scaling = {key: value for key, value in fields.items() if key in ROPE_FIELDS} | {
        "rope_type": kind
    }
    own_length = hints.get("max_position_embeddings")
    if kind == "longrope":
        return theta, _longrope(scaling, hints, head_dim)
    if kind != "linear" and own_length:  # what such scalings stretch, where nothing else is said
        scaling.setdefault("original_max_position_embeddings", int(own_length))
    return theta, scaling


def _longrope(scaling: dict[str, Any], hints: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """LongRoPE's scaling with what Phi-3's configs say outside of it.

    Raises: IncompatibleHead without a factor for each pair of the head's width, or the length they are for.
    """
    original = scaling.get("original_max_position_embeddings") or hints.get(
        "original_max_position_embeddings"
    )
    lengths = [len(scaling.get(name) or ()) for name in ("short_factor", "long_factor")]
    if lengths != [head_dim // 2] * 2 or not original:
        raise IncompatibleHead(
            "the head's longrope scaling is not whole",
            expected=f"{head_dim // 2} short and long factors, and original_max_position_embeddings",
            got=f"{lengths[0]}, {lengths[1]} and {original}",
            hint="the weights and config.json must be of one head",
        )
    own_length = hints.get("max_position_embeddings")
    if own_length and "factor" not in scaling:
        scaling["factor"] = own_length / original
    return {**scaling, "original_max_position_embeddings": int(original)}


def feature_layers(
    hints: Mapping[str, Any], n_fused: int | None, base: BaseShape | None
) -> tuple[int, ...]:
    """Which states of the base the head fuses; 0 is the embedding, L the last layer's output.

    Ids in ``eagle_config`` count outputs of layers: one is added. Ids at the top level count states - but for
    the one list that is SGLang's default, which some converters carried over as it was.
    Raises: IncompatibleHead when neither the config nor the base tells.
    """
    nested = hints.get("eagle_config")
    inner = nested.get(LAYERS_FIELD) if isinstance(nested, Mapping) else None
    outer = hints.get(LAYERS_FIELD)
    default = default_feature_layers(base.n_layers) if base is not None else None
    ids: tuple[int, ...]
    if outer and outer != inner:
        ids = tuple(int(i) for i in outer)
        if not inner and default is not None and ids == tuple(i - 1 for i in default):
            ids = default
    elif inner:
        ids = tuple(int(i) + 1 for i in inner)
    elif default is not None:
        ids = default
    else:
        raise IncompatibleHead(
            "the head does not say which layers' features it fuses",
            expected=LAYERS_FIELD,
            hint="load it together with its base model",
        )
    if n_fused is not None and len(ids) != n_fused:
        raise IncompatibleHead(
            "the head's first layer does not take the features of its layers",
            expected=f"{n_fused} layers, by the width of fc.weight",
            got=", ".join(map(str, ids)),
            hint="choose a head that was trained for this base",
        )
    return ids


def _spelling(name: str) -> str:
    for begin, ours in SPELLINGS:
        if name.startswith(begin):
            name = ours + name.removeprefix(begin)
    return name


def _require_matrices(shapes: Shapes, kind: str) -> None:
    """Raises: IncompatibleHead when tensors are missing without which nothing can be inferred."""
    names = ("fc.weight", f"{ATTENTION}q_proj.weight", f"{ATTENTION}k_proj.weight",
             f"{ATTENTION}o_proj.weight", "layers.0.mlp.gate_proj.weight")  # fmt: skip
    missing = [name for name in names if len(shapes.get(name, ())) != 2]
    if missing:
        raise IncompatibleHead(
            f"the checkpoint is no {kind} head",
            expected=", ".join(missing),
            got=", ".join(sorted(shapes)[:8]) or "no tensors",
            hint="choose an EAGLE head made for this base model",
        )


def _n_layers(shapes: Shapes) -> int:
    return len({name.split(".")[1] for name in shapes if name.startswith("layers.")})


def _eagle1_layout(
    found: Shapes, keys: Mapping[str, str], shapes: Shapes, hints: Mapping[str, Any]
) -> HeadLayout:
    _require_matrices(found, "EAGLE-1")
    fc = found["fc.weight"]
    if fc[1] != 2 * fc[0]:
        raise IncompatibleHead(
            "the head's first layer does not take [embedding; feature]",
            expected=f"fc.weight [{fc[0]}, {2 * fc[0]}]",
            got=f"{list(fc)}",
            hint="choose an EAGLE head made for this base model",
        )
    n_heads, n_kv_heads, head_dim = attention_heads(found, hints)
    theta, scaling = rope(hints, head_dim)
    has_norms = bool(hints.get("layernorms")) or hints.get("skip_prenorm") is False
    first_norm = has_norms and "layers.0.input_layernorm.weight" in found
    config = Eagle1Config(
        hidden_size=fc[0],
        intermediate_size=found["layers.0.mlp.gate_proj.weight"][0],
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_layers=_n_layers(found),
        fc_bias="fc.bias" in found,
        qkv_bias=f"{ATTENTION}q_proj.bias" in found,
        rms_norm_eps=float(hints.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        hidden_act=str(hints.get("hidden_act", "silu")),
        draft_vocab_size=found.get("draft_vocabulary", (0,))[0],
        embedding_norm="embedding_layernorm.weight" in found,
        feature_norm="hidden_states_layernorm.weight" in found,
        first_norm=first_norm,
        output_norm="pre_lm_head_layernorm.weight" in found,
    )
    ignored = {name for name in shapes if name not in keys or keys[name] == "embed_tokens.weight"}
    kept = {name: key for name, key in keys.items() if name not in ignored}
    name = "HASS" if config.feature_norm or config.embedding_norm else "EAGLE-1/2"
    return HeadLayout(name, config, kept, frozenset(ignored))


def _eagle3_layout(
    found: Shapes,
    keys: Mapping[str, str],
    shapes: Shapes,
    hints: Mapping[str, Any],
    base: BaseShape | None,
) -> HeadLayout:
    _require_matrices(found, "EAGLE-3")
    fc = found["fc.weight"]
    own_width = found[f"{ATTENTION}o_proj.weight"][0]
    target_width = int(
        hints.get("target_hidden_size") or (base.hidden_size if base is not None else own_width)
    )
    if fc[0] != own_width or fc[1] % target_width:
        raise IncompatibleHead(
            "the head's first layer does not take this base's features",
            expected=f"fc.weight [{own_width}, a multiple of {target_width}]",
            got=f"{list(fc)}",
            hint="choose a head that was trained for this base",
        )
    config = _eagle3_config(
        found, hints, target_width, feature_layers(hints, fc[1] // target_width, base), base
    )
    ignored = {name for name in shapes if name not in keys or keys[name] in ("d2t", "t2d")}
    kept = {name: key for name, key in keys.items() if name not in ignored}
    return HeadLayout(_eagle3_name(found, hints), config, kept, frozenset(ignored))


def _eagle3_config(
    found: Shapes,
    hints: Mapping[str, Any],
    target_width: int,
    layers: tuple[int, ...],
    base: BaseShape | None,
) -> Eagle3Config:
    n_heads, n_kv_heads, head_dim = attention_heads(found, hints)
    theta, scaling = rope(hints, head_dim)
    vocab_size, n_scored = _vocabulary_sizes(found, hints, base)
    has_fc_norm = "fc_norm.0.weight" in found
    # In SpecForge's configs the flag says something else; there the state before the norm is fed back.
    says_output = bool(hints.get("norm_output"))
    is_31 = has_fc_norm or "speculators_model_type" in hints
    return Eagle3Config(
        hidden_size=found["fc.weight"][0],
        target_hidden_size=target_width,
        intermediate_size=found["layers.0.mlp.gate_proj.weight"][0],
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        feature_layers=layers,
        vocab_size=vocab_size,
        draft_vocab_size=0 if n_scored == vocab_size else n_scored,
        n_layers=_n_layers(found),
        own_embedding="embed_tokens.weight" in found,
        own_lm_head="lm_head.weight" in found,
        fc_bias="fc.bias" in found,
        qkv_bias=f"{ATTENTION}q_proj.bias" in found,
        output_bias=f"{ATTENTION}o_proj.bias" in found,
        qk_norm=f"{ATTENTION}q_norm.weight" in found,
        fc_norm=has_fc_norm,
        norm_before_fc="input_norm.weight" in found,
        norm_before_residual=bool(hints.get("norm_before_residual", False)),
        norm_output=says_output and is_31,
        window=_window(hints),
        rms_norm_eps=float(hints.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        hidden_act=str(hints.get("hidden_act", "silu")),
    )


def _vocabulary_sizes(
    found: Shapes, hints: Mapping[str, Any], base: BaseShape | None
) -> tuple[int, int]:
    """The target's vocabulary and the number of tokens that the head scores, by the tensors.

    Raises: CheckpointMismatch when the head scores a part but does not say which.
    """
    known = [found[key][0] for key in ("t2d", "embed_tokens.weight") if key in found]
    known += [base.vocab_size] if base is not None else []
    known += [int(hints["vocab_size"])] if hints.get("vocab_size") else []
    scored = [found[key][0] for key in ("lm_head.weight", "d2t") if key in found]
    vocab_size = known[0] if known else scored[0] if scored else 0
    n_scored = scored[0] if scored else vocab_size
    if n_scored != vocab_size and found.get("d2t", (0,))[0] != n_scored:
        raise CheckpointMismatch(
            "the head scores a part of the vocabulary and does not say which",
            expected=f"d2t [{n_scored}], or lm_head.weight with {vocab_size} rows",
            got=f"d2t {list(found['d2t'])}" if "d2t" in found else "no d2t",
            hint="fetch the head again, all of its tensors included",
        )
    return vocab_size, n_scored


def _window(hints: Mapping[str, Any]) -> int:
    """The draft window: how many positions the head's layers see; 0: all.

    A ``sliding_window`` alone says nothing: it is copied from the base's config, and no layer heeds it.
    """
    is_sliding = "sliding_attention" in (hints.get("layer_types") or ())[:1]
    return int(hints.get("sliding_window") or 0) if is_sliding else 0


def _eagle3_name(found: Shapes, hints: Mapping[str, Any]) -> str:
    if "fc_norm.0.weight" in found:
        return "EAGLE-3.1"
    if "speculators_model_type" in hints:
        return "EAGLE-3 (speculators)"
    return "EAGLE-3"


__all__ = [
    "BaseShape",
    "HeadLayout",
    "attention_heads",
    "describe",
    "feature_layers",
    "flat_hints",
    "is_eagle3",
    "rope",
]
