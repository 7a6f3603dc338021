"""Which way of drafting is used: on a clock of our own, with ways of known speed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from eagle_core.pace import SHORTEST_WAIT, Pace


class Machine:
    """Ways with a mean of tokens per step and seconds per step; tokens come by chance."""

    def __init__(self, ways: list[tuple[float, float]], seed: int = 0) -> None:
        self.ways, self.random, self.now = ways, random.Random(seed), 0.0
        self.pace = Pace(len(ways), lambda: self.now)

    def run(self, n_steps: int) -> tuple[Counter[int], float]:
        """How often each way was used, and the tokens per second all in all."""
        used: Counter[int] = Counter()
        start, n_tokens, tokens = self.now, 0, 0
        for _ in range(n_steps):
            way = self.pace.next_way(tokens)
            used[way] += 1
            mean, seconds = self.ways[way]
            tokens = int(mean) + (self.random.random() < mean % 1)
            n_tokens += tokens
            self.now += seconds * self.random.uniform(0.9, 1.1)
        return used, n_tokens / (self.now - start)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("best", range(4))
def test_the_fastest_way_is_found_and_kept(best: int, seed: int) -> None:
    ways = [(1.8, 1.6), (2.2, 2.0), (1.3, 1.1), (1.0, 1.0)]  # tokens and seconds per step
    ways[best] = (ways[best][0] * 1.5, ways[best][1])
    machine = Machine(ways, seed)
    used, _ = machine.run(1500)
    assert used.most_common(1)[0][0] == best == machine.pace.best


@pytest.mark.parametrize("seed", range(5))
def test_where_drafting_loses_little_is_lost(seed: int) -> None:
    """Over a long run at most 3 % below plain steps alone, although the others cost up to a half more."""
    _, rate = Machine([(1.0, 1.5), (1.0, 1.4), (1.0, 1.2), (1.0, 1.0)], seed).run(3000)
    assert rate > 0.97


def test_it_notices_when_the_text_changes() -> None:
    machine = Machine([(3.0, 1.5), (1.0, 1.0)])
    machine.run(200)
    assert machine.pace.best == 0
    machine.ways[0] = (1.0, 1.5)
    machine.run(3 * SHORTEST_WAIT)
    assert machine.pace.best == 1


def test_one_slow_step_does_not_count_against_a_way() -> None:
    machine = Machine([(2.0, 1.0), (1.5, 1.0)])
    machine.run(9)
    machine.now += 500.0  # the machine was busy
    machine.run(300)
    assert machine.pace.best == 0


def test_time_between_answers_is_nobodys() -> None:
    machine = Machine([(2.0, 1.0)])
    machine.run(5)
    before = machine.pace.rates
    machine.pace.pause()
    machine.now += 1000.0
    machine.pace.next_way(2)
    assert machine.pace.rates == before
