"""Records one forward of a few rows as a list of steps on fixed addresses.

While a :class:`Recorder` is active every operation that depends on the inputs is noted, and every tensor
is kept alive, so that the addresses stay valid: what a CUDA graph does, on the CPU. Products, attention and
cache writes are noted by the functions that make them (``ops``, ``cache``); elementwise operations are
translated; whatever else occurs is called again from Python at each replay. What cannot be replayed - a value
that is read on the host, a tensor whose shape changes with the cache - ends the recording.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SLOTS = 28  # numbers per native step; program.cpp
DIMS = 5
LINEAR, GATED_MLP, RMS_NORM, ATTENTION, APPEND, ADD, MUL, SUB, NEG, COPY, ROTATE = range(11)
LINEAR_OUT = 5  # slot of a product's result
READS_HOST = frozenset(
    {
        "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal",
        "aten::is_nonzero", "aten::unique_dim", "aten::unique_consecutive",
    }
)  # fmt: skip
ALLOCATIONS = frozenset(
    {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"}
)
BINARY = {"aten::add": ADD, "aten::sub": SUB, "aten::mul": MUL}
COPIES = frozenset({"aten::clone", "aten::_to_copy"})


class _Recorders(threading.local):
    """A thread's own: while one model's forward is recorded, another model may be answering in its thread."""

    def __init__(self) -> None:
        self.active: list[Recorder] = []


_recorders = _Recorders()


class Unrecordable(Exception):
    """This forward cannot be replayed."""


@dataclass(slots=True)
class PythonStep:
    """An operation that is called again at each replay; its results go to where they were."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...]

    def run(self) -> None:
        """Call it on what the recorded arguments now hold."""
        results = tensors_in(self.function(*self.args, **self.kwargs))
        for output, result in zip(self.outputs, results, strict=True):
            if output is not result:
                output.copy_(result)


NativeStep = list[int]


@dataclass(slots=True)
class Recorder:
    """Steps of one forward, and the tensors that they live on.

    Args:
        inputs: tensors that the caller rewrites before a replay.
        mask: the additive mask [N, S], which may move and grow from run to run; None: there is none.
    """

    inputs: Sequence[Tensor]
    mask: Tensor | None
    steps: list[PythonStep | NativeStep] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    is_paused: bool = False
    n_bytes: int = 0  # of the results that are kept
    _changing: set[int] = field(default_factory=set)
    _moving: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._changing = {_storage(tensor) for tensor in self.inputs}
        if self.mask is not None:
            self._moving.add(_storage(self.mask))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what happens inside."""
        _recorders.active.append(self)
        try:
            with _Mode(self):
                yield
        finally:
            _recorders.active.pop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing for a while."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def note(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """One operation of PyTorch.

        Raises: Unrecordable.
        """
        name = str(function.name()).split(".")[0]
        if name in READS_HOST:
            raise Unrecordable(f"{name} reads a value on the host")
        inputs, outputs = tensors_in((args, kwargs)), tensors_in(result)
        self.kept += [inputs, outputs]
        read = {_storage(tensor) for tensor in inputs}
        is_in_place = bool(function._schema.is_mutable)
        if name in ALLOCATIONS:
            return
        if not is_in_place and all(_storage(tensor) in read for tensor in outputs):
            return  # a view: it has its address already
        self.n_bytes += sum(t.nbytes for t in outputs if _storage(t) not in read)
        if read & self._moving:
            raise Unrecordable(f"{name} reads the mask or the cache")
        if not read & self._changing:
            return  # the same at each replay
        self._changing |= {_storage(tensor) for tensor in outputs}
        native = self._translate(name, args, kwargs, outputs)
        if native is not None:
            self.steps += native
        else:
            self.steps.append(PythonStep(function, args, kwargs, tuple(outputs)))

    def _translate(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]
    ) -> list[NativeStep] | None:
        """The operation as native steps, or None."""
        if len(outputs) != 1 or not _is_plain(outputs[0]):
            return None
        out, plain_name = outputs[0], name.removesuffix("_")
        if plain_name in BINARY and kwargs.get("alpha", 1) == 1 and len(args) == 2:
            left, right = (self._operand(arg) for arg in args)
            if left is not None and right is not None:
                return [_elementwise(BINARY[plain_name], out, left, right)]
        if name == "aten::neg" and _is_plain(args[0]):
            return [_elementwise(NEG, out, args[0], args[0])]
        if name in COPIES and _is_plain(args[0]):
            return [_elementwise(COPY, out, args[0], args[0])]
        if name == "aten::cat" and all(_is_plain(piece) for piece in args[0]):
            return self._pieces(out, args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0))
        return None

    def _operand(self, value: Any) -> Tensor | None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = torch.full((), float(value), dtype=torch.float32)
            self.kept.append(value)
        return value if _is_plain(value) else None

    def _pieces(self, out: Tensor, pieces: Sequence[Tensor], dim: int) -> list[NativeStep]:
        steps, start = [], 0
        with self.paused():
            for piece in pieces:
                if piece.numel():
                    target = out.narrow(dim, start, piece.shape[dim])
                    steps.append(_elementwise(COPY, target, piece, piece))
                    start += piece.shape[dim]
        return steps

    def product(self, kind: int, tensors: Sequence[Tensor], numbers: list[int]) -> None:
        """A native step made by ``ops``; ``tensors`` are its input and then what it writes."""
        self.kept.append(tuple(tensors))
        self.n_bytes += sum(tensor.nbytes for tensor in tensors[1:])
        self._changing |= {_storage(tensor) for tensor in tensors}
        self.steps.append(_padded([kind, *numbers]))

    def attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        out: Tensor,
        scale: float,
    ) -> None:
        """A native attention step; see :func:`eagle_core.kernels.ops.attention`.

        Raises: Unrecordable when the keys are no cache that was recorded, or the mask is another one.
        """
        if _storage(keys) not in self._moving or _storage(values) not in self._moving:
            raise Unrecordable("attention over something that is not the cache")
        is_masked = mask is not None
        if is_masked and (self.mask is None or mask.data_ptr() != self.mask.data_ptr()):  # type: ignore[union-attr]
            raise Unrecordable("attention with a mask that was made in the forward")
        n_heads, n_rows, head_dim = query.shape
        numbers = [
            query.data_ptr(), query.stride(0), query.stride(1),
            keys.data_ptr(), keys.stride(0), keys.stride(1),
            values.data_ptr(), values.stride(0), values.stride(1),
            out.data_ptr(), n_rows, n_heads, keys.shape[0], head_dim, int(is_masked), float_bits(scale),
        ]  # fmt: skip
        self.product(ATTENTION, (query, out), numbers)

    def append(self, buffer: Tensor, states: Tensor) -> None:
        """Rows [1, H, N, d] written behind the committed ones of a cache buffer [1, H, capacity, d].

        Raises: Unrecordable when the two are not plain.
        """
        if (
            not _is_plain(states)
            or not _is_plain(buffer)
            or states.stride(-1) != 1
            or len(states) != 1
        ):
            raise Unrecordable("the cache holds something else than float32 rows")
        self._moving.add(_storage(buffer))
        numbers = [
            buffer.data_ptr(), buffer.stride(1), buffer.stride(2),
            states.data_ptr(), states.stride(1), states.stride(2), *states.shape[1:],
        ]  # fmt: skip
        self.kept.append((buffer, states))
        self.steps.append(_padded([APPEND, *numbers]))


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._recorder.is_paused:
            self._recorder.note(func, args, kwargs or {}, result)
        return result


def active() -> Recorder | None:
    """The recorder that notes what happens now in this thread, if there is one."""
    active = _recorders.active
    return active[-1] if active and not active[-1].is_paused else None


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in what an operation takes or gives: lists, tuples and dictionaries of them and of others.

    PyTorch's own search knows more containers, and took a third of the time of a recording.
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for one in value for tensor in tensors_in(one)]


def float_bits(value: float) -> int:
    """A double's bits as a signed 64-bit number."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _elementwise(kind: int, out: Tensor, left: Tensor, right: Tensor) -> NativeStep:
    sizes = [1] * (DIMS - out.ndim) + list(out.shape)
    numbers = [kind, out.data_ptr(), left.data_ptr(), right.data_ptr(), *sizes]
    for tensor in (out, left, right):
        numbers += _strides(tensor, sizes)
    return _padded(numbers)


def _strides(tensor: Tensor, sizes: list[int]) -> list[int]:
    """Strides of a tensor that is broadcast to ``sizes``."""
    shape = [1] * (DIMS - tensor.ndim) + list(tensor.shape)
    own = [0] * (DIMS - tensor.ndim) + list(tensor.stride())
    pairs = zip(shape, own, sizes, strict=True)
    return [0 if have == 1 and want != 1 else stride for have, stride, want in pairs]


def _padded(numbers: list[int]) -> NativeStep:
    assert len(numbers) <= SLOTS
    return numbers + [0] * (SLOTS - len(numbers))


def _is_plain(value: Any) -> bool:
    """A float32 tensor on the CPU of few dimensions."""
    return (
        isinstance(value, Tensor)
        and value.dtype == torch.float32
        and value.device.type == "cpu"
        and value.ndim <= DIMS
    )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


__all__ = ["PythonStep", "Recorder", "Unrecordable", "active", "float_bits", "tensors_in"]
