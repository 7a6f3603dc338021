"""The walk: greedy and match, and the two ways to batch it."""

from __future__ import annotations

import pytest
import torch

from eagle_core import verify as module
from eagle_core.config import GenerationConfig
from eagle_core.errors import DraftError, ModelError
from eagle_core.sampling import choose, position_noise
from eagle_core.tree import DraftTree
from eagle_core.verify import verify

TREE = DraftTree(torch.tensor([7, 3, 5, 9]), torch.tensor([-1, 0, 0, 1]), 2)


def says(*tokens: int, vocab: int = 12) -> torch.Tensor:
    """Logits under which node i's likeliest token is tokens[i]."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab).float() * 5


@pytest.mark.parametrize(
    ("logits", "path", "run"),
    [
        (says(3, 4, 0, 0), (1,), (3, 4)),
        (says(3, 9, 0, 2), (1, 3), (3, 9, 2)),
        (says(5, 0, 9, 0), (2,), (5, 9)),
        (says(9, 9, 9, 9), (), (9,)),
        (says(7, 0, 0, 0), (), (7,)),
    ],
)
def test_greedy(logits, path, run):
    verdict = verify(TREE, logits, 10, GenerationConfig())
    assert (verdict.path, verdict.run) == (path, run)
    assert verdict.rows == (0, *path)
    assert verdict.next_token == run[-1]
    assert len(verdict.probabilities) == len(run)
    assert (verdict.tokens, verdict.parents) == ((7, 3, 5, 9), (-1, 0, 0, 1))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_both_batchings_agree(temperature):
    generator = torch.Generator().manual_seed(0)
    config = GenerationConfig(temperature=temperature, top_p=0.95)
    n_accepted = 0
    for position in range(200):
        logits = torch.randn(4, 12, generator=generator) * 2
        noise = module._Noise(position_noise(config.seed, position, 3), None)
        lazily = module._verify_lazily(TREE, logits, noise, config)
        assert module._verify_at_once(TREE, logits, noise, config) == lazily
        n_accepted += len(lazily.path)
    assert n_accepted > 0


def test_match_draws_with_the_noise_of_each_position():
    config = GenerationConfig(temperature=1.0, seed=4)
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(2))
    verdict = verify(TREE, logits, 30, config)
    node = 0
    for depth, token in enumerate(verdict.run):
        expected, chance = choose(logits[node : node + 1], position_noise(4, 30 + depth, 1), config)
        assert int(expected) == token
        assert float(chance) == verdict.probabilities[depth]
        node = verdict.path[depth] if depth < len(verdict.path) else node


def test_equal_siblings_do_no_harm():
    doubled = DraftTree(torch.tensor([7, 3, 3]), torch.tensor([-1, 0, 0]), 1)
    assert verify(doubled, says(3, 4, 5), 0, GenerationConfig()).run == (3, 4)


def test_broken_trees_and_logits_raise():
    lying = DraftTree(TREE.tokens, TREE.parents, 1)
    with pytest.raises(DraftError, match="depth"):
        verify(lying, says(0, 0, 0, 0), 0, GenerationConfig())
    with pytest.raises(DraftError, match="belong together"):
        verify(TREE, says(0, 0), 0, GenerationConfig())
    for temperature in (0.0, 1.0):
        with pytest.raises(ModelError, match="not a number"):
            verify(TREE, says(0, 0, 0, 0) * torch.nan, 0, GenerationConfig(temperature=temperature))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_rows_at_once_equal_one_by_one_under_a_loose_depth_bound(temperature):
    """On an accelerator the tree's exact depth is not known on the host: only a bound of it is."""
    config = GenerationConfig(temperature=temperature, seed=3)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(TREE.n_nodes, 20, generator=generator)
    loose = DraftTree(TREE.tokens, TREE.parents, 9)
    noise = module._Noise(position_noise(3, 5, 10), None)
    found = module._verify_at_once(loose, logits, noise, config)
    wanted = module._verify_lazily(TREE, logits, noise, config)
    assert (found.path, found.run, found.depth) == (wanted.path, wanted.run, wanted.depth)
