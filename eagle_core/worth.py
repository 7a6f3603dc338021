"""What the parts of a step are worth: the tokens they may bring, against the time they take.

A step costs a forward of the target, a little more for every row beside the first, and the head's own levels.
What a drafted node brings is the product of the head's probabilities on its path, corrected by how such nodes
fared so far. A part pays if it brings more tokens than the same time brings otherwise. All of it is measured
while answers are written, on the host's clock; the text does not depend on it. How a forward's time grows
with its rows can be measured beforehand (``RowCosts``): then only the scale of that is left to be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

from eagle_core.row_costs import Crowding, RowCosts

FADE = 0.98  # what a step before still counts
FEW = 12  # steps that must be known before their measurements are used
# Before that: what one more row and one more level cost, as parts of a step of one row, and what that brings.
USUAL_VALUE = 1.3
USUAL_ROW_COST, USUAL_LEVEL_COST = 0.06, 0.15
LONGEST = 1.5  # times the expected: longer ones were disturbed, and count as that
MOST_SCALE = 5.0  # times the usual cost of a row: it never costs more
MEASURED_SCALES = 0.5, 2.0  # the same, where it was measured beforehand
TYPICAL_ROWS = 9
USUAL_READ = (
    8  # rows that a head reads at once; what piled up while it was not asked is no step's cost
)
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
        if spread <= (0.2 * USUAL_ROW_COST * self.n) ** 2:
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
        self._measured: RowCosts | None = None
        self._extras: list[float] = []
        self._crowding = Crowding()
        self._line = (
            _Line()
        )  # seconds of a step without the drafter's, by what its rows usually cost
        self._level = _Line()  # seconds of a level
        self._reading = _Line()  # seconds of reading what was committed, before the levels
        self._n_known = 0
        self._tokens = self._costs = 0.0  # of all steps
        self._came = self._expected = 1.0  # drafted tokens that were accepted, and were to be
        self._start: float | None = None  # of the step that runs
        self._is_proposing = False
        self._own_s = self._read_s = self._usual_read_s = 0.0
        self._n_rows, self._n_levels, self._hopes = 1, 0, -1.0

    def use(self, measured: RowCosts) -> None:
        """Take the costs of rows from here: only their scale is still measured while answers are written."""
        self._measured, self._line, self._n_known = measured, _Line(), 0
        self._extras, self._crowding = [], Crowding(measured.crowding)

    @property
    def measured(self) -> RowCosts | None:
        """What was measured beforehand."""
        return self._measured

    def _extra(self, n_rows: int) -> float:
        """Rows beside the first, as a part of a step of one row: as they cost usually."""
        if self._measured is None:
            return USUAL_ROW_COST * (n_rows - 1)
        while len(self._extras) < n_rows:
            self._extras.append(self._measured.surplus(len(self._extras) + 1))
        return self._extras[n_rows - 1]

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
        self._own_s = self._read_s = self._usual_read_s = 0.0
        return cost

    def read(self, seconds: float, n_rows: int = 1) -> None:
        """The head read ``n_rows`` committed tokens for ``seconds``, which no level is to blame for."""
        if self._is_proposing:
            self._read_s += seconds
            self._usual_read_s += seconds * min(1.0, USUAL_READ / n_rows)
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
            if self._usual_read_s:  # else it was read before, as a long prompt is
                self._reading.add(0.0, _at_most(self._usual_read_s, self._reading))

    def pause(self) -> None:
        """The time until the next proposal is nobody's: an answer ended."""
        self._start = None
        self._is_proposing = False

    def _learn(self, n_tokens: int, seconds: float) -> None:
        target_s = max(seconds - self._own_s, 0.0)
        if self._n_known >= FEW:
            target_s = min(target_s, LONGEST * self._one_row_s * self._rows_cost(self._n_rows))
        has_head = self._n_levels > 0
        alone_s = target_s / self._crowding.factor if has_head else target_s
        self._line.add(self._extra(self._n_rows), alone_s)
        self._crowding.add(
            target_s / (1 + self._scale * self._extra(self._n_rows)), has_head=has_head
        )
        self._n_known += 1
        if self._hopes > 0.0:
            self._came = FADE * self._came + n_tokens - 1
            self._expected = FADE * self._expected + self._hopes

    @property
    def _one_row_s(self) -> float:
        """Seconds of a step of one row, without a head."""
        slope = max(self._line.slope or 0.0, 0.0)
        mean = self._line.mean
        return max(mean - slope * self._line.x / self._line.n, 0.5 * mean, 1e-9)

    @property
    def _scale(self) -> float:
        """What rows cost here, as a multiple of what they cost usually or by what was measured."""
        slope = self._line.slope
        if self._n_known < FEW or slope is None:
            return 1.0
        least, most = (0.0, MOST_SCALE) if self._measured is None else MEASURED_SCALES
        return min(max(slope / self._one_row_s, least), most)

    @property
    def _crowded_scale(self) -> float:
        """The same beside a head."""
        return self._scale * self._crowding.factor

    def _rows_cost(self, n_rows: int) -> float:
        """A step of ``n_rows`` without the drafter's part, in steps of one row."""
        crowded = self._crowding.factor if self._n_levels else 1.0
        return crowded * (1 + self._scale * self._extra(n_rows))

    @property
    def _row_cost(self) -> float:
        """One more row, as a part of a step of one row, in a tree of usual size."""
        return self._crowded_scale * self._extra(TYPICAL_ROWS) / (TYPICAL_ROWS - 1)

    @property
    def _level_cost(self) -> float:
        """One more level, as a part of a step of one row."""
        if self._n_known >= FEW and self._level.n >= FEW / 2:
            return self._level.mean / self._one_row_s
        if self._measured is not None and self._measured.level_s:
            return self._measured.level_s / self._measured.seconds[0]
        return USUAL_LEVEL_COST

    def _cost(self) -> float:
        """What a step like the last one costs, in steps of one row."""
        cost = self._rows_cost(self._n_rows)
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
        """How many of the nodes [N], a usual count of the best, bring most beyond what their rows cost."""
        price, trust = self._value * self._crowded_scale, self.trust
        best, most, brought = 0, 0.0, 0.0
        for n_nodes, value in enumerate(sorted(values.exp().tolist(), reverse=True), 1):
            brought += trust * value
            if usual_nodes(n_nodes) < n_nodes < values.shape[0]:
                continue
            gain = brought - price * self._extra(1 + n_nodes)
            if gain > most:
                best, most = n_nodes, gain
        return best


def usual_nodes(n_nodes: int) -> int:
    """The next lower usual count of drafted nodes: 0, 1 and even ones.

    A forward of a count of rows that is new costs several others before it is recorded.
    """
    return n_nodes if n_nodes < 2 else n_nodes // 2 * 2


__all__ = ["Worth", "usual_nodes"]
