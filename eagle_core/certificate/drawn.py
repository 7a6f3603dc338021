"""What the certificate's cases of the rule ``sampling`` are made of: heads, drawn trees, planted bugs.

Right cases go through the engine's own ``verify``. So do the bugs that lie outside the rule. One within the
rule needs another rule: ``plainly`` is Algorithm 1 written again, a node and a round at a time, with a line
that a bug changes; without a bug its tokens are those of ``verify``, which a test holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from functools import cache

import torch
from torch import Tensor

from eagle_core.config import GenerationConfig, Shape
from eagle_core.drafters.base import Budget
from eagle_core.sampling import choose, position_noise, race, stream_noise, to_probabilities
from eagle_core.testing import TableDrafter
from eagle_core.tree import DraftTree
from eagle_core.verify import Verdict

# (pending token, the target's [V, V] logits, the pending token's position, settings) -> tree
Propose = Callable[[int, Tensor, int, GenerationConfig], DraftTree]
Judge = Callable[[DraftTree, Tensor, int, GenerationConfig], Verdict]

TREE: Shape = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0))
SIBLINGS: Shape = ((0,), (1,), (2,))
CHAIN: Shape = ((0,), (0, 0), (0, 0, 0))


class Bug(Enum):
    """A mistake in the rule; the value is its name in the certificate."""

    NONE = "none"
    ACCEPTS_P = "accepts with p instead of min(1, p/q)"
    KEEPS_P = "residual not subtracted"
    NOT_NORMALISED = "residual not normalised"
    STALE = "residual not used in later rounds"
    KEEPS_Q = "q keeps the rejected token"
    SAME_NUMBER = "one number for every depth"


def good_head(p: Tensor) -> Tensor:
    """q, [V, V] f32: close to the target's p and everywhere positive."""
    return 0.7 * p + 0.3 / p.shape[1]


def wrong_head(p: Tensor) -> Tensor:
    """q, [V, V] f32: nearly sure of the least likely of the possible tokens."""
    least = p.masked_fill(p == 0, 2.0).argmin(dim=1)  # [V]
    return 0.9 * torch.nn.functional.one_hot(least, p.shape[1]).float() + 0.1 / p.shape[1]


def sure_head(p: Tensor) -> Tensor:
    """q, [V, V] f32: all on the likeliest token, as if it had been chosen and not drawn."""
    return torch.nn.functional.one_hot(p.argmax(dim=1), p.shape[1]).float()


def hopeless_head(p: Tensor) -> Tensor:
    """q, [V, V] f32: impossible tokens only, so that every draw is rejected."""
    impossible = (p == 0).float()
    return impossible / impossible.sum(dim=1, keepdim=True)


def drawn_tree(q: Tensor, shape: Shape) -> Propose:
    """Trees of a shape, children drawn from the rows of q, [V, V] f32; cases that share it share trees."""

    @cache
    def draw(pending: int, _logits: Tensor, position: int, config: GenerationConfig) -> DraftTree:
        drafter = TableDrafter(q, shape, length=position)
        return drafter.sample(torch.tensor(pending), Budget(len(shape), len(shape)), config)

    return draw


def pruned_by_value(propose: Propose) -> Propose:
    """Bug: of the pending token's drawn children only the one of the highest q is verified."""

    def prune(pending: int, logits: Tensor, position: int, config: GenerationConfig) -> DraftTree:
        tree = propose(pending, logits, position, config)
        draws = tree.draws
        assert draws is not None
        candidates = draws.candidates[0]  # [K], columns are tokens
        value = draws.q[0, candidates.clamp(min=0)].masked_fill(candidates < 0, -1.0)
        best = candidates[value.argmax()]  # []
        kept = dataclasses.replace(
            draws, nodes=draws.nodes[:1], q=draws.q[:1], candidates=best.reshape(1, 1)
        )
        chain = DraftTree.chain(tree.tokens[0], best.reshape(1))
        return dataclasses.replace(chain, draws=kept)

    return prune


def plainly(bug: Bug = Bug.NONE) -> Judge:
    """A judge that walks by the rule as written in this file."""

    def judge(
        tree: DraftTree, logits: Tensor, first_position: int, config: GenerationConfig
    ) -> Verdict:
        draws = tree.draws
        assert draws is not None
        n_levels, n_rounds = tree.max_depth + 1, draws.candidates.shape[1]
        noise = position_noise(config.seed, first_position, n_levels)
        accept = stream_noise("accept", config.seed, first_position, n_levels, n_rounds)
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        row_of = {node: row for row, node in enumerate(draws.nodes.tolist())}
        probabilities = to_probabilities(logits, config)  # [N, V]
        node, path, run = 0, list[int](), list[int]()
        while node in row_of:
            row, depth = row_of[node], len(path)
            token, is_drafted = _choose(
                probabilities[node],
                draws.q[row],
                draws.candidates[row].tolist(),
                accept[0 if bug is Bug.SAME_NUMBER else depth],
                noise[depth],
                with_replacement=draws.with_replacement,
                bug=bug,
            )
            run.append(token)
            if not is_drafted:
                break
            pairs = zip(parents, tokens, strict=True)
            node = next(i for i, pair in enumerate(pairs) if pair == (node, token))
            path.append(node)
        else:  # a node without children: the bonus
            depth = len(path)
            bonus, _ = choose(logits[node : node + 1], noise[depth : depth + 1], config)
            run.append(int(bonus))
        chances = tuple(
            float(probabilities[above, token]) for above, token in zip((0, *path), run, strict=True)
        )
        return Verdict(
            tuple(path), tuple(run), chances, tuple(tokens), tuple(parents), tree.max_depth
        )

    return judge


def _choose(
    p: Tensor,
    q: Tensor,
    candidates: list[int],
    accept: Tensor,
    noise: Tensor,
    *,
    with_replacement: bool,
    bug: Bug,
) -> tuple[int, bool]:
    """Algorithm 1 at one node (``sampling.draw_in_rounds``): its token, and whether that is a child.

    Args: p, q: [V] f32; accept: [K] f32; noise: [] f32.
    """
    first = p
    for token, number in zip(candidates, accept, strict=True):
        if token < 0:
            continue
        tested = first if bug is Bug.STALE else p
        share = 1.0 if bug is Bug.ACCEPTS_P else q[token]
        rest = (p - q).clamp(min=0)  # [V]
        if bool(number * share < tested[token]) or float(rest.sum()) <= 0:
            return token, True
        if bug is not Bug.KEEPS_P:
            p = rest if bug is Bug.NOT_NORMALISED else rest / rest.sum()
        if not with_replacement and bug is not Bug.KEEPS_Q:
            q = q.clone()
            q[token] = 0.0
            q = q / q.sum()
    return int(race(p[None], noise[None])), False


__all__ = [
    "CHAIN",
    "SIBLINGS",
    "TREE",
    "Bug",
    "Judge",
    "Propose",
    "drawn_tree",
    "good_head",
    "hopeless_head",
    "plainly",
    "pruned_by_value",
    "sure_head",
    "wrong_head",
]
