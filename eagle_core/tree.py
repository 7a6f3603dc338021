"""Draft trees, given by parents: a chain, a fixed shape and a grown tree are all the same thing.

Node 0 is the *pending* token: decided, but not yet in the target's KV cache. Every other node is a
drafted token that follows its parent. Knows nothing of models, caches or acceptance.

Index example: tokens [7, 3, 5, 9], parents [-1, 0, 0, 1] say that after 7 come 3 or 5, and
after 7 3 comes 9; depths are [0, 1, 1, 2], and node 3 attends to nodes 0, 1 and 3.
"""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle_core.config import Shape, check_shape
from eagle_core.errors import DraftError


@dataclass(frozen=True, eq=False)
class Draws:
    """How the children of a tree's nodes were drawn: what the rule ``sampling`` must know.

    Row r belongs to node ``nodes[r]``; a node without a row has no children. ``candidates[r]`` are columns of
    ``q[r]`` in the order of the draws; -1: no draw. With replacement a candidate may come twice; of two equal
    siblings only the first is ever reached.
    """

    nodes: Tensor  # [R] i64
    q: Tensor  # [R, C] f32, the distributions that were really drawn from
    candidates: Tensor  # [R, K] i64
    vocabulary: Tensor | None = None  # [C] i64, the tokens of the columns; None: column = token
    with_replacement: bool = False


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A tree of N candidate tokens.

    Without ``draws`` its tokens may be chosen in any way that does not look at the verifier's noise; with
    them, every child must be a draw, and none may have been left out because of its value.

    ``max_depth`` is a host integer and an upper bound, so that neither the mask nor the loop has to ask
    the device.
    Drafters that reuse a shape may pass its mask and depths instead of having them computed.

    Raises: DraftError when a tensor has the wrong shape or dtype.
    """

    tokens: Tensor  # [N] i64
    parents: Tensor  # [N] i64; parents[0] = -1, parents[i] < i
    max_depth: int
    known_mask: Tensor | None = None  # [N, N] bool
    known_depths: Tensor | None = None  # [N] i64
    draws: Draws | None = None
    # [N] f32, the drafter's log-probability of each node's token after its parent, to be shown; NaN: unknown
    draft_scores: Tensor | None = None

    def __post_init__(self) -> None:
        tokens, parents = self.tokens, self.parents
        if tokens.ndim != 1 or tokens.shape != parents.shape or tokens.shape[0] == 0:
            raise DraftError(
                "a tree's tokens and parents do not belong together",
                expected="[N] and [N], N >= 1",
                got=f"{list(tokens.shape)} and {list(parents.shape)}",
            )
        if tokens.dtype != torch.int64 or parents.dtype != torch.int64:
            raise DraftError(
                "a tree's tokens and parents are no 64-bit integers",
                expected="int64 and int64",
                got=f"{tokens.dtype} and {parents.dtype}",
            )

    @classmethod
    def single(cls, pending: Tensor) -> DraftTree:
        """The pending token ([] i64) alone: plain decoding."""
        parents = torch.full((1,), -1, dtype=torch.int64, device=pending.device)  # [1]
        return cls(pending.reshape(1), parents, 0)

    @classmethod
    def chain(cls, pending: Tensor, tokens: Tensor) -> DraftTree:
        """One path: ``tokens`` ([K] i64) after the pending token ([] i64)."""
        n_drafted = tokens.shape[0]
        parents = torch.arange(-1, n_drafted, device=tokens.device)  # [K + 1]
        return cls(torch.cat((pending.reshape(1), tokens)), parents, n_drafted)

    def first_nodes(self, n_nodes: int) -> DraftTree:
        """The tree without its last nodes, which are nobody's parents then."""
        if n_nodes >= self.n_nodes:
            return self
        scores = None if self.draft_scores is None else self.draft_scores[:n_nodes]
        return DraftTree(
            self.tokens[:n_nodes], self.parents[:n_nodes], self.max_depth, draft_scores=scores
        )

    @property
    def n_nodes(self) -> int:
        """Nodes, the pending one included."""
        return self.tokens.shape[0]

    @cached_property
    def ancestor_mask(self) -> Tensor:
        """[N, N] bool: row i is True at i and at all its ancestors; ``max_depth`` tensor rounds."""
        if self.known_mask is not None:
            return self.known_mask
        mask = torch.eye(self.n_nodes, dtype=torch.bool, device=self.parents.device)  # [N, N]
        parents = self.parents.clamp(min=0)  # [N]; the root is taken as its own parent
        ancestors = parents
        for _ in range(self.max_depth):
            mask.scatter_(1, ancestors.unsqueeze(1), True)
            ancestors = parents[ancestors]
        return mask

    @cached_property
    def depths(self) -> Tensor:
        """[N] i64: drafted tokens from the pending node to each node; 0 for the pending node."""
        if self.known_depths is not None:
            return self.known_depths
        return self.ancestor_mask.sum(dim=1) - 1

    def validate(self) -> None:
        """Check what the type cannot say; reads the device, so it is for tests and debugging.

        Raises: DraftError naming what is wrong.
        """
        parents, tokens = self.parents.tolist(), self.tokens.tolist()
        depths = check_parents(parents, self.max_depth)
        if len(set(zip(parents, tokens, strict=True))) != len(tokens):
            raise DraftError(
                "two siblings hold the same token",
                expected="distinct siblings",
                got=f"{tokens} {parents}",
            )
        if self.depths.tolist() != depths:
            raise DraftError(
                "the given depths are wrong", expected=str(depths), got=str(self.depths.tolist())
            )
        bare = DraftTree(self.tokens, self.parents, self.max_depth)
        if self.ancestor_mask.dtype != torch.bool or not torch.equal(
            self.ancestor_mask, bare.ancestor_mask
        ):
            raise DraftError(
                "the given mask is wrong", expected="ancestors or self, bool", got="another mask"
            )


def check_parents(parents: list[int], max_depth: int) -> list[int]:
    """Check a tree's parents on the host and return every node's depth.

    Raises: DraftError when the parents are no tree or go deeper than ``max_depth``.
    """
    if not parents or parents[0] != -1:
        raise DraftError("node 0 is not the root", expected="parents[0] = -1", got=str(parents[:1]))
    depths = [0]
    for node in range(1, len(parents)):
        parent = parents[node]
        if not 0 <= parent < node:
            raise DraftError(
                f"node {node} does not come after its parent",
                expected=f"0 to {node - 1}",
                got=str(parent),
            )
        depths.append(depths[parent] + 1)
    if max(depths) > max_depth:
        raise DraftError(
            "the depth of the tree is more than it states",
            expected=f"at most {max_depth}",
            got=str(max(depths)),
        )
    return depths


@dataclass(frozen=True, eq=False)
class TreeLayout:
    """A fixed shape, ready for use: nodes in order of depth, node 0 the pending token.

    ``ranks[i]`` is the place of node i among the children its parent could have (0: the likeliest).
    ``levels[d]`` are the nodes of depth d as a half-open range, so ``levels[0] == (0, 1)``.
    """

    parents: Tensor  # [N] i64
    ranks: Tensor  # [N] i64; 0 for the pending node
    depths: Tensor  # [N] i64
    ancestor_mask: Tensor  # [N, N] bool
    levels: tuple[tuple[int, int], ...]
    widths: tuple[int, ...]  # candidates that a node of depth d must offer; 0 at the last depth

    @property
    def n_nodes(self) -> int:
        """Nodes, the pending one included."""
        return self.parents.shape[0]

    @property
    def max_depth(self) -> int:
        """Drafted tokens on the longest path."""
        return len(self.levels) - 1

    def tree(self, tokens: Tensor, draft_scores: Tensor | None = None) -> DraftTree:
        """A tree of this shape holding ``tokens`` ([N] i64, the pending token first)."""
        return DraftTree(
            tokens, self.parents, self.max_depth, self.ancestor_mask, self.depths,
            draft_scores=draft_scores,
        )  # fmt: skip


def fit_shape(shape: Shape, max_nodes: int, max_depth: int) -> Shape:
    """The part of a shape that a budget allows, by depth, then rank; every prefix stays in it."""
    paths = sorted(
        (path for path in shape if len(path) <= max_depth), key=lambda path: (len(path), path)
    )
    return tuple(paths[: max(max_nodes, 0)])


def in_order_of_draws(shape: Shape) -> Shape:
    """The same shape with every node's children numbered 0, 1, 2, ... without a gap.

    A shape says how many children to draw, and the n-th child is the n-th draw: leaving a draw out would
    change the law of those after it. Example: (0,), (2,), (2, 1) becomes (0,), (1,), (1, 0).
    """
    renamed: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
    n_children: dict[tuple[int, ...], int] = {}
    for path in sorted(shape, key=lambda path: (len(path), path)):
        parent = renamed[path[:-1]]
        rank = n_children.get(parent, 0)
        n_children[parent] = rank + 1
        renamed[path] = (*parent, rank)
    return tuple(renamed[path] for path in shape)


@lru_cache(maxsize=64)
def shape_for_draws(depth: int, branching: int, size: int) -> Shape:
    """The fixed shape that stands in for a grown tree when children are drawn.

    A grown tree keeps its best nodes, which drawn children forbid. So the nodes are chosen before any token
    is known, as if each later draw were half as likely to be accepted as the one before: the ``size`` paths
    of the smallest sum of (rank + 1). Example: depth 2, branching 2, size 3 gives (0,), (1,), (0, 0).
    """
    found: list[tuple[int, ...]] = []
    waiting: list[tuple[int, int, tuple[int, ...]]] = [(1, 1, (0,))]  # (sum, depth, path)
    while waiting and len(found) < size:
        total, length, path = heapq.heappop(waiting)
        found.append(path)
        if path[-1] + 1 < branching:
            heapq.heappush(waiting, (total + 1, length, (*path[:-1], path[-1] + 1)))
        if length < depth:
            heapq.heappush(waiting, (total + 1, length + 1, (*path, 0)))
    return tuple(found)


def best_nodes(
    pending: Tensor,
    tokens: Tensor,
    values: Tensor,
    scores: Tensor,
    parents: Tensor,
    max_nodes: int,
    max_depth: int,
    width: int,
) -> DraftTree:
    """The ``max_nodes`` most valuable candidates as a tree.

    Candidates are in order of depth: ``width`` of depth 1, then width^2 of each further depth. A stable sort
    keeps a parent ahead of a child of equal value.
    """
    order = torch.sort(values, descending=True, stable=True).indices[:max_nodes]
    kept = order.sort().values  # [N - 1]
    old_parents = parents[kept]
    # A parent's place among the kept; roots (-1) become node 0.
    new_parents = torch.searchsorted(kept, old_parents) + 1
    new_parents = torch.where(old_parents < 0, 0, new_parents)
    root = torch.full((1,), -1, dtype=torch.long, device=tokens.device)
    if (
        tokens.device.type == "cpu"
    ):  # elsewhere reading it would cost a sync; the bound does as well
        last = int(kept[-1])
        max_depth = 1 if last < width else 2 + (last - width) // width**2
    return DraftTree(
        torch.cat((pending.reshape(1), tokens[kept])), torch.cat((root, new_parents)), max_depth,
        draft_scores=F.pad(scores[kept], (1, 0)),
    )  # fmt: skip


def without_idle_nodes(tree: DraftTree) -> DraftTree:
    """A drawn tree without nodes that no walk can reach; reads the device.

    Idle is a node that stands for no draw (q had too few tokens) or for a draw that came before
    (with replacement), and whatever is below it. All draws stay: each of them is still a round.
    """
    draws = tree.draws
    assert draws is not None
    candidates = draws.candidates.clamp(min=0)  # [R, K]
    drawn = candidates if draws.vocabulary is None else draws.vocabulary[candidates]
    is_draw = (draws.candidates >= 0).tolist()
    reachable = {
        (node, token)
        for node, tokens, valid in zip(draws.nodes.tolist(), drawn.tolist(), is_draw, strict=True)
        for token, is_valid in zip(tokens, valid, strict=True)
        if is_valid
    }
    new_index = {0: 0}
    pairs = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    for node, pair in enumerate(pairs[1:], start=1):
        if pair[0] in new_index and pair in reachable:
            reachable.discard(pair)
            new_index[node] = len(new_index)
    if len(new_index) == len(pairs):
        return tree
    device = tree.tokens.device
    kept = torch.tensor(list(new_index), device=device)  # [N']
    parents = [new_index.get(pairs[node][0], -1) for node in new_index]  # the root's stays -1
    rows = [row for row, node in enumerate(draws.nodes.tolist()) if node in new_index]
    index = torch.tensor(rows, dtype=torch.long, device=device)  # [R']
    nodes = [new_index[int(draws.nodes[row])] for row in rows]
    depths = tree.depths[kept]
    return DraftTree(
        tree.tokens[kept],
        torch.tensor(parents, device=device),
        int(depths.max()),
        tree.ancestor_mask[kept][:, kept],
        depths,
        dataclasses.replace(
            draws,
            nodes=torch.tensor(nodes, dtype=torch.long, device=device),
            q=draws.q[index],
            candidates=draws.candidates[index],
        ),
        None if tree.draft_scores is None else tree.draft_scores[kept],
    )


def tree_layout(shape: Shape, device: torch.device | str = "cpu") -> TreeLayout:
    """Turn rank paths into parents, ranks and levels. An empty shape is the pending token alone.

    Example: shape ((0,), (1,), (0, 0)) gives parents [-1, 0, 0, 1], ranks [0, 0, 1, 0] and
    levels ((0, 1), (1, 3), (3, 4)).
    Raises: ConfigError when a path lacks its parent.
    """
    if shape:
        check_shape(shape)
    paths = [(), *sorted(shape, key=lambda path: (len(path), path))]
    index = {path: node for node, path in enumerate(paths)}
    host_parents = [index[path[:-1]] if path else -1 for path in paths]
    parents = torch.tensor(host_parents, device=device)  # [N]
    ranks = torch.tensor([path[-1] if path else 0 for path in paths], device=device)  # [N]
    host_depths = [len(path) for path in paths]
    max_depth = host_depths[-1]
    starts = [host_depths.index(depth) for depth in range(max_depth + 1)] + [len(paths)]
    widths = [
        max((path[-1] + 1 for path in paths if len(path) == depth + 1), default=0)
        for depth in range(max_depth + 1)
    ]
    bare = DraftTree(torch.zeros_like(parents), parents, max_depth)
    return TreeLayout(
        parents=parents,
        ranks=ranks,
        depths=bare.depths,
        ancestor_mask=bare.ancestor_mask,
        levels=tuple(pairwise(starts)),
        widths=tuple(widths),
    )


__all__ = [
    "DraftTree",
    "Draws",
    "TreeLayout",
    "best_nodes",
    "check_parents",
    "fit_shape",
    "in_order_of_draws",
    "shape_for_draws",
    "tree_layout",
    "without_idle_nodes",
]
