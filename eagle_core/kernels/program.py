"""Makes a recorded forward shorter and its working set smaller, without changing a bit of its results.

What a recording computes on the way lies wherever PyTorch put it, each layer's results elsewhere: a forward
of fourteen rows of the default model walks through twelve megabytes of them. Here steps that belong together
become one (a rotary embedding is six, a sum behind a product is none), and what is left is placed by when it
is needed, as a compiler places variables in registers, so that it stays in the nearest cache.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eagle_core.kernels.recording import (
    ADD,
    APPEND,
    ATTENTION,
    COPY,
    DIMS,
    GATED_MLP,
    LINEAR,
    MUL,
    NEG,
    RMS_NORM,
    ROTATE,
    SLOTS,
    SUB,
    NativeStep,
    PythonStep,
    tensors_in,
)

Step = PythonStep | NativeStep
WIDEST = 512  # head sizes that a fused rotary embedding may have; program.cpp
ALIGNMENT = 64  # bytes
FLOAT = 4  # bytes
OUT, LEFT, RIGHT, SIZES = 1, 2, 3, 4  # slots of an elementwise step
OUT_STRIDES, LEFT_STRIDES, RIGHT_STRIDES = (SIZES + DIMS * i for i in (1, 2, 3))
# By kind of product: slots of its inputs, its result, the rows that it may add, and the result's width.
PRODUCTS = {LINEAR: (3, 5, 9, 8), GATED_MLP: (4, 6, 11, 10)}

Count = Callable[[NativeStep], int]
_ELEMENTWISE = (ADD, MUL, SUB, NEG, COPY)
# By kind of step: the slots it writes, with how many numbers, and those it reads.
_WRITES: dict[int, dict[int, Count]] = {
    LINEAR: {5: lambda s: s[6] * s[8]},
    GATED_MLP: {5: lambda s: s[7] * s[9], 6: lambda s: s[7] * s[10]},
    RMS_NORM: {3: lambda s: s[4] * s[5]},
    ATTENTION: {10: lambda s: s[11] * s[12] * s[14]},
    APPEND: {},
    ROTATE: {1: lambda s: s[5] * s[6] * s[7]},
    **{kind: {OUT: lambda s: math.prod(s[SIZES : SIZES + DIMS])} for kind in _ELEMENTWISE},
}
_READS = {
    LINEAR: (3, 4, 9), GATED_MLP: (4, 11), RMS_NORM: (1, 2), ATTENTION: (1, 4, 7), APPEND: (1, 4),
    ROTATE: (2, 3, 4), **dict.fromkeys(_ELEMENTWISE, (LEFT, RIGHT)),
}  # fmt: skip


@dataclass(slots=True)
class _Use:
    """How one piece of memory is used."""

    steps: list[int] = field(default_factory=list)  # in order
    n_written: int = 0  # bytes, before the first read
    is_read: bool = False


class _Memory:
    """The pieces of memory that recorded tensors lie in, found by address."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = {tensor.untyped_storage() for tensor in tensors}
        self.sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        self.sizes.pop(0, None)
        self._starts = sorted(self.sizes)

    def at(self, address: int) -> int | None:
        """Start of the piece that holds ``address``; None for memory that no recorded tensor lies in."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._starts[place] + self.sizes[self._starts[place]]:
            return None
        return self._starts[place]


@dataclass(frozen=True, slots=True)
class Compact:
    """A recording made smaller: its steps, what must be kept alive for them, and the bytes that it saves."""

    steps: list[Step]
    kept: list[Any]
    n_saved: int


def compact(steps: Sequence[Step], kept: Sequence[Any], fixed: Sequence[Tensor]) -> Compact:
    """Fuse and place the steps of one recording.

    Args:
        kept: everything that holds the tensors of the recording.
        fixed: tensors that the caller reads and writes: they stay where they are.
    """
    tensors = tensors_in(list(kept))
    memory = _Memory(tensors)
    pinned = {_start(tensor) for tensor in fixed}
    for step in steps:
        if isinstance(step, PythonStep):
            pinned |= set(map(_start, tensors_in((step.args, step.kwargs, step.outputs))))
    before = _uses(steps, memory)
    fused = _fuse_sums(_fuse_rotations(list(steps), memory, before, pinned), memory, pinned)
    uses = _uses(fused, memory)
    movable = {
        start: use
        for start, use in uses.items()
        if start not in pinned and _is_own(use, memory.sizes[start])
    }
    placed, pool = _place(fused, movable, memory)
    gone = movable.keys() | (before.keys() - uses.keys() - pinned)
    still = [tensor for tensor in tensors if _start(tensor) not in gone]
    return Compact(placed, [still, pool], sum(memory.sizes[start] for start in gone) - pool.nbytes)


def _start(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_own(use: _Use, n_bytes: int) -> bool:
    """Whether nothing but native steps ever sees a piece, which they write in full before they read it."""
    return use.n_written >= n_bytes


def _uses(steps: Sequence[Step], memory: _Memory) -> dict[int, _Use]:
    """By piece of memory: how native steps use it."""
    uses: dict[int, _Use] = {}
    for index, step in enumerate(steps):
        if isinstance(step, PythonStep):
            continue
        for slot in _READS[step[0]]:
            if (start := memory.at(step[slot])) is not None:
                use = uses.setdefault(start, _Use())
                use.is_read = True
                use.steps.append(index)
        for slot, count in _WRITES[step[0]].items():
            if (start := memory.at(step[slot])) is not None:
                use = uses.setdefault(start, _Use())
                use.n_written += 0 if use.is_read else FLOAT * count(step)
                use.steps.append(index)
    return uses


def _fuse_rotations(
    steps: list[Step], memory: _Memory, uses: dict[int, _Use], pinned: set[int]
) -> list[Step]:
    """x cos + cat(-second half, first half) sin: six steps become one."""
    out: list[Step] = []
    index = 0
    while index < len(steps):
        rotation = _rotation(steps[index : index + 6])
        if rotation is not None:
            between = {memory.at(step[OUT]) for step in steps[index : index + 5]}  # type: ignore[index]
            last = index + 5
            if all(
                start is not None and start not in pinned
                and uses[start].steps[0] >= index and uses[start].steps[-1] <= last
                for start in between
            ):  # fmt: skip
                out.append(rotation)
                index += 6
                continue
        out.append(steps[index])
        index += 1
    return out


def _rotation(steps: Sequence[Step]) -> NativeStep | None:
    """One step for these six, if they are a rotary embedding."""
    native = [step for step in steps if not isinstance(step, PythonStep)]
    if [step[0] for step in native] != [MUL, NEG, COPY, COPY, MUL, ADD]:
        return None
    straight, negated, first, second, turned, total = native
    sizes, width = straight[SIZES : SIZES + DIMS], straight[SIZES + DIMS - 1]
    half = width // 2
    x, x_strides = straight[LEFT], _strides(straight, LEFT)
    is_one = (
        width % 2 == 0 and width <= WIDEST and sizes[:2] == [1, 1]
        and all(step[SIZES : SIZES + DIMS] == sizes for step in (turned, total))
        and all(step[SIZES : SIZES + DIMS] == [*sizes[:-1], half] for step in (negated, first, second))
        and negated[LEFT] == x + half * FLOAT and second[LEFT] == x and first[LEFT] == negated[OUT]
        and second[OUT] == first[OUT] + half * FLOAT and turned[LEFT] == first[OUT]
        and (total[LEFT], total[RIGHT]) == (straight[OUT], turned[OUT])
        and x_strides == _strides(negated, LEFT) == _strides(second, LEFT)
        and _strides(first, LEFT) == _strides(negated, OUT)
        and _strides(first, OUT) == _strides(second, OUT) == _strides(turned, LEFT)
        and _strides(total, LEFT) == _strides(straight, OUT)
        and _strides(total, RIGHT) == _strides(turned, OUT)
        and all(
            strides[-1] == 1
            for strides in (
                x_strides, _strides(straight, RIGHT), _strides(turned, RIGHT), _strides(total, OUT)
            )
        )
    )  # fmt: skip
    if not is_one:
        return None
    numbers = [ROTATE, total[OUT], x, straight[RIGHT], turned[RIGHT], *sizes[2:]]
    for strides in (
        _strides(total, OUT),
        x_strides,
        _strides(straight, RIGHT),
        _strides(turned, RIGHT),
    ):
        numbers += strides[2:4]
    return numbers + [0] * (SLOTS - len(numbers))


def _strides(step: NativeStep, operand: int) -> list[int]:
    begin = {OUT: OUT_STRIDES, LEFT: LEFT_STRIDES, RIGHT: RIGHT_STRIDES}[operand]
    return step[begin : begin + DIMS]


def _fuse_sums(steps: list[Step], memory: _Memory, pinned: set[int]) -> list[Step]:
    """A product, and the sum of its result with something: the product adds it as it writes."""
    uses = _uses(steps, memory)
    out: list[Step] = []
    for index, step in enumerate(steps):
        product = out[-1] if out else None
        if (
            isinstance(step, PythonStep) or isinstance(product, PythonStep) or product is None
            or step[0] != ADD or product[0] not in PRODUCTS
        ):  # fmt: skip
            out.append(step)
            continue
        inputs, result, added, width = PRODUCTS[product[0]]
        start = memory.at(product[result])
        # Every panel of the product reads its inputs: a sum that overwrites them has to wait.
        overwrites = memory.at(step[OUT]) == memory.at(product[inputs])
        is_alone = (
            start is not None and start not in pinned and uses[start].steps == [index - 1, index]
        )
        is_flat = step[SIZES + DIMS - 1] == product[width] and all(
            _is_contiguous(step, operand) for operand in (OUT, LEFT, RIGHT)
        )
        others = [step[slot] for slot in (LEFT, RIGHT) if step[slot] != product[result]]
        if is_alone and is_flat and not overwrites and len(others) == 1 and not product[added]:
            product = list(product)
            product[result], product[added] = step[OUT], others[0]
            out[-1] = product
        else:
            out.append(step)
    return out


def _is_contiguous(step: NativeStep, operand: int) -> bool:
    wanted = 1
    for size, stride in zip(
        reversed(step[SIZES : SIZES + DIMS]), reversed(_strides(step, operand)), strict=True
    ):
        if size != 1 and stride != wanted:
            return False
        wanted *= size
    return True


def _place(
    steps: Sequence[Step], movable: dict[int, _Use], memory: _Memory
) -> tuple[list[Step], Tensor]:
    """Put movable pieces into one pool; pieces that are never needed at the same time share a place."""
    offsets: dict[int, int] = {}
    needed: list[tuple[int, int, int]] = []  # (last step, begin, end) of the pieces placed so far
    n_bytes = 0
    for start, use in sorted(movable.items(), key=lambda item: item[1].steps[0]):
        needed = [piece for piece in needed if piece[0] >= use.steps[0]]
        size = -(-memory.sizes[start] // ALIGNMENT) * ALIGNMENT
        offset = 0
        for _, begin, end in sorted(needed, key=lambda piece: piece[1]):
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[start] = offset
        needed.append((use.steps[-1], offset, offset + size))
        n_bytes = max(n_bytes, offset + size)
    pool = torch.empty(n_bytes, dtype=torch.uint8)

    def moved(address: int) -> int:
        start = memory.at(address)
        if start is None or start not in offsets:
            return address
        return pool.data_ptr() + offsets[start] + address - start

    placed: list[Step] = []
    for step in steps:
        if not isinstance(step, PythonStep):
            step = list(step)
            for slot in (*_READS[step[0]], *_WRITES[step[0]]):
                step[slot] = moved(step[slot])
        placed.append(step)
    return placed, pool


__all__ = ["Compact", "compact"]
