"""Which way of drafting pays here: measured while it runs, by tokens per second.

A step's worth depends on the machine, the model, the text and the temperature, and shows in how many tokens
it yields and how long it takes. So each way is tried for a few steps, the best one is used, and the others
are tried again now and then, the less often the more often they lost. Plain steps are among the ways: where
drafting loses, it stops. Knows no tree and no text; the answer does not depend on what is chosen.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

WINDOW = 32  # steps that a way is judged by
FIRST_STEPS, PROBE_STEPS = 10, 5  # of the first way, before any other is tried; of a trial
SHORTEST_WAIT, LONGEST_WAIT = 40, 1280  # steps between two trials of a way that lost
LEAD = 1.05  # how much better another way must be to be taken
OUTLIER = 3.0  # medians; a step that took longer (a first run, a busy machine) counts as this


@dataclass(slots=True)
class _Way:
    steps: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    wait: int = SHORTEST_WAIT
    due: int = 0  # number of the step from which it is tried again

    def rate(self) -> float:
        """Tokens per second; 0 when it was never tried."""
        if not self.steps:
            return 0.0
        longest = OUTLIER * statistics.median(seconds for _, seconds in self.steps)
        total = sum(min(seconds, longest) for _, seconds in self.steps)
        return sum(n for n, _ in self.steps) / max(total, 1e-9)


class Pace:
    """Chooses among ``n_ways`` for every step; way 0 is the one to start with.

    Args: clock: seconds; for tests.
    """

    def __init__(self, n_ways: int, clock: Callable[[], float] = perf_counter) -> None:
        self._ways = [_Way() for _ in range(n_ways)]
        self._clock = clock
        self._best = 0
        self._n_steps = 0
        self._trial: tuple[int, int] | None = None  # way on trial, steps left
        self._running: tuple[int, float] | None = None  # way of the step that runs, and its start

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of each way; 0 for one that was never tried."""
        return tuple(way.rate() for way in self._ways)

    @property
    def best(self) -> int:
        """The way that is used when none is on trial."""
        return self._best

    def pause(self) -> None:
        """The time until the next step is nobody's: an answer ended, or the step was not a way's own."""
        self._running = None

    def next_way(self, n_tokens: int) -> int:
        """The way of the step that begins now; ``n_tokens`` is what the one that ends has yielded."""
        now = self._clock()
        if self._running is not None and n_tokens > 0:
            way, start = self._running
            self._ways[way].steps.append((n_tokens, now - start))
            self._count(way)
        way = self._trial[0] if self._trial is not None else self._best
        self._running = way, now
        return way

    def _count(self, way: int) -> None:
        """One more step of ``way`` is known: end a trial, begin the next one."""
        self._n_steps += 1
        if self._trial is not None and way == self._trial[0]:
            left = self._trial[1] - 1
            self._trial = (way, left) if left else None
            if left == 0:
                self._judge(way)
        if self._trial is None and self._n_steps >= FIRST_STEPS:
            self._trial = self._next_trial()

    def _judge(self, way: int) -> None:
        challenger, champion = self._ways[way], self._ways[self._best]
        if challenger.rate() > LEAD * champion.rate():
            champion.wait, self._best = SHORTEST_WAIT, way
            champion.due = self._n_steps + champion.wait
            return
        challenger.due = self._n_steps + challenger.wait
        challenger.wait = min(2 * challenger.wait, LONGEST_WAIT)

    def _next_trial(self) -> tuple[int, int] | None:
        others: Sequence[int] = [
            way
            for way in range(len(self._ways))
            if way != self._best and self._ways[way].due <= self._n_steps
        ]
        if not others:
            return None
        return min(others, key=lambda way: self._ways[way].due), PROBE_STEPS


__all__ = ["Pace"]
