"""Layers that compute the same as a model's own, faster: from packed weights, by the compiled kernels or MKL.

They are put in place by :mod:`eagle_core.packing`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle_core.kernels import ops
from eagle_core.kernels.memory import LargePages

PACKED_FOR_ROWS = 16  # what MKL's packing is tuned to; other counts work as well
MOST_ROWS = 64  # beyond, the ordinary product is as fast as MKL's packed one

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
        biases = [layer.bias.detach().float() for layer in layers] if has_bias else []
        self._bias = torch.cat(biases) if has_bias else None
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


def joint_layers(
    linears: list[nn.Linear], *, is_int8: bool, pages: LargePages | None
) -> list[JointLinear]:
    """Layers of one input that share a product, in their order."""
    joint, begin = _JointProduct(linears, is_int8=is_int8, pages=pages), 0
    parts: list[JointLinear] = []
    for layer in linears:
        parts.append(JointLinear(layer, joint, begin, is_last=layer is linears[-1]))
        begin += layer.out_features
    return parts


__all__ = [
    "MOST_ROWS",
    "JointLinear",
    "Packed",
    "PackedLinear",
    "Parts",
    "RowGatedMlp",
    "RowLinear",
    "RowRmsNorm",
    "joint_layers",
]
