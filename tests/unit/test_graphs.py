"""Forwards replayed as graphs: the model's own results, or not used. Recordings stand in for a device's."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core.cache import KVCache
from eagle_core.cli import doctor
from eagle_core.config import LoadConfig
from eagle_core.errors import Cancelled, ContextOverflow
from eagle_core.kernels import graphs
from eagle_core.kernels.cuda_graphs import CudaCapture, NoHostReads, graph_captures
from eagle_core.kernels.graphs import CaptureFailed, GraphDeck, agree, padded_keys, write_mask
from eagle_core.kernels.recording import Unrecordable
from eagle_core.target import Target
from eagle_core.testing import Kind, tiny_model
from eagle_core.tree import DraftTree
from tests.support.recorded_graphs import RecordedCapture

SMALLEST = 16  # keys: tiny caches cross many borders
CAPACITY = 90
VOCABULARY = 250
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
# Of logits that spread by about 3: rounding was 3e-5 at most, a token in a wrong place changes them by 1.
ROUNDING = 2e-4
CPU = torch.device("cpu")


def with_graphs(target: Target, **options: Any) -> list[RecordedCapture]:
    """Let a target replay graphs on small caches; the list holds what captures them, as it is made."""
    made: list[RecordedCapture] = []

    def captures() -> RecordedCapture:
        made.append(RecordedCapture())
        return made[-1]

    target.use_graphs(captures)
    if target.graphs is not None:
        options = {"smallest_keys": SMALLEST, **options}
        target.graphs = GraphDeck(target._plain, captures, target.dtype, **options)
    return made


class Pair:
    """Two targets on the same weights, one of which replays graphs, that do the same things."""

    def __init__(self, kind: Kind = "llama", capacity: int = CAPACITY, **options: Any) -> None:
        model = tiny_model(kind, **options)
        self.graphed, self.plain = Target(model), Target(model)
        self.made = with_graphs(self.graphed)
        self.random = torch.Generator().manual_seed(0)
        self.caches = [target.new_cache(capacity) for target in (self.graphed, self.plain)]
        self.worst = 0.0

    def prefill(self, n_tokens: int) -> None:
        ids = self.draw(n_tokens)
        for target, cache in zip((self.graphed, self.plain), self.caches, strict=True):
            target.prefill_chunk(ids, cache)

    def draw(self, n_tokens: int) -> torch.Tensor:
        return torch.randint(VOCABULARY, (n_tokens,), generator=self.random)

    def step(self, tree: DraftTree, path: tuple[int, ...] = (0,)) -> None:
        """A forward of both, which must agree; then the path is kept."""
        found, wanted = (
            target.forward_tree(tree, cache)
            for target, cache in zip((self.graphed, self.plain), self.caches, strict=True)
        )
        for left, right in (
            (found.logits, wanted.logits),
            (found.features, wanted.features),
        ):
            assert left.shape == right.shape
            self.worst = max(self.worst, float((left - right).abs().max()))
        assert self.worst < ROUNDING, (tree.n_nodes, self.caches[0].length)
        for cache in self.caches:
            cache.keep(path)

    def rewind(self, length: int) -> None:
        for cache in self.caches:
            cache.rewind(length)

    def check_rows(self) -> None:
        """The committed rows of both caches are the same."""
        left, right = self.caches
        for one, other in zip(left.layers, right.layers, strict=True):
            for mine, yours in ((one.keys, other.keys), (one.values, other.values)):
                difference = mine[..., : left.length, :] - yours[..., : right.length, :]
                assert float(difference.abs().max()) < ROUNDING

    @property
    def deck(self) -> GraphDeck:
        assert self.graphed.graphs is not None
        return self.graphed.graphs

    @property
    def n_replays(self) -> int:
        return sum(capture.n_replays for capture in self.made)


def bushy(tokens: torch.Tensor) -> DraftTree:
    n_nodes = tokens.shape[0]
    parents = [-1, *((node - 1) // 2 for node in range(1, n_nodes))]
    return DraftTree(tokens, torch.tensor(parents), n_nodes.bit_length() - 1)


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


def rows_plain(inputs: Any, mask: Any, cache: Any) -> tuple[torch.Tensor]:
    return (inputs[0][:, None].float() * torch.arange(1.0, 5.0),)


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


def rows_rounded(inputs: Any, mask: Any, cache: Any) -> tuple[torch.Tensor]:
    """As a library that chooses another product by the count of rows."""
    rounding = 1e-6 * inputs[0].shape[0]
    return (inputs[0][:, None].float() + torch.arange(1.0, 5.0) + rounding,)


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


def test_host_reads_are_seen() -> None:
    values = torch.tensor([1.0, 2.0, 0.0])
    reads: list[Callable[[], object]] = [
        lambda: values.sum().item(),
        lambda: bool(values[0] > 0),
        lambda: values.nonzero(),
        lambda: values[values > 0],
        lambda: torch.equal(values, values),
    ]
    for read in reads:
        for mode in (torch.inference_mode, torch.no_grad):
            with pytest.raises(Unrecordable, match="host"), mode(), NoHostReads():
                read()
    with NoHostReads():
        assert (values * 2).cumsum(0).shape == (3,)
        values.clone()[torch.tensor([1])]
        values.index_select(0, torch.tensor([0]))


@torch.inference_mode()
def test_the_stand_in_forgets_what_the_host_said_and_what_others_computed() -> None:
    """A stand-in that called Python again, or kept results apart, would prove nothing."""
    factor, source = 2.0, torch.ones(3)
    capture = RecordedCapture()
    first = capture(lambda: (source * factor,))
    second = capture(lambda: (source + 1,))
    factor = 100.0
    source.fill_(3.0)
    (left,) = first()
    assert left.tolist() == [6.0] * 3
    (right,) = second()
    assert right.tolist() == [4.0] * 3
    assert bool(left.isnan().all())


class FakeCuda:
    """As much of ``torch.cuda`` as captures use: what is current, what is captured, what is reserved."""

    def __init__(self) -> None:
        self.current = "main"
        self.n_pools = 0
        self.reserved = 0
        self.breaks = False
        self.captured: list[tuple[int, str, str]] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.waited_for: list[object] = []

        def wait_stream(self, other: object) -> None:
            self.waited_for.append(other)

    class Graph:
        n_replays = 0

        def replay(self) -> None:
            self.n_replays += 1

    def graph_pool_handle(self) -> int:
        self.n_pools += 1
        return self.n_pools

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Any, pool: int, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.current = stream
        yield
        self.reserved += 100
        if self.breaks:
            raise RuntimeError("operation failed due to a previous error during capture\nlong text")
        self.current = "main"
        self.captured.append((pool, capture_error_mode, "ok"))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    main = FakeCuda.Stream(None)
    fake.current = main
    replaced = {
        "Stream": FakeCuda.Stream, "CUDAGraph": FakeCuda.Graph, "stream": fake.stream, "graph": fake.graph,
        "current_stream": lambda: fake.current, "device": lambda _: nullcontext(),
        "graph_pool_handle": fake.graph_pool_handle, "memory_reserved": lambda _: fake.reserved,
    }  # fmt: skip
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return fake


def test_what_is_captured_by_cuda_shares_a_pool_while_any_of_it_lives(cuda: FakeCuda) -> None:
    capture = CudaCapture(CPU)
    streams: list[object] = []

    def run() -> tuple[torch.Tensor]:
        streams.append(cuda.current)
        return (torch.ones(2),)

    replays = [capture(run), capture(run)]
    assert [pool for pool, *_ in cuda.captured] == [1, 1]
    assert {mode for _, mode, _ in cuda.captured} == {"thread_local"}
    assert len(streams) == 6, "two runs to warm up, one that is captured"
    assert set(streams) == {capture._stream}, "all on the stream of the capture"
    assert replays[0]()[0].tolist() == [1.0, 1.0]
    replays.clear()
    kept = capture(run)
    assert [pool for pool, *_ in cuda.captured] == [1, 1, 2]
    assert kept is not None


def test_a_broken_capture_is_the_last_and_leaves_the_stream_alone(cuda: FakeCuda) -> None:
    capture, main = CudaCapture(CPU), cuda.current
    cuda.breaks = True
    for _ in range(2):
        with pytest.raises(CaptureFailed):
            capture(lambda: (torch.ones(2),))
        assert cuda.current is main
    assert cuda.reserved == 100, "the second was not tried"


def test_what_reads_on_the_host_is_not_even_captured(cuda: FakeCuda) -> None:
    capture = CudaCapture(CPU)
    with pytest.raises(Unrecordable):
        capture(lambda: (torch.full((2,), float(torch.ones(1).sum().item())),))
    assert cuda.reserved == 0
    assert len(cuda.captured) == 0
    assert capture(lambda: (torch.ones(2),))()[0].tolist() == [1.0, 1.0]


def test_cuda_graphs_are_for_nvidias_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph_captures(CPU) is None
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert graph_captures(device) is None
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert graph_captures(device) is not None


def test_doctor_tries_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_graphs().status == "ok"
    assert "none" in doctor.check_graphs().detail or torch.cuda.is_available()
    monkeypatch.setattr(
        "eagle_core.kernels.cuda_graphs.graph_captures", lambda _: lambda: RecordedCapture()
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = doctor.check_graphs()
    assert (check.status, check.hint) == ("ok", "")
    assert "captured" in check.detail

    def no_capture() -> RecordedCapture:
        raise CaptureFailed("not today")

    monkeypatch.setattr("eagle_core.kernels.cuda_graphs.graph_captures", lambda _: no_capture)
    check = doctor.check_graphs()
    assert check.status == "warn"
    assert "--cuda-graphs" in check.hint


def test_graphs_are_a_setting() -> None:
    assert not LoadConfig().cuda_graphs  # until they have run on a GPU
    assert LoadConfig(cuda_graphs=True).cuda_graphs


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_real_gpu(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    model = tiny_model("llama", dtype=dtype).to(device)
    graphed, plain = Target(model), Target(model)
    for target in (graphed, plain):
        target.set_reproducible(False)
    graphed.use_graphs(graph_captures(device))
    caches = [target.new_cache(400) for target in (graphed, plain)]
    prompt = torch.arange(9, device=device)
    for target, cache in zip((graphed, plain), caches, strict=True):
        target.prefill_chunk(prompt, cache)
    for _ in range(30):
        for n_nodes in (1, 5, 20, 60):
            tree = bushy(torch.randint(VOCABULARY, (n_nodes,)))
            found, wanted = (
                target.forward_tree(tree, cache).logits
                for target, cache in zip((graphed, plain), caches, strict=True)
            )
            assert agree(wanted, found, graphs.TOLERANCES.get(dtype, graphs.COARSE_TOLERANCE))
        for cache in caches:
            cache.keep((0, 1, 3))
    assert graphed.graphs is not None
    assert graphed.graphs.n_replayed() >= 4
