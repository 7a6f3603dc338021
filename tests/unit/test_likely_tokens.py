"""Drawing among the likely tokens only, and the compiled race: the same tokens as the plain way."""

from __future__ import annotations

import pytest
import torch

from eagle_core import sampling
from eagle_core.config import GenerationConfig
from eagle_core.kernels import ops
from eagle_core.sampling import choose, position_noise, race, to_probabilities

N_VOCABULARY = 5000


def logits(scale: float, n_rows: int = 24) -> torch.Tensor:
    random = torch.Generator().manual_seed(int(scale * 10))
    return torch.randn(n_rows, N_VOCABULARY, generator=random) * scale


@pytest.mark.parametrize("scale", [1.0, 4.0])  # flat: top-p keeps thousands; peaked: a few
@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.9},
        {"top_p": 0.5},
        {"top_k": 40},
        {"top_k": 40, "top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 100, "top_p": 0.95, "min_p": 0.02},
        {"top_k": 3000, "top_p": 0.9},
    ],
)
def test_tokens_and_probabilities_are_those_of_the_whole_vocabulary(monkeypatch, scale, settings):
    config = GenerationConfig(temperature=0.8, **settings)
    rows, noise = logits(scale), position_noise(3, 0, 24)
    tokens, probabilities = choose(rows, noise, config)
    whole = to_probabilities(rows, config)  # transformers' own processors
    # float32 sums in another order.
    torch.testing.assert_close(
        probabilities, whole.gather(1, tokens[:, None])[:, 0], rtol=1e-5, atol=1e-7
    )
    monkeypatch.setattr(sampling, "_likely_tokens", lambda *_: None)
    assert choose(rows, noise, config)[0].tolist() == tokens.tolist()


def test_the_short_way_is_taken_where_it_is_enough():
    config = GenerationConfig(temperature=0.8, top_p=0.9)
    assert sampling._likely_tokens(logits(4.0), config) is not None
    assert sampling._likely_tokens(logits(1.0), config) is None  # more tokens than are looked at
    assert sampling._likely_tokens(logits(4.0), GenerationConfig(temperature=0.8)) is None


@pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
def test_the_compiled_race_has_the_same_winners(monkeypatch):
    probabilities = torch.cat([logits(scale).softmax(-1) for scale in (0.1, 1.0, 3.0, 9.0)])
    probabilities[0, 1:] = 0.0  # one token left
    noise = position_noise(11, 5, len(probabilities))
    compiled = race(probabilities, noise)
    monkeypatch.setattr(sampling, "has_kernels", lambda: False)
    assert compiled.tolist() == race(probabilities, noise).tolist()
    assert int(compiled[0]) == 0


@pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
def test_the_compiled_race_draws_from_the_distribution():
    probabilities = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04, 0.0])
    n_draws = 20_000
    keys = (int(noise * 2**24) + 1 for noise in position_noise(1, 0, n_draws).double())
    counts = torch.bincount(
        torch.tensor([ops.race(probabilities, key) for key in keys]), minlength=6
    )
    assert counts[5] == 0
    expected = probabilities[:5] * n_draws
    chi_square = float(((counts[:5] - expected) ** 2 / expected).sum())
    assert (
        chi_square < 23.5
    )  # 4 degrees of freedom: exceeded once in 10,000 times; the seed is fixed
