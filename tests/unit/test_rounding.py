"""Where answers part and whether rounding did it."""

from __future__ import annotations

import pytest
import torch

from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.differences import Difference, describe, first_difference
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.events import Finished
from eagle_core.rounding import explain_difference
from eagle_core.sampling import choose, position_noise, race_lead
from eagle_core.target import Target
from eagle_core.testing import tiny_model

PROMPT = (5, 6, 7, 8)


@pytest.mark.parametrize(
    ("plain", "drafted", "expected"),
    [
        ((1, 2), (1, 2), None),
        ((1, 2), (1, 3), Difference(1, 2, 3)),
        ((1, 2), (1, 2, 3), Difference(2, None, 3)),
        ((1,), (), Difference(0, 1, None)),
        ((), (), None),
    ],
)
def test_first_difference(
    plain: tuple[int, ...], drafted: tuple[int, ...], expected: Difference | None
) -> None:
    assert first_difference(plain, drafted) == expected


def plain_answer(target: Target, config: GenerationConfig) -> tuple[int, ...]:
    cache = target.new_cache(64)
    events = generate_tokens(target, cache, NoDrafter(0), PROMPT, config, TreeConfig(), frozenset())
    *_, last = events
    assert isinstance(last, Finished)
    return last.token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_plain_token_leads_where_it_was_chosen(temperature: float) -> None:
    """At every place of an answer, whatever other token stands there."""
    target = Target(tiny_model("llama", dtype=torch.float32), 128)
    config = GenerationConfig(8, temperature=temperature, seed=3, repetition_penalty=1.3)
    plain = plain_answer(target, config)
    for index, token in enumerate(plain):
        other = [*plain[:index], (token + 1) % target.vocab_size, *plain[index + 1 :]]
        found = explain_difference(target, PROMPT, plain, other, config)
        assert found is not None
        assert (found.index, found.plain, found.drafted) == (index, token, other[index])
        assert found.lead is not None
        assert found.lead > 0
        assert found.is_tie is False
        assert found.gap == found.gap_float32


def test_nearly_level_tokens_are_a_tie() -> None:
    """A row of the LM head that is a hair off the winner's: level in bfloat16, in float32 not quite."""
    model = tiny_model("llama", dtype=torch.bfloat16)
    target = Target(model, 128)
    plain = plain_answer(target, GenerationConfig(4))
    twin = (plain[0] + 1) % target.vocab_size
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        head[twin] = head[plain[0]]
        head[twin, 0] += head[twin, 0].abs() * 0.01
    found = explain_difference(target, PROMPT, plain, (twin, *plain[1:]), GenerationConfig(4))
    assert found is not None
    assert found.is_tie
    assert found.gap_float32 is not None
    assert 0 < abs(found.gap_float32) < 0.1
    assert "a rounding tie" in describe(found, 4)


def test_a_cut_token_has_no_lead() -> None:
    logits, noise = torch.tensor([[2.0, 1.0, -3.0]]), position_noise(0, 4, 1)
    assert race_lead(logits, noise, 0, 2, GenerationConfig(temperature=0.5, top_k=2)) is None
    assert race_lead(logits, noise, 0, 2, GenerationConfig()) == 5.0


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_who_leads_the_race_is_who_is_chosen(temperature: float) -> None:
    config = GenerationConfig(temperature=temperature)
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(1))
    for position in range(20):
        noise = position_noise(7, position, 1)
        winner = int(choose(logits, noise, config)[0])
        leads = [race_lead(logits, noise, winner, other, config) for other in range(12)]
        assert all(lead is not None and lead >= 0 for lead in leads)


def test_an_answer_that_ended_early_has_no_gap() -> None:
    target = Target(tiny_model("llama", dtype=torch.float32), 128)
    assert explain_difference(target, PROMPT, (1, 2), (1,), GenerationConfig()) == Difference(
        1, 2, None
    )
