"""A head on its device, in its precision, with the fast layers.

Its precision changes what is drafted, never the text.
"""

from __future__ import annotations

import importlib
from typing import Any, TypeVar

import torch
from torch import nn

from eagle_core.config import HeadDType
from eagle_core.errors import ModelError
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.kernels.ops import has_fast_int8, has_kernels
from eagle_core.packing import pack_layers
from eagle_core.quantization import require_bitsandbytes

Head = TypeVar("Head", bound=nn.Module)


def place_head(
    head: Head,
    device: torch.device,
    dtype: torch.dtype,
    wanted: HeadDType = "auto",
) -> Head:
    """Make a loaded head ready to draft.

    Args:
        device: of the base's LM head.
        dtype: the base's; ``auto`` takes it, and 4-bit weights are computed in it. Where the base computes in
            float32 and the kernels multiply bytes faster, ``auto`` is int8.
    Raises: ModelError when 4 bits are wanted and bitsandbytes does not work here, or 8 bits where there are
        no kernels for them.
    """
    if wanted == "int8":
        _require_int8(device)
    is_float32_on_cpu = device.type == "cpu" and dtype == torch.float32
    is_int8 = wanted == "int8" or (wanted == "auto" and is_float32_on_cpu and has_fast_int8())
    if is_int8:
        dtype = torch.float32
    elif wanted not in ("auto", "nf4"):
        dtype = getattr(torch, wanted)
    head = head.to("cpu", dtype).train(False)
    if wanted == "nf4":
        require_bitsandbytes("a head in nf4", device.type)
        quantize_linears(head, dtype)
    head = head.to(device)
    pack_layers(head, is_int8=is_int8, frees=True)
    use_rows_attention(head)
    return head


def _require_int8(device: torch.device) -> None:
    if device.type != "cpu" or not has_kernels():
        raise ModelError(
            "a head in int8 needs this project's own kernels",
            expected="a CPU and a C++ compiler",
            got=device.type if device.type != "cpu" else "no compiler that works",
            hint="leave --head-dtype at auto",
        )


def is_int8(head: nn.Module) -> bool:
    """Whether a placed head keeps its weights in 8 bits for the kernels."""
    return any(getattr(module, "is_int8", False) for module in head.modules())


def head_dtype_name(head: nn.Module, wanted: HeadDType) -> str:
    """How a placed head's precision is called."""
    if is_int8(head):
        return "int8"
    return wanted if wanted == "nf4" else str(compute_dtype(head)).removeprefix("torch.")


def compute_dtype(head: nn.Module) -> torch.dtype:
    """What a head computes in; 4-bit weights are packed into bytes, its norms are not."""
    return next(p.dtype for p in head.parameters() if p.is_floating_point())


def quantize_linears(parent: nn.Module, dtype: torch.dtype) -> None:
    """Put 4-bit layers (NF4, computing in ``dtype``) in place of all linear ones below ``parent``.

    Their weights are made small when they are moved to a device.
    """
    layers: Any = importlib.import_module("bitsandbytes.nn")  # slow to import

    for name, child in list(parent.named_children()):
        if type(child) is not nn.Linear:
            quantize_linears(child, dtype)
            continue
        has_bias = child.bias is not None
        quantized = layers.Linear4bit(
            child.in_features, child.out_features, has_bias, compute_dtype=dtype, quant_type="nf4"
        )
        quantized.weight = layers.Params4bit(
            child.weight.detach(), requires_grad=False, quant_type="nf4", module=quantized
        )
        quantized.bias = child.bias
        setattr(parent, name, quantized)


__all__ = ["compute_dtype", "head_dtype_name", "is_int8", "place_head", "quantize_linears"]
