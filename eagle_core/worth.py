"""What the parts of a step are worth: the tokens they may bring, against the time they take.

A step costs a forward of the target, a little more for every row beside the first, and the head's own levels.
What a drafted node brings is the product of the head's probabilities on its path, corrected by how such nodes
fared so far. A part pays if it brings more tokens than the same time brings otherwise. All of it is measured
while answers are written, on the host's clock; the text does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

FADE = 0.98  # what a step before still counts
FEW = 12  # steps that must be known before their measurements are used
# Before that: what one more row and one more level cost, as parts of a step of one row, and what that brings.
USUAL_VALUE = 1.3
USUAL_ROW_COST, USUAL_LEVEL_COST = 0.06, 0.15
LONGEST = 1.5  # times the expected: longer ones were disturbed, and count as that
MOST_ROW = 0.3  # of a step of one row: a row never costs more
GOES_ON = 0.6  # of a node's value, what its best children have together
LEAST_TRUST, MOST_TRUST = 0.3, 2.0


@dataclass(slots=True)
class _Line:
    """A straight line through points that fade: seconds by rows."""

    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        for name, value in (("n", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, FADE * getattr(self, name) + value)

    @property
    def mean(self) -> float:
        return self.y / self.n if self.n else 0.0

    @property
    def slope(self) -> float | None:
        """None as long as all points have about the same x."""
        spread = self.n * self.xx - self.x**2
        if spread <= 0.05 * self.n**2:
            return None
        return (self.n * self.xy - self.x * self.y) / spread


def _at_most(seconds: float, known: _Line) -> float:
    return min(seconds, LONGEST * known.mean) if known.n > FEW / 2 else seconds


class Worth:
    """Says which parts of the next step pay.

    Args: clock: seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._line = _Line()  # seconds of a step without the drafter's, by rows
        self._level = _Line()  # seconds of a level
        self._reading = _Line()  # seconds of reading what was committed, before the levels
        self._n_known = 0
        self._tokens = self._costs = 0.0  # of all steps
        self._came = self._expected = 1.0  # drafted tokens that were accepted, and were to be
        self._start: float | None = None  # of the step that runs
        self._is_proposing = False
        self._own_s = self._read_s = 0.0
        self._n_rows, self._n_levels, self._hopes = 1, 0, -1.0

    def begin(self, n_tokens: int) -> float | None:
        """A proposal begins; the step before it yielded ``n_tokens``, 0 if there was none.

        Returns: what that step costs, in steps of one row; None if there was none. It is what such a step
            takes by all that is known, not what this one took: a machine is not always equally fast.
        """
        now, cost = self._clock(), None
        if self._start is not None and n_tokens > 0:
            self._learn(n_tokens, now - self._start)
            cost = self._cost()
            self._tokens = FADE * self._tokens + n_tokens
            self._costs = FADE * self._costs + cost
        self._start, self._is_proposing = now, True
        self._own_s = self._read_s = 0.0
        return cost

    def read(self, seconds: float) -> None:
        """The head read committed tokens for ``seconds``, which no level is to blame for."""
        if self._is_proposing:
            self._read_s += seconds
        self._own_s += seconds

    def proposed(self, n_rows: int, n_levels: int, hopes: float) -> None:
        """The proposal is there.

        Args:
            n_rows: rows that the target checks.
            n_levels: levels that the head scored.
            hopes: drafted tokens that should be accepted, by the head's probabilities; -1: unknown.
        """
        assert self._start is not None, "begin first"
        seconds = self._clock() - self._start - self._read_s
        self._own_s += seconds
        self._is_proposing = False
        self._n_rows, self._n_levels, self._hopes = n_rows, n_levels, hopes
        if n_levels:
            self._level.add(0.0, _at_most(seconds / n_levels, self._level))
            self._reading.add(0.0, _at_most(self._read_s, self._reading))

    def pause(self) -> None:
        """The time until the next proposal is nobody's: an answer ended."""
        self._start = None
        self._is_proposing = False

    def _learn(self, n_tokens: int, seconds: float) -> None:
        target_s = max(seconds - self._own_s, 0.0)
        if self._n_known >= FEW:
            expected = self._one_row_s * (1 + self._row_cost * (self._n_rows - 1))
            target_s = min(target_s, LONGEST * expected)
        self._line.add(self._n_rows, target_s)
        self._n_known += 1
        if self._hopes > 0.0:
            self._came = FADE * self._came + n_tokens - 1
            self._expected = FADE * self._expected + self._hopes

    @property
    def _one_row_s(self) -> float:
        """Seconds of a step of one row."""
        mean_rows = self._line.x / self._line.n
        slope = max(self._line.slope or 0.0, 0.0)
        return max(self._line.mean - slope * (mean_rows - 1), 0.5 * self._line.mean, 1e-9)

    @property
    def _row_cost(self) -> float:
        """One more row, as a part of a step of one row."""
        slope = self._line.slope
        if self._n_known < FEW or slope is None:
            return USUAL_ROW_COST
        return min(max(slope / self._one_row_s, 0.0), MOST_ROW)

    @property
    def _level_cost(self) -> float:
        """One more level, as a part of a step of one row."""
        if self._n_known < FEW or self._level.n < FEW / 2:
            return USUAL_LEVEL_COST
        return self._level.mean / self._one_row_s

    def _cost(self) -> float:
        """What a step like the last one costs, in steps of one row."""
        cost = 1 + self._row_cost * (self._n_rows - 1)
        if self._n_levels:
            reading = self._reading.mean / self._one_row_s if self._n_known >= FEW else 0.0
            cost += self._level_cost * self._n_levels + reading
        return cost

    @property
    def _value(self) -> float:
        """Tokens that the time of a step of one row brings."""
        return self._tokens / self._costs if self._n_known >= FEW else USUAL_VALUE

    @property
    def row(self) -> float:
        """Tokens that one more row must bring."""
        return self._value * self._row_cost

    @property
    def level(self) -> float:
        """Tokens that one more level must bring."""
        return self._value * self._level_cost

    @property
    def trust(self) -> float:
        """How many drafted tokens were accepted for each that the head hoped for."""
        return min(max(self._came / max(self._expected, 1e-9), LEAST_TRUST), MOST_TRUST)

    def goes_on(self, values: Tensor) -> bool:
        """Whether to draft below nodes with these log-probabilities [K] of their paths."""
        row, trust = self.row, self.trust
        gains = [max(trust * GOES_ON * value - row, 0.0) for value in values.exp().tolist()]
        return bool(sum(gains) > self.level)

    def n_worth(self, values: Tensor) -> int:
        """How many of the nodes [N] are worth a row each, filled up to a usual count."""
        n_nodes = int((self.trust * values.exp() > self.row).sum())
        return min(-(-n_nodes // 2) * 2 if n_nodes > 1 else n_nodes, values.shape[0])


def usual_nodes(n_nodes: int) -> int:
    """The next lower usual count of drafted nodes: 0, 1 and even ones.

    A forward of a count of rows that is new costs several others before it is recorded.
    """
    return n_nodes if n_nodes < 2 else n_nodes // 2 * 2


__all__ = ["Worth", "usual_nodes"]
