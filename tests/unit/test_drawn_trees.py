"""Trees of drawn tokens: their shapes, what is left out, and what the EAGLE drafter says it drew from."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core import verify as verify_module
from eagle_core.config import FIGURE_9, GenerationConfig, TreeConfig
from eagle_core.drafters.base import Budget, SamplingDrafter
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.events import Event, Finished, Notice, Started
from eagle_core.sampling import draw_candidates, stream_noise, to_probabilities
from eagle_core.target import Target
from eagle_core.testing import OracleDrafter, TableDrafter, tiny_target
from eagle_core.tree import (
    DraftTree,
    Draws,
    in_order_of_draws,
    shape_for_draws,
    tree_layout,
    without_idle_nodes,
)
from eagle_core.verify import verify
from tests.support.tiny_heads import eagle_drafter, tiny_head

PROMPT = list(b"a prompt of some length")
SAMPLING = GenerationConfig(temperature=1.0, rule="sampling", max_new_tokens=24)
TREES = [
    TreeConfig("dynamic", depth=4, branching=3, size=14),
    TreeConfig("dynamic", depth=1, branching=2, size=9),
    TreeConfig("dynamic", depth=2, branching=2, size=256),
    TreeConfig("static"),
    TreeConfig("static", shape=((0,), (2,), (2, 1), (2, 3))),
    TreeConfig("chain", depth=4, size=8),
]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama", seed=5)


def ready(target: Target, tree: TreeConfig, vocabulary: list[int] | None = None) -> EagleDrafter:
    """A drafter that knows the prompt."""
    head = tiny_head(target.hidden_size, vocabulary=vocabulary)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(0.3)  # less sure of itself, so that draws differ
    drafter = eagle_drafter(target, tree, head)
    ids = torch.tensor(PROMPT)
    drafter.commit(ids, target.prefill_chunk(ids, target.new_cache()).features, torch.tensor(3))
    return drafter


def test_shape_for_draws():
    assert shape_for_draws(2, 2, 3) == ((0,), (1,), (0, 0))
    assert shape_for_draws(1, 2, 9) == ((0,), (1,))
    assert shape_for_draws(3, 1, 9) == ((0,), (0, 0), (0, 0, 0))


@settings(max_examples=60, deadline=None)
@given(depth=st.integers(1, 16), branching=st.integers(1, 64), size=st.integers(1, 256))
def test_every_shape_for_draws_is_a_tree_within_its_limits(depth, branching, size):
    shape = shape_for_draws(depth, branching, size)
    assert in_order_of_draws(shape) == shape
    tree_layout(shape)
    assert len(shape) <= size
    assert max(map(len, shape)) <= depth
    assert max(max(path) for path in shape) < branching
    is_full = len(shape) == sum(branching**d for d in range(1, depth + 1))
    assert is_full or len(shape) == size


def test_a_shape_says_how_many_children_and_their_order_is_that_of_the_draws():
    assert in_order_of_draws(((0,), (2,), (2, 1))) == ((0,), (1,), (1, 0))
    assert in_order_of_draws(FIGURE_9) == FIGURE_9


def test_idle_nodes_are_left_out_and_their_rounds_stay():
    """Node 2 repeats node 1, node 4 stands for no draw; both go, with node 5 below."""
    tree = DraftTree(
        torch.tensor([7, 3, 3, 5, 0, 9]),
        torch.tensor([-1, 0, 0, 1, 1, 4]),
        3,
        draws=Draws(
            torch.tensor([0, 1, 4]),
            torch.full((3, 10), 0.1),
            torch.tensor([[3, 3], [5, -1], [9, -1]]),
            with_replacement=True,
        ),
    )
    left = without_idle_nodes(tree)
    left.validate()
    assert (left.tokens.tolist(), left.parents.tolist()) == ([7, 3, 5], [-1, 0, 1])
    assert left.max_depth == 2
    assert left.draws is not None
    assert left.draws.nodes.tolist() == [0, 1]
    assert left.draws.candidates.tolist() == [[3, 3], [5, -1]]


@pytest.mark.parametrize("with_replacement", [False, True])
def test_all_ways_to_check_a_drawn_tree_agree(with_replacement):
    """With idle nodes or without, node by node or all at once; few tokens, so that draws run out."""
    vocab, n_accepted, n_smaller = 4, 0, 0
    random = torch.Generator().manual_seed(0)
    q = (torch.randn(vocab, vocab, generator=random) * 2).softmax(-1)
    q = torch.where(q < 0.1, 0.0, q)
    q = q / q.sum(dim=1, keepdim=True)
    layout = tree_layout(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    nodes = [0, 1, 2, 4]
    for seed in range(80):
        config = dataclasses.replace(SAMPLING, seed=seed, with_replacement=with_replacement)
        numbers = stream_noise("draft", seed, 9, len(nodes), 3)
        tokens = torch.zeros(8, dtype=torch.long)
        candidates = torch.full((4, 3), -1)
        for row, node in enumerate(nodes):
            children = (layout.parents == node).nonzero().flatten()
            found = draw_candidates(
                q[tokens[node]][None], numbers[row : row + 1], 3, with_replacement=with_replacement
            )[0, : len(children)]
            candidates[row, : len(children)] = found
            tokens[children] = found.clamp(min=0)
        draws = Draws(torch.tensor(nodes), q[tokens[nodes]], candidates, None, with_replacement)
        whole = dataclasses.replace(layout.tree(tokens), draws=draws)
        small = without_idle_nodes(whole)
        table = torch.randn(vocab, vocab, generator=random)
        runs = set()
        for tree in (whole, small):
            noise = verify_module._Noise.of(tree, 10, seed)
            for walk in (verify_module._verify_lazily, verify_module._verify_at_once):
                verdict = walk(tree, table[tree.tokens], noise, config)
                runs.add((verdict.run, verdict.probabilities))
                assert [tree.tokens[node] for node in verdict.path] == list(verdict.run[:-1])
        assert len(runs) == 1
        n_accepted += len(verdict.path)
        n_smaller += small.n_nodes < whole.n_nodes
    assert n_accepted > 40
    assert n_smaller > 15


@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.policy}-{t.depth}-{t.size}")
@pytest.mark.parametrize("with_replacement", [False, True])
def test_every_policy_draws_within_its_budget(target, tree, with_replacement):
    drafter = ready(target, tree)
    assert isinstance(drafter, SamplingDrafter)
    config = dataclasses.replace(SAMPLING, with_replacement=with_replacement)
    for budget in (Budget(0, 0), Budget(1, 1), Budget(5, 2), Budget(256, 16)):
        drawn = drafter.sample(torch.tensor(3), budget, config)
        drawn.validate()
        assert drafter.length == len(PROMPT)
        assert drawn.n_nodes - 1 <= min(budget.max_nodes, tree.max_nodes)
        assert drawn.max_depth <= min(budget.max_depth, tree.max_depth)
        assert (drawn.draws is None) == (budget.max_nodes == 0)


@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.policy}-{t.depth}-{t.size}")
def test_the_shape_does_not_depend_on_the_tokens(target, tree):
    drafter = ready(target, tree)
    # So hot that every token has a chance: only where q has too few tokens is a node left out.
    hot = dataclasses.replace(SAMPLING, temperature=5.0)
    drawn = [
        drafter.sample(torch.tensor(3), Budget(256, 16), dataclasses.replace(hot, seed=seed))
        for seed in range(8)
    ]
    assert len({tuple(one.parents.tolist()) for one in drawn}) == 1
    assert len({tuple(one.tokens.tolist()) for one in drawn}) > 4


@pytest.mark.parametrize("vocabulary", [None, list(range(20, 90))])
def test_children_are_what_the_draft_numbers_draw_from_q(target, vocabulary):
    config = dataclasses.replace(SAMPLING, seed=4, temperature=0.9, top_k=12)
    drafter = ready(target, TREES[0], vocabulary)
    tree = drafter.sample(torch.tensor(3), Budget(256, 16), config)
    draws = tree.draws
    assert draws is not None
    n_draws = draws.candidates.shape[1]
    torch.testing.assert_close(draws.q.sum(dim=1), torch.ones(len(draws.nodes)))
    assert int((draws.q > 0).sum(dim=1).max()) <= 12
    root = drafter._predicted
    assert root is not None
    with torch.inference_mode():
        q = to_probabilities(drafter._candidates.score(root[None]), config)
    torch.testing.assert_close(draws.q[:1], q)
    numbers = stream_noise("draft", 4, len(PROMPT), 1, n_draws * len(draws.nodes))
    numbers = numbers.reshape(len(draws.nodes), n_draws)
    expected = draw_candidates(draws.q, numbers, n_draws, with_replacement=False)
    has_draw = draws.candidates >= 0
    assert torch.equal(draws.candidates[has_draw], expected[has_draw])
    for row, node in enumerate(draws.nodes.tolist()):
        found = draws.candidates[row][has_draw[row]]
        found = found if draws.vocabulary is None else draws.vocabulary[found]
        assert tree.tokens[tree.parents == node].tolist() == found.tolist()


def run(target: Target, drafter: object, config: GenerationConfig) -> list[Event]:
    return list(
        generate_tokens(target, target.new_cache(), drafter, PROMPT, config, TREES[0], frozenset())
    )


def test_the_same_seed_draws_the_same_answer(target):
    first, second, other = (
        run(target, eagle_drafter(target, TREES[0]), dataclasses.replace(SAMPLING, seed=seed))[-1]
        for seed in (1, 1, 2)
    )
    assert isinstance(first, Finished)
    assert first.token_ids == second.token_ids != other.token_ids
    assert len(first.token_ids) == 24


def test_the_rule_in_use_is_reported(target):
    table = TableDrafter(torch.full((260, 260), 1 / 260), ((0,), (0, 0)))
    plain = run(target, NoDrafter(), SAMPLING)
    truth = list(plain[-1].token_ids)
    oracle = run(target, OracleDrafter(truth, len(PROMPT)), SAMPLING)
    eagle = run(target, eagle_drafter(target, TREES[0]), SAMPLING)
    rules = {
        "plain": plain,
        "table": run(target, table, SAMPLING),
        "eagle": eagle,
        "oracle": oracle,
    }
    found = {
        name: events[0].rule for name, events in rules.items() if isinstance(events[0], Started)
    }
    assert found == {"plain": "match", "table": "sampling", "eagle": "sampling", "oracle": "match"}
    notices = {name: sum(isinstance(e, Notice) for e in events) for name, events in rules.items()}
    assert notices == {"plain": 0, "table": 0, "eagle": 0, "oracle": 1}
    assert oracle[-1].token_ids == plain[-1].token_ids


def test_draws_count_under_their_rule_only():
    """A drawn tree that is checked by another rule is a tree like any other."""
    tree = TableDrafter(torch.full((4, 4), 0.25), ((0,), (1,))).sample(
        torch.tensor(1), Budget(4, 4), SAMPLING
    )
    logits = torch.randn(tree.n_nodes, 4, generator=torch.Generator().manual_seed(1))
    bare = dataclasses.replace(tree, draws=None)
    for config in (GenerationConfig(), GenerationConfig(temperature=1.0)):
        assert verify(tree, logits, 5, config) == verify(bare, logits, 5, config)
