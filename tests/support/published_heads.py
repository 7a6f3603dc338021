"""Tiny heads in every layout that heads are published in, written from lists of keys, as repositories.

Nothing of the engine is used here: names, shapes and configs are what loaders and trainers of other projects
read and write.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

HIDDEN, INTERMEDIATE, N_HEADS, N_KV, HEAD_DIM = 32, 48, 4, 2, 8
N_BASE_LAYERS = 8
N_DRAFT = 64
Tensors = dict[str, Tensor]
Files = dict[str, bytes]


@dataclass
class Published:
    """A repository: its files, and what must be found in it (fields of the head's config)."""

    files: Files
    expect: dict[str, Any] = field(default_factory=dict)


class Draw:
    """Random tensors, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._random) * 0.4

    def norm(self, width: int) -> Tensor:
        return 1 + self(width) / 4


def safetensors(tensors: Tensors, name: str = "model.safetensors") -> Files:
    return {name: save(tensors, metadata={"format": "pt"})}


def pickled(value: Any, name: str = "pytorch_model.bin") -> Files:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return {name: buffer.getvalue()}


def sharded(tensors: Tensors, name: str, write: Callable[[Tensors, str], Files]) -> Files:
    """Two shards and their index; ``name`` is that of the unsharded file."""
    stem, suffix = name.rsplit(".", 1)
    keys = sorted(tensors)
    parts = [keys[: len(keys) // 2], keys[len(keys) // 2 :]]
    files: Files = {}
    where = {}
    for number, part in enumerate(parts, 1):
        file = f"{stem}-{number:05d}-of-00002.{suffix}"
        files |= write({key: tensors[key] for key in part}, file)
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    return files | {f"{name}.index.json": json.dumps(index).encode()}


def config(**fields: Any) -> Files:
    llama = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 1,
        "num_attention_heads": N_HEADS, "num_key_value_heads": N_KV, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "torch_dtype": "float16",
    }  # fmt: skip
    known = {key: value for key, value in (llama | fields).items() if value is not ...}
    return {"config.json": json.dumps(known).encode()}


def block(draw: Draw, prefix: str, *, width: int = HIDDEN, n_kv: int = N_KV, dim: int = HEAD_DIM,
          hidden: int = HIDDEN) -> Tensors:  # fmt: skip
    """A decoder layer but for its norms; its attention reads ``width`` numbers."""
    shapes = {
        "self_attn.q_proj": (N_HEADS * dim, width), "self_attn.k_proj": (n_kv * dim, width),
        "self_attn.v_proj": (n_kv * dim, width), "self_attn.o_proj": (hidden, N_HEADS * dim),
        "mlp.gate_proj": (INTERMEDIATE, hidden), "mlp.up_proj": (INTERMEDIATE, hidden),
        "mlp.down_proj": (hidden, INTERMEDIATE),
    }  # fmt: skip
    tensors = {f"{prefix}{name}.weight": draw(*shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}post_attention_layernorm.weight": draw.norm(hidden)}


def eagle1(seed: int, *, n_kv: int = N_KV) -> Tensors:
    draw = Draw(seed)
    return {"fc.weight": draw(HIDDEN, 2 * HIDDEN), **block(draw, "layers.0.", n_kv=n_kv)}


def eagle3(seed: int, vocab: int, *, prefix: str = "midlayer.", hidden: int = HIDDEN, n_fused: int = 3,
           n_scored: int = N_DRAFT, dim: int = HEAD_DIM) -> Tensors:  # fmt: skip
    """The tensors of an official head; every third token is in the draft vocabulary."""
    draw = Draw(seed)
    tensors = {
        "fc.weight": draw(hidden, n_fused * HIDDEN),
        **block(draw, prefix, width=2 * hidden, dim=dim, hidden=hidden),
        f"{prefix}hidden_norm.weight": draw.norm(hidden),
        f"{prefix}input_layernorm.weight": draw.norm(hidden),
        "norm.weight": draw.norm(hidden),
        "lm_head.weight": draw(n_scored, hidden),
    }
    if n_scored < vocab:
        tensors |= vocabulary(vocab, n_scored)
    return tensors


def draft_ids(n_scored: int = N_DRAFT) -> Tensor:
    return torch.arange(n_scored) * 3 + 5


def vocabulary(vocab: int, n_scored: int) -> Tensors:
    ids = draft_ids(n_scored)
    known = torch.zeros(vocab, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(n_scored), "t2d": known}


def speculators(vocab: int, layer: dict[str, Any] | None = None, **fields: Any) -> Files:
    """The nested config.json of the speculators library."""
    nested = json.loads(config(vocab_size=vocab)["config.json"]) | (layer or {})
    nested.pop("architectures")
    outer = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0", "transformer_layer_config": nested,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "org/the-right-base", "architectures": ["LlamaForCausalLM"]},
        },
    }  # fmt: skip
    return {"config.json": json.dumps(outer | fields).encode()}


def eagle1_layouts(vocab: int) -> dict[str, Published]:
    draw = Draw(99)
    embedding = {"embed_tokens.weight": draw(vocab, HIDDEN)}
    fc_bias = {"fc.bias": draw(HIDDEN)}
    attention = "layers.0.self_attn."
    qkv_bias = {
        f"{attention}q_proj.bias": draw(N_HEADS * HEAD_DIM),
        f"{attention}k_proj.bias": draw(N_KV * HEAD_DIM),
        f"{attention}v_proj.bias": draw(N_KV * HEAD_DIM),
    }
    norms = {
        f"{name}_layernorm.weight": draw.norm(HIDDEN) for name in ("embedding", "hidden_states")
    }
    plain = config(vocab_size=vocab, bias=False)
    own = eagle1(7)
    shards = {**eagle1(5), **embedding}
    renamed = {k.replace("layers.0.", "transformer."): v for k, v in eagle1(8).items()}
    renamed["fusion_fc.weight"] = renamed.pop("fc.weight")
    return {
        "EAGLE-1, bias by default, all heads, .bin": Published(
            # The field "bias" is absent, and so is the number of key heads.
            config(vocab_size=vocab, num_key_value_heads=..., rope_theta=...)
            | pickled({**eagle1(1, n_kv=N_HEADS), **embedding, **fc_bias}),
            {"fc_bias": True, "n_kv_heads": N_HEADS, "n_heads": N_HEADS, "rope_theta": 10_000.0},
        ),
        "EAGLE-2, no bias, no embedding": Published(
            config(vocab_size=vocab, bias=False, rope_theta=500000.0) | safetensors(eagle1(2)),
            {"fc_bias": False, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5},
        ),
        "EAGLE-2, qkv bias": Published(
            config(vocab_size=vocab, bias=True, qkv_bias=True, model_type="qwen2")
            | safetensors({**eagle1(3), **fc_bias, **qkv_bias}),
            {"fc_bias": True, "qkv_bias": True},
        ),
        "EAGLE-2, sharded": Published(
            plain | sharded(shards, "model.safetensors", safetensors), {"draft_vocab_size": 0}
        ),
        "EAGLE-2, sharded .bin": Published(
            plain | sharded(shards, "pytorch_model.bin", pickled), {"draft_vocab_size": 0}
        ),
        "EAGLE-2, rotary tables and a prefix": Published(
            plain
            | safetensors(
                {f"model.{k}": v for k, v in eagle1(6).items()}
                | {"model.layers.0.self_attn.rotary_emb.inv_freq": draw(HEAD_DIM // 2)}
            )
        ),
        "HASS with norms": Published(
            config(vocab_size=vocab, add_para_norm=True) | safetensors({**eagle1(4), **norms}),
            {"embedding_norm": True, "feature_norm": True, "first_norm": False},
        ),
        "HASS with norms, vLLM's names": Published(
            config(vocab_size=vocab, add_para_norm=True)
            | safetensors({**own, "enorm.weight": draw.norm(HIDDEN), "hnorm.weight": draw.norm(HIDDEN)}),
            {"embedding_norm": True, "feature_norm": True},
        ),
        "EAGLE of speculators, with norms": Published(
            speculators(
                vocab, speculators_model_type="eagle", architectures=["EagleSpeculator"], layernorms=True,
                fusion_bias=True,
            )
            | safetensors(
                {
                    **renamed, "fusion_fc.bias": draw(HIDDEN),
                    "embedding_layernorm.weight": draw.norm(HIDDEN),
                    "pre_lm_head_layernorm.weight": draw.norm(HIDDEN),
                    "transformer.input_layernorm.weight": draw.norm(HIDDEN),
                }
            ),
            {"first_norm": True, "output_norm": True, "embedding_norm": True, "fc_bias": True},
        ),
        "FR-Spec": Published(
            plain | safetensors(own) | pickled(list(range(40, 8, -1)), "freq_8192.pt")
            | pickled(list(range(200, 100, -1)), "freq_32768.pt"),
            {"draft_ids": torch.arange(101, 201), "draft_vocab_size": 100},
        ),
    }  # fmt: skip


def eagle3_layouts(vocab: int) -> dict[str, Published]:
    draw = Draw(77)
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    official = {"vocab_size": vocab, "draft_vocab_size": N_DRAFT}
    wide = {**eagle3(12, vocab, hidden=40), "embed_tokens.weight": draw(vocab, 40)}
    unscored = ("lm_head.weight", "d2t", "t2d")
    angel = eagle3(18, vocab, dim=16)
    middle = {"feature_layers": (2, 4, 5), "draft_ids": draft_ids()}
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    return {
        "EAGLE-3": Published(
            config(**official) | pickled(eagle3(11, vocab)),
            middle | {"norm_output": False, "norm_before_residual": False, "own_embedding": False},
        ),
        "EAGLE-3, own embedding of another width": Published(
            config(**official, hidden_size=40, target_hidden_size=HIDDEN) | safetensors(wide),
            {"hidden_size": 40, "target_hidden_size": HIDDEN, "own_embedding": True},
        ),
        "EAGLE-3, whole vocabulary": Published(
            config(vocab_size=vocab) | safetensors(eagle3(13, vocab, n_scored=vocab)),
            {"draft_vocab_size": 0, "draft_ids": None},
        ),
        "EAGLE-3, whole vocabulary and d2t of no meaning": Published(
            config(vocab_size=vocab, draft_vocab_size=vocab)
            | safetensors(
                {
                    **eagle3(13, vocab, n_scored=vocab), "d2t": torch.full((vocab,), 7),
                    "t2d": torch.zeros(vocab, dtype=torch.bool),
                }
            ),
            {"draft_vocab_size": 0, "draft_ids": None},
        ),
        "EAGLE-3, ids instead of offsets": Published(
            config(**official) | safetensors({**eagle3(11, vocab), "d2t": draft_ids()}), middle
        ),
        "EAGLE-3, the base's LM head": Published(
            config(vocab_size=vocab, draft_vocab_size=None)
            | safetensors({k: v for k, v in eagle3(14, vocab).items() if k not in unscored}),
            {"own_lm_head": False, "draft_vocab_size": 0},
        ),
        "EAGLE-3, rope scaling": Published(
            config(**official, rope_scaling=scaling, rope_theta=500000.0)
            | safetensors(eagle3(15, vocab)),
            {"rope_scaling": scaling, "rope_theta": 500_000.0},
        ),
        "SpecForge": Published(
            config(**official, architectures=["LlamaForCausalLMEagle3"], eagle_config=nested,
                   norm_output=True, tie_word_embeddings=False)
            | safetensors(eagle3(16, vocab)),
            middle | {"norm_output": False},
        ),
        "SGLang's ids at the top level": Published(
            speculators(vocab, draft_vocab_size=N_DRAFT, eagle_aux_hidden_state_layer_ids=[1, 3, 4])
            | safetensors(eagle3(16, vocab, prefix="layers.0.")),
            middle,
        ),
        "EAGLE-3.1": Published(
            speculators(vocab, draft_vocab_size=N_DRAFT, fc_norm=True, norm_output=True,
                        norm_before_residual=False)
            | safetensors(
                eagle3(17, vocab, prefix="layers.0.")
                | {f"fc_norm.{i}.weight": draw.norm(HIDDEN) for i in range(3)}
            ),
            middle | {"fc_norm": True, "norm_output": True},
        ),
        "speculators": Published(
            speculators(vocab, draft_vocab_size=N_DRAFT, norm_before_residual=True, target_hidden_size=None,
                        eagle_aux_hidden_state_layer_ids=[1, 4, 7])
            | safetensors(
                eagle3(19, vocab, prefix="layers.0.")
                | {"embed_tokens.weight": draw(vocab, HIDDEN), "verifier_lm_head.weight": draw(9, HIDDEN)}
            ),
            {"norm_before_residual": True, "feature_layers": (1, 4, 7), "own_embedding": True},
        ),
        "speculators, qwen3 block, draft window": Published(
            speculators(
                vocab,
                {"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True, "head_dim": HEAD_DIM,
                 "layer_types": ["sliding_attention"],
                 "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
                draft_vocab_size=N_DRAFT, norm_before_fc=True, norm_before_residual=True,
            )
            | safetensors(
                eagle3(20, vocab, prefix="layers.0.")
                | {
                    "layers.0.self_attn.q_norm.weight": draw.norm(HEAD_DIM),
                    "layers.0.self_attn.k_norm.weight": draw.norm(HEAD_DIM),
                    "input_norm.weight": draw.norm(3 * HIDDEN),
                }
            ),
            {"qk_norm": True, "window": 8, "norm_before_fc": True, "rope_theta": 1e6},
        ),
        "speculators, two layers": Published(
            speculators(vocab, {"num_hidden_layers": 2}, draft_vocab_size=N_DRAFT)
            | safetensors(
                eagle3(21, vocab, prefix="layers.0.") | block(draw, "layers.1.")
                | {"layers.1.input_layernorm.weight": draw.norm(HIDDEN)}
            ),
            {"n_layers": 2},
        ),
        "NVIDIA, the last layer among the fused": Published(
            config(
                vocab_size=vocab, draft_vocab_size=N_DRAFT, architectures=["LlamaForCausalLMEagle3"],
                eagle_config={"use_aux_hidden_state": True, "parallel_draft_step": 1,
                              "eagle_aux_hidden_state_layer_ids": [1, 3, 7]},
            )
            | safetensors({k: v for k, v in eagle3(22, vocab, prefix="layers.0.").items() if k != "t2d"}),
            {"feature_layers": (2, 4, 8), "draft_ids": draft_ids()},
        ),
        "AngelSlim": Published(
            config(**official, head_dim=HEAD_DIM, tie_word_embeddings=True, rope_theta=1e6)
            | safetensors(angel),
            {"head_dim": 16, "n_heads": N_HEADS, "n_kv_heads": N_KV, "own_lm_head": True},
        ),
    }  # fmt: skip


def refused_layouts(vocab: int) -> dict[str, Published]:
    """Name of the kind, as the error has it -> a repository told by its config or its tensors."""
    draw = Draw(55)
    plain = config(vocab_size=vocab)
    head = eagle3(31, vocab)
    return {
        "P-EAGLE": Published(speculators(vocab, speculators_model_type="peagle") | safetensors(head)),
        "P-EAGLE ": Published(plain | safetensors({**head, "mask_hidden": draw(1, 1, 96)})),
        "DFlash": Published(
            config(vocab_size=vocab, architectures=["DFlashDraftModel"], dflash_config={"block_size": 8})
            | safetensors(eagle1(1))
        ),
        "DSpark": Published(speculators(vocab, speculators_model_type="dspark") | safetensors(head)),
        "MTP": Published(
            config(vocab_size=vocab, architectures=["Qwen3NextMTP"]) | safetensors(eagle1(1))
        ),
        "MTP ": Published(plain | safetensors({**eagle1(1), "eh_proj.weight": draw(HIDDEN, 64)})),
        "Medusa": Published(
            config(model_type="medusa", medusa_num_heads=3)
            | safetensors({"0.0.linear.weight": draw(HIDDEN, HIDDEN), "0.1.weight": draw(vocab, HIDDEN)})
        ),
        "Hydra": Published(config(hydra_num_heads=4) | safetensors({"hydra_head.0.weight": draw(4, 4)})),
        "MLP speculator": Published(
            config(model_type="mlp_speculator") | safetensors({"speculator.emb.0.weight": draw(vocab, 8)})
        ),
        "EAGLE with parallel draft heads": Published(
            plain | safetensors({**head, "parallel_draft_heads.0.weight": draw(4, 4)})
        ),
        "multi-head latent attention": Published(
            plain | safetensors({**head, "midlayer.self_attn.kv_b_proj.weight": draw(4, 4)})
        ),
        "mixture-of-experts": Published(
            plain | safetensors({**head, "midlayer.mlp.experts.0.up_proj.weight": draw(4, 4)})
        ),
        "quantized head": Published(
            plain | safetensors({**head, "midlayer.mlp.up_proj.weight_scale": draw(1)})
        ),
        "LoRA adapter": Published(plain | safetensors({"base.q_proj.lora_A.weight": draw(4, 4)})),
        "single feature": Published(
            config(vocab_size=vocab, eagle_config={"use_aux_hidden_state": False})
            | safetensors({k: v for k, v in head.items() if k != "fc.weight"})
        ),
        "no EAGLE-1 head": Published(plain | safetensors({"weight": draw(4, 4)})),
    }  # fmt: skip
