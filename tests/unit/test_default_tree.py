"""Which tree is drafted where the user sets none: the recommended one; single paths on a Mac's GPU."""

from __future__ import annotations

from typing import Any

import pytest

from eagle_core import catalog
from eagle_core.config import AUTO_TREES, DraftConfig, GenerationConfig, TreeConfig, from_mapping
from eagle_core.drafters.eagle import EagleDrafter, max_drafted_rows
from eagle_core.events import Finished, StepDone
from eagle_core.loading import LoadedBase
from eagle_core.session import Session
from eagle_core.testing import tiny_model
from tests.support.tiny_heads import tiny_head
from tests.support.tiny_models import byte_level_tokenizer

PROMPT = [10, 20, 30, 40, 50]
WIDE = TreeConfig("dynamic", depth=4, branching=3, size=9)


def own_entry(tree: TreeConfig) -> catalog.CatalogEntry:
    return catalog.CatalogEntry(
        "mine", "Mine", catalog.HubSource("org/x"), None, None, "MIT", tree=tree, is_own=True
    )


def open_session(monkeypatch: Any, device: str, tree: TreeConfig) -> Session:
    """A session that takes itself to run on ``device``, on a pair that recommends ``tree``."""
    asked = catalog.default_tree(own_entry(tree), device)
    monkeypatch.setattr(catalog, "default_tree", lambda entry, kind: asked)
    tokenizer = byte_level_tokenizer()
    model = tiny_model("llama", vocab=len(tokenizer), hidden_size=32, seed=3).eval()
    return Session(LoadedBase(model, tokenizer, "tiny", 256), tiny_head(32), "head")


def steps_of(session: Session, tree: TreeConfig, n_tokens: int = 8) -> list[StepDone]:
    generation = GenerationConfig(max_new_tokens=n_tokens)
    events = list(session.generate(PROMPT, generation, DraftConfig("eagle", tree)))
    assert isinstance(events[-1], Finished), events[-1]
    return [event for event in events if isinstance(event, StepDone)]


def is_chain(step: StepDone) -> bool:
    return list(step.tree.parents) == list(range(-1, len(step.tree.parents) - 1))


def largest(steps: list[StepDone]) -> int:
    """Drafted nodes of the largest tree."""
    return max(len(step.tree.parents) for step in steps) - 1


def test_auto_starts_with_the_recommended_tree_and_tries_the_others_too() -> None:
    tree = TreeConfig(start=WIDE, lookup=7)
    assert tree.policy == "auto"
    assert tree.ways[0] == TreeConfig("dynamic", 4, 3, 9, lookup=7)
    assert [(way.depth, way.branching, way.size) for way in tree.ways[1:]] == list(AUTO_TREES)
    assert tree.max_nodes == max(way.size for way in tree.ways) + 7
    first = TreeConfig("dynamic", *AUTO_TREES[0])
    assert TreeConfig(start=first).ways == TreeConfig().ways  # none is tried twice
    static = TreeConfig(start=TreeConfig("static"))
    assert (static.head_nodes, static.head_depth) == (25, 5)
    assert max_drafted_rows(static) == 25
    assert from_mapping(TreeConfig, {"start": {"policy": "chain"}}).start == TreeConfig("chain")
    assert TreeConfig(start=TreeConfig()).start is None


@pytest.mark.parametrize(
    ("entry", "device", "expected"),
    [
        (None, "cuda", TreeConfig()),
        (catalog.find("qwen3-4b"), "cuda", TreeConfig(start=catalog.find("qwen3-4b").tree)),
        (catalog.find("qwen3-4b"), "cpu", TreeConfig()),
        (catalog.default_entry(), "cuda", TreeConfig()),
        (own_entry(WIDE), "cpu", TreeConfig(start=WIDE)),
        (own_entry(TreeConfig()), "cuda", TreeConfig()),
        (own_entry(WIDE), "mps", TreeConfig("chain", depth=3)),
        (None, "mps", TreeConfig("chain", depth=3)),
    ],
)
def test_what_a_pair_and_a_device_say(
    entry: catalog.CatalogEntry | None, device: str, expected: TreeConfig
) -> None:
    assert catalog.default_tree(entry, device) == expected


def test_the_recommended_tree_is_drafted_unless_the_user_sets_one(monkeypatch: Any) -> None:
    session = open_session(monkeypatch, "cuda", WIDE)
    assert largest(steps_of(session, TreeConfig(lookup=0))) == WIDE.size
    session.forget()
    assert 0 < largest(steps_of(session, TreeConfig(size=5, lookup=0))) <= 5


def test_a_macs_gpu_drafts_single_paths_unless_asked_otherwise(monkeypatch: Any) -> None:
    session = open_session(monkeypatch, "mps", WIDE)
    steps = steps_of(session, TreeConfig(lookup=0))
    assert all(map(is_chain, steps))
    assert largest(steps) == 3
    session.forget()
    assert not all(map(is_chain, steps_of(session, TreeConfig(depth=3, branching=3, size=8))))


def test_a_session_asks_for_its_own_pair_and_device(monkeypatch: Any) -> None:
    asked: list[tuple[Any, str]] = []

    def default_tree(entry: Any, device: str) -> TreeConfig:
        asked.append((entry, device))
        return TreeConfig()

    monkeypatch.setattr(catalog, "default_tree", default_tree)
    tokenizer = byte_level_tokenizer()
    model = tiny_model("llama", vocab=len(tokenizer), hidden_size=32, seed=3).eval()
    Session(LoadedBase(model, tokenizer, "qwen3-4b", 256), None)
    assert asked == [(catalog.find("qwen3-4b"), "cpu")]


def test_a_drafter_takes_a_recommended_tree_that_is_larger_than_the_last(monkeypatch: Any) -> None:
    session = open_session(
        monkeypatch, "cuda", TreeConfig("dynamic", depth=8, branching=6, size=60)
    )
    steps_of(session, TreeConfig("chain", depth=1, lookup=0))
    steps = steps_of(session, TreeConfig(lookup=0), n_tokens=40)
    assert isinstance(session._eagle, EagleDrafter)
    assert largest(steps) > 8
