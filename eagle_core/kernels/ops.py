"""The compiled kernels as functions of tensors: float32 on the CPU, a few rows at a time.

A row's result depends on that row alone, bit for bit: not on how many rows are computed beside it
(``vectors.h`` says why). Weights that bfloat16 holds exactly are read as bfloat16, at half the memory
traffic; products and sums are float32 all the same.

Every tensor is made with its dtype. While another thread loads a model, PyTorch's default is that model's,
and a kernel would write beyond the end of a tensor that is narrower than it believes.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from eagle_core.kernels.build import attention_library, kernel_library
from eagle_core.kernels.memory import LargePages
from eagle_core.kernels.recording import GATED_MLP, LINEAR, RMS_NORM, active, float_bits

PANEL = 32  # output columns that lie together
LANES = 16
COMPARED = 1 << 17  # weights that are compared at once
FLOAT32, BFLOAT16, INT8 = range(3)  # how a packed weight is kept; products.cpp

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "eagle_pack": (
        ctypes.c_int, _pointer, ctypes.c_int, _pointer, *[_int64] * 2, ctypes.c_int,
    ),
    "eagle_unpack": (ctypes.c_int, *[_pointer] * 2, *[_int64] * 2, ctypes.c_int),
    "eagle_linear": (ctypes.c_int, *[_pointer] * 5, *[_int64] * 3, ctypes.c_int),
    "eagle_gated_mlp": (ctypes.c_int, *[_pointer] * 6, *[_int64] * 4, ctypes.c_int),
    "eagle_rms_norm": (*[_pointer] * 3, *[_int64] * 2, ctypes.c_float),
    "eagle_top": (_pointer, *[_int64] * 3, *[_pointer] * 2, ctypes.c_int),
    "eagle_run": (_pointer, *[_int64] * 2, _pointer, _int64, ctypes.c_int),
    "eagle_attention": (
        *[_pointer, _int64, _int64] * 3, _pointer, _int64, _pointer, *[_int64] * 5, ctypes.c_float,
        ctypes.c_int,
    ),
}  # fmt: skip


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = kernel_library()
    assert library is not None, "check has_kernels() first"
    for name, types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = list(types), None
    library.eagle_packed_bytes.argtypes = [ctypes.c_int, _int64, _int64]
    library.eagle_packed_bytes.restype = _int64
    library.eagle_race.argtypes = [_pointer, _int64, _int64, ctypes.c_int]
    library.eagle_race.restype = _int64
    library.eagle_head_starts.argtypes = [_pointer, _int64, _int64, _pointer]
    library.eagle_head_starts.restype = None
    library.eagle_likeliest.argtypes = [_pointer, _int64, _pointer]
    library.eagle_likeliest.restype = _int64
    library.eagle_provide_attention.argtypes = [_int64, _pointer]
    library.eagle_provide_attention.restype = None
    return library


def has_kernels() -> bool:
    """Whether the kernels are compiled, or can be, on this machine."""
    return kernel_library() is not None


class PackedWeight:
    """A weight in panels of 32 outputs, the order in which the kernels read it.

    Kept in bfloat16 where that holds it exactly, else in float32; with ``is_int8`` rounded to 8 bits, one
    scale per output and 64 inputs.

    Args:
        weight: [N, K] float32 or bfloat16 on the CPU.
        pages: where it is kept; None: in ordinary memory.
    """

    def __init__(
        self, weight: Tensor, *, is_int8: bool = False, pages: LargePages | None = None
    ) -> None:
        self.n_out, self.n_in = weight.shape
        source = weight.detach() if is_int8 else _smallest(weight.detach())
        is_narrow = source.dtype == torch.bfloat16
        source = source if is_narrow else source.float()
        self.format = INT8 if is_int8 else BFLOAT16 if is_narrow else FLOAT32
        source = source.contiguous()
        n_bytes = _library().eagle_packed_bytes(self.format, self.n_in, self.n_out)
        self.data = (
            pages.empty(n_bytes) if pages is not None else torch.empty(n_bytes, dtype=torch.uint8)
        )
        self.address = self.data.data_ptr()
        _library().eagle_pack(
            self.format, source.data_ptr(), is_narrow, self.address, self.n_in, self.n_out,
            torch.get_num_threads(),
        )  # fmt: skip

    def unpacked(self) -> Tensor:
        """The weight that is computed with, [N, K] f32."""
        weight = torch.empty(self.n_out, self.n_in, dtype=torch.float32)
        _library().eagle_unpack(
            self.format, self.address, weight.data_ptr(), self.n_in, self.n_out,
            torch.get_num_threads(),
        )  # fmt: skip
        return weight


def _smallest(weight: Tensor) -> Tensor:
    """The weight in bfloat16 if that is exact, else in float32."""
    if weight.dtype == torch.bfloat16:
        return weight
    small = weight.to(torch.bfloat16)
    n_rows = max(COMPARED // weight.shape[1], 1)  # pieces that the processor's cache holds
    pieces = zip(torch.split(small, n_rows), torch.split(weight, n_rows), strict=True)
    is_exact = all(torch.equal(some.float(), whole) for some, whole in pieces)
    return small if is_exact else weight.float()


def has_fast_int8() -> bool:
    """Whether this processor multiplies bytes faster than floats."""
    return has_kernels() and bool(_library().eagle_has_fast_int8())


def linear(inputs: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """[..., K] f32 -> [..., N] f32."""
    inputs = inputs.contiguous()
    out = inputs.new_empty(*inputs.shape[:-1], weight.n_out)
    _library().eagle_linear(
        weight.format, weight.address, inputs.data_ptr(),
        None if bias is None else bias.data_ptr(), None, out.data_ptr(),
        inputs.numel() // weight.n_in, weight.n_in, weight.n_out, torch.get_num_threads(),
    )  # fmt: skip
    if (recorder := active()) is not None:
        recorder.product(LINEAR, (inputs, out), [
            weight.format, weight.address, inputs.data_ptr(), 0 if bias is None else bias.data_ptr(),
            out.data_ptr(), inputs.numel() // weight.n_in, weight.n_in, weight.n_out,
        ])  # fmt: skip
    return out


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """Two weights [M, K] as one [2 M, K] whose panels alternate; M is a multiple of 32."""
    n_mid, n_in = gate.shape
    panels = torch.stack((gate.view(-1, PANEL, n_in), up.view(-1, PANEL, n_in)), dim=1)
    return panels.reshape(2 * n_mid, n_in)


def separated(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of :func:`interleaved`: gate and up, [M, K] each."""
    n_in = gate_up.shape[1]
    panels = gate_up.view(-1, 2, PANEL, n_in)  # [M / 32, 2, 32, K]
    return panels[:, 0].reshape(-1, n_in), panels[:, 1].reshape(-1, n_in)


def gated_mlp(inputs: Tensor, gate_up: PackedWeight, down: PackedWeight) -> Tensor:
    """silu(x gate) * (x up), then down: [..., K] f32 -> [..., N] f32. ``gate_up`` is packed interleaved."""
    inputs = inputs.contiguous()
    n_rows = inputs.numel() // gate_up.n_in
    middle = inputs.new_empty(n_rows, down.n_in)
    out = inputs.new_empty(*inputs.shape[:-1], down.n_out)
    _library().eagle_gated_mlp(
        gate_up.format, gate_up.address, down.address, inputs.data_ptr(), None,
        middle.data_ptr(), out.data_ptr(), n_rows, gate_up.n_in, down.n_in, down.n_out,
        torch.get_num_threads(),
    )  # fmt: skip
    if (recorder := active()) is not None:
        recorder.product(GATED_MLP, (inputs, middle, out), [
            gate_up.format, gate_up.address, down.address, inputs.data_ptr(), middle.data_ptr(),
            out.data_ptr(), n_rows, gate_up.n_in, down.n_in, down.n_out,
        ])  # fmt: skip
    return out


def rms_norm(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """[..., K] f32, K a multiple of 16, divided by its root mean square and times ``weight``."""
    inputs = inputs.contiguous()
    out = torch.empty_like(inputs)
    n = inputs.shape[-1]
    _library().eagle_rms_norm(
        inputs.data_ptr(), weight.data_ptr(), out.data_ptr(), inputs.numel() // n, n, epsilon
    )
    if (recorder := active()) is not None:
        recorder.product(RMS_NORM, (inputs, out), [
            inputs.data_ptr(), weight.data_ptr(), out.data_ptr(), inputs.numel() // n, n, float_bits(epsilon),
        ])  # fmt: skip
    return out


def race(probabilities: Tensor, key: int) -> int:
    """Winner of an exponential race over [V] f32; see :func:`eagle_core.sampling.race`."""
    winner: int = _library().eagle_race(
        probabilities.data_ptr(), probabilities.shape[0], key, torch.get_num_threads()
    )
    return winner


def head_starts(tokens: Tensor, key: int) -> Tensor:
    """-log of the arrival times of tokens [C] i64 in an exponential race, [C] f32; see :func:`race`."""
    tokens = tokens.contiguous()
    starts = torch.empty(tokens.shape, dtype=torch.float32)
    _library().eagle_head_starts(tokens.data_ptr(), tokens.shape[0], key, starts.data_ptr())
    return starts


def likeliest(logits: Tensor) -> tuple[int, float]:
    """The first of the highest of [V] f32 and its softmax; no number if one of them is none."""
    probability = ctypes.c_float()
    winner: int = _library().eagle_likeliest(
        logits.data_ptr(), logits.shape[0], ctypes.addressof(probability)
    )
    return winner, probability.value


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` likeliest tokens of each row: [R, V] f32 -> ids [R, k] i64, log-probabilities [R, k] f32.

    What is no number counts as -1e9; k is at most V.
    """
    logits = logits.contiguous()
    n_rows, n = logits.shape
    ids, scores = (
        torch.empty(n_rows, k, dtype=torch.long),
        torch.empty(n_rows, k, dtype=torch.float32),
    )
    _library().eagle_top(
        logits.data_ptr(), n_rows, n, k, ids.data_ptr(), scores.data_ptr(), torch.get_num_threads()
    )
    return ids, scores


@lru_cache(maxsize=64)
def can_attend(head_dim: int) -> bool:
    """Whether there is an attention kernel for this head size; compiles it if need be."""
    library = attention_library(head_dim)
    if library is None:
        return False
    address = ctypes.cast(library.eagle_attend, ctypes.c_void_p)
    _library().eagle_provide_attention(head_dim, address)
    return True


def attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Attention of a few rows over a cache, each row's keys taken in the order they lie in.

    Args:
        query: [H, N, d] f32, any strides but the last.
        keys, values: [G, S, d] f32, the same; H is a multiple of G, and d a size that :func:`can_attend`.
        mask: [N, S] f32, additive, -1e30 or below hides a key; None: causal, the rows are the last keys'.
    Returns: [N, H, d] f32.
    Raises: ValueError for another head size.
    """
    n_heads, n_rows, head_dim = query.shape
    if not can_attend(head_dim):
        raise ValueError(f"no attention kernel for heads of {head_dim} numbers")
    out = query.new_empty(n_rows, n_heads, head_dim)
    _library().eagle_attention(
        query.data_ptr(), query.stride(0), query.stride(1),
        keys.data_ptr(), keys.stride(0), keys.stride(1),
        values.data_ptr(), values.stride(0), values.stride(1),
        None if mask is None else mask.data_ptr(), 0 if mask is None else mask.stride(0),
        out.data_ptr(), n_rows, keys.shape[1], n_heads, keys.shape[0], head_dim, scale,
        torch.get_num_threads(),
    )  # fmt: skip
    if (recorder := active()) is not None:
        recorder.attention(query, keys, values, mask, out, scale)
    return out


def run_program(program: Tensor, length: int, mask: Tensor | None) -> None:
    """Run recorded native steps, [steps, SLOTS] i64, with ``length`` committed cache rows and this mask."""
    _library().eagle_run(
        program.data_ptr(), program.shape[0], length, None if mask is None else mask.data_ptr(),
        0 if mask is None else mask.stride(0), torch.get_num_threads(),
    )  # fmt: skip


__all__ = [
    "PackedWeight",
    "attention",
    "can_attend",
    "gated_mlp",
    "has_fast_int8",
    "has_kernels",
    "head_starts",
    "interleaved",
    "likeliest",
    "linear",
    "race",
    "rms_norm",
    "run_program",
    "separated",
    "top",
]
