"""Prompt lookup alone: drafts what followed the last words where they stood before. Needs no head.

Any model gains from it on code, summaries and quotes; where nothing repeats it proposes nothing and costs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_core.drafters.base import Budget
from eagle_core.lookup import RepeatIndex
from eagle_core.tree import DraftTree


class NgramDrafter:
    """One path of earlier text.

    Args: committed: tokens that the target's cache holds already.
    """

    name = "ngram"

    def __init__(self, committed: Sequence[int] = ()) -> None:
        self._repeats = RepeatIndex()
        self._repeats.extend(committed)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self._repeats)

    def reset(self) -> None:
        """Forget everything."""
        self._repeats = RepeatIndex()

    def rewind(self, length: int) -> None:
        """Forget the tokens from position ``length`` on."""
        self._repeats.rewind(length)

    def commit(self, tokens: Tensor, features: Tensor, next_token: Tensor) -> None:  # noqa: ARG002 - the protocol's names
        """Remember ``tokens`` ([K] i64)."""
        self._repeats.extend(tokens.tolist())

    def propose(self, pending: Tensor, budget: Budget) -> DraftTree:
        """What followed the longest earlier match, as long as that is likely to go on."""
        most = min(budget.max_nodes, budget.max_depth)
        repeat, _ = self._repeats.guess(int(pending), most)
        if not repeat:
            return DraftTree.single(pending)
        return DraftTree.chain(pending, torch.tensor(repeat, device=pending.device))


__all__ = ["NgramDrafter"]
