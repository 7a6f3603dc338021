"""What a forward of the target costs, by its rows and by what runs beside it."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from statistics import median
from typing import Any

# Steps in a row until caches hold what they need, without a head and with one; RUN more are compared.
SETTLING = {False: 48, True: 12}
RUN = 8
UNFIT = (TypeError, ValueError, OverflowError)  # what a damaged file makes of numbers
LEAST_CROWDING, MOST_CROWDING = 1.0, 2.0
NEWEST = 0.5  # weight of what was seen last


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds that the target takes for some counts of rows, rising from 1, and the head for a level.

    ``level_s`` is 0 where it was not measured; ``crowding`` is what :class:`Crowding` begins with.
    Raises: ValueError when they cannot be what was measured.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    level_s: float = 0.0
    crowding: float = 1.0

    def __post_init__(self) -> None:
        are_fit = len(self.rows) == len(self.seconds) >= 2 and self.rows[0] == 1
        are_fit = are_fit and all(a < b for a, b in zip(self.rows, self.rows[1:], strict=False))
        are_fit = are_fit and list(self.seconds) == sorted(self.seconds)
        times = (*self.seconds, self.level_s + 1e-9, self.crowding)
        if not are_fit or not all(0 < time < math.inf for time in times):
            raise ValueError(f"no costs of rows: {self.rows}, {self.seconds}, {self.level_s}")

    @classmethod
    def read(cls, known: Any) -> RowCosts:
        """From what :meth:`known` gave. Raises: one of UNFIT when it is something else."""
        rows, seconds, level_s, crowding = known
        numbers = float(level_s), float(crowding)
        return cls(tuple(map(int, rows)), tuple(map(float, seconds)), *numbers)

    def known(self) -> list[Any]:
        """The same as plain lists and numbers."""
        return [list(self.rows), list(self.seconds), self.level_s, self.crowding]

    def surplus(self, n_rows: int) -> float:
        """What the rows beside the first cost, as a part of a forward of one row; between and beyond the
        measured counts on straight lines.
        """
        place = min(max(bisect_left(self.rows, n_rows), 1), len(self.rows) - 1)
        (left, right), (low, high) = (
            self.rows[place - 1 : place + 1],
            self.seconds[place - 1 : place + 1],
        )
        seconds = low + (high - low) * (n_rows - left) / (right - left)
        return seconds / self.seconds[0] - 1


class Crowding:
    """How much longer the target's forwards take while a head is in use.

    A head's weights take the room of the target's in the processor's caches. How much that is depends on what
    else the machine does, so it is seen where runs of steps with the head and without follow each other.
    Args: factor: what to begin with; 1: nothing is lost.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = min(max(factor, LEAST_CROWDING), MOST_CROWDING)
        self._settled: dict[bool, list[float]] = {False: [], True: []}
        self._has_head, self._n_steps = False, 0

    def add(self, seconds: float, *, has_head: bool) -> None:
        """A step's forward took so long; more rows than one are reckoned out of it."""
        if has_head != self._has_head:
            self._has_head, self._n_steps = has_head, 0
        self._n_steps += 1
        if self._n_steps <= SETTLING[has_head]:
            return
        run = self._settled[has_head]
        run.append(seconds)
        del run[:-RUN]
        if self._n_steps == SETTLING[has_head] + RUN:
            self._compare(self._settled[True], self._settled[False])

    def _compare(self, crowded: list[float], alone: list[float]) -> None:
        if len(crowded) < RUN or len(alone) < RUN:
            return
        seen = median(crowded) / max(median(alone), 1e-9)
        self.factor += NEWEST * (min(max(seen, LEAST_CROWDING), MOST_CROWDING) - self.factor)


__all__ = ["UNFIT", "Crowding", "RowCosts"]
