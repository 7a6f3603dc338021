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
# Before that: what one more row, and one more level, must bring in tokens.
USUAL_ROW, USUAL_LEVEL = 0.08, 0.2
LONGEST = 3.0  # times the usual step: longer ones were disturbed, and count as that
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


class Worth:
    """Says which parts of the next step pay.

    Args: clock: seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._line = _Line()  # seconds of a step without the drafter's, by rows
        self._n_known = 0
        self._tokens = self._seconds = 0.0  # of all steps
        self._levels = self._level_seconds = 0.0
        self._came = self._expected = 1.0  # drafted tokens that were accepted, and were to be
        self._start: float | None = None  # of the step that runs
        self._is_proposing = False
        self._own_s = self._read_s = 0.0
        self._n_rows, self._hopes = 1, -1.0

    def begin(self, n_tokens: int) -> None:
        """A proposal begins; the step before it yielded ``n_tokens``, 0 if there was none."""
        now = self._clock()
        if self._start is not None and n_tokens > 0:
            self._learn(n_tokens, now - self._start)
        self._start, self._is_proposing = now, True
        self._own_s = self._read_s = 0.0

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
        self._n_rows, self._hopes = n_rows, hopes
        if n_levels:
            self._levels = FADE * self._levels + n_levels
            self._level_seconds = FADE * self._level_seconds + min(seconds, self._longest(n_levels))

    def pause(self) -> None:
        """The time until the next proposal is nobody's: an answer ended."""
        self._start = None
        self._is_proposing = False

    def _longest(self, n_levels: int) -> float:
        known = self._level_seconds / self._levels if self._levels > FEW else float("inf")
        return LONGEST * known * n_levels

    def _learn(self, n_tokens: int, seconds: float) -> None:
        target_s = max(seconds - self._own_s, 0.0)
        if self._n_known >= FEW:
            target_s = min(target_s, LONGEST * self._line.mean)
        self._line.add(self._n_rows, target_s)
        self._n_known += 1
        self._tokens = FADE * self._tokens + n_tokens
        self._seconds = FADE * self._seconds + target_s + self._own_s
        if self._hopes > 0.0:
            self._came = FADE * self._came + n_tokens - 1
            self._expected = FADE * self._expected + self._hopes

    @property
    def is_known(self) -> bool:
        """Whether enough was measured."""
        return self._n_known >= FEW and self._seconds > 0.0

    @property
    def row(self) -> float:
        """Tokens that one more row must bring."""
        slope = self._line.slope
        if not self.is_known or slope is None:
            return USUAL_ROW
        mean_rows = self._line.x / self._line.n
        one_row = max(self._line.mean - slope * (mean_rows - 1), 0.5 * self._line.mean)
        return self._tokens / self._seconds * min(max(slope, 0.0), MOST_ROW * one_row)

    @property
    def level(self) -> float:
        """Tokens that one more level must bring."""
        if not self.is_known or self._levels < FEW:
            return USUAL_LEVEL
        return self._tokens / self._seconds * self._level_seconds / self._levels

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
        """How many of the nodes [N] are worth a row each."""
        return int((self.trust * values.exp() > self.row).sum())


__all__ = ["Worth"]
