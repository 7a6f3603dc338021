"""Families of models: each writes with every drafter what it writes with none, or says why it takes none.

Random weights, float32, prompts beyond the window where there is one. Greedy text is compared with the
model's own forward over the whole text, without a cache, as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.base import Drafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.events import Event, Finished, Notice
from eagle_core.selftest import self_test
from eagle_core.target import Target
from eagle_core.testing import (
    ALL_KINDS,
    OracleDrafter,
    RandomTreeDrafter,
    WrongDrafter,
    tiny_target,
)

WINDOW = 8
WINDOWED = ("mistral", "qwen2", "qwen3", "mixtral", "phi3", "gemma2", "gemma3")
CHAINS_ONLY = {"bloom": "tree: ValueError"}  # it takes a 2D mask to place its linear biases
PLAIN_ONLY = {"mamba": "keeps state"}
N_NEW = 16
PROMPT = torch.randint(256, (3 * WINDOW + 2,), generator=torch.Generator().manual_seed(1)).tolist()
TREE = TreeConfig(depth=4, branching=4, size=14)

Make = Callable[[list[int]], Drafter]
N = len(PROMPT)
TREES: dict[str, Make] = {
    "oracle": lambda truth: OracleDrafter(truth, N, n_wrong=2),
    "wrong": lambda truth: WrongDrafter(truth, N),
    "random": lambda truth: RandomTreeDrafter(7, continuation=truth, n_prompt=N),
}
CHAINS: dict[str, Make] = {
    "oracle": lambda truth: OracleDrafter(truth, N, n_wrong=0),
    "half-right": lambda truth: OracleDrafter(truth, N, n_wrong=0, wrong_after=2),
    "wrong": lambda truth: OracleDrafter(truth, N, n_wrong=0, wrong_after=0),
}

# Mamba's convolutions fall back to plain PyTorch, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def answer(target: Target, drafter: Drafter, temperature: float) -> list[Event]:
    config = GenerationConfig(max_new_tokens=N_NEW, temperature=temperature, seed=11)
    cache: Any = target.new_cache()
    return list(generate_tokens(target, cache, drafter, PROMPT, config, TREE, frozenset()))


def ids(events: list[Event]) -> list[int]:
    assert isinstance(events[-1], Finished)
    return list(events[-1].token_ids)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_family_writes_the_same_or_says_why_not(kind):
    target = tiny_target(kind, window=WINDOW if kind in WINDOWED else None, seed=2)
    found = self_test(target)
    expected = "chain" if kind in CHAINS_ONLY else "none" if kind in PLAIN_ONLY else "tree"
    assert found.drafting == expected, found.reason
    assert (CHAINS_ONLY | PLAIN_ONLY).get(kind, "") in found.reason
    makes = {"tree": TREES, "chain": CHAINS, "none": {}}[found.drafting]
    for temperature in (0.0, 0.8):
        truth = ids(answer(target, NoDrafter(), temperature))
        assert len(set(truth)) > 3, "a text that repeats itself would prove little"
        if temperature == 0:
            logits = target.plain_logits(torch.tensor(PROMPT + truth))  # [T, V]
            assert logits[N - 1 : -1].argmax(dim=-1).tolist() == truth
        accepted = {}
        for name, make in makes.items():
            events = answer(target, make(truth), temperature)
            assert ids(events) == truth, name
            assert not any(isinstance(event, Notice) for event in events)
            accepted[name] = events[-1].stats.n_accepted
        if makes:
            assert accepted["oracle"] > N_NEW / 2 > accepted["wrong"] == 0


@pytest.mark.parametrize("kind", CHAINS_ONLY)
def test_a_branch_is_never_evaluated_where_only_paths_are_right(kind):
    target = tiny_target(kind, seed=2)
    self_test(target)
    truth = ids(answer(target, NoDrafter(), 0.0))
    events = answer(target, OracleDrafter(truth, N, n_wrong=2), 0.0)
    assert ids(events) == truth
    assert sum(isinstance(event, Notice) for event in events) == 1
    assert events[-1].stats.n_accepted == 0


def test_a_state_is_read_in_parts_as_in_one():
    """Several chunks, a cache used again, and a forward that was not committed."""
    target = tiny_target("mamba", seed=2)
    text = torch.tensor(PROMPT)
    whole = target.plain_logits(text)
    cache = target.new_cache()
    assert not cache.can_rewind
    for _ in range(2):
        for begin, end in ((0, 10), (10, 11), (11, N)):
            output = target.prefill_chunk(text[begin:end], cache)
            # Logits reach about 10; float32 sums in another order.
            torch.testing.assert_close(output.logits[0], whole[end - 1], atol=3e-4, rtol=0)
            assert output.features.shape[0] == end - begin
        cache.rewind(N)
        assert cache.length == N
        cache.rewind(5)
        assert cache.length == 0, "a state cannot go back by some tokens"
    target.prefill_chunk(text, cache)
    with torch.inference_mode():
        target._forward(text[:1], torch.tensor([N]), None, cache, n_logits=1)  # and never committed
    cache.rewind(N)
    assert cache.length == 0, "it holds a token that nobody committed"
