"""Before anybody asks: forwards of all usual counts of rows are recorded, checked and timed.

The first forwards of a count of rows are slow (``kernels.tape``), and an answer that meets many counts would
pay for all of them. Here they are met in an idle moment, behind the committed rows. What is kept of it are
the recordings, and the costs by which ``auto`` chooses (``row_costs.RowCosts``).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from eagle_core.cache import KVCache
from eagle_core.capture import interruptible
from eagle_core.config import GenerationConfig
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.engine import never
from eagle_core.errors import Cancelled
from eagle_core.queueing import TicketQueue
from eagle_core.row_costs import RUN, SETTLING, RowCosts
from eagle_core.target import Target
from eagle_core.tree import DraftTree
from eagle_core.verify import verify

logger = logging.getLogger(__name__)

# Rows: those of the trees that ``auto`` has checked, and two more.
RECORDED = (*range(1, 14), 17, 25)
TIMED = (1, 2, 3, 5, 7, 9, 11, 13, 17, 25, 33, 49, 64)
READ = tuple(range(1, 7))  # committed tokens that a head reads at once
DEPTH = 5  # levels of the head's tree
N_SEEN = 4  # forwards until one is replayed: seen, recorded, compared, and one more
ROUNDS = 3
BESIDE_ROWS = 5  # of a forward that follows a draft
CONTEXT = 128  # rows before those that are timed, at least
DELAY_S = 1.0  # for what else has to start
POLL_S = 0.1
MOST_S = 15.0  # of recording, and of timing: a slow machine with a large model is not kept busy for longer


class Rehearsal:
    """Goes through all forwards, one at a time, until somebody wants the engine.

    Args:
        drafter: whose head is tried out, too; None: there is none.
        known: costs that were measured at another time: only what the head crowds out is measured again.
    """

    def __init__(
        self,
        target: Target,
        cache: KVCache,
        drafter: EagleDrafter | None,
        known: RowCosts | None = None,
    ) -> None:
        self._target, self._cache, self._drafter = target, cache, drafter
        self._known, self._is_wanted = known, never
        self._features: Tensor | None = None  # [CONTEXT, D], as the target gives them
        self._read_behind = -1  # committed rows when the context behind them was read
        self._seconds: dict[int, list[float]] = {}
        self._levels: list[float] = []
        self._beside: dict[bool, list[float]] = {False: [], True: []}  # a draft, or not
        self._recording_s = self._spent_s = 0.0
        self._todo = self._units()
        self.is_done = False

    def go_on(self, is_wanted: Callable[[], bool] = never) -> None:
        """Do what is left until ``is_wanted``; the caches are afterwards what they were.

        The forward that runs then ends before its next layer. Never raises: what fails is left out.
        """
        self._is_wanted = is_wanted
        try:
            while not self.is_done and not is_wanted():
                self.is_done = next(self._todo, None) is None
        except Exception as error:
            # It was of use only: a request will meet the same, and say so.
            logger.info("the rehearsal ended early: %s", error, exc_info=True)
            self.is_done, self._seconds = True, {}

    def costs(self) -> RowCosts | None:
        """What was measured; None as long as it is not done, or when too little could be."""
        costs = (self._known or self._rows()) if self.is_done else None
        beside, alone = (self._beside[kind] for kind in (True, False))
        if costs is None or not beside or not alone:
            return costs
        beside_s = median(beside) / (1 + costs.surplus(BESIDE_ROWS))
        return dataclasses.replace(costs, crowding=beside_s / median(alone))

    def _rows(self) -> RowCosts | None:
        rows = [n for n, seconds in self._seconds.items() if len(seconds) == ROUNDS]
        if len(rows) < 2 or rows[0] != 1:  # a round had no room, or no time
            return None
        one = self._seconds[1]
        most, seconds = 1.0, list[float]()
        for n_rows in rows:
            # Compared within a round: a machine is not equally fast from one round to the next.
            pairs = zip(self._seconds[n_rows], one, strict=True)
            most = max(most, median(several_s / one_s for several_s, one_s in pairs))
            seconds.append(most * median(one))
        level_s = max(median(self._levels), 0.0) if self._levels else 0.0
        return RowCosts(tuple(rows), tuple(seconds), level_s)

    def _units(self) -> Iterator[bool]:
        """Yields after each forward, so that there is always a place to stop."""
        for n_rows in RECORDED:
            for behind in range(N_SEEN):
                if self._target.is_settled(n_rows) or self._recording_s > MOST_S:
                    break
                yield from self._forward(n_rows, behind % 2)
        if self._recording_s > MOST_S:
            return  # so large a model gains little by it
        if self._drafter is not None and self._features is not None:
            yield from self._head(self._drafter, self._features)
        for _ in range(ROUNDS if self._known is None else 1):
            for n_rows in TIMED if self._known is None else ():
                if self._spent_s < MOST_S:
                    yield from self._timed(n_rows, self._seconds.setdefault(n_rows, []))
            if self._drafter is not None and self._features is not None:
                yield from self._crowded(self._drafter, self._features)

    def _timed(self, n_rows: int, into: list[float]) -> Iterator[bool]:
        for seconds in self._forwards(n_rows, 0):
            if seconds is not None:
                self._spent_s += seconds
                into.append(seconds)
            yield True

    def _crowded(self, drafter: EagleDrafter, features: Tensor) -> Iterator[bool]:
        """Time forwards in a row, and as many that follow a draft each."""
        tokens = self._ids(2)  # [2]
        for is_beside, n_rows in ((False, 1), (True, BESIDE_ROWS)):
            found: list[float] = []
            for _ in range(SETTLING[is_beside] + RUN):
                if self._spent_s > MOST_S or not drafter.can_try_out(2, 2):
                    return
                if is_beside:
                    drafter.try_out(tokens, features[:2], 2)
                yield from self._timed(n_rows, found)
            self._beside[is_beside] += found[-RUN:]

    def _forward(self, n_rows: int, behind: int) -> Iterator[bool]:
        for seconds in self._forwards(n_rows, behind):
            self._recording_s += seconds or 0.0
            yield True

    def _forwards(self, n_rows: int, behind: int) -> Iterator[float | None]:
        """One forward and its verdict, its seconds; None before it, as often as it was interrupted."""
        tree = self._tree(n_rows)
        while True:
            length = self._cache.length
            try:
                with interruptible(self._target.model, self._target.n_layers, self._is_wanted):
                    n_before = self._context(length)
                    if n_before is None:
                        return  # no room behind such a long conversation
                    self._cache.advance(n_before + behind)
                    start_s = perf_counter()
                    logits = self._target.forward_tree(tree, self._cache).logits
                    verify(tree, logits, self._cache.length + 1, GenerationConfig())
                    seconds = perf_counter() - start_s
            except Cancelled:
                seconds = None
            finally:
                self._cache.rewind(length)
            yield seconds
            if seconds is not None:
                return

    def _context(self, length: int) -> int | None:
        """Rows behind ``length`` committed ones that hold something; None where there is no room."""
        # Not beyond the model's last position: it may have learned its positions, and no further one.
        most = self._target.context_length - TIMED[-1] - 1
        n_rows = max(min(CONTEXT, most) - length, 4)
        if min(most - length, self._cache.room - TIMED[-1] - 1) < n_rows:
            return None
        if self._read_behind != length:
            features = self._target.prefill_chunk(self._ids(n_rows), self._cache).features
            self._cache.rewind(length)
            self._features = features if self._features is None else self._features
            self._read_behind = length
        return n_rows - 2

    def _head(self, drafter: EagleDrafter, features: Tensor) -> Iterator[bool]:
        """Record what the head reads and drafts, then time its levels."""
        tokens = self._ids(features.shape[0])  # [T]
        for n_rows in READ:
            for _ in range(2):
                if not drafter.can_try_out(READ[-1], DEPTH):
                    return  # a long conversation has come meanwhile
                drafter.try_out(tokens[:n_rows], features[:n_rows], DEPTH)
                yield True
        for _ in range(ROUNDS if self._known is None else 0):
            if not drafter.can_try_out(1, DEPTH):
                return
            deep, flat = (drafter.try_out(tokens[:1], features[:1], d)[1] for d in (DEPTH, 1))
            self._levels.append((deep - flat) / (DEPTH - 1))
            yield True

    def _tree(self, n_rows: int) -> DraftTree:
        """A chain: what a forward costs does not depend on the shape."""
        tokens = self._ids(n_rows)
        return DraftTree.chain(tokens[0], tokens[1:]) if n_rows > 1 else DraftTree.single(tokens[0])

    def _ids(self, n_tokens: int) -> Tensor:
        """Some token ids [T] i64 that the model knows."""
        return torch.arange(n_tokens) % self._target.vocab_size


def in_idle_moments(
    queue: TicketQueue, is_over: Callable[[], bool], play: Callable[[Callable[[], bool]], bool]
) -> None:
    """Call ``play`` with what says that the engine is wanted, while nobody else is in the queue.

    Returns: when ``play`` says that it is done or fails, or when it is over.
    """
    while not is_over():
        ticket = queue.enter_when_idle(POLL_S)
        if ticket is None:
            continue
        try:
            if is_over() or play(lambda: is_over() or queue.n_tickets > 1):
                return
        except Exception as error:
            logger.info("no rehearsal: %s", error, exc_info=True)
            return
        finally:
            queue.leave(ticket)


def rehearse_in_background(rehearse: Callable[[Callable[[], bool]], None]) -> None:
    """Call a session's ``rehearse`` in a thread, soon; the program's end does not wait for it."""

    def run() -> None:
        main = threading.main_thread()
        main.join(DELAY_S)
        rehearse(lambda: not main.is_alive())

    threading.Thread(target=run, name="rehearsal").start()


__all__ = ["Rehearsal", "in_idle_moments", "rehearse_in_background"]
