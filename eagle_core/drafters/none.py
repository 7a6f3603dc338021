"""No drafting: the pending token alone. With it, the one loop is plain decoding."""

from __future__ import annotations

from torch import Tensor

from eagle_core.drafters.base import Budget
from eagle_core.tree import DraftTree


class NoDrafter:
    """Proposes nothing and remembers only how many tokens were committed (``length`` at the start)."""

    def __init__(self, length: int = 0) -> None:
        self.name = "none"
        self._length = length

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    def reset(self) -> None:
        """Forget everything."""
        self._length = 0

    def commit(self, tokens: Tensor, features: Tensor, next_token: Tensor) -> None:  # noqa: ARG002 - the protocol's names
        """Count ``tokens`` ([K] i64)."""
        self._length += tokens.shape[0]

    def propose(self, pending: Tensor, budget: Budget) -> DraftTree:  # noqa: ARG002 - the protocol's names
        """The one-node tree of ``pending`` ([] i64)."""
        return DraftTree.single(pending)

    def rewind(self, length: int) -> None:
        """Forget the tokens from position ``length`` on."""
        assert 0 <= length <= self._length
        self._length = length


__all__ = ["NoDrafter"]
