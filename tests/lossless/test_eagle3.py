"""Drafting with an EAGLE-3 head changes no answer either: on any base, with any tree, replayed or not."""

from __future__ import annotations

import pytest
import torch

from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.errors import IncompatibleHead
from eagle_core.events import Finished, Notice
from eagle_core.kernels import ops
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.packing import pack_layers
from eagle_core.target import Target
from eagle_core.testing import KINDS, tiny_model
from tests.support.tiny_heads import eagle_drafter, tiny_eagle3_head

PROMPT = list(b"a prompt of some length")
LAYERS = (2, 1, 0)
TREES = {
    "dynamic": TreeConfig("dynamic", depth=4, branching=6, size=24),
    "wide": TreeConfig("dynamic", depth=2, branching=64, size=200),
    "static": TreeConfig("static"),
    "chain": TreeConfig("chain", depth=4),
    "lookup": TreeConfig("dynamic", depth=3, branching=4, size=12, lookup=6),
}


def write(target, drafter, config, tree):
    """The answer, and what went wrong with the drafter."""
    events = list(
        generate_tokens(target, target.new_cache(), drafter, PROMPT, config, tree, frozenset({7}))
    )
    assert isinstance(events[-1], Finished)
    return events[-1], [e.message for e in events if isinstance(e, Notice) and e.level == "warning"]


@pytest.fixture(scope="module")
def target():
    return Target(tiny_model("llama", seed=5), feature_layers=LAYERS)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.9, "seed": 1},
        {"temperature": 0.9, "top_p": 0.9, "seed": 2},
        {"temperature": 1.3, "seed": 3, "repetition_penalty": 1.2},
    ],
    ids=["greedy", "0.9", "0.9, top-p", "1.3, penalty"],
)
def test_text_is_that_of_no_drafter(target, tree, settings):
    config = GenerationConfig(max_new_tokens=40, **settings)
    head = tiny_eagle3_head(vocabulary=list(range(0, 260, 2)))
    plain, _ = write(target, NoDrafter(), config, tree)
    drafted, problems = write(target, eagle_drafter(target, tree, head), config, tree)
    assert drafted.token_ids == plain.token_ids
    assert drafted.reason == plain.reason
    assert drafted.stats.n_drafted > 0
    assert not problems


def test_a_wide_tree_is_accepted_sometimes(target):
    head = tiny_eagle3_head()
    tree = TREES["wide"]
    done, _ = write(
        target, eagle_drafter(target, tree, head), GenerationConfig(max_new_tokens=40), tree
    )
    assert done.stats.n_accepted > 0


def test_drawn_trees_draw_from_the_heads_own_scores(target):
    """The rule ``sampling`` has its q from this head: repeatable, and never an error."""
    head = tiny_eagle3_head(vocabulary=list(range(0, 260, 2)))
    config = GenerationConfig(max_new_tokens=24, temperature=0.9, seed=3, rule="sampling")
    tree = TREES["dynamic"]
    answers = [write(target, eagle_drafter(target, tree, head), config, tree) for _ in range(2)]
    assert answers[0][0].token_ids == answers[1][0].token_ids
    assert answers[0][0].stats.n_drafted > 0
    assert not answers[0][1]


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_no_drafter_on_every_family(kind):
    target = Target(tiny_model(kind, seed=1), feature_layers=LAYERS)
    tree, config = TREES["dynamic"], GenerationConfig(max_new_tokens=20)
    plain, _ = write(target, NoDrafter(), config, tree)
    head = tiny_eagle3_head()
    drafted, problems = write(target, eagle_drafter(target, tree, head), config, tree)
    assert drafted.token_ids == plain.token_ids
    assert not problems


@pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
def test_replayed_forwards_give_the_layers_features_too():
    """The features of a replay are, bit for bit, those of the model's own forward."""

    def fast_target():
        model = tiny_model("llama", hidden_size=64).requires_grad_(False)
        pack_layers(model)
        assert use_rows_attention(model)
        return Target(model, feature_layers=LAYERS)

    fast, plain = fast_target(), fast_target()
    plain._tapes = None
    tree, config = TREES["dynamic"], GenerationConfig(max_new_tokens=60)
    head = tiny_eagle3_head(64, n_heads=4, head_dim=16, intermediate_size=64).requires_grad_(False)
    fast_head = tiny_eagle3_head(
        64, n_heads=4, head_dim=16, intermediate_size=64
    ).requires_grad_(False)  # fmt: skip
    pack_layers(fast_head)
    assert use_rows_attention(fast_head)
    slow, fast_drafter = eagle_drafter(plain, tree, head), eagle_drafter(fast, tree, fast_head)
    seen: dict[str, list[torch.Tensor]] = {"slow": [], "fast": []}
    for drafter, name in ((slow, "slow"), (fast_drafter, "fast")):
        commit = drafter.commit

        def spy(tokens, features, next_token, commit=commit, name=name):
            seen[name].append(features.clone())
            commit(tokens, features, next_token)

        drafter.commit = spy
    left, _ = write(plain, slow, config, tree)
    right, problems = write(fast, fast_drafter, config, tree)
    assert not problems
    assert left.token_ids == right.token_ids
    assert torch.equal(torch.cat(seen["slow"]), torch.cat(seen["fast"]))
    assert torch.cat(seen["fast"]).shape[1] == 3 * 64
    assert fast._tapes.n_replayed() > 0
    assert fast_drafter._tapes.n_replayed() > 0


def test_layers_that_the_base_lacks():
    with pytest.raises(IncompatibleHead, match="does not have"):
        Target(tiny_model("llama"), feature_layers=(1, 3))
