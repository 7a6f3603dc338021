"""Which forwards a deck captures, checks, keeps and refuses. Recordings stand in for a device's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_core.cache import KVCache
from eagle_core.errors import Cancelled
from eagle_core.kernels import graphs
from eagle_core.kernels.graphs import CaptureFailed, GraphDeck, agree, padded_keys, write_mask
from tests.support.recorded_graphs import RecordedCapture


class Length:
    """As much of a cache as a deck looks at."""

    capacity = 64

    def __init__(self) -> None:
        self.length = 1

    def fixed(self, slots: torch.Tensor, n_keys: int) -> Any:
        return torch.no_grad()

    def clear_behind(self) -> None:
        pass


Forward = Callable[[Any, Any, Any], tuple[torch.Tensor, ...]]


def run_steps(deck: GraphDeck, n_steps: int, cache: Length) -> list[torch.Tensor]:
    """Forwards of two rows at growing lengths, all of them in one bucket."""
    found = []
    for step in range(n_steps):
        cache.length = 1 + step
        found.append(deck.run((torch.tensor([step, 9]),), None, cache)[0])
    return found


def deck_of(forward: Forward, **options: Any) -> GraphDeck:
    options = {"captures": RecordedCapture, "dtype": torch.float32, "smallest_keys": 64, **options}
    return GraphDeck(forward, **options)


def by_length(inputs: Any, mask: Any, cache: Any) -> tuple[torch.Tensor]:
    return (inputs[0][:, None].float() * float(cache.length) + torch.arange(4.0),)


def rows_plain(inputs: Any, mask: Any, cache: Any) -> tuple[torch.Tensor]:
    return (inputs[0][:, None].float() * torch.arange(1.0, 5.0),)


def rows_rounded(inputs: Any, mask: Any, cache: Any) -> tuple[torch.Tensor]:
    """As a library that chooses another product by the count of rows."""
    rounding = 1e-6 * inputs[0].shape[0]
    return (inputs[0][:, None].float() + torch.arange(1.0, 5.0) + rounding,)


def test_a_forward_that_depends_on_the_length_in_python_is_found_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deck, cache = deck_of(by_length), Length()
    found = run_steps(deck, 8, cache)
    assert [float(one[1, 0]) for one in found] == [9.0 * (1 + step) for step in range(8)]
    assert deck.n_replayed() == 0
    assert not deck._graphs
    assert caplog.text.count("differs") == 1


def test_a_host_read_is_no_graph_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def forward(inputs: Any, mask: Any, cache: Any) -> tuple[torch.Tensor]:
        return (inputs[0][:, None].float() * (1 + int(inputs[0].max() > 100)) + torch.arange(4.0),)

    deck, cache = deck_of(forward), Length()
    found = run_steps(deck, 8, cache)
    assert [float(one[1, 0]) for one in found] == [9.0] * 8
    assert deck.n_replayed() == 0
    assert caplog.text.count("not captured") == 1
    assert "host" in caplog.text


def test_a_device_that_cannot_capture_is_not_asked_again() -> None:
    n_asked = 0

    class Broken(RecordedCapture):
        def __call__(self, run: Any) -> Any:
            nonlocal n_asked
            n_asked += 1
            raise CaptureFailed("out of order")

    deck = deck_of(rows_plain, captures=Broken)
    cache = Length()
    for n_rows in (2, 20, 50):
        for _ in range(6):
            ids = torch.arange(n_rows)
            assert torch.equal(deck.run((ids,), None, cache)[0], rows_plain((ids,), None, None)[0])
    assert n_asked == 1


def test_few_failures_are_enough() -> None:
    n_failed = 0

    def no_memory() -> RecordedCapture:
        nonlocal n_failed
        n_failed += 1
        raise torch.OutOfMemoryError("none left")

    deck = deck_of(rows_plain, captures=no_memory)
    cache = Length()
    for n_rows in (1, 2, 10, 20, 50):
        for _ in range(5):
            (found,) = deck.run((torch.arange(n_rows),), None, cache)
            assert found.shape == (n_rows, 4)
    assert n_failed == graphs.MOST_FAILURES


def test_stop_is_passed_on_and_no_failure() -> None:
    is_stopped = False

    def forward(inputs: Any, mask: Any, cache: Any) -> tuple[torch.Tensor]:
        if is_stopped:
            raise Cancelled("the request was stopped")
        return rows_plain(inputs, mask, cache)

    deck, cache = deck_of(forward), Length()
    run_steps(deck, 2, cache)
    is_stopped = True
    with pytest.raises(Cancelled):
        run_steps(deck, 1, cache)
    is_stopped = False
    run_steps(deck, 4, cache)
    assert deck.n_replayed() == 1


def test_exact_means_bit_for_bit() -> None:
    for is_exact in (False, True):
        deck, cache = deck_of(rows_rounded, is_exact=is_exact), Length()
        run_steps(deck, graphs.FIRST_CAPTURED, cache)
        assert bool(deck._refused) == is_exact, "found out before it is kept"
        found = run_steps(deck, 6, cache)
        assert deck.n_replayed() == (0 if is_exact else 1)
        wanted = rows_rounded((torch.tensor([5, 9]),), None, None)[0]
        assert torch.equal(found[-1], wanted) == is_exact
        assert torch.allclose(found[-1], wanted, atol=1e-4)


def test_rows_added_take_nothing_from_an_earlier_forward() -> None:
    """The features of an earlier, larger forward are no numbers; the rows added must not hold them."""

    def forward(inputs: Any, mask: torch.Tensor | None, cache: KVCache) -> tuple[torch.Tensor]:
        (features,) = inputs  # [R, 4]
        states = features[None, None]  # [1, 1, R, 4]
        keys, values = cache._rows[0].update(states, states)
        return (torch.nn.functional.scaled_dot_product_attention(states, keys, values, mask)[0, 0],)

    cache = KVCache(1, 64)
    deck = GraphDeck(forward, RecordedCapture, torch.float32, smallest_keys=64)
    for length in range(1, 6):
        features = torch.arange(12.0).reshape(3, 4) + length
        mask = torch.zeros(1, 1, 3, cache.length + 3)
        deck.run((features,), mask, cache)
        cache.advance(1)
    assert deck.n_replayed() == 1
    (graph,) = deck._graphs.values()
    graph.inputs[0].fill_(float("nan"))
    (found,) = deck.run((torch.ones(3, 4),), torch.zeros(1, 1, 3, cache.length + 3), cache)
    assert bool(found.isfinite().all())


@given(st.integers(1, 9000), st.integers(16, 9000), st.sampled_from([16, 64, 256]))
def test_keys_are_padded_by_half_at_most(n_keys: int, capacity: int, smallest: int) -> None:
    if n_keys > capacity:
        return
    size = padded_keys(n_keys, capacity, smallest)
    assert n_keys <= size <= capacity
    assert size <= max(smallest, 1.5 * n_keys)
    assert padded_keys(size, capacity, smallest) == size


@given(st.integers(1, 6), st.integers(0, 2), st.integers(0, 7), st.integers(0, 3), st.booleans())
def test_mask_equals_brute_force(
    n_rows: int, n_added: int, length: int, n_spare: int, is_causal: bool
) -> None:
    random = torch.Generator().manual_seed(n_rows * 100 + length)
    hidden = torch.finfo(torch.bfloat16).min
    sees = torch.rand(n_rows, length + n_rows, generator=random) < 0.5
    if is_causal:
        for row in range(n_rows):
            sees[row] = torch.arange(length + n_rows) <= length + row
    mask = torch.zeros(sees.shape, dtype=torch.bfloat16).masked_fill_(~sees, hidden)
    total = n_rows + n_added
    own = torch.full((total, length + total + n_spare), 7.0, dtype=torch.bfloat16)
    write_mask(own, None if is_causal else mask[None, None], n_rows, length)
    for row in range(total):
        for key in range(own.shape[1]):
            if row < n_rows:
                is_seen = key < length + n_rows and bool(sees[row, key])
            else:
                is_seen = key == 0
            assert float(own[row, key]) == (0.0 if is_seen else hidden)


def test_agreement_is_by_row_and_by_what_is_largest() -> None:
    wanted = torch.tensor([[1.0, 2.0, 3.0, 10.0], [4.0, 1.0, 1.0, 0.0]])
    near = wanted + torch.tensor([1e-5, -1e-5, 1e-5, -1e-5])
    assert agree(wanted, near, 2e-4)
    assert not agree(wanted, near, 0.0)
    assert agree(wanted, wanted.clone(), 0.0)
    assert not agree(wanted, wanted.flip(0), 0.25)
    one_row = wanted.clone()
    one_row[1, 0] = 5.0
    assert not agree(wanted, one_row, 0.25)
    tie = torch.zeros(1, 400)
    tie[0, :2] = torch.tensor([9.0, 8.0])
    other = tie.clone()
    other[0, :2] = torch.tensor([8.4, 8.6])  # near as a whole, but another token
    assert not agree(tie, other, 0.25)
    assert not agree(wanted, wanted * float("nan"), 0.25)
