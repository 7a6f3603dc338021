"""After any sequence of keeps and rewinds the cache is as if the text had been read anew."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core.target import Target
from eagle_core.testing import tiny_target
from eagle_core.tree import DraftTree

TARGETS: dict[str, Target] = {}


def target_of(kind: str) -> Target:
    """One model per kind for all examples."""
    if kind not in TARGETS:
        TARGETS[kind] = tiny_target(kind, window=8 if kind == "mistral" else None)
    return TARGETS[kind]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[list[int], list[int], int]]:
    """(parents, accepted path, rows to take back) per step."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        n_nodes = draw(st.integers(1, 9))
        parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, n_nodes))]
        node, path = draw(st.integers(0, n_nodes - 1)), []
        while node != -1:
            path.insert(0, node)
            node = parents[node]
        found.append((parents, path, draw(st.integers(0, 2))))
    return found


@settings(max_examples=25, deadline=None)
@given(steps(), st.sampled_from(["llama", "mistral"]), st.integers(0, 1000))
def test_cache_equals_recompute(
    steps: list[tuple[list[int], list[int], int]], kind: str, seed: int
):
    target = target_of(kind)
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(256, (6,), generator=generator)
    cache = target.new_cache(100)
    target.prefill_chunk(text, cache)
    for parents, path, n_back in steps:
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        tokens = torch.randint(256, (len(parents),), generator=generator)
        tree = DraftTree(tokens, torch.tensor(parents), max(depths))
        target.forward_tree(tree, cache)
        cache.keep(path)
        text = torch.cat((text, tokens[path]))
        cache.rewind(cache.length - n_back)
        text = text[: cache.length]
    assert cache.length == text.shape[0]
    probe = DraftTree(torch.tensor([1, 2, 3]), torch.tensor([-1, 0, 0]), 1)
    fresh = target.new_cache(100)
    target.prefill_chunk(text, fresh)
    expected = target.forward_tree(probe, fresh).logits
    # Rows computed in other batches differ by float32 rounding; logits reach about 30.
    torch.testing.assert_close(
        target.forward_tree(probe, cache).logits, expected, atol=3e-4, rtol=0
    )
    for layer, other in zip(cache.layers, fresh.layers, strict=True):
        for name in ("keys", "values"):
            rows = getattr(layer, name)[..., : text.shape[0], :]
            wanted = getattr(other, name)[..., : text.shape[0], :]
            torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=1e-4)
