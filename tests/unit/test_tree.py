"""DraftTree: shapes, ancestors, and fixed layouts."""

from __future__ import annotations

import pytest
import torch

from eagle_core.config import FIGURE_9
from eagle_core.errors import ConfigError, DraftError
from eagle_core.tree import DraftTree, fit_shape, tree_layout


def tree(tokens: list[int], parents: list[int], max_depth: int) -> DraftTree:
    return DraftTree(torch.tensor(tokens), torch.tensor(parents), max_depth)


def test_example_of_the_module():
    example = tree([7, 3, 5, 9], [-1, 0, 0, 1], 2)
    assert example.depths.tolist() == [0, 1, 1, 2]
    assert example.ancestor_mask.int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 1, 0, 1],
    ]
    example.validate()


def test_single_and_chain():
    single = DraftTree.single(torch.tensor(5))
    assert (single.tokens.tolist(), single.parents.tolist(), single.n_nodes) == ([5], [-1], 1)
    chain = DraftTree.chain(torch.tensor(5), torch.tensor([6, 7]))
    assert chain.parents.tolist() == [-1, 0, 1]
    assert torch.equal(chain.ancestor_mask, torch.ones(3, 3).tril().bool())
    single.validate()
    chain.validate()


@pytest.mark.parametrize(
    ("tokens", "parents", "max_depth", "message"),
    [
        ([1, 2], [-1, 1], 1, "after its parent"),
        ([1, 2], [0, 0], 1, "root"),
        ([1, 2, 3], [-1, 0, 1], 1, "depth"),
        ([1, 2, 2], [-1, 0, 0], 1, "siblings"),
    ],
)
def test_validate_names_the_defect(tokens, parents, max_depth, message):
    with pytest.raises(DraftError, match=message):
        tree(tokens, parents, max_depth).validate()


def test_validate_rejects_a_wrong_given_mask():
    mask = torch.ones(2, 2, dtype=torch.bool)
    wrong = DraftTree(torch.tensor([1, 2]), torch.tensor([-1, 0]), 1, known_mask=mask)
    with pytest.raises(DraftError):
        wrong.validate()


def test_shape_and_dtype_are_checked_at_once():
    with pytest.raises(DraftError, match="belong together"):
        DraftTree(torch.tensor([1, 2]), torch.tensor([-1]), 0)
    with pytest.raises(DraftError, match="64-bit"):
        DraftTree(torch.tensor([1], dtype=torch.int32), torch.tensor([-1]), 0)


def test_layout_of_figure_9():
    layout = tree_layout(FIGURE_9)
    assert (layout.n_nodes, layout.max_depth) == (26, 5)
    assert layout.levels == ((0, 1), (1, 5), (5, 13), (13, 21), (21, 24), (24, 26))
    assert layout.widths == (4, 3, 3, 3, 2, 0)
    layout.tree(torch.arange(26)).validate()


def test_layout_example_and_empty_shape():
    layout = tree_layout(((0,), (1,), (0, 0)))
    assert layout.parents.tolist() == [-1, 0, 0, 1]
    assert layout.ranks.tolist() == [0, 0, 1, 0]
    assert tree_layout(()).levels == ((0, 1),)
    with pytest.raises(ConfigError):
        tree_layout(((0, 0),))


def test_fit_shape_keeps_prefixes():
    fitted = fit_shape(FIGURE_9, 7, 2)
    assert len(fitted) == 7
    assert max(map(len, fitted)) == 2
    assert tree_layout(fitted).n_nodes == 8
    assert fit_shape(FIGURE_9, 0, 5) == fit_shape(FIGURE_9, 5, 0) == ()
