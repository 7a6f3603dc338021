"""Which way of drafting is used: on a clock of our own, with ways of known speed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from eagle_core.pace import FIRST_STEPS, PROBE_STEPS, SHORTEST_WAIT, Pace, PaceBook, pace_file


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
            self.pace.finish(tokens)
            way = self.pace.begin()
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
    machine.pace.finish(2)
    machine.pace.begin()
    assert machine.pace.rates == before


WAYS = [(1.8, 1.6), (3.2, 2.0), (1.3, 1.1), (1.0, 1.0)]  # the second is the fastest


def test_what_was_measured_spares_the_next_start_its_trials() -> None:
    first = Machine(WAYS)
    first.run(600)
    second = Machine(WAYS, seed=1)
    second.pace.remember(first.pace.known())
    used, rate = second.run(SHORTEST_WAIT - 1)
    assert used == {1: SHORTEST_WAIT - 1}
    fresh_used, fresh_rate = Machine(WAYS, seed=1).run(SHORTEST_WAIT - 1)
    assert len(fresh_used) == len(WAYS)
    assert rate > fresh_rate


def test_what_is_no_longer_true_is_noticed() -> None:
    first = Machine(WAYS)
    first.run(600)
    changed = Machine([(1.8, 1.0), (1.0, 2.0), (1.3, 1.1), (1.0, 1.0)])
    changed.pace.remember(first.pace.known())
    changed.run(4 * SHORTEST_WAIT)
    assert changed.pace.best == 0


def test_ways_that_were_never_tried_are_tried() -> None:
    pace = Machine(WAYS)
    pace.pace.remember([[20.0, 1.8, 1.6], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    used, _ = pace.run(FIRST_STEPS + 4 * PROBE_STEPS)
    assert set(used) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "known",
    [
        [[5, 1.5, 0.1]],
        [[5, 1.5, 0.1], [5, 1.5, 0.0]],
        [[5, 1.5, 0.1], [5, 0.2, 0.1]],
        [[5, 1.5, 0.1], [-1, 1.5, 0.1]],
        [[5, 1.5, 0.1], [5, float("nan"), 0.1]],
        [[5, 1.5, 0.1], [5, 1.5, float("inf")]],
    ],
)
def test_what_cannot_be_is_not_remembered(known: list[list[float]]) -> None:
    pace = Pace(2)
    with pytest.raises(ValueError, match=r"ways|step"):
        pace.remember(known)
    assert pace.rates == (0.0, 0.0)


def test_a_book_survives_its_process_and_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "pace.json"
    book = PaceBook(path)
    book.save()
    assert not path.exists(), "nothing was asked for"
    book.of("trees", 2).remember([[9, 2.0, 0.5], [7, 1.0, 0.1]])
    book.of("others", 3)
    book.save()
    assert [entry.name for entry in path.parent.iterdir()] == ["pace.json"]
    again = PaceBook(path)
    assert again.of("trees", 2).rates == (4.0, 10.0)
    assert again.of("trees", 2).best == 1
    assert again.of("others", 3).rates == (0.0, 0.0, 0.0)
    assert PaceBook(path).of("trees", 3).rates == (0.0, 0.0, 0.0), "another number of ways"
    for bad in (
        "{",
        "[1]",
        '{"trees": 5}',
        '{"trees": [[1], [2]]}',
        '{"trees": [["a", 1, 1], [1, 1, 1]]}',
    ):
        path.write_text(bad)
        assert PaceBook(path).of("trees", 2).rates == (0.0, 0.0), bad
    assert PaceBook().of("trees", 2).rates == (0.0, 0.0)


def test_a_book_that_cannot_be_written_is_only_forgotten(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    book = PaceBook(tmp_path / "taken" / "pace.json")
    book.of("trees", 2).remember([[9, 2.0, 0.5], [7, 1.0, 0.1]])
    book.save()
    assert (tmp_path / "taken").read_text() == "a file where a folder should be"
    assert book.of("trees", 2).best == 1


def test_other_facts_mean_another_file(tmp_path: Path) -> None:
    assert pace_file(tmp_path, "model", "float32", 2) == pace_file(tmp_path, "model", "float32", 2)
    assert pace_file(tmp_path, "model", "float32", 2) != pace_file(tmp_path, "model", "float32", 4)
