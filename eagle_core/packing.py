"""Swaps a float32 CPU model's layers for faster ones that compute the same.

With a compiler at hand (``kernels``): linear layers from packed weights, query, key and value in one
product, gated MLPs in one call, RMS norms. Without: linear layers from MKL's packed weights, where MKL is
there. The first of each kind is checked against the layer that it replaces, on random input, and left alone
if it differs; ``selftest`` compares the whole model. Only modules are swapped, by what they hold: no
architecture is named here.

Measured on 2 AVX-512 cores, all linear layers of the default model but the LM head, 1 / 8 / 16 rows: plain
22 / 50 / 57 ms, MKL 20 / 35 / 40, kernels 12 / 13 / 23.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from eagle_core.fast_layers import (
    JointLinear,
    Packed,
    PackedLinear,
    Parts,
    RowGatedMlp,
    RowLinear,
    RowRmsNorm,
    joint_layers,
)
from eagle_core.kernels import ops
from eagle_core.kernels.attention import NAME as ROWS_ATTENTION
from eagle_core.kernels.attention import set_attention
from eagle_core.kernels.memory import LargePages, give_back
from eagle_core.pages import PagesAhead

logger = logging.getLogger(__name__)

PLAIN = "plain_module"  # under this name a faster module remembers the one it replaces
GIVEN_BACK = 32 << 20  # bytes that are freed before they are given back
TOLERANCE = 1e-4  # relative to the largest value; float32 in another order of summation: 1e-6


def can_pack() -> bool:
    """Whether this PyTorch has MKL's packed products."""
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and hasattr(torch.ops.mkl, "_mkl_linear")


@torch.no_grad()
def pack_layers(
    model: nn.Module,
    *,
    is_int8: bool = False,
    widens: bool = False,
    frees: bool = False,
    ahead: PagesAhead | None = None,
) -> int:
    """Swap the model's float32 CPU layers for faster ones; returns how many were swapped.

    Parameters keep their names, and a weight shared with an embedding stays shared. Subclasses
    (quantized layers) are left alone.

    Args:
        is_int8: keep weights, and round inputs, in 8 bits; needs the kernels.
        widens: turn a model in bfloat16 into float32; its weights stay what they are, and those that are
            packed never lie in memory in float32, but for the first of each kind.
        frees: let go of weights that were packed; ``plain_layers`` and ``weight_of`` unpack them.
        ahead: memory that was touched for the packed weights; used first.
    """
    pages = LargePages(ahead)
    swap = _Swap(ops.has_kernels(), is_int8, widens, frees, _embeddings(model), pages)
    if widens:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                _widen(module.weight, pages)
    n_swapped = _swap_children(model, swap)
    if widens:
        model.float()
    pages.give_back_rest()
    return n_swapped


def _widen(weight: Tensor, pages: LargePages) -> None:
    place = pages.empty(weight.numel() * 4).view(torch.float32).view(weight.shape)
    weight.data = place.copy_(weight.data)


@dataclass(frozen=True, slots=True)
class _Swap:
    """How layers are swapped.

    ``kept`` are the ids of weights that something else uses as well, ``checked`` the kinds of modules of
    which one was compared with its faster form: the others differ by their weights alone.
    """

    uses_kernels: bool
    is_int8: bool = False
    widens: bool = False
    frees: bool = False
    kept: frozenset[int] = frozenset()
    pages: LargePages = field(default_factory=LargePages)
    checked: set[str] = field(default_factory=set)
    freed: list[int] = field(default_factory=lambda: [0])  # bytes since memory was given back

    def note_freed(self, n_bytes: int) -> None:
        """What was let go is given back to the system now and then: nothing packed lies there again."""
        self.freed[0] += n_bytes
        if self.freed[0] >= GIVEN_BACK:
            self.freed[0] = 0
            give_back()

    @property
    def pages_now(self) -> LargePages | None:
        """For a form that is compared with its layer: if it is rounded afterwards, it is not what is kept."""
        return None if self.is_int8 else self.pages


def _embeddings(model: nn.Module) -> frozenset[int]:
    return frozenset(id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding))


def _swap_children(parent: nn.Module, swap: _Swap) -> int:
    n_swapped = _join_projections(parent, swap) if swap.uses_kernels else 0
    for name, child in list(parent.named_children()):
        if isinstance(child, Packed):
            continue
        swapped = _faster(child, swap)
        if swapped is child:
            n_swapped += _swap_children(child, swap)
        else:
            _swap(parent, name, swapped, swap)
            n_swapped += 1
    return n_swapped


def _swap(parent: nn.Module, name: str, faster: nn.Module, swap: _Swap) -> None:
    """Put ``faster`` in a module's place; the module is remembered, but is no child any more."""
    faster.__dict__[PLAIN] = getattr(parent, name)
    setattr(parent, name, faster)
    if swap.frees and isinstance(faster, Packed):
        for linear, _ in faster.parts():
            if id(linear.weight) not in swap.kept:
                swap.note_freed(linear.weight.nbytes)
                _let_go(linear)


def _let_go(linear: Any) -> None:
    linear.weight.data = linear.weight.data.new_empty(0)


def weight_of(linear: Any) -> Tensor:
    """Weight [out, in] of a linear layer, unpacked if it was let go."""
    if linear.weight.numel() == 0 and isinstance(linear, Packed):
        ((_, unpacked),) = linear.parts()
        return unpacked()
    weight: Tensor = linear.weight
    return weight


def count_let_go(model: nn.Module) -> int:
    """Parameters that are kept packed only, and so are no parameters of the model any more."""
    freed = [linear for linear, _ in _packed_parts(model) if linear.weight.numel() == 0]
    return sum(int(linear.in_features * linear.out_features) for linear in freed)


def bytes_read(model: nn.Module) -> int:
    """Bytes of weights that a forward reads: all but an embedding that is nothing else."""
    packed = _packed(model)
    swapped = {id(linear.weight) for linear, _ in _packed_parts(model)}
    plain = {
        id(m.weight)
        for m in model.modules()
        if isinstance(m, nn.Linear) and id(m.weight) not in swapped
    }
    left_out = (swapped | _embeddings(model)) - plain
    others = sum(p.nbytes for p in model.parameters() if id(p) not in left_out)
    return others + sum(module.n_bytes for module in packed)


def _packed(model: nn.Module) -> list[Packed]:
    return [module for module in model.modules() if isinstance(module, Packed)]


def _packed_parts(model: nn.Module) -> Parts:
    return [part for module in _packed(model) for part in module.parts()]


@contextmanager
def plain_layers(model: nn.Module) -> Iterator[None]:
    """The model as transformers made it, for a while: its own layers and its own attention.

    Weights that were let go are unpacked, which takes their full size in memory.
    """
    freed = [part for part in _packed_parts(model) if part[0].weight.numel() == 0]
    swapped = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if PLAIN in child.__dict__
    ]
    for linear, unpacked in freed:
        linear.weight.data = unpacked()
    for parent, name, child in swapped:
        setattr(parent, name, child.__dict__[PLAIN])
    configs = set_attention(model, ROWS_ATTENTION, "sdpa")
    try:
        yield
    finally:
        for config in configs:
            config._attn_implementation = ROWS_ATTENTION
        for parent, name, child in swapped:
            setattr(parent, name, child)
        for linear, _ in freed:
            _let_go(linear)


def packed_if_faster(linear: nn.Linear, *, is_int8: bool = False) -> nn.Module:
    """A packed layer of the same weight, or the layer itself where packing is not possible."""
    return _faster(linear, _Swap(ops.has_kernels(), is_int8))


def _faster(module: Any, swap: _Swap) -> nn.Module:
    """The module's faster form, or itself."""
    if swap.uses_kernels and _is_rms_norm(module, swap):
        if swap.widens:
            module.float()
        norm = RowRmsNorm(module)
        return norm if _agrees(module, norm, norm.weight.shape[0]) else module
    form = _form_of(module, swap)
    if form is None:
        return module  # type: ignore[no-any-return]
    make, width = form
    if (kind := _kind(module)) in swap.checked:
        return make(is_int8=swap.is_int8, pages=swap.pages)
    if swap.widens:
        module.float()
    candidate = make(is_int8=False, pages=swap.pages_now)
    if not _agrees(module, candidate, width):
        return module  # type: ignore[no-any-return]
    swap.checked.add(kind)
    return make(is_int8=True, pages=swap.pages) if swap.is_int8 else candidate


def _form_of(module: Any, swap: _Swap) -> tuple[Callable[..., nn.Module], int] | None:
    """What makes a module's faster form with packed weights, and the width of its input."""
    if _is_plain_linear(module, swap):
        if swap.uses_kernels:
            return partial(RowLinear, module), module.in_features
        return (lambda **_: PackedLinear(module), module.in_features) if can_pack() else None
    if swap.uses_kernels and _is_gated_mlp(module, swap):
        return partial(RowGatedMlp, module), module.gate_proj.in_features
    return None


def _kind(*modules: nn.Module) -> str:
    """Alike for modules that compute the same of their weights: their layers, shapes and plain numbers.

    What has buffers is of a kind of its own.
    """
    buffers = [id(buffer) for module in modules for buffer in module.buffers()]
    plain = [
        (name, value)
        for module in modules
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, (bool, int, float, str))
    ]
    return f"{modules!r} {plain!r} {buffers!r}"


def _join_projections(parent: nn.Module, swap: _Swap) -> int:
    """Let the query, key and value layers of an attention module share one product."""
    names = ("q_proj", "k_proj", "v_proj")
    layers = [getattr(parent, name, None) for name in names]
    if not all(_is_plain_linear(layer, swap) for layer in layers):
        return 0
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    same_input = len({layer.in_features for layer in linears}) == 1
    if not same_input or len({layer.bias is None for layer in linears}) != 1:
        return 0
    if (kind := _kind(*linears)) in swap.checked:
        parts = joint_layers(linears, is_int8=swap.is_int8, pages=swap.pages)
    else:
        if swap.widens:
            for layer in linears:
                layer.float()
        parts = joint_layers(linears, is_int8=False, pages=swap.pages_now)
        if not _all_agree(linears, parts):
            return 0
        swap.checked.add(kind)
        if swap.is_int8:
            parts = joint_layers(linears, is_int8=True, pages=swap.pages)
    for name, part in zip(names, parts, strict=True):
        _swap(parent, name, part, swap)
    return len(parts)


def _all_agree(linears: list[nn.Linear], parts: list[JointLinear]) -> bool:
    inputs = _probe(linears[0].in_features)
    pairs = zip(linears, parts, strict=True)
    return all(_is_close(layer(inputs), part(inputs)) for layer, part in pairs)


def _is_plain_linear(module: Any, swap: _Swap) -> bool:
    return type(module) is nn.Linear and _can_be_float32(module.weight, swap)


def _is_gated_mlp(module: Any, swap: _Swap) -> bool:
    """Three linear layers without bias and nothing else; whether it is the usual formula is measured."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(_is_plain_linear(layer, swap) and layer.bias is None for layer in layers):  # type: ignore[union-attr]
        return False
    n_parameters = sum(1 for _ in module.parameters())
    return n_parameters == 3 and module.gate_proj.out_features % ops.PANEL == 0


def _is_rms_norm(module: Any, swap: _Swap) -> bool:
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__.endswith("RMSNorm")
        and hasattr(module, "variance_epsilon")
        and isinstance(weight, Tensor)
        and weight.ndim == 1
        and weight.shape[0] % ops.LANES == 0
        and _can_be_float32(weight, swap)
    )


def _can_be_float32(weight: Tensor, swap: _Swap) -> bool:
    """Whether it is on the CPU in float32, or will be."""
    is_narrow = swap.widens and weight.dtype == torch.bfloat16
    return weight.device.type == "cpu" and (weight.dtype == torch.float32 or is_narrow)


def _probe(width: int) -> Tensor:
    """Random rows to compare two layers on: [1, 5, width], of several sizes."""
    random = torch.Generator().manual_seed(width)
    rows = torch.randn(1, 5, width, generator=random, dtype=torch.float32)
    return rows * torch.tensor([0.1, 0.5, 1.0, 2.0, 8.0], dtype=torch.float32)[None, :, None]


def _agrees(module: nn.Module, candidate: nn.Module, width: int) -> bool:
    inputs = _probe(width)
    try:
        wanted = module(inputs)
    except (TypeError, RuntimeError):  # takes more than its input
        return False
    if _is_close(wanted, candidate(inputs)):
        return True
    logger.info(
        "%s computes something else than its faster form: left alone", type(module).__name__
    )
    return False


def _is_close(wanted: Any, found: Tensor) -> bool:
    if not isinstance(wanted, Tensor) or wanted.shape != found.shape:
        return False
    return bool((wanted - found).abs().max() <= TOLERANCE * wanted.abs().max())


__all__ = [
    "bytes_read",
    "can_pack",
    "count_let_go",
    "pack_layers",
    "packed_if_faster",
    "plain_layers",
    "weight_of",
]
