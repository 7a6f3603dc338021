"""Stands between the loop and a drafter, so that a broken drafter costs speed and nothing else.

A proposal is rebuilt from its tokens and parents alone: the attention mask and the depths are computed here,
never taken from the drafter. On the host everything about a tree is checked before the target sees it.
Elsewhere that would cost a wait for the device; there a bad node is marked in the tree, without waiting, so
that it can do no harm in the forward, and is found with the one transfer that the verdict needs.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from eagle_core.config import GenerationConfig
from eagle_core.drafters.base import Budget, Drafter, FollowingDrafter, SamplingDrafter
from eagle_core.errors import Cancelled, DraftError, EagleError
from eagle_core.tree import DraftTree, check_parents

logger = logging.getLogger(__name__)

BAD = -2  # the parent of a node that must not count; no tree that passes check_parents holds it


class GuardedDrafter:
    """A drafter that never fails: it proposes a tree that is one, or the pending token alone.

    After a failed commit, or one that leaves a wrong length, the drafter is reset and not asked again.

    Args:
        drafter: any drafter, however broken.
        vocab_size: ids that the target knows.
        chains_only: the target can check single paths only.
    """

    def __init__(self, drafter: Drafter, vocab_size: int, *, chains_only: bool = False) -> None:
        self._drafter, self._vocab_size, self._chains_only = drafter, vocab_size, chains_only
        self._is_on = True
        self._problem: str | None = None
        self._is_told = False

    @property
    def inner(self) -> Drafter:
        """The drafter itself."""
        return self._drafter

    @property
    def is_on(self) -> bool:
        """Whether the drafter is still asked."""
        return self._is_on

    def follow(self, config: GenerationConfig) -> None:
        """Tell a drafter that wants to know how the answer is chosen."""
        if isinstance(self._drafter, FollowingDrafter):
            try:
                self._drafter.follow(config)
            except Exception as error:
                logger.exception("a drafter could not follow")
                self._switch_off(error)

    def take_problem(self) -> str | None:
        """The first thing that went wrong, as a sentence, the first time this is called after it."""
        if self._problem is None or self._is_told:
            return None
        self._is_told = True
        return self._problem

    def propose(
        self,
        pending: int,
        budget: Budget,
        device: torch.device,
        drawn: GenerationConfig | None = None,
    ) -> DraftTree:
        """A tree that starts at ``pending`` and keeps to ``budget``, on ``device``.

        Args: drawn: settings to draw the tree's tokens with, for a drafter that can; None: the likeliest.
        """
        alone = torch.tensor(pending, device=device)  # []
        if not self._is_on:
            return DraftTree.single(alone)
        length = self._drafter.length
        try:
            if drawn is not None:
                tree = cast(SamplingDrafter, self._drafter).sample(alone.clone(), budget, drawn)
            else:
                tree = self._drafter.propose(alone.clone(), budget)
            tree = self._checked(tree, pending, budget, device)
        except Cancelled:
            raise
        except Exception as error:
            logger.exception("a proposal failed")
            self.blame(error)
            tree = DraftTree.single(alone)
        if self._drafter.length != length:
            self._switch_off(DraftError("a proposal changed what the drafter had committed"))
        return tree

    def commit(self, tokens: Tensor, features: Tensor, next_token: Tensor) -> None:
        """Tell the drafter what became final; see :class:`eagle_core.drafters.base.Drafter`."""
        if not self._is_on:
            return
        expected = self._drafter.length + tokens.shape[0]
        try:
            self._drafter.commit(tokens, features, next_token)
        except Cancelled:
            raise
        except Exception as error:
            logger.exception("a commit failed")
            self._switch_off(error)
            return
        if self._drafter.length != expected:
            self._switch_off(DraftError("the drafter lost count of what was committed"))

    def rewind(self, length: int) -> None:
        """Forget the tokens from position ``length`` on, if the drafter knows them."""
        if self._is_on and self._drafter.length > length:
            self._drafter.rewind(length)

    def blame(self, error: Exception) -> None:
        """Remember what went wrong; the first time counts."""
        if self._problem is None:
            why = error.message if isinstance(error, EagleError) else type(error).__name__
            self._problem = (
                f"the drafter '{self._drafter.name}' failed ({why}): decoding plainly where it does; "
                "the answer is the same"
            )

    def _switch_off(self, error: Exception) -> None:
        """Ask the drafter no more, and leave it empty for the next answer."""
        self.blame(error)
        self._is_on = False
        try:
            self._drafter.reset()
        except Exception:
            logger.exception("the drafter could not be reset")

    def _checked(self, tree: Any, pending: int, budget: Budget, device: torch.device) -> DraftTree:
        """The tree with a mask and depths of our own.

        Raises: DraftError naming what is wrong, as far as that can be known without waiting for a device.
        """
        if not isinstance(tree, DraftTree):
            raise DraftError("no tree was proposed", expected="a DraftTree", got=_kind(tree))
        if not isinstance(tree.tokens, Tensor) or not isinstance(tree.parents, Tensor):
            raise DraftError("a tree's tokens and parents are no tensors")
        depth = tree.max_depth
        if type(depth) is not int or not 0 <= depth <= budget.max_depth:
            raise DraftError(
                "the drafter's tree is over its budget",
                expected=f"a depth up to {budget.max_depth}",
                got=repr(depth),
            )
        if tree.n_nodes - 1 > budget.max_nodes:
            raise DraftError(
                "the drafter's tree is over its budget",
                expected=f"at most {budget.max_nodes} nodes",
                got=str(tree.n_nodes - 1),
            )
        tokens, parents = tree.tokens.to(device), tree.parents.to(device)  # [N], [N]
        if device.type != "cpu":
            tokens, parents = self._marked(tokens, parents, pending)
            return dataclasses.replace(
                tree, tokens=tokens, parents=parents, known_mask=None, known_depths=None
            )
        host_tokens, host_parents = tokens.tolist(), parents.tolist()
        self.check(host_tokens, host_parents, pending, depth)
        mask, depths = _shape(tuple(host_parents), depth)
        return dataclasses.replace(
            tree, tokens=tokens, parents=parents, known_mask=mask, known_depths=depths
        )

    def check(self, tokens: list[int], parents: list[int], pending: int, max_depth: int) -> None:
        """Check a tree on the host.

        Raises: DraftError naming what is wrong.
        """
        check_parents(parents, max_depth)
        if tokens[0] != pending:
            raise DraftError(
                "the tree does not start at the pending token",
                expected=str(pending),
                got=str(tokens[0]),
            )
        if min(tokens) < 0 or max(tokens) >= self._vocab_size:
            raise DraftError(
                "a drafted token is not in the vocabulary",
                expected=f"0 to {self._vocab_size - 1}",
                got=str(min(tokens) if min(tokens) < 0 else max(tokens)),
            )
        if len(set(zip(parents, tokens, strict=True))) != len(tokens):
            raise DraftError("two siblings hold the same token", expected="distinct siblings")
        if self._chains_only and parents != list(range(-1, len(parents) - 1)):
            raise DraftError("this model checks single paths only", expected="a chain")

    def _marked(self, tokens: Tensor, parents: Tensor, pending: int) -> tuple[Tensor, Tensor]:
        """Tokens and parents [N] that no forward can trip over; a bad node's parent is BAD. Does not wait."""
        order = torch.arange(tokens.shape[0], device=tokens.device)  # [N]
        is_root = order == 0
        is_known = (tokens >= 0) & (tokens < self._vocab_size)  # [N]
        is_placed = torch.where(
            is_root, (parents == -1) & (tokens == pending), (parents >= 0) & (parents < order)
        )
        if self._chains_only:
            is_placed = is_placed & (parents == order - 1)
        tokens = tokens.clamp(0, self._vocab_size - 1)  # [N]
        return tokens, torch.where(is_known & is_placed, parents, BAD)


@lru_cache(maxsize=64)
def _shape(parents: tuple[int, ...], max_depth: int) -> tuple[Tensor, Tensor]:
    """Ancestor mask [N, N] bool and depths [N] i64 of a shape on the host; shapes come again and again."""
    with torch.inference_mode(False):
        tensor = torch.tensor(parents)  # [N]
        bare = DraftTree(torch.zeros_like(tensor), tensor, max_depth)
        return bare.ancestor_mask, bare.depths


def _kind(value: object) -> str:
    return type(value).__name__


__all__ = ["BAD", "GuardedDrafter"]
