"""A drafter can do anything but change the text: every broken kind costs speed and one notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.base import Budget
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.errors import Cancelled, DraftError
from eagle_core.events import Event, Finished, Notice, StepDone
from eagle_core.guard import BAD, GuardedDrafter
from eagle_core.target import Target
from eagle_core.testing import (
    VOCABULARY_SIZE,
    OracleDrafter,
    OverBudgetDrafter,
    tiny_target,
)
from eagle_core.tree import DraftTree

PROMPT = [10, 20, 30, 40, 50]
N_NEW = 20
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def run(target: Target, drafter: Any, cache: Any = None, temperature: float = 0.0) -> list[Event]:
    config = GenerationConfig(max_new_tokens=N_NEW, temperature=temperature, seed=3)
    tree = TreeConfig(depth=4, branching=3, size=8, lookup=0)
    cache = cache or target.new_cache()
    return list(generate_tokens(target, cache, drafter, PROMPT, config, tree, frozenset()))


def ids(events: list[Event]) -> list[int]:
    assert isinstance(events[-1], Finished)
    return list(events[-1].token_ids)


def notices(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice)]


class Proposes(NoDrafter):
    """Proposes what a function makes of the pending token."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.name = "broken"
        self.make = make

    def propose(self, pending: Any, budget: Budget) -> Any:
        return self.make(pending, budget)


def raises(error: BaseException) -> Any:
    def make(pending: Any, budget: Any) -> Any:
        raise error

    return make


def tree(tokens: Any, parents: list[int], depth: int, **known: Any) -> DraftTree:
    return DraftTree(torch.as_tensor(tokens), torch.tensor(parents), depth, **known)


def after(pending: Any, *tokens: int) -> list[int]:
    return [int(pending), *tokens]


BROKEN: dict[str, tuple[Any, str]] = {
    "raises": (raises(RuntimeError("secret")), "RuntimeError"),
    "raises ours": (raises(DraftError("lost its way")), "lost its way"),
    "out of memory": (raises(torch.OutOfMemoryError("no")), "OutOfMemoryError"),
    "none": (lambda p, b: None, "no tree was proposed"),
    "a number": (lambda p, b: 7, "no tree was proposed"),
    "floats": (lambda p, b: DraftTree(torch.ones(1), torch.tensor([-1]), 0), "64-bit"),
    "two dimensions": (
        lambda p, b: DraftTree(p.reshape(1, 1), torch.tensor([[-1]]), 0), "belong together",
    ),
    "another length": (
        lambda p, b: tree(after(p, 1, 2), [-1, 0], 1), "belong together",
    ),
    "too many nodes": (lambda p, b: tree(after(p, *range(9)), [-1] + [0] * 9, 1), "budget"),
    "too deep": (lambda p, b: OverBudgetDrafter().propose(p, b), "budget"),
    "a depth that is none": (lambda p, b: tree(after(p), [-1], None), "budget"),
    "a lower depth than true": (lambda p, b: tree(after(p, 1, 2), [-1, 0, 1], 1), "depth"),
    "another root": (lambda p, b: DraftTree.single(p + 1), "pending"),
    "no root": (lambda p, b: tree(after(p, 1), [0, 0], 1), "root"),
    "a child before its parent": (lambda p, b: tree(after(p, 1, 2), [-1, 2, 0], 2), "parent"),
    "equal siblings": (lambda p, b: tree(after(p, 5, 5), [-1, 0, 0], 1), "siblings"),
    "an unknown token": (lambda p, b: tree(after(p, VOCABULARY_SIZE), [-1, 0], 1), "vocabulary"),
    "a negative token": (lambda p, b: tree(after(p, -1), [-1, 0], 1), "vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_proposal_changes_nothing_but_the_speed(target, name):
    make, reason = BROKEN[name]
    expected = ids(run(target, NoDrafter()))
    drafter, cache = Proposes(make), target.new_cache()
    events = run(target, drafter, cache)
    assert ids(events) == expected
    (message,) = notices(events)
    assert reason in message
    assert "secret" not in message
    assert events[-1].stats.n_drafted == 0
    assert cache.length == drafter.length, "a failed proposal does not switch the drafter off"


def test_a_good_step_after_a_bad_one_still_drafts(target):
    truth = ids(run(target, NoDrafter()))

    class Sometimes(OracleDrafter):
        n_calls = 0

        def propose(self, pending: Any, budget: Budget) -> DraftTree:
            self.n_calls += 1
            if self.n_calls % 2:
                raise ValueError("odd")
            return super().propose(pending, budget)

    events = run(target, Sometimes(truth, len(PROMPT)))
    assert ids(events) == truth
    assert len(notices(events)) == 1
    assert events[-1].stats.n_accepted > 4


@pytest.mark.parametrize(
    "known",
    [
        {"known_mask": torch.ones(3, 3, dtype=torch.bool)},
        {"known_mask": torch.zeros(2, 2)},
        {"known_depths": torch.tensor([0, 90_000, 3])},
    ],
)
def test_a_wrong_mask_or_depth_is_never_used(target, known):
    truth = ids(run(target, NoDrafter()))

    class Liar(OracleDrafter):
        def propose(self, pending: Any, budget: Budget) -> DraftTree:
            good = super().propose(pending, budget)
            return DraftTree(good.tokens, good.parents, good.max_depth, **known)

    events = run(target, Liar(truth, len(PROMPT), n_wrong=1))
    assert ids(events) == truth
    assert notices(events) == []
    assert events[-1].stats.n_accepted > 8


class FailsToCommit(OracleDrafter):
    """Fails in a given commit, 0 being the prefill's."""

    def __init__(self, truth: list[int], n_commits: int, how: str) -> None:
        super().__init__(truth, len(PROMPT))
        self.n_commits, self.how = n_commits, how

    def commit(self, tokens: Any, features: Any, next_token: Any) -> None:
        self.n_commits -= 1
        if self.n_commits == -1 and self.how == "raises":
            raise RuntimeError("secret")
        if self.n_commits == -1 and self.how == "forgets":
            return
        assert self.n_commits >= -1, "asked again after it was switched off"
        super().commit(tokens, features, next_token)


class FailsToFollow(NoDrafter):
    def follow(self, config: Any) -> None:
        raise RuntimeError("secret")


def test_a_drafter_that_cannot_follow_is_switched_off(target):
    truth, events = ids(run(target, NoDrafter())), run(target, FailsToFollow())
    assert ids(events) == truth
    assert len(notices(events)) == 1


@pytest.mark.parametrize("how", ["raises", "forgets"])
@pytest.mark.parametrize("n_commits", [0, 1, 3])
def test_a_failed_commit_switches_the_drafter_off_until_the_next_answer(target, n_commits, how):
    truth = ids(run(target, NoDrafter()))
    cache, drafter = target.new_cache(), FailsToCommit(truth, n_commits, how)
    events = run(target, drafter, cache)
    assert ids(events) == truth
    assert len(notices(events)) == 1
    assert cache.length == len(PROMPT) + N_NEW - 1
    assert drafter.length == 0
    cache.reset()
    drafter.n_commits = 1000
    again = run(target, drafter, cache)
    assert (ids(again), notices(again)) == (truth, [])
    assert again[-1].stats.n_accepted > 8


def test_a_proposal_that_commits_is_switched_off(target):
    truth = ids(run(target, NoDrafter()))

    class Greedy(NoDrafter):
        def propose(self, pending: Any, budget: Budget) -> DraftTree:
            self._length += 1
            return DraftTree.single(pending)

    events = run(target, Greedy())
    assert ids(events) == truth
    assert len(notices(events)) == 1


def test_many_failures_are_one_notice(target):
    class All(FailsToCommit):
        def propose(self, pending: Any, budget: Budget) -> DraftTree:
            raise ValueError("no")

        def reset(self) -> None:
            raise ValueError("not even that")

    events = run(target, All([], 4, "raises"))
    assert ids(events) == ids(run(target, NoDrafter()))
    assert len(notices(events)) == 1


def test_the_prompt_is_out_of_a_drafters_reach(target):
    class Scribbler(NoDrafter):
        def commit(self, tokens: Any, features: Any, next_token: Any) -> None:
            super().commit(tokens, features, next_token)
            tokens.zero_()
            next_token.zero_()
            features.zero_()

        def propose(self, pending: Any, budget: Budget) -> DraftTree:
            pending.zero_()
            return super().propose(pending, budget)

    assert ids(run(target, Scribbler())) == ids(run(target, NoDrafter()))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Cancelled("stop"), SystemExit()])
@pytest.mark.parametrize("where", ["propose", "commit"])
def test_interrupts_pass_and_leave_the_caches_level(target, error, where):
    drafter, cache = Proposes(raises(error)), target.new_cache()
    if where == "commit":
        drafter = FailsToCommit([], 99, "raises")
        commit = drafter.commit

        def interrupted(*arguments: Any) -> None:
            if drafter.length:
                raise error
            commit(*arguments)

        drafter.commit = interrupted
    with pytest.raises(type(error)):
        run(target, drafter, cache)
    assert cache.length == drafter.length == len(PROMPT)


def test_marks_for_other_devices_name_each_bad_node():
    """What a device gets instead of host checks; the same tensors, so it can be tested on the host."""
    guard = GuardedDrafter(NoDrafter(), 10)
    tokens = torch.tensor([4, 1, 10, -3, 2, 3])
    parents = torch.tensor([-1, 0, 0, 1, 9, 4])
    safe, marked = guard._marked(tokens, parents, 4)
    assert safe.tolist() == [4, 1, 9, 0, 2, 3]
    assert marked.tolist() == [-1, 0, BAD, BAD, BAD, 4]
    tree = DraftTree(safe, marked, 2)
    assert tree.ancestor_mask.shape == (6, 6)
    with pytest.raises(DraftError):
        guard.check(safe.tolist(), marked.tolist(), 4, 2)
    assert guard._marked(tokens[:2], parents[:2], 5)[1].tolist() == [BAD, 0]
    chains = GuardedDrafter(NoDrafter(), 10, chains_only=True)
    assert chains._marked(torch.tensor([4, 1, 2]), torch.tensor([-1, 0, 0]), 4)[1].tolist() == [
        -1, 0, BAD,
    ]  # fmt: skip


def test_a_bad_tree_found_after_the_forward_is_evaluated_again(target, monkeypatch):
    """As on a device, where the guard cannot look before: the verdict finds it."""
    truth = ids(run(target, NoDrafter()))

    def unchecked(self: Any, tree: DraftTree, *_: Any) -> DraftTree:
        return tree

    monkeypatch.setattr(GuardedDrafter, "_checked", unchecked)
    lies = Proposes(lambda p, b: tree(after(p, 1, 2), [-1, 0, 1], 1))
    events = run(target, lies)
    assert ids(events) == truth
    assert len(notices(events)) == 1


def test_chains_only_refuses_a_branch(target):
    guard = GuardedDrafter(
        Proposes(lambda p, b: tree(after(p, 1, 2), [-1, 0, 0], 1)), 260, chains_only=True
    )
    assert guard.propose(7, Budget(8, 4), CPU).n_nodes == 1
    assert "single paths" in (guard.take_problem() or "")
    assert guard.take_problem() is None


def test_the_notice_comes_with_the_step_it_is_about(target):
    events = run(target, Proposes(BROKEN["none"][0]))
    kinds = [type(event) for event in events]
    first = kinds.index(Notice)
    assert kinds[first - 1] is StepDone
    assert events[first - 1].index == 1
