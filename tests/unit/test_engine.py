"""The loop: cuts, limits, cancelling, closing, errors, and what the events say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from eagle_core.cache import KVCache
from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.base import Budget, Drafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import (
    PREFILL_CHUNK,
    Cut,
    cut_run,
    generate_tokens,
    never,
    nowhere,
    step_budget,
)
from eagle_core.errors import ConfigError, ContextOverflow
from eagle_core.events import Event, Finished, PrefillProgress, Started, StepDone
from eagle_core.target import Target
from eagle_core.testing import (
    OracleDrafter,
    RandomTreeDrafter,
    WrongDrafter,
    tiny_target,
)

PROMPT = [10, 20, 30, 40, 50]
N_NEW = 24
WIDE = TreeConfig(depth=5, branching=6, size=24)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def run(
    target: Target,
    drafter: Drafter,
    *,
    prompt: Sequence[int] = PROMPT,
    cache: KVCache | None = None,
    eos_ids: frozenset[int] = frozenset(),
    tree: TreeConfig | None = None,
    is_cancelled: Callable[[], bool] = never,
    cut: Cut = nowhere,
    **settings: Any,
) -> list[Event]:
    """All events; the invariant is checked at every one."""
    cache = cache or target.new_cache()
    config = GenerationConfig(**{"max_new_tokens": N_NEW} | settings)
    stream = generate_tokens(
        target, cache, drafter, prompt, config, tree or WIDE, eos_ids,
        is_cancelled=is_cancelled, cut=cut,
    )  # fmt: skip
    events, n_tokens = [], 0
    for event in stream:
        events.append(event)
        assert cache.length == drafter.length
        if isinstance(event, StepDone):
            n_tokens += len(event.tokens)
            assert cache.length == len(prompt) + n_tokens - 1
    return events


def finish(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.fixture(scope="module")
def truth(target: Target) -> list[int]:
    """Greedy continuation, longer than any test needs."""
    return list(finish(run(target, NoDrafter(), max_new_tokens=120)).token_ids)


def oracle(truth: list[int], **settings: Any) -> OracleDrafter:
    return OracleDrafter(truth, len(PROMPT), **settings)


def test_events_in_order_and_sums_agree(target, truth):
    events = run(target, oracle(truth))
    kinds = [type(event) for event in events]
    n_steps = kinds.count(StepDone)
    assert kinds == [Started, PrefillProgress, *[StepDone] * n_steps, Finished]
    started, steps, finished = events[0], events[2:-1], finish(events)
    assert (started.n_prompt_tokens, started.n_cached_tokens, started.rule) == (5, 0, "greedy")
    assert [step.index for step in steps] == list(range(n_steps))
    assert steps[0].tree.tokens == ()
    emitted = [token for step in steps for token in step.tokens]
    assert [token.id for token in emitted] == list(finished.token_ids) == truth[:N_NEW]
    stats = finished.stats
    assert (stats.n_tokens, stats.n_steps) == (N_NEW, n_steps - 1)
    assert stats.n_accepted == sum(token.origin == "draft" for token in emitted)
    assert stats.tau == (N_NEW - 1) / stats.n_steps
    assert stats.tau > 4
    times = [step.time_s for step in steps]
    assert times == sorted(times)


def test_a_step_says_which_nodes_became_tokens(target, truth):
    for step in run(target, oracle(truth))[3:-1]:
        assert [step.tree.tokens[node] for node in step.path] == [
            token.id for token in step.tokens if token.origin == "draft"
        ]
        assert [t.depth for t in step.tokens if t.origin == "draft"] == [
            i + 1 for i in range(len(step.path))
        ]
        assert all(0 < token.probability <= 1 for token in step.tokens)


def test_vanilla_is_one_token_per_step(target, truth):
    stats = finish(run(target, NoDrafter())).stats
    assert (stats.tau, stats.n_steps, stats.n_drafted) == (1.0, N_NEW - 1, 0)
    wrong = finish(run(target, WrongDrafter(truth, len(PROMPT)))).stats
    assert (wrong.tau, wrong.n_accepted) == (1.0, 0)
    assert wrong.n_drafted > 0


@pytest.mark.parametrize("index", range(12))
def test_eos_anywhere_in_a_run_ends_the_answer(target, truth, index):
    eos = truth[index]
    first = truth.index(eos)
    events = run(target, oracle(truth), eos_ids=frozenset({eos}))
    finished = finish(events)
    assert finished.reason == "eos"
    assert list(finished.token_ids) == truth[: first + 1]
    emitted = [t for event in events if isinstance(event, StepDone) for t in event.tokens]
    assert len(emitted) == first + 1
    assert finished.stats.n_accepted == sum(token.origin == "draft" for token in emitted)


class CutAfter:
    """Ends the answer after so many tokens; remembers what it read."""

    def __init__(self, n_tokens: int) -> None:
        self.n_left, self.read = n_tokens, list[int]()

    def __call__(self, run: Sequence[int]) -> int | None:
        n_read = min(self.n_left, len(run))
        self.read += run[:n_read]
        self.n_left -= n_read
        return n_read if self.n_left == 0 else None


@pytest.mark.parametrize("n_tokens", range(1, 12))
@pytest.mark.parametrize("make", [oracle, lambda truth: NoDrafter()], ids=["oracle", "none"])
def test_a_cut_anywhere_in_a_run_is_made_before_the_commit(target, truth, n_tokens, make):
    cut, cache, drafter = CutAfter(n_tokens), target.new_cache(), make(truth)
    finished = finish(run(target, drafter, cache=cache, cut=cut))
    assert finished.reason == "stop"
    assert list(finished.token_ids) == truth[:n_tokens] == cut.read
    assert finished.stats.n_tokens == n_tokens
    assert cache.length == drafter.length == len(PROMPT) + n_tokens - 1


def test_a_cut_reads_each_token_once_and_nothing_beyond_the_end(target, truth):
    cut = CutAfter(1000)
    finished = finish(run(target, oracle(truth), cut=cut, eos_ids=frozenset({truth[9]})))
    assert finished.reason == "eos"
    assert cut.read == list(finished.token_ids)
    assert finish(run(target, oracle(truth), cut=CutAfter(8), max_new_tokens=8)).reason == "stop"


@pytest.mark.parametrize("n_new", [1, 2, 3, 7, 8])
def test_never_more_than_max_new_tokens(target, truth, n_new):
    finished = finish(run(target, oracle(truth), max_new_tokens=n_new))
    assert (finished.reason, list(finished.token_ids)) == ("length", truth[:n_new])


@pytest.mark.parametrize("capacity", [6, 7, 9, 17])
@pytest.mark.parametrize("make", [oracle, lambda truth: NoDrafter()], ids=["oracle", "none"])
def test_the_context_is_filled_to_its_last_token(target, truth, capacity, make):
    cache = target.new_cache(capacity)
    finished = finish(run(target, make(truth), cache=cache, max_new_tokens=100))
    assert finished.reason == "context"
    assert list(finished.token_ids) == truth[: capacity - len(PROMPT)]


def test_prompts_that_do_not_fit(target):
    with pytest.raises(ContextOverflow) as caught:
        run(target, NoDrafter(), cache=target.new_cache(5))
    assert ("4 tokens" in caught.value.expected, caught.value.got) == (True, "5 tokens")
    with pytest.raises(ConfigError, match="empty"):
        run(target, NoDrafter(), prompt=[])


def test_a_cached_prefix_is_not_read_again(target, truth):
    cache, drafter = target.new_cache(), oracle(truth)
    run(target, drafter, cache=cache)
    for n_kept in (len(PROMPT) - 1, 2):
        cache.rewind(n_kept)
        drafter.rewind(n_kept)
        events = run(target, drafter, cache=cache)
        assert events[0].n_cached_tokens == n_kept
        assert list(finish(events).token_ids) == truth[:N_NEW]


def test_long_prompts_are_read_in_chunks():
    target = tiny_target(context_length=1200)
    prompt = torch.randint(256, (2 * PREFILL_CHUNK + 1,), generator=torch.Generator()).tolist()
    events = run(target, NoDrafter(), prompt=prompt, max_new_tokens=2)
    progress = [event.done for event in events if isinstance(event, PrefillProgress)]
    assert progress == [PREFILL_CHUNK, 2 * PREFILL_CHUNK, len(prompt)]
    with torch.inference_mode():
        logits = target.model(input_ids=torch.tensor([prompt]), use_cache=False).logits
    assert finish(events).token_ids[0] == int(logits[0, -1].argmax())


@pytest.mark.parametrize("n_layers_seen", [0, 1, 3])
def test_stop_is_seen_between_the_layers_of_a_long_prompt(n_layers_seen):
    target = tiny_target(context_length=1200)
    prompt = torch.randint(256, (PREFILL_CHUNK + 5,), generator=torch.Generator()).tolist()
    expected = finish(run(target, NoDrafter(), prompt=prompt)).token_ids
    asked = []

    def is_cancelled() -> bool:
        asked.append(None)
        return len(asked) > 1 + n_layers_seen  # before the chunk it is asked once

    cache, drafter = target.new_cache(), NoDrafter()
    events = run(target, drafter, prompt=prompt, cache=cache, is_cancelled=is_cancelled)
    n_read = PREFILL_CHUNK if n_layers_seen > target.n_layers else 0
    assert (finish(events).reason, cache.length, drafter.length) == ("cancelled", n_read, n_read)
    again = run(target, drafter, prompt=prompt, cache=cache)
    assert finish(again).token_ids == expected
    layers = next(m for m in target.model.modules() if isinstance(m, torch.nn.ModuleList))
    assert not any(layer._forward_pre_hooks for layer in layers)


def test_the_drafter_is_told_every_next_token(target, truth):
    heard: list[tuple[list[int], int, int]] = []

    class Listener(NoDrafter):
        def commit(self, tokens: Any, features: Any, next_token: Any) -> None:
            heard.append((tokens.tolist(), features.shape[0], int(next_token)))
            super().commit(tokens, features, next_token)

    run(target, Listener(), max_new_tokens=3)
    assert heard == [
        (PROMPT, 5, truth[0]),
        ([truth[0]], 1, truth[1]),
        ([truth[1]], 1, truth[2]),
    ]


def test_features_committed_are_those_of_the_text(target, truth):
    """Gathered from tree rows, they equal the features of a plain prefill of the same text."""
    taken: list[torch.Tensor] = []

    class Keeper(OracleDrafter):
        def commit(self, tokens: Any, features: Any, next_token: Any) -> None:
            taken.append(features)
            super().commit(tokens, features, next_token)

    run(target, Keeper(truth, len(PROMPT), n_wrong=2))
    text = torch.tensor(PROMPT + truth[: N_NEW - 1])
    expected = target.prefill_chunk(text, target.new_cache()).features
    # Features are normed to about 1; the order of float32 sums differs.
    torch.testing.assert_close(torch.cat(taken), expected, atol=1e-4, rtol=0)


def test_cancelling_between_chunks_and_steps(target, truth):
    finished = finish(run(target, oracle(truth), is_cancelled=lambda: True))
    assert (finished.reason, finished.token_ids) == ("cancelled", ())
    n_asked = 1 + target.n_layers + 2  # before the chunk, before its layers, before two steps
    answers = iter([*[False] * n_asked, True])
    finished = finish(run(target, oracle(truth), is_cancelled=lambda: next(answers)))
    assert finished.reason == "cancelled"
    assert list(finished.token_ids) == truth[: finished.stats.n_tokens]
    assert finished.stats.n_steps == 2


@pytest.mark.parametrize("n_events", range(1, 6))
def test_closing_anywhere_leaves_valid_caches(target, truth, n_events):
    cache, drafter = target.new_cache(), oracle(truth)
    stream = generate_tokens(
        target, cache, drafter, PROMPT, GenerationConfig(max_new_tokens=N_NEW), WIDE,
        frozenset(),
    )  # fmt: skip
    tokens = list(PROMPT)
    for _ in range(n_events):
        event = next(stream)
        tokens += [t.id for t in event.tokens] if isinstance(event, StepDone) else []
    stream.close()
    assert cache.length == drafter.length
    n_kept = min(cache.length, len(PROMPT) - 1)
    cache.rewind(n_kept)
    drafter.rewind(n_kept)
    assert list(finish(run(target, drafter, cache=cache)).token_ids) == truth[:N_NEW]


def test_budget():
    tree = TreeConfig(depth=5, size=24, lookup=0)
    assert step_budget(tree, n_left=100, room=100) == Budget(24, 5)
    assert step_budget(tree, n_left=3, room=100) == Budget(24, 2)
    assert step_budget(tree, n_left=100, room=10) == Budget(9, 5)
    assert step_budget(tree, n_left=100, room=3) == Budget(2, 2)
    assert step_budget(tree, n_left=1, room=100) == Budget(0, 0)
    assert step_budget(TreeConfig(depth=5, size=24, lookup=8), 100, 100) == Budget(32, 8)
    assert step_budget(tree, n_left=100, room=1) == Budget(0, 0)


def test_cut():
    assert cut_run((1, 2, 3), 9, frozenset()) == 3
    assert cut_run((1, 2, 3), 2, frozenset({3})) == 2
    assert cut_run((1, 2, 3), 9, frozenset({2})) == 2


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_keep_to_their_budget(seed):
    drafter = RandomTreeDrafter(seed, continuation=list(range(50)))
    sizes = set()
    for max_nodes, max_depth in ((24, 5), (3, 1), (0, 0), (8, 8)):
        for _ in range(10):
            tree = drafter.propose(torch.tensor(1), Budget(max_nodes, max_depth))
            tree.validate()
            assert tree.n_nodes - 1 <= max_nodes
            assert tree.max_depth <= max_depth
            sizes.add(tree.n_nodes)
    assert len(sizes) > 5
