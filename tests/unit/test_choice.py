"""What ``auto`` drafts with: by the head, by looked-up text, or not at all, each where it pays."""

from __future__ import annotations

import random

import pytest

from eagle_core.choice import WARM, WEAK_MATCH, Choice, Way
from eagle_core.config import AUTO_TREES, LARGEST_AUTO_TREE, TreeConfig
from eagle_core.pace import PaceBook
from eagle_core.row_costs import RowCosts
from eagle_core.worth import Worth

ONE_ROW_S = 0.01
REPEAT = [1, 2, 3, 4]


class Text:
    """Steps of an answer: every third finds something that stood before, after ``match`` words alike."""

    def __init__(self, *, level_s: float, n_head: float, n_repeated: float, match: int = 5) -> None:
        self.now, self.random = 0.0, random.Random(1)
        self.level_s, self.n_head, self.n_repeated = level_s, n_head, n_repeated
        self.match = match
        paces = PaceBook()
        paces.worth = Worth(lambda: self.now)
        self.choice = Choice(TreeConfig(), paces, on_host=True)

    def run(self, n_steps: int) -> list[tuple[bool, Way]]:
        """Whether something was found, and the way, of each of the last four hundred steps."""
        ways, n_tokens = [], 0
        assert self.choice.worth is not None
        for step in range(n_steps):
            self.choice.finish(n_tokens)
            found = step % 3 == 0
            way = self.choice.begin(*((REPEAT, self.match) if found else ([], 0)))
            n_levels = 2 if way.tree is not None else 0
            n_rows = 1 + 2 * n_levels + (4 if found and way.looks_up else 0)
            self.now += n_levels * self.level_s
            self.choice.worth.proposed(n_rows, n_levels, -1.0)
            self.now += ONE_ROW_S * (1 + 0.05 * (n_rows - 1)) * self.random.uniform(0.8, 1.2)
            mean = 1 + (self.n_repeated if found and way.looks_up else 0)
            mean += self.n_head * (0.3 if found else 1) if way.tree is not None else 0
            n_tokens = int(mean) + (self.random.random() < mean % 1)
            ways.append((found, way))
        return ways[-400:]


def share(ways: list[tuple[bool, Way]], *, found: bool, by_head: bool) -> float:
    asked = [way for was_found, way in ways if was_found == found]
    return sum((way.tree is not None) == by_head for way in asked) / len(asked)


def test_a_cheap_head_drafts_where_nothing_is_found_and_looked_up_text_is_taken_alone() -> None:
    ways = Text(level_s=0.0012, n_head=0.9, n_repeated=1.6).run(900)
    assert share(ways, found=False, by_head=True) > 0.8
    assert share(ways, found=True, by_head=False) > 0.7
    assert all(way.looks_up for found, way in ways[-20:] if found)


def test_a_head_that_costs_too_much_is_left_alone_in_both() -> None:
    ways = Text(level_s=0.006, n_head=0.7, n_repeated=1.6).run(900)
    assert share(ways, found=False, by_head=False) > 0.8
    assert share(ways, found=True, by_head=False) > 0.8


def looked_up(ways: list[tuple[bool, Way]]) -> float:
    """Share of the steps that found something, and took it."""
    found = [way.looks_up for was_found, way in ways if was_found]
    return sum(found) / len(found)


def test_what_few_words_recall_is_left_alone_where_it_does_not_pay() -> None:
    text = Text(level_s=0.006, n_head=0.7, n_repeated=1.6)
    assert looked_up(text.run(900)) > 0.7
    text.match, text.n_repeated = WEAK_MATCH, 0.05
    assert looked_up(text.run(1500)) < 0.3
    text.match, text.n_repeated = WEAK_MATCH + 1, 1.6
    assert looked_up(text.run(100)) > 0.7, "the other kind is still known"


@pytest.mark.parametrize("seed", range(3))
def test_a_head_that_crowds_out_the_base_unnoticed_is_found_out(seed: int) -> None:
    """What it takes from the processor's caches shows beside many plain steps alone."""
    now, random_, n_tokens = [0.0], random.Random(seed), 0
    paces = PaceBook()
    paces.worth = Worth(lambda: now[0])
    choice = Choice(TreeConfig(), paces, on_host=True)
    assert choice.worth is not None
    choice.worth.use(RowCosts((1, 7, 13), (ONE_ROW_S, 1.24 * ONE_ROW_S, 1.48 * ONE_ROW_S), 0.0012))
    n_plain = 0
    for step in range(5000):
        choice.finish(n_tokens)
        is_plain = choice.begin([], 0).tree is None
        n_rows, n_levels = (1, 0) if is_plain else (7, 2)
        now[0] += 0.0012 * n_levels * random_.uniform(0.95, 1.05)
        choice.worth.proposed(n_rows, n_levels, -1.0)
        slowed = 1.0 if is_plain else 1.3
        now[0] += slowed * ONE_ROW_S * (1 + 0.04 * (n_rows - 1)) * random_.uniform(0.95, 1.05)
        # 1.65 tokens of a drafted step: its parts cost 1.48, but it takes 1.85 times as long.
        n_tokens = 1 if is_plain else 1 + sum(random_.random() < 0.65 / 3 for _ in range(3))
        n_plain += is_plain and step >= 3000
    assert n_plain > 1500


def test_what_is_tried() -> None:
    largest = TreeConfig("dynamic", *LARGEST_AUTO_TREE)
    on_host = Choice(TreeConfig(), PaceBook(), on_host=True)
    drafted, looked_up, plain = Way(largest, True), Way(None, True), Way(None, False)
    assert on_host._ways == [[drafted, plain], *2 * [[drafted, looked_up, plain]]]
    elsewhere = Choice(TreeConfig(), PaceBook(), on_host=False)
    (ways,) = elsewhere._ways
    assert [way.tree for way in ways] == [
        *(TreeConfig("dynamic", *sizes) for sizes in AUTO_TREES), None, None,
    ]  # fmt: skip
    assert elsewhere.worth is None


@pytest.mark.parametrize("on_host", [True, False])
def test_a_pause_is_nobodys_step(on_host: bool) -> None:
    paces = PaceBook()
    choice = Choice(TreeConfig(), paces, on_host=on_host)
    for repeat in ([], REPEAT):
        choice.finish(0)
        choice.begin(repeat, len(repeat))
        if choice.worth is not None:
            choice.worth.proposed(1, 0, -1.0)
        choice.pause()
        choice.finish(5)
    tried = [
        pace.rates[:-1] if on_host else pace.rates for pace in paces.paces
    ]  # plain steps need no trial
    assert all(rate == 0.0 for rates in tried for rate in rates)


def test_what_pays_at_a_high_temperature_is_remembered_apart() -> None:
    paces = PaceBook()
    temperatures = (0.0, 0.3, WARM, 1.0, 1.5)
    cold, warm, warm_too, hot, hot_too = (
        Choice(TreeConfig(), paces, on_host=True, temperature=t)._paces for t in temperatures
    )
    assert [warm, hot] == [warm_too, hot_too]
    assert len({id(pace) for paces_of in (cold, warm, hot) for pace in paces_of}) == 9
