"""Models of a given shape with random weights, made on the device: speed does not depend on what they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from eagle_core.bench.config import Shape
from eagle_core.errors import OutOfMemory
from eagle_core.head_precision import place_head, quantize_linears
from eagle_core.heads.base import DraftHead
from eagle_core.heads.eagle1 import config_for_base
from eagle_core.heads.families import eagle3_for_base, make_head
from eagle_core.quantization import require_bitsandbytes

SEED = 0
# Of a published EAGLE-3 head for this shape: how many tokens it scores.
DRAFT_TOKENS: dict[Shape, int] = {"llama-8b": 32_000, "tiny": 64}
ROOM = 1.25  # the weights, and what else a measurement holds, over the weights alone


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama's dimensions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int

    def config(self, context_length: int) -> LlamaConfig:
        """transformers' config of this shape."""
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            num_key_value_heads=self.n_kv_heads,
            max_position_embeddings=context_length,
            tie_word_embeddings=False,
        )
        config._attn_implementation = "sdpa"
        return config

    @property
    def n_weights(self) -> int:
        """Of the matrices; norms hardly count."""
        head_dim = self.hidden_size // self.n_heads
        attention = 2 * self.hidden_size * (self.hidden_size + self.n_kv_heads * head_dim)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        return self.n_layers * layer + 2 * self.vocab_size * self.hidden_size


SHAPES: dict[Shape, ModelShape] = {
    "llama-8b": ModelShape(128_256, 4096, 14_336, 32, 32, 8),  # Llama-3.1-8B
    "tiny": ModelShape(512, 64, 128, 4, 4, 2),
}


def random_model(
    shape: ModelShape, device: torch.device, precision: str, context_length: int
) -> LlamaForCausalLM:
    """A model with random weights on ``device``, all layers but the LM head in 4 bits for "nf4".

    Raises: OutOfMemory before anything is made; ModelError when bitsandbytes is wanted and does not work.
    """
    check_room(shape, device)
    if precision == "nf4":
        require_bitsandbytes("nf4", device.type)
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                model: Any = LlamaForCausalLM(shape.config(context_length))
        finally:
            torch.set_default_dtype(before)
    model.train(False).requires_grad_(False)
    if precision == "nf4":
        for layer in model.model.layers:  # one by one: what is not yet small takes memory
            quantize_linears(layer, torch.bfloat16)
            layer.to(device)
    assert isinstance(model, LlamaForCausalLM)
    return model


def check_room(shape: ModelShape, device: torch.device) -> None:
    """Raises: OutOfMemory when the weights in 16 bits do not fit."""
    wanted = int(2 * shape.n_weights * ROOM)
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
    else:
        free = int(psutil.virtual_memory().available)
    if wanted > free:
        raise OutOfMemory(
            f"a model of {shape.n_weights / 1e9:.1f} billion random weights does not fit on {device}",
            expected=f"{wanted / 1e9:.1f} GB free",
            got=f"{free / 1e9:.1f} GB",
            hint="free some memory, choose another --device, or try the command with --shape tiny",
        )


def random_head(name: Shape, kind: str, device: torch.device) -> DraftHead:
    """A head with random weights that fits the shape: "eagle1" scores all tokens, "eagle3" a part of them."""
    shape = SHAPES[name]
    base = shape.config(4096)
    n_scored = DRAFT_TOKENS[name]
    if kind == "eagle1":
        config: Any = config_for_base(base)
    else:
        layers = (2, shape.n_layers // 2, shape.n_layers - math.ceil(shape.n_layers / 10))
        config = eagle3_for_base(base, layers, draft_vocab_size=n_scored)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        head = make_head(config)
    if head.draft_vocabulary is not None:
        head.draft_vocabulary.copy_(torch.arange(n_scored))
    head.requires_grad_(False)
    return place_head(head, device, torch.bfloat16)


def count_parameters(module: nn.Module) -> int:
    """Weights of a module, as stored."""
    return sum(parameter.numel() for parameter in module.parameters())


__all__ = ["SHAPES", "ModelShape", "count_parameters", "random_head", "random_model"]
