"""Prompt lookup: the index against a search by hand, and its path in the tree."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_core.config import TreeConfig
from eagle_core.drafters.base import Budget
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.lookup import KEY, LONGEST_MATCH, MOST_CANDIDATES, RepeatIndex, with_path
from eagle_core.testing import tiny_target
from eagle_core.tree import DraftTree
from tests.support.tiny_heads import tiny_head

texts = st.lists(st.integers(0, 3), max_size=40)


def search(tokens: list[int], pending: int, n_tokens: int) -> tuple[list[int], int]:
    """The longest match of the end, the latest of equals, by comparing everything within the limits."""
    whole = [*tokens, pending]
    places = [p for p in range(KEY, len(tokens) + 1) if tokens[p - KEY : p] == whole[-KEY:]]
    best, found = 0, list[int]()
    for place in places[-MOST_CANDIDATES:]:
        length = 0
        while (
            length < min(place, LONGEST_MATCH) and whole[place - 1 - length] == whole[-1 - length]
        ):
            length += 1
        if place < len(tokens) and length >= best:
            best, found = length, tokens[place : place + n_tokens]
    return found, best


@given(before=texts, cut=st.integers(0, 40), after=texts, pending=st.integers(0, 3))
def test_index_finds_what_a_search_finds_also_after_a_rewind(before, cut, after, pending):
    index = RepeatIndex()
    index.extend(before)
    index.rewind(min(cut, len(before)))
    index.extend(after)
    tokens = before[:cut] + after
    assert len(index) == len(tokens)
    assert index.continuation(pending, 5) == search(tokens, pending, 5)


def test_a_text_that_repeats_is_continued():
    index = RepeatIndex()
    index.extend([5, 6, 7, 8, 9, 1, 6, 7, 3, 5, 6])
    assert index.continuation(7, 3) == ([8, 9, 1], 3)  # 5 6 7 matches longer than the later 6 7
    assert index.continuation(4, 3) == ([], 0)
    assert index.continuation(7, 0) == ([], 0)


def test_a_path_joins_the_tree_without_doubled_nodes():
    tree = DraftTree(torch.tensor([7, 3, 5, 9]), torch.tensor([-1, 0, 0, 1]), 2)
    joined = with_path(tree, [3, 9, 4, 4], 2, 4)
    joined.validate()
    assert joined.tokens.tolist() == [7, 3, 5, 9, 4, 4]
    assert joined.parents.tolist() == [-1, 0, 0, 1, 3, 4]
    assert joined.max_depth == 4
    assert with_path(tree, [3, 9], 2, 4) is tree
    assert with_path(tree, [3, 9, 4, 4], 1, 4).tokens.tolist() == [7, 3, 5, 9, 4]
    assert with_path(tree, [8, 8, 8], 9, 2).tokens.tolist() == [7, 3, 5, 9, 8, 8]
    assert joined.draft_scores is None
    scored = dataclasses.replace(tree, draft_scores=torch.tensor([0.0, -1.0, -2.0, -3.0]))
    scores = with_path(scored, [3, 9, 4, 4], 2, 4).draft_scores
    assert scores[:4].tolist() == [0.0, -1.0, -2.0, -3.0]
    assert scores[4:].isnan().all()


def test_the_drafter_adds_a_repeat_within_the_budget():
    target = tiny_target()
    config = TreeConfig(policy="dynamic", depth=2, branching=2, size=3, lookup=4)
    drafter = EagleDrafter(
        tiny_head(), target.embed, target.output_embeddings, config, target.context_length
    )
    prompt = [10, 11, 12, 13, 14, 15, 16, 10, 11]
    ids = torch.tensor(prompt)
    output = target.prefill_chunk(ids, target.new_cache(64))
    drafter.commit(ids, output.features, torch.tensor(12))
    tree = drafter.propose(torch.tensor(12), Budget(config.max_nodes, config.max_depth))
    tree.validate()
    assert tree.n_nodes - 1 <= config.max_nodes == 7
    node = 0
    for token in (13, 14, 15, 16):
        node = next(
            i for i in range(1, tree.n_nodes) if tree.parents[i] == node and tree.tokens[i] == token
        )
    small = drafter.propose(torch.tensor(12), Budget(4, 1))
    assert small.n_nodes - 1 <= 4
    assert small.max_depth == 1
    drafter.rewind(3)
    assert drafter._repeats.continuation(12, 4) == ([], 0)


def test_after_a_long_match_the_head_is_not_asked():
    target, head = tiny_target(), tiny_head()
    config = TreeConfig(policy="dynamic", depth=3, branching=2, size=5, lookup=9)
    drafter = EagleDrafter(
        head, target.embed, target.output_embeddings, config, target.context_length
    )
    text = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
    ids = torch.tensor([*text, 99, *text[:7]])
    output = target.prefill_chunk(ids, target.new_cache(64))
    drafter.commit(ids, output.features, torch.tensor(17))
    calls = []
    head.register_forward_hook(lambda *_: calls.append(1))
    tree = drafter.propose(torch.tensor(17), Budget(config.max_nodes, config.max_depth))
    assert tree.tokens.tolist() == [17, 18, 19, 20, 21, 22, 99, 10, 11, 12]
    assert tree.parents.tolist() == list(range(-1, 9))
    assert not calls
    assert drafter.propose(torch.tensor(17), Budget(14, 2)).tokens.tolist() == [17, 18, 19]
    drafter.propose(torch.tensor(40), Budget(14, 9))
    assert calls
