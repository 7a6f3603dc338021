"""Which way of drafting pays here: measured while it runs, by tokens per second.

A step's worth depends on the machine, the model, the text and the temperature, and shows in how many tokens
it yields and how long it takes. So each way is tried for a few steps, the best one is used, and the others
are tried again now and then, the less often the more often they lost. Plain steps are among the ways: where
drafting loses, it stops. Knows no tree and no text; the answer does not depend on what is chosen.

What was measured is kept in a file, so that the next start need not try everything again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from eagle_core.cost_pace import CostPace, check_known
from eagle_core.row_costs import UNFIT, RowCosts
from eagle_core.worth import Worth

logger = logging.getLogger(__name__)

WINDOW = 64  # steps that a way is judged by
FIRST_STEPS, PROBE_STEPS = 24, 12  # of the first way, before any other is tried; of a trial
SHORTEST_WAIT, LONGEST_WAIT, PATIENCE = (
    160,
    4000,
    3,
)  # steps between trials of a loser, and their growth
MEASURED = "seconds by rows"  # beside the choices' names in a file
REMEMBERED = 16  # steps that what is known from another time counts for, at most
LEAD = 1.05  # how much better another way must be to be taken
HOPELESS, SOONEST = (
    0.6,
    4,
)  # of the best rate: a trial below it ends early, but not before so many steps


@dataclass(slots=True)
class _Way:
    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    wait: int = SHORTEST_WAIT
    due: int = 0  # number of the step from which it is tried again
    early: int = 0  # the same, if it was better than what the best has become

    def rate(self, n_last: int = WINDOW) -> float:
        """Tokens per second over the last steps; 0 when it was never tried."""
        steps = list(self.steps)[-n_last:]
        if not steps:
            return 0.0
        return sum(n for n, _ in steps) / len(steps) / max(_undisturbed_s(steps), 1e-9)


def _undisturbed_s(steps: Sequence[tuple[float, float]]) -> float:
    """Seconds of a step: the first of a kind are slow (recorded, warmed up), others in busy moments."""
    return sorted(seconds for _, seconds in steps)[len(steps) // 4]


class Pace:
    """Chooses among ``n_ways`` for every step; way 0 is the one to start with.

    Args:
        clock: seconds; for tests.
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

    def known(self) -> list[list[float]]:
        """What :meth:`remember` takes: for each way the number of steps, tokens and seconds of one."""
        found = []
        for way in self._ways:
            steps = list(way.steps)
            n = len(steps)
            one = [sum(t for t, _ in steps) / n, _undisturbed_s(steps)] if n else [0.0, 0.0]
            found.append([float(n), *one])
        return found

    def remember(self, known: Sequence[Sequence[float]]) -> None:
        """Begin with what was measured at another time; the best way then is the one to start with.

        Raises: ValueError when it is not about as many ways, or holds what cannot be measured.
        """
        check_known(known, len(self._ways))
        for way, (n, tokens, seconds) in zip(self._ways, known, strict=True):
            way.steps.extend([(tokens, seconds)] * min(int(n), REMEMBERED))
            way.due = SHORTEST_WAIT if n >= SOONEST else 0
        self._best = max(range(len(self._ways)), key=lambda way: self._ways[way].rate())

    def pause(self) -> None:
        """The time until the next step is nobody's: an answer ended, or the step was not a way's own."""
        self._running = None

    def finish(self, n_tokens: int, cost: float | None = None) -> None:
        """The step that runs, if one does, has ended and yielded ``n_tokens``; its cost is its time."""
        del cost
        if self._running is not None and n_tokens > 0:
            way, start = self._running
            self._ways[way].steps.append((n_tokens, self._clock() - start))
            self._count(way)
        self._running = None

    def begin(self) -> int:
        """The way of the step that begins now."""
        way = self._trial[0] if self._trial is not None else self._best
        self._running = way, self._clock()
        return way

    def _count(self, way: int) -> None:
        """One more step of ``way`` is known: end a trial, begin the next one."""
        self._n_steps += 1
        if self._trial is not None and way == self._trial[0]:
            left = 0 if self._is_hopeless(way, self._trial[1]) else self._trial[1] - 1
            self._trial = (way, left) if left else None
            if left == 0:
                self._judge(way)
        if self._trial is None and self._n_steps >= FIRST_STEPS:
            self._trial = self._next_trial()

    def _is_hopeless(self, way: int, left: int) -> bool:
        """Whether a trial may end early."""
        n_done = PROBE_STEPS - left + 1
        if n_done < SOONEST:
            return False
        return self._ways[way].rate(n_done) < HOPELESS * self._ways[self._best].rate()

    def _judge(self, way: int) -> None:
        challenger, champion = self._ways[way], self._ways[self._best]
        if challenger.rate() > LEAD * champion.rate():
            champion.wait, self._best = SHORTEST_WAIT, way
            champion.due = self._n_steps + champion.wait
            return
        challenger.due = self._n_steps + challenger.wait
        challenger.early = self._n_steps + SHORTEST_WAIT // 4
        challenger.wait = min(PATIENCE * challenger.wait, LONGEST_WAIT)

    def _next_trial(self) -> tuple[int, int] | None:
        soon = [
            number
            for number, way in enumerate(self._ways)
            if number != self._best and self._n_steps >= min(way.early, way.due)
        ]
        if not soon:
            return None  # as in most steps: no rate is asked for
        bar = LEAD * self._ways[self._best].rate()
        others: Sequence[int] = [
            number
            for number in soon
            if self._n_steps >= self._ways[number].due or self._ways[number].rate() > bar
        ]
        if not others:
            return None
        return min(others, key=lambda way: self._ways[way].due), PROBE_STEPS


def pace_file(folder: Path, *facts: object) -> Path:
    """The file in ``folder`` for what is measured where ``facts`` hold: model, precision, device."""
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()
    return folder / f"{digest[:32]}.json"


class PaceBook:
    """What was measured of several choices, by name, kept in a JSON file.

    Args: path: the file; None: nothing is kept. What is in it and cannot be read counts as not known.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._paces: dict[str, Pace | CostPace] = {}
        self.worth = Worth()  # what the parts of a step are worth; its rows' costs alone are kept
        self._known = self._load()
        try:
            if MEASURED in self._known:
                self.worth.use(RowCosts.read(self._known[MEASURED]))
        except UNFIT as error:
            logger.info("what is known of rows is not used: %s", error)

    def _load(self) -> dict[str, Any]:
        if self._path is None or not self._path.is_file():
            return {}
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            logger.info("%s is not used: %s", self._path, error)
            return {}
        return known if isinstance(known, dict) else {}

    def of(self, name: str, n_ways: int, *, has_costs: bool = False) -> Pace | CostPace:
        """The choice called ``name``; it begins with what was kept, if that is about as many ways.

        Args: has_costs: every step will come with its cost, and the last way is a plain step."""
        make = CostPace if has_costs else Pace
        if name not in self._paces:
            pace = make(n_ways)
            try:
                if name in self._known:
                    pace.remember(self._known[name])
            except UNFIT as error:
                logger.info("what is known of %s is not used: %s", name, error)
                pace = make(n_ways)
            self._paces[name] = pace
        return self._paces[name]

    def learn(self, measured: RowCosts | None) -> None:
        """Use what rows cost from now on, and keep it; None: nothing was measured."""
        if measured is not None:
            self.worth.use(measured)
            self.save()

    @property
    def paces(self) -> Sequence[Pace | CostPace]:
        """All choices that were asked for."""
        return tuple(self._paces.values())

    def save(self) -> None:
        """Write what is known now, whole or not at all; a disk that is full costs only the memory of it."""
        measured = self.worth.measured
        if self._path is None or not (self._paces or measured):
            return
        self._known |= {name: pace.known() for name, pace in self._paces.items()}
        if measured is not None:
            self._known[MEASURED] = measured.known()
        part = self._path.with_suffix(f".{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self._known), encoding="utf-8")
            os.replace(part, self._path)
        except OSError as error:
            logger.info("%s cannot be written: %s", self._path, error)
            with suppress(OSError):
                part.unlink()


__all__ = ["Pace", "PaceBook", "pace_file"]
