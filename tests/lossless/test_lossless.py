"""The promise of the project: drafting never changes the answer.

On a float32 model every drafter writes the same tokens as none, at every temperature, and greedy
text is that of transformers.generate. Seeds are fixed: a draw within float32 rounding of a border
between two tokens would be the one way to differ.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.base import Drafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.events import Finished
from eagle_core.target import Target
from eagle_core.testing import (
    OracleDrafter,
    RandomTreeDrafter,
    TableDrafter,
    WrongDrafter,
    tiny_target,
)

PROMPT = [72, 101, 108, 108, 111, 32]
N_NEW = 48

Make = Callable[[list[int]], Drafter]
DRAFTERS: dict[str, Make] = {
    "oracle": lambda truth: OracleDrafter(truth, len(PROMPT), n_wrong=2),
    "half-right": lambda truth: OracleDrafter(truth, len(PROMPT), wrong_after=2),
    "wrong": lambda truth: WrongDrafter(truth, len(PROMPT)),
    "random": lambda truth: RandomTreeDrafter(5, continuation=truth, n_prompt=len(PROMPT)),
}


EVERY_PROCESSOR = {
    "top_k": 60, "top_p": 0.97, "min_p": 0.001, "repetition_penalty": 1.3, "presence_penalty": 0.6,
    "frequency_penalty": 0.4, "logit_bias": {7: 6.0, 40: -8.0}, "min_new_tokens": 9,
}  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama", seed=3)


def answer(
    target: Target, drafter: Drafter, config: GenerationConfig, eos_ids: frozenset[int]
) -> Finished:
    events = list(
        generate_tokens(
            target,
            target.new_cache(),
            drafter,
            PROMPT,
            config,
            TreeConfig(depth=5, branching=6, size=24),
            eos_ids,
        )
    )
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.3])
def test_every_drafter_writes_what_none_writes(target, temperature, top_p, seed):
    config = GenerationConfig(max_new_tokens=N_NEW, temperature=temperature, top_p=top_p, seed=seed)
    eos_ids = frozenset({7})
    plain = answer(target, NoDrafter(), config, eos_ids)
    truth = list(plain.token_ids)
    accepted = {}
    for name, make in DRAFTERS.items():
        drafted = answer(target, make(truth), config, eos_ids)
        assert drafted.token_ids == plain.token_ids, name
        assert drafted.reason == plain.reason
        accepted[name] = drafted.stats.n_accepted
    assert accepted["oracle"] > accepted["half-right"] > accepted["wrong"] == 0
    assert accepted["random"] > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_drafter_writes_what_none_writes_with_every_processor(target, temperature):
    config = GenerationConfig(
        max_new_tokens=N_NEW, temperature=temperature, seed=1, **EVERY_PROCESSOR
    )
    bare = GenerationConfig(max_new_tokens=N_NEW, temperature=temperature, seed=1)
    eos_ids = frozenset({7})
    plain = answer(target, NoDrafter(), config, eos_ids)
    assert plain.token_ids != answer(target, NoDrafter(), bare, eos_ids).token_ids
    assert 9 < len(plain.token_ids) < N_NEW, "held back, then favoured: end of text comes early"
    truth = list(plain.token_ids)
    for name, make in DRAFTERS.items():
        drafted = answer(target, make(truth), config, eos_ids)
        assert (drafted.token_ids, drafted.reason) == (plain.token_ids, "eos"), name
        assert name == "wrong" or drafted.stats.n_accepted > 0


def test_greedy_with_penalties_is_that_of_transformers(target):
    expected = target.model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=N_NEW,
        min_new_tokens=9,
        do_sample=False,
        repetition_penalty=1.3,
        sequence_bias=[[[7], 6.0], [[40], -8.0]],
        eos_token_id=7,
        pad_token_id=0,
    )[0, len(PROMPT) :].tolist()
    config = GenerationConfig(
        max_new_tokens=N_NEW, min_new_tokens=9, repetition_penalty=1.3, logit_bias={7: 6, 40: -8}
    )
    assert len(expected) > 9
    for make in (lambda _: NoDrafter(), *DRAFTERS.values()):
        assert list(answer(target, make(expected), config, frozenset({7})).token_ids) == expected


def test_drawn_drafts_leave_greedy_text_alone(target):
    """At temperature 0 the rule ``sampling`` is greedy, whatever the drafter can do."""
    q = torch.full((260, 260), 1 / 260)
    config = GenerationConfig(max_new_tokens=N_NEW, rule="sampling")
    plain = answer(target, NoDrafter(), config, frozenset())
    table = answer(target, TableDrafter(q, ((0,), (0, 0))), config, frozenset())
    assert table.token_ids == plain.token_ids


def test_greedy_is_that_of_transformers(target):
    expected = target.model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=N_NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(PROMPT) :].tolist()
    config = GenerationConfig(max_new_tokens=N_NEW)
    assert len(set(expected)) > 10, "a text that repeats itself would prove little"
    for make in (lambda _: NoDrafter(), *DRAFTERS.values()):
        assert list(answer(target, make(expected), config, frozenset()).token_ids) == expected


def test_seeds_and_temperatures_change_the_answer(target):
    texts = {
        answer(
            target,
            NoDrafter(),
            GenerationConfig(max_new_tokens=16, temperature=temperature, seed=seed),
            frozenset(),
        ).token_ids
        for temperature in (0.8, 1.3)
        for seed in range(3)
    }
    assert len(texts) == 6
