"""Which parts of a step pay: on a clock of our own, with costs and a text that are known."""

from __future__ import annotations

import random

import pytest
import torch

from eagle_core.row_costs import RowCosts
from eagle_core.worth import FEW, Worth, usual_nodes

ONE_ROW_S, ROW_S, LEVEL_S, READ_S = 0.010, 0.0007, 0.0012, 0.0005


class Machine:
    """Steps of known costs; ``speed`` is how fast the machine is at the moment."""

    def __init__(self) -> None:
        self.now, self.speed, self.random = 0.0, 1.0, random.Random(0)
        self.worth = Worth(lambda: self.now)

    def _spend(self, seconds: float) -> None:
        self.now += seconds * self.speed * self.random.uniform(0.95, 1.05)

    def step(self, n_tokens: int, n_rows: int, n_levels: int, hopes: float = -1.0) -> None:
        """One step; what it yields is told by the next one."""
        if n_levels:
            self._spend(READ_S)
            self.worth.read(READ_S * self.speed)
        self._spend(n_levels * LEVEL_S)
        self.worth.proposed(n_rows, n_levels, hopes)
        self._spend(ONE_ROW_S + ROW_S * (n_rows - 1))
        self.cost = self.worth.begin(n_tokens)

    def run(self, n_steps: int, *, hopes: float = -1.0) -> None:
        self.worth.begin(0)
        for step in range(n_steps):
            n_levels = step % 3
            self.step(1 + n_levels // 2, 1 + 4 * n_levels, n_levels, hopes if n_levels else -1.0)


def test_costs_are_measured_whatever_the_speed_of_the_machine() -> None:
    machine = Machine()
    for speed in (1.0, 2.5, 0.7):
        machine.speed = speed
        machine.run(200)
        value = machine.worth.row / machine.worth._row_cost
        assert machine.worth._row_cost == pytest.approx(ROW_S / ONE_ROW_S, rel=0.2)
        assert machine.worth._level_cost == pytest.approx(LEVEL_S / ONE_ROW_S, rel=0.2)
        costs = (0, ROW_S * 4 + LEVEL_S + READ_S, ROW_S * 8 + 2 * LEVEL_S + READ_S)
        mean = 1 + sum(costs) / 3 / ONE_ROW_S
        assert value == pytest.approx((1 + 1 + 2) / 3 / mean, rel=0.1)
        machine.worth.begin(0)
        machine.step(1, 9, 2)
        assert machine.cost == pytest.approx(1 + costs[2] / ONE_ROW_S, rel=0.15)


def test_disturbed_steps_hardly_count() -> None:
    machine = Machine()
    machine.run(100)
    before = machine.worth._row_cost
    for _ in range(3):
        machine.worth.proposed(9, 0, -1.0)
        machine.now += 40 * ONE_ROW_S
        machine.worth.begin(1)
    assert machine.worth._row_cost == pytest.approx(before, abs=0.04)


def test_nodes_and_levels_are_drafted_as_long_as_they_pay() -> None:
    machine = Machine()
    machine.run(300, hopes=0.5)
    worth = machine.worth
    least = worth.row / worth.trust
    values = torch.tensor([0.9, 0.5, least * 1.05, least * 0.99])
    assert worth.n_worth(values.log()) == 4  # a row that does not pay, for a count that is usual
    assert worth.n_worth(values[[3, 1, 2, 0]].log()) == 4  # in whatever order
    assert worth.n_worth(values[:3].log()) == 3  # there are no more
    values[3] = least * 0.9
    assert worth.n_worth(values.log()) == 2  # together the last two do not pay
    assert worth.n_worth(torch.full((5,), 1e-4).log()) == 0
    assert worth.goes_on(torch.tensor([0.9, 0.05]).log())
    assert not worth.goes_on(torch.tensor([0.05, 0.02]).log())


def test_a_forwards_measured_steps_are_seen() -> None:
    machine = Machine()
    flat, steep = (
        RowCosts((1, 2, 7, 8, 64), (1.0, 1.1, 1.2, 2.0, 9.0)),
        RowCosts((1, 64), (1.0, 30.0)),
    )
    assert flat.surplus(1) == 0
    assert flat.surplus(2) == pytest.approx(0.1)
    assert flat.surplus(5) == pytest.approx(0.16)
    assert flat.surplus(8) == pytest.approx(1.0)
    assert flat.surplus(72) == pytest.approx(9.0)
    even = torch.full((9,), 0.1).log()
    machine.worth.use(flat)
    assert machine.worth.measured == flat
    assert machine.worth.n_worth(even) == 6  # the eighth row is where the forward becomes slow
    machine.worth.use(steep)
    assert machine.worth.n_worth(even) == 0


def test_what_was_measured_is_scaled_by_what_is_seen() -> None:
    machine = Machine()
    # Half of what a row costs in the machine's steps, and the head's levels.
    rows = (1, 2, 64)
    measured = RowCosts(rows, tuple(ONE_ROW_S + (n - 1) * ROW_S / 2 for n in rows), LEVEL_S)
    machine.worth.use(measured)
    assert machine.worth._row_cost == pytest.approx(ROW_S / 2 / ONE_ROW_S)
    assert machine.worth._level_cost == pytest.approx(LEVEL_S / ONE_ROW_S)
    machine.run(300)
    assert machine.worth._row_cost == pytest.approx(ROW_S / ONE_ROW_S, rel=0.2)


@pytest.mark.parametrize(
    "known", [None, [], [[1], [1.0], 0.0], [[2, 3], [1.0, 2.0], 0.0], [[1, 1], [1.0, 2.0], 0.0],
              [[1, 2], [1.0], 0.0], [[1, 2], [1.0, -2.0], 0.0], [[1, 2], [1.0, float("nan")], 0.0],
              [[1, 2], [1.0, 2.0], -1.0], [["a", 2], [1.0, 2.0], 0.0],
              [[1, 2], [2.0, 1.0], 0.0, 1.0]]
)  # fmt: skip
def test_costs_that_were_never_measured_are_refused(known: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        RowCosts.read(known)


def test_what_piled_up_is_no_cost_of_a_step() -> None:
    costs = []
    for n_rows in (4, 400):
        machine = Machine()
        machine.run(100)
        machine.now += 0.02
        machine.worth.read(0.02, n_rows)
        machine.worth.proposed(3, 1, -1.0)
        machine.now += ONE_ROW_S
        costs.append(machine.worth.begin(2))
    assert costs[1] < costs[0]


def test_a_prompt_that_was_read_before_does_not_hide_what_reading_costs() -> None:
    costs = []
    for has_long_prompts in (False, True):
        machine = Machine()
        for _ in range(10 if has_long_prompts else 0):  # answers of one step
            machine.worth.begin(0)
            machine._spend(LEVEL_S)
            machine.worth.proposed(3, 1, -1.0)
            machine._spend(ONE_ROW_S)
            machine.worth.pause()
        machine.run(200)
        costs.append(machine.worth._reading.mean)
    assert costs[1] == pytest.approx(costs[0], rel=0.1)
    assert costs[0] == pytest.approx(READ_S, rel=0.1)


def test_costs_come_back_from_plain_lists() -> None:
    costs = RowCosts((1, 7), (0.5, 0.75), 0.125)
    assert RowCosts.read(costs.known()) == costs


def test_the_heads_probabilities_are_corrected_by_how_its_nodes_fared() -> None:
    modest, boastful = Machine(), Machine()
    modest.run(300, hopes=0.4)
    boastful.run(300, hopes=2.0)
    assert modest.worth.trust > 1.1
    assert boastful.worth.trust < 0.5
    likely = torch.tensor([0.6, 0.3, 0.2, 0.1]).log()
    assert modest.worth.n_worth(likely) > boastful.worth.n_worth(likely)


def test_before_anything_is_known_usual_costs_are_taken() -> None:
    worth = Worth()
    assert 0.02 < worth.row < worth.level < 0.5
    assert worth.trust == 1.0
    assert worth.begin(0) is None
    worth.pause()
    assert worth.begin(3) is None  # the pause was nobody's step
    machine = Machine()
    machine.run(FEW - 1)
    assert machine.worth.row == worth.row


@pytest.mark.parametrize(("n_nodes", "usual"), [(0, 0), (1, 1), (2, 2), (3, 2), (10, 10), (11, 10)])
def test_counts_of_rows_are_few(n_nodes: int, usual: int) -> None:
    assert usual_nodes(n_nodes) == usual
