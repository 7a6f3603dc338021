"""Targets that replay graphs on small caches, beside plain ones on the same weights."""

from __future__ import annotations

from typing import Any

import torch

from eagle_core.kernels.graphs import GraphDeck
from eagle_core.target import Target
from eagle_core.testing import Kind, tiny_model
from eagle_core.tree import DraftTree
from tests.support.recorded_graphs import RecordedCapture

SMALLEST = 16  # keys: tiny caches cross many borders
CAPACITY = 90
VOCABULARY = 250
# Of logits that spread by about 3: rounding was 3e-5 at most, a token in a wrong place changes them by 1.
ROUNDING = 2e-4


def with_graphs(target: Target, **options: Any) -> list[RecordedCapture]:
    """Let a target replay graphs on small caches; the list holds what captures them, as it is made."""
    made: list[RecordedCapture] = []

    def captures() -> RecordedCapture:
        made.append(RecordedCapture())
        return made[-1]

    target.use_graphs(captures)
    if target.graphs is not None:
        options = {"smallest_keys": SMALLEST, **options}
        target.graphs = GraphDeck(target._plain, captures, target.dtype, **options)
    return made


class Pair:
    """Two targets on the same weights, one of which replays graphs, that do the same things."""

    def __init__(self, kind: Kind = "llama", capacity: int = CAPACITY, **options: Any) -> None:
        model = tiny_model(kind, **options)
        self.graphed, self.plain = Target(model), Target(model)
        self.made = with_graphs(self.graphed)
        self.random = torch.Generator().manual_seed(0)
        self.caches = [target.new_cache(capacity) for target in (self.graphed, self.plain)]
        self.worst = 0.0

    def prefill(self, n_tokens: int) -> None:
        ids = self.draw(n_tokens)
        for target, cache in zip((self.graphed, self.plain), self.caches, strict=True):
            target.prefill_chunk(ids, cache)

    def draw(self, n_tokens: int) -> torch.Tensor:
        return torch.randint(VOCABULARY, (n_tokens,), generator=self.random)

    def step(self, tree: DraftTree, path: tuple[int, ...] = (0,)) -> None:
        """A forward of both, which must agree; then the path is kept."""
        found, wanted = (
            target.forward_tree(tree, cache)
            for target, cache in zip((self.graphed, self.plain), self.caches, strict=True)
        )
        for left, right in (
            (found.logits, wanted.logits),
            (found.features, wanted.features),
        ):
            assert left.shape == right.shape
            self.worst = max(self.worst, float((left - right).abs().max()))
        assert self.worst < ROUNDING, (tree.n_nodes, self.caches[0].length)
        for cache in self.caches:
            cache.keep(path)

    def rewind(self, length: int) -> None:
        for cache in self.caches:
            cache.rewind(length)

    def check_rows(self) -> None:
        """The committed rows of both caches are the same."""
        left, right = self.caches
        for one, other in zip(left.layers, right.layers, strict=True):
            for mine, yours in ((one.keys, other.keys), (one.values, other.values)):
                difference = mine[..., : left.length, :] - yours[..., : right.length, :]
                assert float(difference.abs().max()) < ROUNDING

    @property
    def deck(self) -> GraphDeck:
        assert self.graphed.graphs is not None
        return self.graphed.graphs

    @property
    def n_replays(self) -> int:
        return sum(capture.n_replays for capture in self.made)


def bushy(tokens: torch.Tensor) -> DraftTree:
    n_nodes = tokens.shape[0]
    parents = [-1, *((node - 1) // 2 for node in range(1, n_nodes))]
    return DraftTree(tokens, torch.tensor(parents), n_nodes.bit_length() - 1)


__all__ = ["ROUNDING", "VOCABULARY", "Pair", "bushy", "with_graphs"]
