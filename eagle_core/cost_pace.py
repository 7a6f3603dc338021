"""Which way of drafting pays, where the cost of every step is known: by tokens per cost.

A plain step yields one token and costs one, always. The others are judged by the tokens that they brought,
which come by chance. A way that is not used is tried again the sooner the less a trial loses: all its trials
cost a small part of the time, and a way that was only unlucky soon has another chance. Knows no tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW = 256  # steps that a way is judged by
FIRST_STEPS, PROBE_STEPS = 32, 16  # until a way is judged at all; of a later trial
KEPT = 112  # steps before a trial that still count after it
BUDGET = 0.01  # of all steps, what the trials of a way may lose
SHORTEST_WAIT, LONGEST_WAIT = 32, 1000  # steps between two trials of a way
REMEMBERED = 64  # steps that what is known from another time counts for, at most
# How much better than a plain step a way must be: it costs what no part is blamed for.
PLAIN_LEAD = 1.04
STAYS = 1.03  # how much better than the way in use another one must be
# Of the best rate: a trial below it ends early, but not before so many steps.
HOPELESS, SOONEST = 0.6, 4

# What a way takes beyond its parts shows beside plain steps alone, and only after many of them in a row
# (row_costs.Crowding). So where the best way leads by little, they follow each other now and then.
CHECK_STEPS, CHECK_BUDGET, SURE_LEAD = 64, 0.005, 1.5


@dataclass(slots=True)
class _Way:
    steps: list[tuple[float, float]] = field(default_factory=list)
    tokens: float = 0.0  # of these steps
    cost: float = 0.0
    due: int = 0  # number of the step from which it is tried

    def add(self, tokens: float, cost: float) -> None:
        self.steps.append((tokens, cost))
        self.tokens, self.cost = self.tokens + tokens, self.cost + cost
        if len(self.steps) > WINDOW:
            self.forget(1)

    def forget(self, n_steps: int) -> None:
        for tokens, cost in self.steps[:n_steps]:
            self.tokens, self.cost = self.tokens - tokens, self.cost - cost
        del self.steps[:n_steps]

    @property
    def rate(self) -> float:
        return self.tokens / max(self.cost, 1e-9)


class CostPace:
    """Chooses among ``n_ways`` for every step; the last one is plain steps, way 0 the one to start with."""

    def __init__(self, n_ways: int) -> None:
        self._ways = [_Way() for _ in range(n_ways - 1)]
        self._plain = n_ways - 1
        self._best = 0
        self._n_steps = 0
        self._n_checked = 0  # steps when plain ones were last used for long
        self._trial: tuple[int, int] | None = None  # way on trial, steps left
        self._running: int | None = None  # way of the step that runs

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per cost of each way; 0 for one that was never tried."""
        return *(way.rate for way in self._ways), 1.0

    @property
    def best(self) -> int:
        """The way that is used when none is on trial."""
        return self._best

    def known(self) -> list[list[float]]:
        """What :meth:`remember` takes: for each way the number of steps, tokens and cost of one."""
        found = []
        for way in self._ways:
            n = len(way.steps)
            found.append([float(n), way.tokens / n, way.cost / n] if n else [0.0, 0.0, 0.0])
        return [*found, [float(FIRST_STEPS), 1.0, 1.0]]

    def remember(self, known: Sequence[Sequence[float]]) -> None:
        """Begin with what was measured at another time; the best way then is the one to start with.

        Raises: ValueError when it is not about as many ways, or holds what cannot be measured.
        """
        check_known(known, len(self._ways) + 1)
        for way, (n, tokens, cost) in zip(self._ways, known, strict=False):
            for _ in range(min(int(n), REMEMBERED)):
                way.add(tokens, cost)
        if self._ways[0].steps:
            self._best = self._choose()
        for number, way in enumerate(self._ways):
            way.due = self._wait(number) if len(way.steps) >= SOONEST else 0

    def pause(self) -> None:
        """An answer ended, or the step was not a way's own."""
        self._running = None

    def finish(self, n_tokens: int, cost: float | None = None) -> None:
        """The step that runs, if one does, has yielded ``n_tokens`` and costs so many plain steps."""
        way, self._running = self._running, None
        if way is None or n_tokens <= 0 or cost is None:
            return
        self._n_steps += 1
        if way != self._plain:
            self._ways[way].add(n_tokens, cost)
        if self._trial is not None and way == self._trial[0]:
            left = 0 if self._is_hopeless(way, self._trial[1]) else self._trial[1] - 1
            self._trial = (way, left) if left else None
            if left == 0 and way != self._plain:
                self._best = self._choose()
                self._ways[way].due = self._n_steps + self._wait(way)
        if self._trial is None and self._n_steps >= FIRST_STEPS:
            if len(self._ways[0].steps) >= FIRST_STEPS:
                self._best = self._choose()
            self._trial = self._next_trial()

    def begin(self) -> int:
        """The way of the step that begins now."""
        self._running = self._trial[0] if self._trial is not None else self._best
        return self._running

    def _choose(self) -> int:
        """The way that is best by all that is known."""
        best, most = self._plain, PLAIN_LEAD
        for number, way in enumerate(self._ways):
            if len(way.steps) < SOONEST:
                continue
            rate = way.rate * (STAYS if number == self._best else 1.0)
            if rate > most:
                best, most = number, rate
        return best

    def _wait(self, number: int) -> int:
        """Steps until the next trial of a way: a trial loses what it is worse than the best."""
        best = self.rates[self._best]
        loss = PROBE_STEPS * max(1 - self._ways[number].rate / max(best, 1e-9), 0.0)
        return min(max(int(loss / BUDGET), SHORTEST_WAIT), LONGEST_WAIT)

    def _is_hopeless(self, number: int, left: int) -> bool:
        """Whether a trial may end early."""
        n_done = PROBE_STEPS - left + 1
        if n_done < SOONEST or number == self._plain:
            return False
        last = self._ways[number].steps[-n_done:]
        rate = sum(tokens for tokens, _ in last) / max(sum(cost for _, cost in last), 1e-9)
        return rate < HOPELESS * self.rates[self._best]

    def _next_trial(self) -> tuple[int, int] | None:
        others = [
            number
            for number, way in enumerate(self._ways)
            if number != self._best and self._n_steps >= way.due
        ]
        if not others:
            return self._next_check()
        number = min(others, key=lambda way: self._ways[way].due)
        way = self._ways[number]
        way.forget(len(way.steps) - KEPT if len(way.steps) > KEPT else 0)
        return number, PROBE_STEPS

    def _next_check(self) -> tuple[int, int] | None:
        """Plain steps, where it is in doubt that the best way is better, and if they are due."""
        lead = self.rates[self._best]
        if self._best == self._plain:
            self._n_checked = self._n_steps
        elif lead < SURE_LEAD:
            loss = CHECK_STEPS * max(1 - 1 / max(lead, 1e-9), 1 - 1 / PLAIN_LEAD)
            if self._n_steps - self._n_checked >= loss / CHECK_BUDGET:
                self._n_checked = self._n_steps
                return self._plain, CHECK_STEPS
        return None


def check_known(known: Sequence[Sequence[float]], n_ways: int) -> None:
    """Whether this can have been measured of so many ways.

    Raises: ValueError.
    """
    if len(known) != n_ways:
        raise ValueError(f"{len(known)} ways are known, {n_ways} are wanted")
    for n, tokens, spent in known:
        if not (n == 0 or (0 < n < math.inf and 1 <= tokens < math.inf and 0 < spent < math.inf)):
            raise ValueError(f"no step yields {tokens} tokens for {spent}")


__all__ = ["CostPace", "check_known"]
