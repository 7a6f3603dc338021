"""Which way is used where costs are known: on texts whose tokens come by chance."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from eagle_core.cost_pace import CHECK_STEPS, FIRST_STEPS, PROBE_STEPS, REMEMBERED, CostPace


class Text:
    """Ways with a mean of tokens per step and a cost; the last one is plain."""

    def __init__(self, ways: list[tuple[float, float]], seed: int = 0) -> None:
        self.ways, self.random = [*ways, (1.0, 1.0)], random.Random(seed)
        self.pace = CostPace(len(self.ways))

    def run(self, n_steps: int) -> tuple[Counter[int], float]:
        """How often each way was used, and the tokens per cost all in all."""
        used: Counter[int] = Counter()
        all_tokens, spent = 0, 0.0
        for _ in range(n_steps):
            way = self.pace.begin()
            used[way] += 1
            mean, cost = self.ways[way]
            # From one to five tokens, as drafts bring them: not just the mean or one more.
            tokens = 1 + sum(self.random.random() < (mean - 1) / 4 for _ in range(4))
            self.pace.finish(tokens, cost)
            all_tokens, spent = all_tokens + tokens, spent + cost
        return used, all_tokens / spent


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ways", [[(1.9, 1.35), (1.3, 1.2)], [(1.6, 1.6), (2.4, 1.6)]])
def test_the_best_way_is_found_and_kept(ways: list[tuple[float, float]], seed: int) -> None:
    text = Text(ways, seed)
    used, rate = text.run(2000)
    best = max(ways, key=lambda way: way[0] / way[1])
    assert used.most_common(1)[0][0] == ways.index(best)
    assert rate > 0.96 * best[0] / best[1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mean", [1.0, 1.2, 1.3, 1.35])
def test_where_drafting_loses_little_is_lost(mean: float, seed: int) -> None:
    """Over a long run at most 3.5 % below plain steps, whatever the drafts lose; first trials included."""
    _, rate = Text([(mean, 1.35), (1.05, 1.3)], seed).run(3000)
    assert rate > 0.965


@pytest.mark.parametrize("seed", range(5))
def test_a_hard_beginning_is_forgiven(seed: int) -> None:
    text = Text([(1.0, 1.35)], seed)
    text.run(200)
    assert text.pace.best == 1
    text.ways[0] = (2.0, 1.35)
    text.run(2000)
    assert text.pace.best == 0


def test_what_hardly_loses_is_tried_more_often_than_what_loses_much() -> None:
    near, far = (Text([(mean, 1.35)]).run(3000)[0][0] for mean in (1.3, 1.02))
    assert near > 1.5 * far
    assert far > FIRST_STEPS + PROBE_STEPS / 2


def test_plain_steps_are_judged_without_a_trial() -> None:
    used, _ = Text([(2.5, 1.3)]).run(3000)
    assert used[1] == 0


def test_where_a_way_leads_by_little_plain_steps_follow_each_other_now_and_then() -> None:
    text = Text([(1.7, 1.4)])
    used = [text.pace.best, *(_step(text) for _ in range(6000))]
    runs = "".join(map(str, used)).split("0")
    checks = [len(run) for run in runs if len(run) >= CHECK_STEPS]
    assert set(checks) == {CHECK_STEPS}
    assert 1 <= len(checks) <= 6  # half a hundredth of all that is written is lost to them


def _step(text: Text) -> int:
    text.run(1)
    return text.pace.best if text.pace._trial is None else text.pace._trial[0]


def test_what_was_measured_spares_the_next_start_its_trials() -> None:
    first = Text([(1.1, 1.4), (2.4, 1.5)])
    first.run(1000)
    second = Text([(1.1, 1.4), (2.4, 1.5)], seed=3)
    second.pace.remember(first.pace.known())
    assert second.pace.best == 1
    used, _ = second.run(FIRST_STEPS + PROBE_STEPS)
    assert used == {1: FIRST_STEPS + PROBE_STEPS}
    assert all(
        len(way.steps) <= REMEMBERED + FIRST_STEPS + PROBE_STEPS for way in second.pace._ways
    )


def test_a_step_that_was_nobodys_does_not_count() -> None:
    pace = CostPace(2)
    pace.finish(3, 1.0)
    pace.begin()
    pace.pause()
    pace.finish(3, 1.0)
    pace.begin()
    pace.finish(0, 1.0)
    pace.begin()
    pace.finish(2, None)
    assert pace.rates == (0.0, 1.0)
    pace.begin()
    pace.finish(3, 1.5)
    assert pace.rates == (2.0, 1.0)


@pytest.mark.parametrize(
    "known", [[[5, 1.5, 0.1]], [[5, 1.5, 0.0], [1, 1, 1]], [[-1, 1.5, 1.0], [1, 1, 1]],
              [[5, float("nan"), 1.0], [1, 1, 1]], [[float("inf"), 1.5, 1.0], [1, 1, 1]]]
)  # fmt: skip
def test_what_cannot_be_is_not_remembered(known: list[list[float]]) -> None:
    pace = CostPace(2)
    with pytest.raises(ValueError, match=r"ways|step"):
        pace.remember(known)
    assert pace.rates == (0.0, 1.0)
