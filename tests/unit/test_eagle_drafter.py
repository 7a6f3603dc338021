"""The EAGLE drafter's contract: budgets, commits, rewinds, and that it cannot change the text."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from eagle_core.candidates import FOLLOWED
from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.base import Budget, Drafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.errors import DraftError
from eagle_core.events import Finished, Notice, StepDone
from eagle_core.sampling import head_starts, position_noise
from eagle_core.target import Target
from eagle_core.testing import KINDS, tiny_model, tiny_target
from tests.support.tiny_heads import eagle_drafter, tiny_head

TREES = [
    TreeConfig("dynamic", depth=5, branching=6, size=24),
    TreeConfig("dynamic", depth=1, branching=8, size=3),
    TreeConfig("dynamic", depth=3, branching=64, size=256),
    TreeConfig("static"),
    TreeConfig("static", shape=((0,), (1,), (0, 0))),
    TreeConfig("chain", depth=4),
]
PROMPT = list(b"a prompt of some length")


def run(target, drafter, generation, tree):
    events = generate_tokens(
        target, target.new_cache(), drafter, PROMPT, generation, tree, frozenset({7})
    )
    return list(events)[-1]


@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.policy}-{t.depth}-{t.size}")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_text_is_that_of_no_drafter(tree, temperature):
    target = tiny_target("llama", seed=5)
    generation = GenerationConfig(max_new_tokens=40, temperature=temperature, seed=11)
    plain = run(target, NoDrafter(), generation, tree)
    drafted = run(target, eagle_drafter(target, tree), generation, tree)
    assert isinstance(drafted, Finished)
    assert drafted.token_ids == plain.token_ids
    assert drafted.reason == plain.reason


@pytest.mark.parametrize(
    "tree", [TreeConfig("chain", depth=4), TreeConfig("dynamic", depth=4, branching=2, size=6)]
)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_head_that_knows_the_probabilities_guesses_every_draw(tree, temperature):
    model = tiny_model(seed=5)
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()  # base and head find all tokens equally likely
    target = Target(model)
    generation = GenerationConfig(max_new_tokens=41, temperature=temperature, seed=11)
    plain = run(target, NoDrafter(), generation, tree)
    drafted = run(target, eagle_drafter(target, tree), generation, tree)
    assert drafted.token_ids == plain.token_ids
    assert len(set(plain.token_ids)) > 20
    assert drafted.stats.accepted_at_depth == drafted.stats.drafted_at_depth
    assert drafted.stats.n_accepted > 20
    cold = dataclasses.replace(generation, temperature=0.0)  # nothing is drawn, or left to guess
    assert run(target, NoDrafter(), cold, tree).token_ids == (0,) * 41


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_weight_of_a_draw_grows_with_the_temperature(temperature):
    target, tree = tiny_target(seed=5), TreeConfig("dynamic", depth=1, branching=8, size=8)
    drafters = [eagle_drafter(target, tree) for _ in range(2)]
    drafters[1].follow(GenerationConfig(temperature=temperature, seed=3))
    ids = torch.tensor(PROMPT)
    features = target.plain_logits(ids)[:, : target.hidden_size].contiguous()
    found = []
    for drafter in drafters:
        drafter.commit(ids[:-1], features[:-1], ids[-1])
        scores, _ = drafter._candidates.likeliest(
            drafter._predicted[None], drafter._candidates.n_scored, len(PROMPT)
        )
        found.append((scores[0], drafter.propose(ids[-1], Budget(8, 1))))
    own = drafters[0]._candidates.score(drafters[0]._predicted[None])[0].float()
    starts = head_starts(position_noise(3, len(PROMPT), 1)[0], torch.arange(len(own)))
    wanted = (own + FOLLOWED * temperature * starts).argsort(descending=True)
    assert torch.equal(found[1][0], wanted)
    assert set(found[1][1].tokens[1:].tolist()) == set(wanted[:8].tolist())
    assert not torch.equal(found[0][0], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_no_drafter_on_every_family(kind):
    target = tiny_target(kind, seed=1)
    tree, generation = (
        TreeConfig("dynamic", branching=12, size=60),
        GenerationConfig(max_new_tokens=24),
    )
    plain = run(target, NoDrafter(), generation, tree)
    drafted = run(target, eagle_drafter(target, tree), generation, tree)
    assert drafted.token_ids == plain.token_ids


def test_a_wide_tree_of_few_tokens_is_accepted_sometimes():
    target = tiny_target("llama", seed=5, vocab=260)
    head = tiny_head(32, vocabulary=list(range(260)))
    tree = TreeConfig("dynamic", depth=2, branching=64, size=200)
    done = run(target, eagle_drafter(target, tree, head), GenerationConfig(max_new_tokens=40), tree)
    assert done.stats.n_accepted > 0
    assert done.stats.n_steps < 39


@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.policy}-{t.depth}-{t.size}")
@pytest.mark.parametrize(
    "budget", [Budget(0, 0), Budget(5, 0), Budget(1, 1), Budget(3, 2), Budget(9, 16)]
)
def test_budget_is_kept(tree, budget):
    target = tiny_target("llama")
    drafter = eagle_drafter(target, tree)
    ids = torch.tensor(PROMPT)
    drafter.commit(ids, target.prefill_chunk(ids, target.new_cache()).features, torch.tensor(3))
    proposed = drafter.propose(torch.tensor(3), budget)
    proposed.validate()
    assert proposed.n_nodes - 1 <= min(budget.max_nodes, tree.max_nodes)
    assert proposed.max_depth <= min(budget.max_depth, tree.max_depth)


@torch.inference_mode()
@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.policy}-{t.depth}-{t.size}")
def test_every_drafted_token_says_its_node_and_the_heads_own_probability(tree):
    target = tiny_target("llama", seed=5)
    drafter = eagle_drafter(target, dataclasses.replace(tree, lookup=0))
    n_tokens = len(PROMPT)
    ids = torch.tensor(PROMPT)
    features = target.prefill_chunk(ids, target.new_cache()).features
    drafter.commit(ids, features, torch.tensor(9))
    found = drafter.propose(torch.tensor(9), Budget(24, 5))
    chances = found.draft_scores.exp()
    assert chances.shape == found.tokens.shape
    assert chances[0] == 1
    first = found.depths == 1
    own = drafter._candidates.score(drafter._predicted[None])[0]  # [V'], no draft vocabulary here
    own = own.softmax(-1)
    assert torch.allclose(chances[first], own[found.tokens[first]])
    for node in range(found.n_nodes):  # siblings share what their parent has
        assert chances[found.parents == node].sum() <= 1 + 1e-5  # float32 sums
    assert drafter.length == n_tokens


def test_events_carry_nodes_and_draft_probabilities():
    target = tiny_target("llama", seed=5, vocab=260)
    tree = TreeConfig("dynamic", depth=2, branching=64, size=128)
    generation = GenerationConfig(max_new_tokens=60)
    events = generate_tokens(
        target,
        target.new_cache(),
        eagle_drafter(target, tree),
        PROMPT,
        generation,
        tree,
        frozenset(),
    )
    n_drafted = 0
    for event in events:
        if not isinstance(event, StepDone):
            continue
        for token in event.tokens:
            if token.origin == "target":
                assert (token.node, token.draft_probability) == (None, None)
                continue
            n_drafted += 1
            assert event.tree.tokens[token.node] == token.id
            assert event.path[token.depth - 1] == token.node
            assert token.draft_probability is None or 0 <= token.draft_probability <= 1
    assert n_drafted > 0


def test_many_commits_and_a_rewind_equal_one_commit():
    target = tiny_target("llama")
    tree = TreeConfig("dynamic", size=20)
    ids = torch.tensor(PROMPT)
    features = target.prefill_chunk(ids, target.new_cache()).features
    once, often = eagle_drafter(target, tree), eagle_drafter(target, tree)
    once.commit(ids, features, torch.tensor(3))
    often.commit(ids[:5], features[:5], ids[5])
    often.commit(ids[5:6], features[5:6], ids[6])
    often.propose(ids[6], Budget(20, 5))
    often.commit(ids[6:9], features[6:9], torch.tensor(200))
    often.rewind(8)
    often.commit(ids[8:], features[8:], torch.tensor(3))
    assert once.length == often.length == len(PROMPT)
    left, right = (d.propose(torch.tensor(3), Budget(20, 5)) for d in (once, often))
    assert left.tokens.tolist() == right.tokens.tolist()
    assert left.parents.tolist() == right.parents.tolist()


def test_contract():
    target = tiny_target("llama")
    drafter = eagle_drafter(target, TreeConfig())
    assert isinstance(drafter, Drafter)
    with pytest.raises(DraftError, match="nothing was committed"):
        drafter.propose(torch.tensor(1), Budget(4, 4))
    ids = torch.tensor(PROMPT)
    drafter.commit(ids, target.prefill_chunk(ids, target.new_cache()).features, torch.tensor(3))
    drafter.configure(TreeConfig("static", size=256))
    assert drafter.length in (0, len(PROMPT))
    drafter.reset()
    assert drafter.length == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rule", ["match", "sampling"])
def test_a_head_that_computes_no_numbers_is_one_notice_and_does_no_harm(temperature, rule):
    target = tiny_target("llama", seed=5)
    head = tiny_head(32)
    with torch.no_grad():
        head.fc.weight.fill_(float("nan"))
    tree = TreeConfig()
    generation = GenerationConfig(max_new_tokens=12, temperature=temperature, rule=rule)
    plain = run(target, NoDrafter(), generation, tree)
    events = list(
        generate_tokens(
            target, target.new_cache(), eagle_drafter(target, tree, head), PROMPT, generation, tree,
            frozenset(),
        )
    )  # fmt: skip
    assert isinstance(events[-1], Finished)
    assert events[-1].token_ids == plain.token_ids
    assert events[-1].stats.n_drafted == 0
    (notice,) = (event for event in events if isinstance(event, Notice))
    assert "no number" in notice.message
