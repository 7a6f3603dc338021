"""Prompt lookup: where the last words stood before, what came after them is a good guess.

It needs no weights, and helps where an answer repeats its prompt or itself: code, summaries, quotes. The
repeated text is one more path of the draft tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle_core.tree import DraftTree

KEY = 2  # tokens that must match at least
MOST_CANDIDATES = 32  # latest occurrences of a key that are compared
LONGEST_MATCH = 24  # tokens compared backwards; a longer match is no better
# A match this long was right in four cases of five: then the head has little to add, and is not asked.
SURE_MATCH = 6


def useful_length(match: int) -> int:
    """How many tokens after a match are worth checking.

    Measured on answers of the default model: the last of them is right in one case of eight.
    """
    return 2 + 2 * match


class RepeatIndex:
    """Every place where two tokens stood, of a text that grows at its end and can lose its tail."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            self._tokens.append(token)
            n = len(self._tokens)
            if n >= KEY:
                self._places.setdefault(tuple(self._tokens[n - KEY :]), []).append(n)

    def rewind(self, length: int) -> None:
        """Forget all tokens but the first ``length``."""
        for end in range(len(self._tokens), max(length, KEY - 1), -1):
            places = self._places[tuple(self._tokens[end - KEY : end])]
            assert places[-1] == end
            places.pop()
        del self._tokens[length:]

    def guess(self, pending: int, n_tokens: int) -> tuple[list[int], int]:
        """:meth:`continuation`, but only as much of it as is worth checking after such a match."""
        repeat, match = self.continuation(pending, n_tokens)
        return repeat[: useful_length(match)], match

    def continuation(self, pending: int, n_tokens: int) -> tuple[list[int], int]:
        """What followed the longest earlier match of the text's end and ``pending``; the latest of equals.

        Returns: up to ``n_tokens`` tokens and the length of the match; none and 0 without one of two tokens.
        """
        tokens = self._tokens
        if len(tokens) < KEY or n_tokens < 1:
            return [], 0
        last = [*tokens[1 - KEY :], pending]
        best_length, best_place = 0, -1
        for place in reversed(self._places.get(tuple(last), ())[-MOST_CANDIDATES:]):
            if place >= len(tokens):
                continue  # nothing has followed it yet
            length = KEY
            # tokens[place - 1] is the match of ``pending``; go on backwards before the key.
            while (
                length < LONGEST_MATCH
                and place - length - 1 >= 0
                and tokens[place - length - 1] == tokens[len(tokens) - length]
            ):
                length += 1
            if length > best_length:
                best_length, best_place = length, place
        return (tokens[best_place : best_place + n_tokens] if best_length else []), best_length


def with_path(
    tree: DraftTree, path: Sequence[int], max_new_nodes: int, max_depth: int
) -> DraftTree:
    """``tree`` with ``path`` (tokens after the pending one) in it; shared beginnings are not doubled.

    Reads the tree on the host: for trees that live there.

    Args:
        max_new_nodes: nodes that may be added.
        max_depth: drafted tokens on a path that are allowed.
    """
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    children = {(parents[node], tokens[node]): node for node in range(1, len(tokens))}
    node, n_old = 0, len(tokens)
    depth = 0
    for token in path[:max_depth]:
        child = children.get((node, token))
        if child is None:
            if len(tokens) - n_old >= max_new_nodes:
                break
            child = len(tokens)
            tokens.append(token)
            parents.append(node)
        node = child
        depth += 1
    if len(tokens) == n_old:
        return tree
    return DraftTree(
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(parents, dtype=torch.int64),
        max(tree.max_depth, depth),
        draft_scores=_with_unknown(tree.draft_scores, len(tokens) - n_old),
    )


def _with_unknown(scores: Tensor | None, n_new: int) -> Tensor | None:
    """[N] -> [N + n_new]: what was looked up has no probability."""
    return None if scores is None else F.pad(scores, (0, n_new), value=math.nan)


__all__ = ["SURE_MATCH", "RepeatIndex", "with_path"]
