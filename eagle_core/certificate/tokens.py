"""Token equality on a tiny random float32 model: each drafter, tree, temperature, top-p and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from eagle_core.certificate.records import Check
from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.differences import first_difference
from eagle_core.drafters.base import Drafter
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.events import Finished
from eagle_core.heads.base import DraftHead
from eagle_core.heads.eagle1 import Eagle1Config, Eagle1Head
from eagle_core.heads.eagle3 import Eagle3Config, Eagle3Head
from eagle_core.target import Target
from eagle_core.testing import OracleDrafter, RandomTreeDrafter, WrongDrafter, tiny_target

PROMPT = (72, 101, 108, 108, 111, 32)
N_NEW = 24
SETTINGS = (
    GenerationConfig(N_NEW),
    *(
        GenerationConfig(N_NEW, temperature=temperature, top_p=top_p, seed=seed)
        for temperature, top_p in ((0.8, 1.0), (0.8, 0.9), (1.3, 1.0))
        for seed in (0, 1)
    ),
)
WIDE = TreeConfig("dynamic", depth=4, branching=4, size=16)
LAYERS = (2, 1, 0)  # the tiny model has two
Head = TypeVar("Head", bound=DraftHead)
Make = Callable[[Target, list[int]], Drafter]


@dataclass(frozen=True, slots=True)
class Case:
    """A drafter and its tree. ``accepts`` says what must show that the case is no empty one."""

    name: str
    tree: TreeConfig
    make: Make
    accepts: bool | None  # True: some tokens; False: none; None: as it happens
    feature_layers: tuple[int, ...] = ()


def _eagle(tree: TreeConfig) -> Make:
    return lambda target, _: EagleDrafter(
        random_head(target.hidden_size),
        target.embed,
        target.output_embeddings,
        tree,
        target.context_length + 1,
    )


def _eagle3(tree: TreeConfig) -> Make:
    return lambda target, _: EagleDrafter(
        random_eagle3_head(target.hidden_size, target.vocab_size),
        target.embed,
        target.output_embeddings,
        tree,
        target.context_length + 1,
    )


def cases() -> tuple[Case, ...]:
    """Every drafter and tree; another drafter adds a line here."""
    n_prompt = len(PROMPT)
    chain, static = TreeConfig("chain", depth=4, size=4), TreeConfig("static")
    return (
        Case("oracle, tree", WIDE, lambda _, ids: OracleDrafter(ids, n_prompt, n_wrong=2), True),
        Case("oracle, chain", chain, lambda _, ids: OracleDrafter(ids, n_prompt, n_wrong=0), True),
        Case("wrong", WIDE, lambda _, ids: WrongDrafter(ids, n_prompt), False),
        Case(
            "random trees",
            WIDE,
            lambda _, ids: RandomTreeDrafter(5, continuation=ids, n_prompt=n_prompt),
            True,
        ),
        Case("eagle, chain", chain, _eagle(chain), None),
        Case("eagle, static", static, _eagle(static), None),
        Case("eagle, dynamic", WIDE, _eagle(WIDE), None),
        Case("eagle-3, dynamic", WIDE, _eagle3(WIDE), None, LAYERS),
    )


def random_head(hidden_size: int, seed: int = 0) -> Eagle1Head:
    """A head with random weights; what it drafts is confident nonsense."""
    head = Eagle1Head(Eagle1Config(hidden_size, 48, n_heads=4, n_kv_heads=2, head_dim=8))
    return _randomized(head, seed)


def random_eagle3_head(hidden_size: int, vocab_size: int, seed: int = 0) -> Eagle3Head:
    """The same for EAGLE-3: it fuses three layers' features."""
    config = Eagle3Config(
        hidden_size, hidden_size, 48, n_heads=4, n_kv_heads=2, head_dim=8, feature_layers=LAYERS,
        vocab_size=vocab_size,
    )  # fmt: skip
    return _randomized(Eagle3Head(config), seed)


def _randomized(head: Head, seed: int) -> Head:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
    return head.eval().requires_grad_(False)


def write(target: Target, drafter: Drafter, tree: TreeConfig, config: GenerationConfig) -> Finished:
    """One answer to PROMPT."""
    *_, last = generate_tokens(
        target, target.new_cache(), drafter, PROMPT, config, tree, frozenset({7})
    )
    assert isinstance(last, Finished)
    return last


def token_checks() -> Iterator[Check]:
    """A check per drafter and rule."""
    target = tiny_target("llama", seed=3)
    fused = Target(target.model, feature_layers=LAYERS)
    plain = [list(write(target, NoDrafter(), WIDE, config).token_ids) for config in SETTINGS]
    for case in cases():
        for rule in ("greedy", "match"):
            yield _check(fused if case.feature_layers else target, case, rule, plain)


def _check(target: Target, case: Case, rule: str, plain: list[list[int]]) -> Check:
    n_answers = n_tokens = n_accepted = n_drafted = 0
    problems = []
    for config, expected in zip(SETTINGS, plain, strict=True):
        if config.acceptance != rule:
            continue
        done = write(target, case.make(target, expected), case.tree, config)
        found = first_difference(expected, done.token_ids)
        if found is not None:
            what = f"temperature {config.temperature}, top-p {config.top_p}, seed {config.seed}"
            problems.append(f"{what}: token {found.index} is {found.drafted}, not {found.plain}")
        n_answers, n_tokens = n_answers + 1, n_tokens + len(expected)
        n_accepted += done.stats.n_accepted
        n_drafted += done.stats.n_drafted
    if not n_drafted or (case.accepts is not None and case.accepts is not (n_accepted > 0)):
        problems.append(f"the case proves nothing: {n_accepted} of {n_drafted} accepted")
    answers = "1 answer" if n_answers == 1 else f"{n_answers} answers"
    detail = f"{answers}, {n_tokens} tokens equal; {n_accepted} of {n_drafted} drafted were kept"
    return Check(
        "tokens",
        f"{case.name}, {rule}",
        not problems,
        "; ".join(problems) or detail,
        {
            "n_answers": n_answers,
            "n_tokens": n_tokens,
            "n_accepted": n_accepted,
            "n_drafted": n_drafted,
        },
    )


__all__ = ["Case", "cases", "random_head", "token_checks"]
