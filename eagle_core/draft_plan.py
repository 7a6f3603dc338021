"""How a tree of known shape is drafted, depth by depth, and how its candidates are drawn from q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from eagle_core.config import GenerationConfig, Shape
from eagle_core.sampling import draw_candidates, stream_noise, to_probabilities
from eagle_core.tree import Draws, TreeLayout, tree_layout


@dataclass(frozen=True, slots=True)
class Level:
    """How a layout's depth is drafted from the rows of the depth above."""

    sources: Tensor  # [W] i64: row of the expanded depth that each node comes from
    ranks: Tensor  # [W] i64
    width: int  # candidates needed from each row
    expanded: Tensor  # [R] i64: which of these W nodes have children
    row_mask: Tensor  # [R, rows so far + R] bool: which drafted rows each expanded node sees


@dataclass(frozen=True, slots=True)
class DraftPlan:
    layout: TreeLayout
    levels: tuple[Level, ...]
    expanded: Tensor  # [R] i64: all nodes that have children, in order
    n_children: Tensor  # [R] i64


# Features [R, D], a width and how many drafted tokens lie above -> each row's candidates as places in the
# draft vocabulary, [R, width] i64, and their log-probabilities, [R, width] f32.
Pick = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]


class DrawnCandidates:
    """Draws candidates for the nodes of a plan, level by level, and remembers from what.

    Args: position: of the pending token; with the seed it says which random numbers are used.
    """

    def __init__(
        self,
        score: Callable[[Tensor], Tensor],
        config: GenerationConfig,
        position: int,
        n_draws: int,
    ) -> None:
        self._score, self._config = score, config
        self._position, self._n_draws, self._n_rows = position, n_draws, 0
        self._q: list[Tensor] = []
        self._candidates: list[Tensor] = []

    def __call__(self, features: Tensor, _width: int, _depth: int) -> tuple[Tensor, Tensor]:
        """Features [R, D] of a level's expanded nodes -> columns [R, n_draws] i64, -1 where q has no more.

        Beside them their log-probabilities under q, [R, n_draws] f32.
        """
        q = to_probabilities(self._score(features), self._config)  # [R, C]
        first, n_rows = self._n_rows * self._n_draws, q.shape[0]
        n_numbers = first + n_rows * self._n_draws
        noise = stream_noise("draft", self._config.seed, self._position, 1, n_numbers)
        noise = noise[0, first:].reshape(n_rows, self._n_draws).to(q.device)  # [R, n_draws]
        columns = draw_candidates(
            q, noise, self._n_draws, with_replacement=self._config.with_replacement
        )
        self._q.append(q)
        self._candidates.append(columns)
        self._n_rows += n_rows
        return columns, q.gather(1, columns.clamp(min=0)).log()

    def draws(self, plan: DraftPlan, vocabulary: Tensor | None) -> Draws:
        """What the verifier must know; draws for which the shape has no node were never made."""
        candidates = torch.cat(self._candidates)  # [R, n_draws]
        rank = torch.arange(self._n_draws, device=candidates.device)
        candidates = candidates.masked_fill(rank >= plan.n_children[:, None], -1)
        return Draws(
            plan.expanded, torch.cat(self._q), candidates, vocabulary,
            self._config.with_replacement,
        )  # fmt: skip


@lru_cache(maxsize=32)
def draft_plan(shape: Shape, device: torch.device) -> DraftPlan:
    """Everything about a fixed shape that does not depend on tokens."""
    layout = tree_layout(shape, device)
    parents = layout.parents.tolist()
    levels: list[Level] = []
    rows_above, drafted = [0], list[int]()
    for begin, end in layout.levels[1:]:
        nodes = range(begin, end)
        expanded = [node for node in nodes if node in parents]
        drafted += expanded
        mask = (
            layout.ancestor_mask[expanded][:, drafted]
            if expanded
            else torch.zeros(0, 0, dtype=torch.bool)
        )
        levels.append(
            Level(
                sources=torch.tensor(
                    [rows_above.index(parents[node]) for node in nodes], device=device
                ),
                ranks=layout.ranks[begin:end],
                width=int(layout.ranks[begin:end].max()) + 1,
                expanded=torch.tensor(
                    [node - begin for node in expanded], dtype=torch.long, device=device
                ),
                row_mask=mask,
            )
        )
        rows_above = expanded
    inner = [0, *drafted]
    return DraftPlan(
        layout,
        tuple(levels),
        torch.tensor(inner, device=device),
        torch.tensor([parents.count(node) for node in inner], device=device),
    )


__all__ = ["DraftPlan", "DrawnCandidates", "Level", "Pick", "draft_plan"]
