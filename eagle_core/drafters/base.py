"""The protocol between the loop and whatever proposes draft tokens.

A drafter sees committed tokens, the target's features for them, and the pending token. Under the rules
``greedy`` and ``match`` it cannot affect the text, whatever it sees: the target's token is fixed before
anybody looks whether it was drafted. So it may know the random numbers of ``match``, and guess the draw
instead of the likeliest token (:class:`FollowingDrafter`). Under ``sampling`` it must not know what decides
(arXiv 2401.15077, 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from eagle_core.config import GenerationConfig
from eagle_core.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tree may cost: at most ``max_nodes`` drafted nodes (the pending node not counted) and
    ``max_depth`` drafted tokens on a path. Both may be 0: then the tree is the pending token alone."""

    max_nodes: int
    max_depth: int


@runtime_checkable
class Drafter(Protocol):
    """Proposes trees. One instance serves one request at a time and owns its own cache.

    ``length`` counts the tokens committed so far; after a commit it equals the target cache's length.
    """

    name: str

    @property
    def length(self) -> int:
        """Committed tokens."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...

    def commit(self, tokens: Tensor, features: Tensor, next_token: Tensor) -> None:
        """Take over tokens that are now final. The prefill is one or more large commits.

        Args:
            tokens: [K] i64, the committed tokens at positions length .. length + K - 1.
            features: [K, D], the target's feature at each of them.
            next_token: [] i64, the token that follows the last: after a decode step the new pending token,
                between two prefill chunks the next prompt token.
        """
        ...

    def propose(self, pending: Tensor, budget: Budget) -> DraftTree:
        """A tree whose node 0 is ``pending`` ([] i64), within ``budget``. Called only after a commit."""
        ...

    def rewind(self, length: int) -> None:
        """Forget the tokens from position ``length`` on (``length`` <= self.length)."""
        ...


@runtime_checkable
class FollowingDrafter(Drafter, Protocol):
    """A drafter that guesses what is drawn, not what is likeliest."""

    def follow(self, config: GenerationConfig) -> None:
        """Draft for answers that are drawn so from now on, until told otherwise."""
        ...


@runtime_checkable
class SamplingDrafter(Drafter, Protocol):
    """A drafter that can draw its candidates, and knows the distribution that it drew them from."""

    def sample(self, pending: Tensor, budget: Budget, config: GenerationConfig) -> DraftTree:
        """As :meth:`propose`, for the rule ``sampling``: a tree with its ``draws``.

        The number of a node's children may not depend on which tokens they are, and the random numbers must
        come from the seed's stream "draft" (``sampling.stream_noise``), which decides on nothing else.
        """
        ...


__all__ = ["Budget", "Drafter", "FollowingDrafter", "SamplingDrafter"]
