"""Noise, probabilities and the draw."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import TopPLogitsWarper

from eagle_core import sampling
from eagle_core.config import GenerationConfig
from eagle_core.errors import ModelError
from eagle_core.sampling import (
    check_finite,
    choose,
    head_starts,
    position_noise,
    race,
    to_probabilities,
)


def test_noise_depends_on_seed_and_position_alone():
    noise = position_noise(3, 0, 100)
    assert torch.equal(position_noise(3, 40, 10), noise[40:50])
    assert not torch.equal(position_noise(4, 0, 100), noise)
    assert noise.dtype == torch.float32
    # The definition is part of what a user relies on: same seed, same answer, in later versions too.
    assert (noise[:3] * 2**24).tolist() == [14074199.0, 12373501.0, 9954466.0]


def test_noise_is_uniform_and_below_one():
    noise = position_noise(0, 0, 20_000)
    assert float(noise.min()) >= 0
    assert float(noise.max()) < 1
    counts = torch.histc(noise, 20, 0, 1)
    # Chi-square with 19 degrees of freedom: 43.8 is its 0.1% point; the seed is fixed.
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8
    seeds = torch.stack([position_noise(seed, 7, 1) for seed in range(2000)])
    assert abs(float(seeds.mean()) - 0.5) < 0.03  # 4.6 standard errors


def test_race_never_takes_an_impossible_token():
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).expand(4000, -1)
    counts = torch.bincount(race(probabilities, position_noise(2, 0, 4000)), minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert int(counts.sum()) == 4000


@pytest.mark.parametrize("with_kernels", [True, False])
@pytest.mark.parametrize("n", [1, 15, 16, 50, 5000])
def test_who_knows_the_probabilities_and_the_head_starts_knows_the_draw(
    n, with_kernels, monkeypatch
):
    noise, tokens = position_noise(9, 0, 60), torch.arange(n)
    scores = 3 * torch.randn(60, n, generator=torch.Generator().manual_seed(n))
    drawn = race(scores.softmax(-1), noise)
    if not with_kernels:
        monkeypatch.setattr(sampling, "has_kernels", lambda: False)
    starts = torch.stack([head_starts(one, tokens) for one in noise])
    assert torch.equal((scores + starts).argmax(-1), drawn)
    # A token's head start is its own, wherever in a list it stands.
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    assert torch.equal(head_starts(noise[0], shuffled), starts[0][shuffled])


def test_race_follows_a_large_vocabulary():
    """The head's share, a middle part and a long tail of tiny probabilities, 4,000 draws."""
    weights = torch.cat(
        (torch.tensor([5e3, 3e3]), torch.full((98,), 10.0), torch.full((20_000,), 0.05))
    )
    probabilities = (weights / weights.sum()).unsqueeze(0)
    n_draws = 4000
    noise = position_noise(6, 0, n_draws)
    tokens = torch.cat([race(probabilities, noise[i : i + 1]) for i in range(n_draws)])
    borders = [0, 1, 2, 100, len(weights)]
    groups = torch.bincount(tokens, minlength=len(weights)).float()
    counts = torch.stack([groups[a:b].sum() for a, b in itertools.pairwise(borders)])
    shares = torch.stack([probabilities[0, a:b].sum() for a, b in itertools.pairwise(borders)])
    chi_square = ((counts - n_draws * shares) ** 2 / (n_draws * shares)).sum()
    assert float(chi_square) < 16.3  # 0.1% point at 3 degrees of freedom


def test_rounding_does_not_change_the_draw():
    """What a row computed beside others differs by, float32's last bits, must not change the token."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 49_152, generator=random) * 2
    config = GenerationConfig(temperature=0.8)
    noise = position_noise(1, 0, 500)
    nudged = logits + (torch.rand(logits.shape, generator=random) - 0.5) * 4e-6
    for i in range(500):
        one = choose(logits, noise[i : i + 1], config)[0]
        assert torch.equal(choose(nudged, noise[i : i + 1], config)[0], one)


def test_draws_follow_the_distribution():
    config = GenerationConfig(temperature=0.7, top_p=0.9)
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0)) * 2
    expected = to_probabilities(logits, config)[0]
    n_draws = 20_000
    tokens, chances = choose(logits.expand(n_draws, -1), position_noise(1, 0, n_draws), config)
    counts = torch.bincount(tokens, minlength=12).float()
    assert int(counts[expected == 0].sum()) == 0
    kept = expected > 0
    chi_square = ((counts - n_draws * expected)[kept] ** 2 / (n_draws * expected[kept])).sum()
    assert float(chi_square) < 31.3  # 0.1% point at 11 degrees of freedom, an upper bound
    assert torch.equal(chances, expected[tokens])


def test_top_p_is_that_of_transformers():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)) * 3
    ours = to_probabilities(logits, GenerationConfig(temperature=1.3, top_p=0.6))
    theirs = TopPLogitsWarper(0.6)(torch.empty(3, 0), logits / 1.3).softmax(-1)
    # The scores differ by a constant, which shifts float32 rounding.
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_greedy_takes_the_first_maximum_and_plain_softmax():
    logits = torch.tensor([[1.0, 3.0, 3.0]], dtype=torch.bfloat16)
    tokens, chances = choose(logits, torch.zeros(1), GenerationConfig())
    assert tokens.tolist() == [1]
    torch.testing.assert_close(chances, logits.float().softmax(-1)[:, 1])


def test_tiny_temperature_does_not_overflow():
    logits = torch.tensor([[1.0, 300.0, 2.0]])
    config = GenerationConfig(temperature=1e-38)
    tokens, chances = choose(logits, torch.tensor([0.5]), config)
    assert (tokens.item(), chances.item()) == (1, 1.0)


def test_bad_logits_raise():
    with pytest.raises(ModelError, match="form"):
        choose(torch.zeros(5), torch.zeros(1), GenerationConfig())
    with pytest.raises(ModelError, match="not a number"):
        check_finite([0.5, float("nan")])
