"""Swaps a float32 CPU model's layers for faster ones that compute the same.

With a compiler at hand (``kernels``): linear layers from packed weights, query, key and value in one
product, gated MLPs in one call, RMS norms. Without: linear layers from MKL's packed weights, where MKL is
there. Every swap is checked against the layer it replaces, on random input, and left out if it differs. Only
modules are swapped, by what they hold: no architecture is named here.

Measured on 2 AVX-512 cores, all linear layers of the default model but the LM head, 1 / 8 / 16 rows: plain
22 / 50 / 57 ms, MKL 20 / 35 / 40, kernels 12 / 13 / 23.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle_core.kernels import ops
from eagle_core.kernels.attention import NAME as ROWS_ATTENTION
from eagle_core.kernels.attention import set_attention
from eagle_core.kernels.memory import LargePages, give_back

logger = logging.getLogger(__name__)

PACKED_FOR_ROWS = 16  # what MKL's packing is tuned to; other counts work as well
MOST_ROWS = 64  # beyond, the ordinary product is as fast as MKL's packed one
PLAIN = "plain_module"  # under this name a faster module remembers the one it replaces
GIVEN_BACK = 32 << 20  # bytes that are freed before they are given back
TOLERANCE = 1e-4  # relative to the largest value; float32 in another order of summation: 1e-6


Parts = list[tuple[Any, Callable[[], Tensor]]]


class Packed(nn.Module, ABC):
    """A module whose linear layers are kept packed; their own weights may be let go."""

    @abstractmethod
    def parts(self) -> Parts:
        """The linear layers, each with what unpacks the weight that is computed with."""

    @abstractmethod
    def weights(self) -> list[ops.PackedWeight]:
        """The packed weights; one that layers share is the last one's."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the packed weights."""
        return sum(weight.data.nbytes for weight in self.weights())


class RowLinear(Packed):
    """A frozen linear layer with packed weights."""

    def __init__(
        self, linear: nn.Linear, *, is_int8: bool = False, pages: LargePages | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._packed = ops.PackedWeight(linear.weight, is_int8=is_int8, pages=pages)

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] -> [..., out] f32."""
        return ops.linear(inputs, self._packed, self.bias)

    def parts(self) -> Parts:
        """The layer itself."""
        return [(self, self._packed.unpacked)]

    def weights(self) -> list[ops.PackedWeight]:
        """Its one weight."""
        return [self._packed]

    @property
    def is_int8(self) -> bool:
        """Whether it computes in 8 bits."""
        return self._packed.format == ops.INT8


class _JointProduct:
    """Several linear layers of one input as one product; each part takes its columns of it."""

    def __init__(
        self, layers: list[nn.Linear], *, is_int8: bool = False, pages: LargePages | None = None
    ) -> None:
        weight = torch.cat([layer.weight.detach() for layer in layers])
        self._packed = ops.PackedWeight(weight, is_int8=is_int8, pages=pages)
        has_bias = layers[0].bias is not None
        self._bias = torch.cat([layer.bias.detach() for layer in layers]) if has_bias else None
        self._inputs: Tensor | None = None
        self._outputs: Tensor | None = None

    @property
    def weight(self) -> ops.PackedWeight:
        """The joint weight."""
        return self._packed

    def part(self, inputs: Tensor, begin: int, end: int, is_last: bool) -> Tensor:
        """Columns of the product; it is taken once per input and forgotten with its last part."""
        if self._inputs is not inputs or self._outputs is None:
            self._outputs = ops.linear(inputs, self._packed, self._bias)
            self._inputs = inputs
        out = self._outputs[..., begin:end]
        if is_last:
            self._inputs = self._outputs = None
        return out

    def rows(self, begin: int, end: int) -> Tensor:
        """Rows of the joint weight, a copy."""
        return self._packed.unpacked()[begin:end].clone()


class JointLinear(Packed):
    """One of several linear layers that share a product."""

    def __init__(self, linear: nn.Linear, joint: _JointProduct, begin: int, is_last: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._joint, self._begin, self._is_last = joint, begin, is_last

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] -> [..., out] f32, a view into the joint product."""
        end = self._begin + self.out_features
        return self._joint.part(inputs, self._begin, end, self._is_last)

    def parts(self) -> Parts:
        """The layer itself."""
        end = self._begin + self.out_features
        return [(self, partial(self._joint.rows, self._begin, end))]

    def weights(self) -> list[ops.PackedWeight]:
        """The joint weight, if this is the last of its layers."""
        return [self._joint.weight] if self._is_last else []


class RowGatedMlp(Packed):
    """down(silu(gate(x)) * up(x)) in one call; holds the layers under their own names."""

    def __init__(self, mlp: Any, *, is_int8: bool = False, pages: LargePages | None = None) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        gate, up = self.gate_proj.weight.detach(), self.up_proj.weight.detach()
        joint = ops.interleaved(gate, up)
        self._gate_up = ops.PackedWeight(joint, is_int8=is_int8, pages=pages)
        self._down = ops.PackedWeight(self.down_proj.weight, is_int8=is_int8, pages=pages)

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., D] -> [..., D] f32."""
        return ops.gated_mlp(inputs, self._gate_up, self._down)

    def parts(self) -> Parts:
        """The three layers."""
        return [
            (self.gate_proj, lambda: ops.separated(self._gate_up.unpacked())[0]),
            (self.up_proj, lambda: ops.separated(self._gate_up.unpacked())[1]),
            (self.down_proj, self._down.unpacked),
        ]

    def weights(self) -> list[ops.PackedWeight]:
        """Gate and up as one, and down."""
        return [self._gate_up, self._down]


class RowRmsNorm(nn.Module):
    """Root-mean-square norm in one call."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self.variance_epsilon = float(norm.variance_epsilon)

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., D] -> [..., D] f32."""
        return ops.rms_norm(inputs, self.weight, self.variance_epsilon)


class PackedLinear(nn.Module):
    """A frozen float32 linear layer with MKL's packed weights; the plain weight stays for long inputs."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        packed = torch.ops.mkl._mkl_reorder_linear_weight(linear.weight.detach(), PACKED_FOR_ROWS)
        self.packed: Tensor = packed

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] -> [..., out] f32."""
        n_rows = inputs.numel() // self.in_features
        if n_rows > MOST_ROWS:
            return F.linear(inputs, self.weight, self.bias)
        out: Tensor = torch.ops.mkl._mkl_linear(inputs, self.packed, self.weight, self.bias, n_rows)
        return out


def can_pack() -> bool:
    """Whether this PyTorch has MKL's packed products."""
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and hasattr(torch.ops.mkl, "_mkl_linear")


@torch.no_grad()
def pack_layers(
    model: nn.Module, *, is_int8: bool = False, widens: bool = False, frees: bool = False
) -> int:
    """Swap the model's float32 CPU layers for faster ones; returns how many were swapped.

    Parameters keep their names, and a weight shared with an embedding stays shared. Subclasses
    (quantized layers) are left alone.

    Args:
        is_int8: keep weights, and round inputs, in 8 bits; needs the kernels.
        widens: turn a model in bfloat16 into float32, layer by layer; its weights stay what they are.
        frees: let go of weights that were packed; ``plain_layers`` and ``weight_of`` unpack them.
    """
    swap = _Swap(ops.has_kernels(), is_int8, widens, frees, _embeddings(model))
    n_swapped = _swap_children(model, swap)
    if widens:
        model.float()
    return n_swapped


@dataclass(frozen=True, slots=True)
class _Swap:
    """How layers are swapped; ``kept`` are the ids of weights that something else uses as well."""

    uses_kernels: bool
    is_int8: bool = False
    widens: bool = False
    frees: bool = False
    kept: frozenset[int] = frozenset()
    pages: LargePages = field(default_factory=LargePages)

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
        if swap.widens and not _is_large(child):
            child.float()
        swapped = _faster(child, swap)
        if swapped is child:
            n_swapped += _swap_children(child, swap)
        else:
            _swap(parent, name, swapped, swap)
            n_swapped += 1
    return n_swapped


def _is_large(module: nn.Module) -> bool:
    """Whether to widen a module part by part: it holds an embedding, or a list of layers."""
    return any(isinstance(part, (nn.Embedding, nn.ModuleList)) for part in module.modules())


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
    candidate: nn.Module
    if _is_plain_linear(module):
        if not swap.uses_kernels and not can_pack():
            return module  # type: ignore[no-any-return]
        candidate = (
            RowLinear(module, pages=swap.pages_now) if swap.uses_kernels else PackedLinear(module)
        )
        width = module.in_features
    elif swap.uses_kernels and _is_gated_mlp(module):
        candidate, width = RowGatedMlp(module, pages=swap.pages_now), module.gate_proj.in_features
    elif swap.uses_kernels and _is_rms_norm(module):
        candidate, width = RowRmsNorm(module), module.weight.shape[0]
    else:
        return module  # type: ignore[no-any-return]
    if not _agrees(module, candidate, width):
        return module  # type: ignore[no-any-return]
    if swap.is_int8 and isinstance(candidate, (RowLinear, RowGatedMlp)):
        return type(candidate)(module, is_int8=True, pages=swap.pages)
    return candidate


def _join_projections(parent: nn.Module, swap: _Swap) -> int:
    """Let the query, key and value layers of an attention module share one product."""
    names = ("q_proj", "k_proj", "v_proj")
    layers = [getattr(parent, name, None) for name in names]
    if not all(_is_plain_linear(layer) for layer in layers):
        return 0
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    same_input = len({layer.in_features for layer in linears}) == 1
    if not same_input or len({layer.bias is None for layer in linears}) != 1:
        return 0
    parts = _joint_parts(linears, is_int8=False, pages=swap.pages_now)
    inputs = _probe(linears[0].in_features)
    if not all(
        _is_close(layer(inputs), part(inputs)) for layer, part in zip(linears, parts, strict=True)
    ):
        return 0
    if swap.is_int8:
        parts = _joint_parts(linears, is_int8=True, pages=swap.pages)
    for name, part in zip(names, parts, strict=True):
        _swap(parent, name, part, swap)
    return len(parts)


def _joint_parts(
    linears: list[nn.Linear], *, is_int8: bool, pages: LargePages | None
) -> list[JointLinear]:
    joint, begin = _JointProduct(linears, is_int8=is_int8, pages=pages), 0
    parts: list[JointLinear] = []
    for layer in linears:
        parts.append(JointLinear(layer, joint, begin, is_last=layer is linears[-1]))
        begin += layer.out_features
    return parts


def _is_plain_linear(module: Any) -> bool:
    return type(module) is nn.Linear and _is_float32_on_cpu(module.weight)


def _is_gated_mlp(module: Any) -> bool:
    """Three linear layers without bias and nothing else; whether it is the usual formula is measured."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(_is_plain_linear(layer) and layer.bias is None for layer in layers):  # type: ignore[union-attr]
        return False
    n_parameters = sum(1 for _ in module.parameters())
    return n_parameters == 3 and module.gate_proj.out_features % ops.PANEL == 0


def _is_rms_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__.endswith("RMSNorm")
        and hasattr(module, "variance_epsilon")
        and isinstance(weight, Tensor)
        and weight.ndim == 1
        and weight.shape[0] % ops.LANES == 0
        and _is_float32_on_cpu(weight)
    )


def _is_float32_on_cpu(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


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
    "MOST_ROWS",
    "JointLinear",
    "Packed",
    "PackedLinear",
    "RowGatedMlp",
    "RowLinear",
    "RowRmsNorm",
    "bytes_read",
    "can_pack",
    "count_let_go",
    "pack_layers",
    "packed_if_faster",
    "plain_layers",
    "weight_of",
]
