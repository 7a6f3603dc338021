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

from eagle_core.kernels import ops
from eagle_core.kernels.recording import LINEAR, LINEAR_OUT, PythonStep, Recorder, Unrecordable

logger = logging.getLogger(__name__)

MOST_ROWS = 32  # more rows are seldom, and their forwards spend little in Python

Outputs = tuple[Tensor, Tensor]  # logits [N, V], features [N, D]
Forward = Callable[[Tensor, Tensor, Tensor | None, Any], Outputs]


@dataclass(slots=True)
class Tape:
    """A recorded forward of N rows, on one cache."""

    ids: Tensor  # [N] i64
    positions: Tensor  # [N] i64
    parts: list[PythonStep | Tensor]
    logits: Tensor
    features: Tensor
    scores: tuple[Tensor, int] | None  # program and step whose result the logits are
    kept: list[Any]
    length: int
    is_checked: bool = False

    def replay(self, ids: Tensor, positions: Tensor, mask: Tensor | None, length: int) -> Outputs:
        """The forward of ``ids`` behind ``length`` committed rows. Logits and features are new tensors."""
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        logits = self.logits
        if self.scores is not None:
            logits = torch.empty_like(logits)
            program, step = self.scores
            program[step, LINEAR_OUT] = logits.data_ptr()
        rows = None if mask is None else mask[0, 0]
        for part in self.parts:
            if isinstance(part, PythonStep):
                part.run()
            else:
                ops.run_program(part, length, rows)
        return (logits if self.scores is not None else logits.clone()), self.features.clone()


class TapeDeck:
    """Tapes of one model on one cache, by number of rows.

    Args: forward: the model's own, ids [N], positions [N], mask [1, 1, N, S] or None and the cache.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._cache: weakref.ref[Any] | None = None
        self._tapes: dict[int, Tape | None] = {}  # None: seen once
        self._refused: set[int] = set()

    def run(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any) -> Outputs:
        """A forward, replayed where that is known to be the same."""
        n_rows = ids.shape[0]
        if n_rows > MOST_ROWS or not self._knows(cache):
            return self._forward(ids, positions, mask, cache)
        if n_rows in self._refused:
            return self._forward(ids, positions, mask, cache)
        if n_rows not in self._tapes:
            self._tapes[n_rows] = None
            return self._forward(ids, positions, mask, cache)
        tape = self._tapes[n_rows]
        if tape is None:
            return self._record(ids, positions, mask, cache)
        if tape.is_checked:
            return tape.replay(ids, positions, mask, cache.length)
        return self._check(tape, ids, positions, mask, cache)

    def n_replayed(self) -> int:
        """Row counts whose forwards are replayed."""
        return sum(tape is not None and tape.is_checked for tape in self._tapes.values())

    def _knows(self, cache: Any) -> bool:
        """Tapes hold addresses of one cache; another one is taken over when that one is gone."""
        known = self._cache() if self._cache is not None else None
        if known is None:
            self._cache = weakref.ref(cache)
            self._tapes.clear()
            known = cache
        return known is cache

    def _record(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any) -> Outputs:
        n_rows = ids.shape[0]
        own_ids, own_positions = ids.clone(), positions.clone()
        rows = None if mask is None else mask[0, 0]
        recorder = Recorder((own_ids, own_positions), rows)
        try:
            with recorder.recording():
                logits, features = self._forward(own_ids, own_positions, mask, cache)
        except Unrecordable as reason:
            logger.info("forwards of %d rows are not replayed: %s", n_rows, reason)
            self._refused.add(n_rows)
            return self._forward(ids, positions, mask, cache)
        parts = _parts(recorder.steps)
        self._tapes[n_rows] = Tape(
            own_ids, own_positions, parts, logits, features, _find_scores(parts, logits),
            recorder.kept, cache.length,
        )  # fmt: skip
        return logits.clone(), features.clone()

    def _check(
        self, tape: Tape, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any
    ) -> Outputs:
        wanted = self._forward(ids, positions, mask, cache)
        if cache.length == tape.length:
            return wanted
        found = tape.replay(ids, positions, mask, cache.length)
        if all(torch.equal(left, right) for left, right in zip(wanted, found, strict=True)):
            tape.is_checked = True
        else:
            n_rows = ids.shape[0]
            logger.warning("a replayed forward of %d rows differs: the model's own is used", n_rows)
            self._refused.add(n_rows)
            del self._tapes[n_rows]
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


def _find_scores(parts: list[PythonStep | Tensor], logits: Tensor) -> tuple[Tensor, int] | None:
    """The product that writes the logits, if they are its whole result."""
    for part in reversed(parts):
        if isinstance(part, Tensor):
            found = (part[:, 0] == LINEAR) & (part[:, LINEAR_OUT] == logits.data_ptr())
            if bool(found.any()) and logits.is_contiguous():
                return part, int(found.nonzero()[-1])
    return None


__all__ = ["Tape", "TapeDeck"]
