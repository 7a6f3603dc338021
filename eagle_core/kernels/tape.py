"""Replays a model's forward over a few rows without its Python code.

A small model spends a third of a step in Python: hundreds of modules, thousands of operations. The second
forward of a row count is recorded (``recording``), the third is compared with the model's own, bit by bit and
at another cache length, and from then on the recording is replayed. A forward that cannot be recorded, or
differs, stays what it was. Nothing here knows an architecture.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_core.errors import Cancelled
from eagle_core.kernels import ops
from eagle_core.kernels.program import compact
from eagle_core.kernels.recording import LINEAR, LINEAR_OUT, PythonStep, Recorder, Unrecordable

logger = logging.getLogger(__name__)

MOST_BYTES = 256 << 20  # of results kept by all tapes of a model together
# Kinds of rotary embeddings whose tables stay as they are, however long the text gets.
FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
MOST_ROWS = 32  # more rows are seldom, and their forwards spend little in Python

Tensors = tuple[Tensor, ...]
Forward = Callable[[Tensors, Tensor | None, Any], Tensors]


@dataclass(slots=True)
class Tape:
    """A recorded forward of N rows, on one cache."""

    inputs: Tensors
    parts: list[PythonStep | Tensor]
    outputs: Tensors
    scores: tuple[Tensor, int] | None  # program and step whose whole result the first output is
    kept: list[Any]
    length: int
    is_checked: bool = False

    def replay(self, inputs: Tensors, mask: Tensor | None, length: int) -> Tensors:
        """The forward behind ``length`` committed rows; the results are new tensors."""
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new)
        first = self.outputs[0]
        if self.scores is not None:  # large: written to a new place instead of copied there
            first = torch.empty_like(first)
            program, step = self.scores
            program[step, LINEAR_OUT] = first.data_ptr()
        rows = None if mask is None else mask[0, 0]
        for part in self.parts:
            if isinstance(part, PythonStep):
                part.run()
            else:
                ops.run_program(part, length, rows)
        rest = tuple(output.clone() for output in self.outputs[1:])
        return (first if self.scores is not None else first.clone(), *rest)


class TapeDeck:
    """Tapes of one model on one cache, by number of rows.

    Args: forward: the model's own: inputs, whose first dimension is the rows, an additive mask
        [1, 1, N, S] or None, and a cache with a ``length``.
        most_rows: forwards of more rows are never recorded.
    """

    def __init__(self, forward: Forward, most_rows: int = MOST_ROWS) -> None:
        self._forward, self._most_rows = forward, most_rows
        self._cache: weakref.ref[Any] | None = None
        self._tapes: dict[tuple[int, bool], Tape | None] = {}  # None: seen once
        self._refused: set[tuple[int, bool]] = set()
        self._n_bytes = 0

    def run(self, inputs: Tensors, mask: Tensor | None, cache: Any) -> Tensors:
        """A forward, replayed where that is known to be the same."""
        key = (inputs[0].shape[0], mask is None)
        if key[0] > self._most_rows or not self._knows(cache) or key in self._refused:
            return self._forward(inputs, mask, cache)
        if key not in self._tapes:
            self._tapes[key] = None
            return self._forward(inputs, mask, cache)
        tape = self._tapes[key]
        if tape is None:
            return self._record(key, inputs, mask, cache)
        if tape.is_checked:
            return tape.replay(inputs, mask, cache.length)
        return self._check(key, tape, inputs, mask, cache)

    def record_on(self, cache: Any) -> None:
        """Record forwards on ``cache`` from now on, whatever was recorded before."""
        self._cache = weakref.ref(cache)
        self._tapes.clear()
        self._n_bytes = 0

    def is_settled(self, n_rows: int, *, is_alone: bool) -> bool:
        """Whether forwards of ``n_rows`` take what they will always take; ``is_alone``: without a mask."""
        key = (n_rows, is_alone)
        tape = self._tapes.get(key)
        return n_rows > self._most_rows or key in self._refused or bool(tape and tape.is_checked)

    def n_replayed(self) -> int:
        """Kinds of forwards that are replayed."""
        return sum(tape is not None and tape.is_checked for tape in self._tapes.values())

    def _knows(self, cache: Any) -> bool:
        """Tapes hold addresses of one cache; another one is taken over when that one is gone."""
        known = self._cache() if self._cache is not None else None
        if known is None:
            self.record_on(cache)
            known = cache
        return known is cache

    def _record(
        self, key: tuple[int, bool], inputs: Tensors, mask: Tensor | None, cache: Any
    ) -> Tensors:
        own = tuple(tensor.clone() for tensor in inputs)
        recorder = Recorder(own, None if mask is None else mask[0, 0])
        try:
            with recorder.recording():
                outputs = self._forward(own, mask, cache)
        except Cancelled:
            raise
        except Exception as reason:
            # Whatever a model does that a recording cannot bear: its own forward is there.
            is_known = isinstance(reason, Unrecordable)
            logger.info(
                "forwards of %d rows are not replayed: %s", key[0], reason, exc_info=not is_known
            )
            self._refused.add(key)
            return self._forward(inputs, mask, cache)
        smaller = compact(recorder.steps, recorder.kept, (*own, *outputs))
        n_bytes = recorder.n_bytes - smaller.n_saved
        if self._n_bytes + n_bytes > MOST_BYTES:
            self._refused.add(key)
            return outputs
        self._n_bytes += n_bytes
        parts = _parts(smaller.steps)
        scores = _find_scores(parts, outputs[0])
        self._tapes[key] = Tape(own, parts, outputs, scores, smaller.kept, cache.length)
        return tuple(output.clone() for output in outputs)

    def _check(
        self, key: tuple[int, bool], tape: Tape, inputs: Tensors, mask: Tensor | None, cache: Any
    ) -> Tensors:
        wanted = self._forward(inputs, mask, cache)
        if cache.length == tape.length:
            return wanted
        found = tape.replay(inputs, mask, cache.length)
        if all(torch.equal(left, right) for left, right in zip(wanted, found, strict=True)):
            tape.is_checked = True
        else:
            logger.warning("a replayed forward of %d rows differs: the model's own is used", key[0])
            self._refused.add(key)
            del self._tapes[key]
        return wanted


def _parts(steps: list[Any]) -> list[PythonStep | Tensor]:
    """Runs of native steps become one program [steps, SLOTS] i64 each."""
    parts: list[PythonStep | Tensor] = []
    native: list[list[int]] = []
    for step in [*steps, None]:
        if isinstance(step, list):
            native.append(step)
            continue
        if native:
            parts.append(torch.tensor(native, dtype=torch.int64))
            native = []
        if step is not None:
            parts.append(step)
    return parts


def _find_scores(parts: list[PythonStep | Tensor], output: Tensor) -> tuple[Tensor, int] | None:
    """The product whose whole result ``output`` is, if it is one's."""
    for part in reversed(parts):
        if isinstance(part, Tensor):
            found = (part[:, 0] == LINEAR) & (part[:, LINEAR_OUT] == output.data_ptr())
            if bool(found.any()) and output.is_contiguous():
                return part, int(found.nonzero()[-1])
    return None


__all__ = ["FIXED_ROPES", "Tape", "TapeDeck"]
