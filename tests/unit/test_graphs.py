"""Forwards replayed as graphs: the model's own results, or not used. Recordings stand in for a device's."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core.errors import ContextOverflow
from eagle_core.kernels import graphs
from eagle_core.target import Target
from eagle_core.testing import Kind, tiny_model
from eagle_core.tree import DraftTree
from tests.support.graph_pairs import ROUNDING, Pair, bushy, with_graphs
from tests.support.recorded_graphs import RecordedCapture

UNIFORM_KINDS: tuple[Kind, ...] = (
    "llama",
    "qwen3",
    "mixtral",
    "gpt_neox",
    "phi3",
    "olmo2",
    "falcon",
    "gpt2",
)


@pytest.mark.parametrize("kind", UNIFORM_KINDS)
def test_trees_and_single_rows_of_every_family_are_the_models_own(kind: Kind) -> None:
    pair = Pair(kind)
    pair.prefill(9)
    for turn in range(7):
        for n_nodes in (1, 3, 8, 11):
            pair.step(bushy(pair.draw(n_nodes)), ())
        pair.step(bushy(pair.draw(5)), [(0, 1, 3), (0, 2), (0,)][turn % 3])
    pair.check_rows()
    assert pair.deck.n_replayed() >= 4
    assert not pair.deck._refused
    assert pair.n_replays > 12


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "bloom", "mamba"])
def test_what_is_not_alike_at_every_length_is_not_captured(kind: Kind) -> None:
    target = Target(tiny_model(kind))
    target.use_graphs(RecordedCapture)
    assert target.graphs is None


def test_a_window_float16_and_changing_rotations_are_not_captured() -> None:
    changing = tiny_model("llama")
    changing.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0}
    models = [tiny_model("mistral", window=8), tiny_model("llama", dtype=torch.float16), changing]
    for model in models:
        target = Target(model)
        target.use_graphs(RecordedCapture)
        assert target.graphs is None


def test_single_rows_up_to_the_last_row_of_the_cache() -> None:
    pair = Pair(capacity=70)
    pair.prefill(3)
    for _ in range(67):
        pair.step(DraftTree.single(pair.draw(1)[0]))
    pair.check_rows()
    sizes = {keys for _, keys in pair.deck._graphs}
    assert sizes == {16, 24, 32, 48, 64, 70}
    assert pair.n_replays > 40
    for target, cache in zip((pair.graphed, pair.plain), pair.caches, strict=True):
        with pytest.raises(ContextOverflow):
            target.forward_tree(DraftTree.single(torch.tensor(1)), cache)


def test_without_room_for_the_rows_added_the_models_own_forward_stays() -> None:
    pair = Pair(capacity=40)
    pair.prefill(28)
    for _ in range(5):  # behind 28 .. 32 rows: 8 rows fit
        pair.step(bushy(pair.draw(5)))
    before = pair.n_replays
    assert before > 2
    for _ in range(3):  # behind 33 .. 35 rows: 5 rows fit, 8 do not
        pair.step(bushy(pair.draw(5)))
    assert pair.n_replays == before
    pair.check_rows()


def test_chains_that_the_model_checks_causally_and_long_trees() -> None:
    pair = Pair(capacity=200)
    pair.prefill(5)
    for n_nodes in (64, 33, 64, 40, 64, 65, 65, 65, 65):
        tokens = pair.draw(n_nodes)
        pair.step(DraftTree.chain(tokens[0], tokens[1:]), (0, 1))
    assert {rows for rows, _ in pair.deck._graphs} == {64}
    assert pair.n_replays > 0


def test_after_a_rewind_old_rows_are_not_seen() -> None:
    pair = Pair()
    pair.prefill(60)
    for length in (50, 20, 33, 7, 61, 13, 48, 21, 9, 55):
        if length > pair.caches[0].length:
            pair.prefill(length - pair.caches[0].length)
        pair.rewind(length)
        for n_nodes in (1, 4, 1, 7):
            pair.step(bushy(pair.draw(n_nodes)))
    for cache in pair.caches:
        cache.reset()
    pair.prefill(11)
    for _ in range(12):
        pair.step(bushy(pair.draw(4)), (0, 1))
    pair.check_rows()
    assert pair.n_replays > 15


def test_memory_that_nobody_wrote_does_no_harm() -> None:
    """A new buffer may hold anything; a hidden row that is no number would still poison what is seen."""
    pair = Pair()
    pair.prefill(9)
    for layer in pair.caches[0].layers:
        layer.keys[..., 9:, :] = float("nan")
        layer.values[..., 9:, :] = float("inf")
    for _ in range(12):
        pair.step(bushy(pair.draw(4)), (0, 1))
    assert pair.n_replays > 4


def test_results_are_not_overwritten_by_the_next_forward() -> None:
    pair = Pair()
    pair.prefill(8)
    target, cache = pair.graphed, pair.caches[0]
    outputs = []
    for token in range(8):
        outputs.append(target.forward_tree(DraftTree.single(torch.tensor(token)), cache))
        cache.advance(1)
    copies = [(output.logits.clone(), output.features.clone()) for output in outputs]
    assert pair.deck.n_replayed() == 1
    target.forward_tree(DraftTree.single(torch.tensor(99)), cache)
    for output, (logits, features) in zip(outputs, copies, strict=True):
        assert torch.equal(output.logits, logits)
        assert torch.equal(output.features, features)
    assert len({float(output.logits.sum()) for output in outputs}) == len(outputs)


def test_rows_are_padded_to_what_a_reproducible_forward_has_at_least() -> None:
    pair = Pair()
    with_graphs(pair.graphed, min_rows=32)
    pair.prefill(9)
    for n_nodes in (1, 3, 9, 1, 3, 9, 1, 3):
        pair.step(bushy(pair.draw(n_nodes)))
    assert {rows for rows, _ in pair.deck._graphs} == {32}


def test_reproducing_in_16_bits_asks_for_the_same_bits() -> None:
    target = Target(tiny_model("llama", dtype=torch.bfloat16))
    target.use_graphs(RecordedCapture)
    assert target.graphs is not None
    assert target.graphs._tolerance == graphs.COARSE_TOLERANCE
    target._min_rows = 32  # as on an accelerator
    target.use_graphs(RecordedCapture)
    assert (target.graphs._tolerance, target.graphs._min_rows) == (0.0, 32)


def test_another_cache_waits_until_the_first_is_gone() -> None:
    target = Target(tiny_model("llama"))
    made = with_graphs(target)
    first, second = target.new_cache(50), target.new_cache(60)
    tree = DraftTree.single(torch.tensor(3))
    for cache in (first, second):
        target.prefill_chunk(torch.arange(8), cache)
        for _ in range(6):
            target.forward_tree(tree, cache)
            cache.advance(1)
    assert len(made) == 1
    graph = weakref.ref(next(iter(target.graphs._graphs.values())))
    assert target.graphs._cache() is first
    del first, cache
    assert graph() is None, "graphs and their memory go with the cache"
    assert target.graphs.n_replayed() == 0
    for _ in range(6):
        found = target.forward_tree(tree, second)
        wanted = target._forward(
            tree.tokens, torch.tensor([second.length]), None, second, n_logits=1
        )
        assert torch.allclose(found.logits, wanted.logits, atol=ROUNDING)
        second.advance(1)
    assert len(made) == 2
    assert target.graphs.n_replayed() == 1


def test_a_deck_does_not_keep_the_model_and_goes_with_it() -> None:
    target = Target(tiny_model("llama"))
    with_graphs(target)
    cache = target.new_cache(50)
    target.prefill_chunk(torch.arange(8), cache)
    for _ in range(6):
        target.forward_tree(DraftTree.single(torch.tensor(3)), cache)
        cache.advance(1)
    assert target.graphs is not None
    graph = weakref.ref(next(iter(target.graphs._graphs.values())))
    target._tapes = None  # the CPU's, which hold a cycle
    model = weakref.ref(target)
    del target
    assert model() is None
    assert graph() is None


def test_a_small_cache_is_not_worth_a_capture() -> None:
    target = Target(tiny_model("llama"))
    target.use_graphs(RecordedCapture)
    for capacity, n_graphs in ((graphs.SMALLEST_KEYS - 1, 0), (graphs.SMALLEST_KEYS, 1)):
        cache = target.new_cache(capacity)
        target.prefill_chunk(torch.arange(8), cache)
        for _ in range(5):
            target.forward_tree(DraftTree.single(torch.tensor(3)), cache)
            cache.advance(1)
        assert target.graphs.n_replayed() == n_graphs
        del cache


def test_graphs_do_not_take_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(capacity=200)
    pair.prefill(5)
    for _ in range(5):
        pair.step(bushy(pair.draw(3)))
    one = pair.deck.n_bytes
    assert one > 0
    monkeypatch.setattr(graphs, "MOST_BYTES", one + one // 2)
    for _ in range(6):
        pair.step(bushy(pair.draw(12)))
    assert {rows for rows, _ in pair.deck._graphs} == {8}
    assert {rows for rows, _ in pair.deck._refused} == {16}


def test_the_graph_used_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    pair = Pair(capacity=120)
    pair.prefill(5)
    for _ in range(4):
        for n_nodes in (1, 3, 9):
            pair.step(bushy(pair.draw(n_nodes)))
    assert len(pair.deck._graphs) == 2
    keys = list(pair.deck._graphs)
    assert [rows for rows, _ in keys] == [8, 16]
    for _ in range(3):
        pair.step(bushy(pair.draw(3)))
    assert [rows for rows, _ in pair.deck._graphs] == [16, 8]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6)), min_size=8, max_size=30))
def test_whatever_is_done_the_results_are_the_models_own(steps: list[tuple[int, int]]) -> None:
    pair = Pair(capacity=64)
    pair.prefill(4)
    for n_nodes, action in steps:
        parents = [-1, *(int(pair.draw(1)) % node for node in range(1, n_nodes))]
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        tree = DraftTree(pair.draw(n_nodes), torch.tensor(parents), max(depths))
        if n_nodes + 1 > pair.caches[0].room:
            pair.rewind(int(pair.draw(1)) % 20 + 1)
        leaf = int(pair.draw(1)) % n_nodes
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        pair.step(tree, tuple(path) if action else ())
        if action == 6:
            pair.rewind(max(1, pair.caches[0].length - 9))
    pair.check_rows()
