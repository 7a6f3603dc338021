"""The EAGLE drafter: a head times a tree policy.

The head's cache holds one row per committed token, computed from the *target's* features; rows that
were drafted are dropped after each proposal (arXiv 2401.15077, 3.1). The one-step shift lives here: the
row of position i takes feature i and token i + 1, so the last committed row already scores the children
of the pending token. Policies: a fixed layout (chain and static), or grown by confidence (EAGLE-2, arXiv
2406.16858). For the rule ``sampling`` every policy is a fixed layout, and its tokens are drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle_core.cache import KVCache
from eagle_core.candidates import Candidates
from eagle_core.choice import Choice
from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.draft_plan import DraftPlan, DrawnCandidates, Pick, draft_plan
from eagle_core.drafters.base import Budget
from eagle_core.errors import DraftError
from eagle_core.heads.base import DraftHead
from eagle_core.kernels.attention import uses_rows_attention
from eagle_core.kernels.graphs import KEPT_FINITE, Captures, GraphDeck
from eagle_core.kernels.tape import FIXED_ROPES, TapeDeck
from eagle_core.lookup import SURE_MATCH, RepeatIndex, with_path
from eagle_core.pace import PaceBook
from eagle_core.tree import (
    DraftTree,
    best_nodes,
    fit_shape,
    in_order_of_draws,
    shape_for_draws,
    without_idle_nodes,
)
from eagle_core.worth import usual_nodes

MOST_UNREAD = 512  # committed tokens that may wait for the head
LONG_PROMPT = 128  # more tokens at once are a prompt: the head reads it along
MOST_TAPED = 8  # rows: more are what has piled up, seldom as many again


class EagleDrafter:
    """Drafts with a head.

    Args:
        embed: token ids -> embeddings [.., D], the base's; of use unless the head has its own.
        lm_head: features [.., D] -> logits [.., V], the base's module; sliced to a draft vocabulary. Of use
            unless the head has its own.
        capacity: tokens that one request may have, prompt and answer together.
        paces: where what ``auto`` measures is kept; None: with this drafter.
        captures: captures the head's forwards as graphs of the device; None: none are.
    """

    name = "eagle"

    def __init__(
        self,
        head: DraftHead,
        embed: Callable[[Tensor], Tensor],
        lm_head: nn.Module,
        tree: TreeConfig,
        capacity: int,
        paces: PaceBook | None = None,
        captures: Captures | None = None,
    ) -> None:
        self._head, self._embed = head, head.embed_tokens or embed
        self._candidates = Candidates(head, lm_head)
        self._paces = paces or PaceBook()
        self._use(tree)
        self._capacity = capacity
        self._cache = KVCache(head.n_layers, capacity + max_drafted_rows(tree))
        self._repeats = RepeatIndex()
        self._tapes = TapeDeck(self._forward, MOST_TAPED) if _can_be_recorded(head) else None
        self.graphs: GraphDeck | None = None
        if captures is not None and _can_be_captured(head):
            self.graphs = GraphDeck(self._forward, captures, head.dtype)
        # [D], the head's guess of the pending token's feature
        self._predicted: Tensor | None = None
        # Committed tokens that the head has not read yet, with their features, and the token after them.
        self._unread: list[tuple[Tensor, Tensor]] = []
        self._n_unread = 0
        self._next: Tensor | None = None
        self._n_new = 0  # tokens committed since the last proposal
        self._first = 0  # position of the first drafted token

    def _use(self, tree: TreeConfig, temperature: float = 0.0) -> None:
        """Draft by ``tree`` from now on; under ``auto`` by what was measured of it before, if it was."""
        self._tree = self._fixed_tree = tree.ways[0]
        # Who recommends a tree gets it; else what pays of a tree is seen where its scores are at hand.
        on_host = next(self._head.parameters()).device.type == "cpu" and tree.start is None
        self._choice = None
        if tree.policy == "auto":
            self._choice = Choice(tree, self._paces, on_host=on_host, temperature=temperature)
        self._worth = self._choice.worth if self._choice is not None else None
        self._n_lookup = tree.lookup
        self._n_levels, self._hopes = 0, -1.0  # of the proposal that is made

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._cache.length + self._n_unread

    def configure(self, tree: TreeConfig, temperature: float = 0.0) -> None:
        """Use another tree from the next proposal on; committed rows stay, unless they no longer fit.

        Args: temperature: of the answer that follows; ``auto`` remembers apart what pays at high ones.
        """
        if max_drafted_rows(tree) + self._capacity > self._cache.capacity:
            self._cache = KVCache(self._head.n_layers, self._capacity + max_drafted_rows(tree))
            self._predicted = None
            self._unread, self._n_unread = [], 0
            self._repeats = RepeatIndex()
        self._use(tree, temperature)

    def follow(self, config: GenerationConfig) -> None:
        """Guess what is drawn so; see :class:`eagle_core.drafters.base.FollowingDrafter`."""
        self._candidates.follow(config)

    def reset(self) -> None:
        """Forget everything but what was measured."""
        self._cache.reset()
        self._predicted = None
        self._unread, self._n_unread = [], 0
        self._repeats = RepeatIndex()
        self._pause()

    def rewind(self, length: int) -> None:
        """Forget the tokens from position ``length`` on."""
        n_unread = length - self._cache.length
        kept: list[tuple[Tensor, Tensor]] = []
        for tokens, features in self._unread:
            if n_unread > 0:
                kept.append((tokens[:n_unread], features[:n_unread]))
            n_unread -= tokens.shape[0]
        if n_unread < 0:
            self._next = self._predicted = None
        self._unread, self._n_unread = kept, sum(tokens.shape[0] for tokens, _ in kept)
        if length < self._cache.length:
            self._cache.rewind(length)
            self._predicted = None
        self._repeats.rewind(length)
        self._pause()

    def _pause(self) -> None:
        self._n_new = 0
        if self._choice is not None:
            self._choice.pause()

    @torch.inference_mode()
    def commit(self, tokens: Tensor, features: Tensor, next_token: Tensor) -> None:
        """Add committed tokens; see :class:`eagle_core.drafters.base.Drafter`.

        Under ``auto`` the head reads them when it drafts next: where it does not, it costs nothing.
        """
        self._unread.append((tokens, features))
        self._n_unread += tokens.shape[0]
        self._next = next_token
        self._n_new += tokens.shape[0]
        if tokens.device.type == "cpu":  # elsewhere reading them would cost a sync: no lookup there
            self._repeats.extend(tokens.tolist())
        if self._choice is None or tokens.shape[0] > LONG_PROMPT or self._n_unread > MOST_UNREAD:
            self._read()

    def _read(self) -> None:
        """Let the head read what was committed."""
        if not self._unread:
            return
        tokens, features = (torch.cat(parts) for parts in zip(*self._unread, strict=True))
        if self._next is None:
            raise DraftError("the token after the committed ones is not known")
        start_s = perf_counter()
        self._add_rows(tokens, features, self._next)
        self._unread, self._n_unread = [], 0
        if self._worth is not None:
            self._worth.read(perf_counter() - start_s, tokens.shape[0])

    def _add_rows(self, tokens: Tensor, features: Tensor, next_token: Tensor) -> None:
        """Head rows for tokens [K] with features [K, D]; the row of each needs the token after it."""
        n_tokens, start = tokens.shape[0], self._cache.length
        following = torch.cat((tokens[1:], next_token.reshape(1)))  # [K]
        positions = torch.arange(start, start + n_tokens, device=tokens.device)  # [K]
        mask = None
        is_cut = 0 < self._head.window < start + n_tokens
        if is_cut or (n_tokens > 1 and start > 0):
            mask = self._mask(
                torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=tokens.device).tril()
            )
        out = self._run(
            following, self._head.fuse(features.to(self._head.dtype)), positions, mask
        )  # [K, D]
        self._cache.advance(n_tokens)
        self._predicted = out[-1]

    @property
    def tree(self) -> TreeConfig:
        """The tree that is drafted; under ``auto`` the one to start with."""
        return self._fixed_tree

    def can_try_out(self, n_tokens: int, depth: int) -> bool:
        """Whether there is room for :meth:`try_out` behind what the head has read."""
        return 1 + 2 * n_tokens + (depth - 1) * self._fixed_tree.branching <= self._cache.room

    @torch.inference_mode()
    def try_out(self, tokens: Tensor, features: Tensor, depth: int) -> tuple[float, float]:
        """Read tokens [K] with features [K, D] and draft ``depth`` levels after them; forget it all.

        Returns: seconds of reading and of drafting. Nothing that was measured before changes.
        """
        length, kept = self._cache.length, (self._predicted, self._worth, self._tree)
        self._worth, self._tree = None, self._fixed_tree
        try:
            for n_tokens in (1, tokens.shape[0], tokens.shape[0]):
                start_s = perf_counter()
                self._add_rows(tokens[:n_tokens], features[:n_tokens], tokens[-1])
            read_s, start_s = perf_counter() - start_s, perf_counter()
            self._grow(tokens[-1], self._capacity, depth)
            return read_s, perf_counter() - start_s
        finally:
            self._cache.rewind(length)
            self._predicted, self._worth, self._tree = kept

    @torch.inference_mode()
    def propose(self, pending: Tensor, budget: Budget) -> DraftTree:
        """A tree within ``budget``, grown by the configured policy."""
        if self._choice is not None:
            self._choice.finish(self._n_new)
        self._n_new, self._n_levels, self._hopes = 0, 0, -1.0
        self._first = self.length + 1
        tree = self._proposal(pending, budget)
        if self._worth is not None:
            self._worth.proposed(tree.n_nodes, self._n_levels, self._hopes)
        return tree

    def _proposal(self, pending: Tensor, budget: Budget) -> DraftTree:
        repeat, match = self._repeat(pending)
        if match >= SURE_MATCH and budget.max_depth > 0:
            n_tokens = min(len(repeat), budget.max_nodes, budget.max_depth)
            return DraftTree.chain(pending, torch.tensor(repeat[:n_tokens]))
        if self._choice is not None:
            way = self._choice.begin(repeat, match)
            if way.tree is None:
                bare = DraftTree.single(pending)
                if not (way.looks_up and repeat):
                    return bare
                n_new = min(self._n_lookup, budget.max_nodes)
                return with_path(bare, repeat, n_new, budget.max_depth)
            self._tree = way.tree
        max_nodes, max_depth = self._limits(budget)
        if max_nodes < 1 or max_depth < 1:
            return DraftTree.single(pending)
        committed = self._cache.length
        try:
            if self._tree.paths is None:
                tree = self._grow(pending, max_nodes, max_depth)
            else:
                plan = draft_plan(fit_shape(self._tree.paths, max_nodes, max_depth), pending.device)
                tree = self._fill(pending, plan, self._likeliest)
        finally:
            self._cache.rewind(committed)
        n_new = min(self._n_lookup, budget.max_nodes - (tree.n_nodes - 1))
        if not repeat:
            return tree
        self._hopes = -1.0
        n_head_nodes, tree = tree.n_nodes - 1, with_path(tree, repeat, n_new, budget.max_depth)
        if self._worth is None:
            return tree
        return tree.first_nodes(1 + max(usual_nodes(tree.n_nodes - 1), n_head_nodes))

    def _repeat(self, pending: Tensor) -> tuple[list[int], int]:
        """What followed the last words where they stood before, and how many words matched."""
        if self._n_lookup < 1 or len(self._repeats) != self.length:
            return [], 0
        return self._repeats.guess(int(pending), self._n_lookup)

    @torch.inference_mode()
    def sample(self, pending: Tensor, budget: Budget, config: GenerationConfig) -> DraftTree:
        """A tree of drawn tokens; see :class:`eagle_core.drafters.base.SamplingDrafter`.

        Its shape is known before any token is: the configured one, or ``shape_for_draws`` for a dynamic tree.
        """
        self._tree = self._fixed_tree  # the answer depends on it: never one that was measured
        max_nodes, max_depth = self._limits(budget)
        if max_nodes < 1 or max_depth < 1:
            return DraftTree.single(pending)
        shape = self._tree.paths
        if shape is None:
            shape = shape_for_draws(max_depth, self._tree.branching, max_nodes)
        shape = in_order_of_draws(fit_shape(shape, max_nodes, max_depth))
        committed = self._cache.length
        plan = draft_plan(shape, pending.device)
        draw = DrawnCandidates(
            self._candidates.scores, config, committed, max(level.width for level in plan.levels)
        )
        try:
            tree = self._fill(pending, plan, draw)
        finally:
            self._cache.rewind(committed)
        tree = dataclasses.replace(tree, draws=draw.draws(plan, self._candidates.vocabulary))
        # Elsewhere finding idle nodes would cost a sync; no walk reaches them, so they do no harm.
        return without_idle_nodes(tree) if pending.device.type == "cpu" else tree

    def _limits(self, budget: Budget) -> tuple[int, int]:
        """Most drafted nodes, and the longest path of them.

        Raises: DraftError when there is nothing to draft from.
        """
        if budget.max_nodes > 0:
            self._read()
        max_nodes = min(budget.max_nodes, self._tree.head_nodes)
        max_depth = min(budget.max_depth, self._tree.head_depth)
        if self._predicted is None and max_nodes > 0 and max_depth > 0:
            raise DraftError(
                "nothing was committed before this proposal", expected="commit, then propose"
            )
        return max_nodes, max_depth

    def _run(
        self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Head forward over [R] tokens and [R, D] features; writes R cache rows. Returns [R, D]."""
        deck = self.graphs or self._tapes
        run = self._forward if deck is None else deck.run
        return run((tokens, features, positions), mask, self._cache)[0]

    def _forward(
        self, inputs: tuple[Tensor, ...], mask: Tensor | None, cache: KVCache
    ) -> tuple[Tensor, ...]:
        tokens, features, positions = inputs
        embeddings = self._embed(tokens[None])  # [1, R, D]
        out = self._head(
            embeddings.to(self._head.dtype), features[None].to(self._head.dtype), positions[None],
            attention_mask=mask, cache=cache,
        )  # fmt: skip
        return (out[0],)

    def _likeliest(self, features: Tensor, width: int, depth: int) -> tuple[Tensor, Tensor]:
        """What is likeliest below ``depth`` drafted tokens; see ``Pick``."""
        return self._candidates.likeliest(features, width, self._first + depth)

    def _mask(self, row_mask: Tensor) -> Tensor:
        """Committed rows are seen by all, drafted ones as ``row_mask`` says: additive, [1, 1, R, S]."""
        n_drafted = row_mask.shape[1]
        n_committed = self._cache.length - (n_drafted - row_mask.shape[0])
        if 0 < self._head.window < n_committed + n_drafted:
            row_mask = F.pad(row_mask, (n_committed, 0), value=True)
            # What a row sees are one row per position, the last its own: the window keeps the last ones.
            row_mask = row_mask & (
                row_mask.flip(-1).cumsum(-1).flip(-1) <= self._head.window
            )  # [R, S]
            n_committed = 0
        dtype = self._head.dtype
        hidden = torch.zeros(row_mask.shape, dtype=dtype, device=row_mask.device)
        hidden.masked_fill_(~row_mask, torch.finfo(dtype).min)
        return F.pad(hidden, (n_committed, 0))[None, None]

    def _fill(self, pending: Tensor, plan: DraftPlan, pick: Pick) -> DraftTree:
        """Fill a fixed layout with the tokens that ``pick`` finds, depth by depth."""
        assert self._predicted is not None
        start = self._cache.length
        features = self._predicted[None]  # [R, D], one per expanded row
        tokens, draft_scores = [pending.reshape(1)], [features.new_zeros(1, dtype=torch.float32)]
        for depth, level in enumerate(plan.levels):
            found, scores = pick(features, level.width, depth)  # [R, width]
            ranks = level.ranks.clamp(max=found.shape[1] - 1)
            nodes = self._candidates.token_ids(found[level.sources, ranks].clamp(min=0))  # [W]
            tokens.append(nodes)
            draft_scores.append(scores[level.sources, ranks])
            if depth + 1 == len(plan.levels):
                break
            inputs = features[level.sources][level.expanded]  # [R', D]
            positions = torch.full_like(level.expanded, start + depth)
            features = self._run(
                nodes[level.expanded], inputs, positions, self._mask(level.row_mask)
            )
            self._cache.advance(len(level.expanded))
        return plan.layout.tree(torch.cat(tokens), torch.cat(draft_scores))

    def _grow(self, pending: Tensor, max_nodes: int, max_depth: int) -> DraftTree:
        """EAGLE-2: expand the most confident nodes of each depth, then keep the best of all.

        A node's value is the product of the draft probabilities on its path; a child is never worth more
        than its parent, so the best N nodes are a tree.
        """
        assert self._predicted is not None
        start, device = self._cache.length, pending.device
        width = min(self._tree.branching, self._candidates.n_scored)
        found, scores = self._likeliest(self._predicted[None], width, 0)  # [1, k]
        values, level_tokens = scores[0], self._candidates.token_ids(found[0])  # [k]
        all_tokens, all_values, all_scores = [level_tokens], [values], [values]
        all_parents = [torch.full((width,), -1, dtype=torch.long, device=device)]
        beam = torch.arange(
            width, device=device
        )  # places of the expanded nodes among all candidates
        beam_tokens, beam_values = level_tokens, values
        features = self._predicted.expand(
            width, -1
        )  # [k, D]: the feature each node was scored from
        row_mask = eye = torch.eye(width, dtype=torch.bool, device=device)  # [k, rows]
        n_candidates, self._n_levels = width, 1
        for depth in range(1, max_depth):
            if self._worth is not None and not self._worth.goes_on(beam_values):
                break
            self._n_levels += 1
            positions = torch.full_like(beam, start + depth - 1)
            out = self._run(beam_tokens, features, positions, self._mask(row_mask))  # [k, D]
            self._cache.advance(width)
            found, scores = self._likeliest(out, width, depth)  # [k, k]
            values = (beam_values[:, None] + scores).flatten()  # [k * k]
            level_tokens = self._candidates.token_ids(found.flatten())
            all_tokens.append(level_tokens)
            all_values.append(values)
            all_scores.append(scores.flatten())
            all_parents.append(beam.repeat_interleave(width))
            if depth + 1 == max_depth:
                break
            beam_values, chosen = values.topk(width)  # [k]
            source = chosen // width
            beam, beam_tokens, features = chosen + n_candidates, level_tokens[chosen], out[source]
            row_mask = torch.cat((row_mask[source], eye), dim=1)  # [k, rows + k]
            n_candidates += width * width
        found_values = torch.cat(all_values)
        if self._worth is not None:
            max_nodes = min(max_nodes, self._worth.n_worth(found_values))
            if max_nodes == 0:
                return DraftTree.single(pending)
            self._hopes = float(found_values.topk(max_nodes).values.exp().sum())
        return best_nodes(
            pending, torch.cat(all_tokens), found_values, torch.cat(all_scores),
            torch.cat(all_parents), max_nodes, self._n_levels, width,
        )  # fmt: skip


def _can_be_recorded(head: DraftHead) -> bool:
    config: Any = getattr(head.layers[0].self_attn, "config", None)
    return uses_rows_attention(config) and config.rope_parameters["rope_type"] in FIXED_ROPES


def _can_be_captured(head: DraftHead) -> bool:
    config: Any = getattr(head.layers[0].self_attn, "config", None)
    is_fit = head.dtype in KEPT_FINITE and not uses_rows_attention(config)
    return is_fit and config.rope_parameters["rope_type"] in FIXED_ROPES


def max_drafted_rows(tree: TreeConfig) -> int:
    """Cache rows that one proposal may write beside the committed ones."""
    trees = (tree.largest, *tree.ways) if tree.policy == "auto" else (tree,)
    return max(
        max(way.depth * way.branching, way.size) if way.paths is None else way.head_nodes
        for way in trees
    )


__all__ = ["EagleDrafter", "max_drafted_rows"]
