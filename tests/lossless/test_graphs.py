"""Answers with and without graphs are the same, and so are the drafts. Recordings stand in for a device's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.drafters.base import Budget
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.events import Finished, Notice, StepDone
from eagle_core.heads.base import DraftHead
from eagle_core.kernels.graphs import GraphDeck
from eagle_core.loading import LoadedBase
from eagle_core.session import Session
from eagle_core.target import Target
from eagle_core.testing import Kind, tiny_model
from tests.support.recorded_graphs import RecordedCapture
from tests.support.tiny_heads import eagle_drafter, tiny_eagle3_head, tiny_head
from tests.support.tiny_models import byte_level_tokenizer

PROMPT = list(b"a prompt of some length")
LAYERS = (2, 1, 0)
SMALLEST = 32  # keys: an answer of 60 tokens crosses some borders
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "0.9": {"temperature": 0.9, "top_p": 0.95, "seed": 1},
    "drawn": {"temperature": 0.9, "seed": 3, "rule": "sampling"},
}
TREES = {
    "dynamic": TreeConfig("dynamic", depth=4, branching=6, size=24, lookup=4),
    "static": TreeConfig("static"),
    "chain": TreeConfig("chain", depth=4, lookup=0),
}


def graphed(target: Target) -> Target:
    """The target, with graphs on small caches."""
    target.use_graphs(RecordedCapture)
    if target.graphs is not None:
        target.graphs = GraphDeck(
            target._plain, RecordedCapture, target.dtype, smallest_keys=SMALLEST
        )
    return target


def graphed_drafter(target: Target, tree: TreeConfig, head: DraftHead) -> EagleDrafter:
    drafter = eagle_drafter(target, tree, head)
    drafter.graphs = GraphDeck(
        drafter._forward, RecordedCapture, head.dtype, smallest_keys=SMALLEST
    )
    return drafter


def write(target: Target, drafter: Any, config: GenerationConfig, tree: TreeConfig) -> list[Any]:
    """What each step yielded: its tokens, how many were drafted and accepted."""
    cache = target.new_cache(300)
    events = list(generate_tokens(target, cache, drafter, PROMPT, config, tree, frozenset({7})))
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Notice) and event.level == "warning" for event in events)
    if target.graphs is not None:
        assert target.graphs.n_replayed() > 0
        assert not target.graphs._refused
    return [
        (tuple(token.id for token in event.tokens), event.tree.parents, event.tree.tokens)
        for event in events
        if isinstance(event, StepDone) and event.tree is not None
    ]


@pytest.mark.parametrize(
    ("shape", "settings"),
    [("dynamic", "greedy"), ("dynamic", "drawn"), ("static", "0.9"), ("chain", "greedy")],
)
def test_answers_and_drafts_are_the_same(shape: str, settings: str) -> None:
    tree, config = TREES[shape], GenerationConfig(max_new_tokens=32, **SETTINGS[settings])
    heads = {"eagle1": tiny_head(), "eagle3": tiny_eagle3_head(vocabulary=list(range(0, 260, 2)))}
    model = tiny_model("llama", seed=5)
    for name, head in heads.items():
        layers = LAYERS if name == "eagle3" else ()
        plain, fast = Target(model, None, layers), graphed(Target(model, None, layers))
        wanted = write(plain, eagle_drafter(plain, tree, head), config, tree)
        drafter = graphed_drafter(fast, tree, head)
        assert write(fast, drafter, config, tree) == wanted
        assert drafter.graphs is not None
        assert drafter.graphs.n_replayed() > 0
        assert not drafter.graphs._refused


@pytest.mark.parametrize("kind", ["qwen3", "gemma3", "mixtral", "gpt_neox", "phi3"])
def test_answers_of_every_family_are_the_same(kind: Kind) -> None:
    config, tree = GenerationConfig(max_new_tokens=24), TREES["dynamic"]
    model = tiny_model(kind, seed=1)
    plain, fast = Target(model), graphed(Target(model))
    wanted = write(plain, NoDrafter(), config, tree)
    assert write(fast, NoDrafter(), config, tree) == wanted
    drafter = graphed_drafter(fast, tree, tiny_head())
    found = write(fast, drafter, config, tree)
    assert [token for tokens, *_ in found for token in tokens] == [
        token for tokens, *_ in wanted for token in tokens
    ]


def test_a_drafter_asks_for_graphs_itself() -> None:
    """Also where its cache makes room for a larger tree, which drops the graphs of the smaller one."""
    target = Target(tiny_model("llama"))
    head = tiny_head()
    small, large = TreeConfig("chain", depth=3, lookup=0), TreeConfig("dynamic", 4, 8, 40)
    drafters = [
        EagleDrafter(head, target.embed, target.output_embeddings, small, 300, captures=captures)
        for captures in (RecordedCapture, None)
    ]
    cache = target.new_cache()
    ids = torch.tensor(PROMPT)
    features = target.prefill_chunk(ids, cache).features
    for tree in (small, large):
        for drafter in drafters:
            drafter.configure(tree)
            drafter.reset()
            drafter.commit(ids, features, torch.tensor(9))
        for step in range(8):
            found, wanted = (
                drafter.propose(torch.tensor(9), Budget(tree.max_nodes, tree.max_depth))
                for drafter in drafters
            )
            assert torch.equal(found.tokens, wanted.tokens)
            assert torch.equal(found.parents, wanted.parents)
            for drafter in drafters:
                drafter.commit(ids[step : step + 2], features[step : step + 2], torch.tensor(9))
        assert drafters[0].graphs is not None
        assert drafters[0].graphs.n_replayed() > 0
    assert drafters[1].graphs is None


def open_session(*, cuda_graphs: bool) -> Session:
    tokenizer = byte_level_tokenizer()
    model = tiny_model("llama", vocab=len(tokenizer))
    base = LoadedBase(model, tokenizer, "tiny", 256, cuda_graphs=cuda_graphs)
    return Session(base, tiny_head(), "head", head_dtype="float32")


def test_a_session_replays_graphs_where_they_are_wanted_and_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not open_session(cuda_graphs=True).info.cuda_graphs  # no GPU here
    monkeypatch.setattr("eagle_core.session.graph_captures", lambda _: RecordedCapture)
    # On a CPU it would be put into kernels that no graph sees.
    monkeypatch.setattr("eagle_core.session.place_head", lambda head, *_: head)
    fast, plain = open_session(cuda_graphs=True), open_session(cuda_graphs=False)
    assert (fast.info.cuda_graphs, plain.info.cuda_graphs) == (True, False)
    draft = DraftConfig("eagle", TREES["dynamic"])
    ids = PROMPT
    for settings in SETTINGS.values():
        config = GenerationConfig(max_new_tokens=20, **settings)
        found, wanted = (list(one.generate(ids, config, draft))[-1] for one in (fast, plain))
        assert isinstance(found, Finished), found
        assert found.token_ids == wanted.token_ids
        ids = [*ids, *found.token_ids, *PROMPT]  # the next turn goes on from the cached rows
    assert fast.target.graphs is not None
    assert fast.target.graphs.n_replayed() > 0
    assert fast._eagle is not None
    assert fast._eagle.graphs is not None
    assert fast._eagle.graphs.n_replayed() > 0
    fast.set_reproducible(False)
    assert fast.target.graphs is not None
    fast.close()
    assert fast.target.graphs.n_replayed() == 0
