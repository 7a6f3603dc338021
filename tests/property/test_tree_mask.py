"""Random parents: mask and depths equal a walk over every node."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core.tree import DraftTree, check_parents


@st.composite
def parents(draw: st.DrawFn) -> list[int]:
    n_nodes = draw(st.integers(1, 40))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, n_nodes))]


@settings(max_examples=200, deadline=None)
@given(parents())
def test_mask_equals_brute_force(parents: list[int]):
    expected = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    depths = []
    for node in range(len(parents)):
        ancestor, depth = node, -1
        while ancestor != -1:
            expected[node, ancestor] = True
            ancestor, depth = parents[ancestor], depth + 1
        depths.append(depth)
    tree = DraftTree(torch.arange(len(parents)), torch.tensor(parents), max(depths))
    assert torch.equal(tree.ancestor_mask, expected)
    assert tree.depths.tolist() == depths == check_parents(parents, max(depths))
    tree.validate()
