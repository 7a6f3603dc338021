"""Which drafted tokens stay: one walk from the root, led by the target's own choices.

At every node the target's token is fixed by its logits, the settings and the position's noise; the
rules ``greedy`` (argmax) and ``match`` (a draw) differ in nothing else. If a child holds that token,
the walk goes on there; otherwise the token is the step's last, the bonus. So the text is what the
target alone would write, whatever the tree, and a draw has the target's law (arXiv 2401.15077, 3.3), also
where the drafter knows the noise: logits and noise fix the token before anybody looks at the tree.

A tree that comes with its ``draws`` is checked by the rule ``sampling``, the paper's Algorithm 1: at every
node the children are accepted or rejected one after the other, and the token has the target's law.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_core.config import GenerationConfig
from eagle_core.errors import DraftError
from eagle_core.processors import Processors
from eagle_core.sampling import (
    check_finite,
    choose,
    draw_in_rounds,
    position_noise,
    stream_noise,
    to_probabilities,
)
from eagle_core.tree import DraftTree, check_parents


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one tree.

    ``path`` holds the accepted nodes in order, the pending node 0 left out: path[i] has depth i + 1.
    ``run`` are the tokens that the step yields: those of the path, then the bonus.
    ``probabilities`` are the target's for each token of the run.
    ``tokens`` and ``parents`` are the whole tree on the host, ``depth`` its drafted tokens on the longest
    path.

    Example: tokens [7, 3, 5, 9], parents [-1, 0, 0, 1]; the target says 3 after 7 and 4 after 7 3:
    path (1,), run (3, 4), rows (0, 1).
    """

    path: tuple[int, ...]
    run: tuple[int, ...]
    probabilities: tuple[float, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depth: int

    @property
    def next_token(self) -> int:
        """The bonus: the target's own token after the path."""
        return self.run[-1]

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the tree's forward that stay: the pending node's and the path's."""
        return (0, *self.path)


@dataclass(frozen=True, slots=True)
class _Noise:
    """Random numbers by depth: ``draw`` [max_depth + 1] f32, ``accept`` [max_depth + 1, K] f32 or None."""

    draw: Tensor
    accept: Tensor | None

    @classmethod
    def of(cls, tree: DraftTree, first_position: int, seed: int | None) -> _Noise:
        """Of a seed; None for choices that look at no random number: zeros."""
        n_positions = tree.max_depth + 1
        if seed is None:
            return cls(torch.zeros(n_positions, dtype=torch.float32), None)
        draw = position_noise(seed, first_position, n_positions)
        if tree.draws is None:
            return cls(draw, None)
        n_rounds = tree.draws.candidates.shape[1]
        return cls(draw, stream_noise("accept", seed, first_position, n_positions, n_rounds))


@torch.inference_mode()
def verify(
    tree: DraftTree,
    logits: Tensor,
    first_position: int,
    config: GenerationConfig,
    processors: Processors | None = None,
) -> Verdict:
    """Walk the tree with the target's choices; its draws count under the rule ``sampling`` only.

    Args:
        logits: [N, V], the target's for every node.
        first_position: absolute position of the token that follows the pending one; a node of depth
            d chooses the token at first_position + d.
        processors: applied to every node's logits under its own path; None: none.
    Raises: DraftError when the tree is none; ModelError when the logits are not finite.
    """
    if logits.shape[0] != tree.n_nodes:
        raise DraftError(
            "logits and tree do not belong together",
            expected=f"{tree.n_nodes} rows",
            got=str(logits.shape[0]),
        )
    if tree.draws is not None and config.acceptance != "sampling":
        tree = dataclasses.replace(tree, draws=None)
    is_greedy = config.temperature == 0 and tree.draws is None
    noise = _Noise.of(tree, first_position, None if is_greedy else config.seed)
    if logits.device.type == "cpu":
        return _verify_lazily(tree, logits, noise, config, processors)
    return _verify_at_once(tree, logits, noise, config, processors)


def _verify_lazily(
    tree: DraftTree,
    logits: Tensor,
    noise: _Noise,
    config: GenerationConfig,
    processors: Processors | None = None,
) -> Verdict:
    """Choose only for the nodes that the walk meets: there is no transfer to save on the host."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    depth_of_tree = max(check_parents(parents, tree.max_depth))
    children = _children(tokens, parents)
    row_of = _rows_of_draws(tree)
    node, path, run, probabilities = 0, list[int](), list[int](), list[float]()
    while True:
        depth = len(path)
        scores = logits[node : node + 1]  # [1, V]
        if processors is not None:
            scores = processors(scores, [run])
        if node in row_of:
            rows = torch.tensor([row_of[node]])
            token, chance, is_drafted = _choose_in_rounds(
                tree, rows, scores, noise, torch.tensor([depth]), config
            )
            may_go_on = bool(is_drafted)
        else:
            token, chance = choose(scores, noise.draw[depth : depth + 1], config)
            may_go_on = tree.draws is None
        run.append(int(token))
        probabilities.append(float(chance))
        child = children.get((node, run[-1])) if may_go_on else None
        if child is None:
            break
        path.append(child)
        node = child
    check_finite(probabilities)
    return Verdict(
        tuple(path), tuple(run), tuple(probabilities), tuple(tokens), tuple(parents), depth_of_tree
    )


def _verify_at_once(
    tree: DraftTree,
    logits: Tensor,
    noise: _Noise,
    config: GenerationConfig,
    processors: Processors | None = None,
) -> Verdict:
    """Choose for all nodes, then copy everything to the host in one transfer."""
    if processors is not None:  # paths of tokens are made on the host: one transfer more
        logits = processors(logits, _paths(tree.tokens.tolist(), tree.parents.tolist()))
    draw = noise.draw.to(logits.device, non_blocking=True)[tree.depths]  # [N] f32
    chosen, probability = choose(logits, draw, config)  # [N] i64, [N] f32
    may_go_on = torch.full_like(chosen, tree.draws is None)  # [N] i64
    if tree.draws is not None:
        nodes = tree.draws.nodes
        rows = torch.arange(nodes.shape[0], device=nodes.device)
        chosen[nodes], probability[nodes], is_drafted = _choose_in_rounds(
            tree, rows, logits[nodes], noise, tree.depths[nodes], config
        )
        may_go_on[nodes] = is_drafted.long()
    bits = probability.view(torch.int32).long()  # [N] i64, the same bits
    table = torch.stack((tree.tokens, tree.parents, chosen, may_go_on, bits)).cpu()  # [5, N] i64
    tokens, parents, choices, goes_on = table[:4].tolist()
    chances = table[4].int().view(torch.float32).tolist()
    depth_of_tree = max(check_parents(parents, tree.max_depth))
    children = _children(tokens, parents)
    path: list[int] = []
    node: int | None = 0
    visited: list[int] = []
    while node is not None:
        visited.append(node)
        node = children.get((node, choices[node])) if goes_on[node] else None
        if node is not None:
            path.append(node)
    run = tuple(choices[node] for node in visited)
    probabilities = [chances[node] for node in visited]
    check_finite(probabilities)
    return Verdict(
        tuple(path), run, tuple(probabilities), tuple(tokens), tuple(parents), depth_of_tree
    )


def _choose_in_rounds(
    tree: DraftTree,
    rows: Tensor,
    scores: Tensor,
    noise: _Noise,
    depths: Tensor,
    config: GenerationConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1 at some nodes with drawn children.

    Args: rows: [R] i64, the nodes' rows of the draws; scores: [R, V]; depths: [R] i64.
    Returns: tokens [R] i64, the target's own probability of each [R] f32, and whether it is an accepted
        child [R] bool.
    """
    draws, device = tree.draws, scores.device
    assert draws is not None
    assert noise.accept is not None
    depths = depths.to(device)
    probabilities = to_probabilities(scores, config)  # [R, V]
    tokens, is_drafted = draw_in_rounds(
        probabilities,
        draws.q[rows],
        draws.candidates[rows],
        noise.accept.to(device)[depths],
        noise.draw.to(device)[depths],
        vocabulary=draws.vocabulary,
        with_replacement=draws.with_replacement,
    )
    return tokens, probabilities.gather(1, tokens.unsqueeze(1)).squeeze(1), is_drafted


def _rows_of_draws(tree: DraftTree) -> dict[int, int]:
    """Node -> row of its draws."""
    if tree.draws is None:
        return {}
    return {node: row for row, node in enumerate(tree.draws.nodes.tolist())}


def _paths(tokens: list[int], parents: list[int]) -> list[list[int]]:
    """For every node the drafted tokens from below the root down to it. The parents may be anything."""
    paths: list[list[int]] = [[]]
    for node in range(1, len(tokens)):
        above = paths[parents[node]] if 0 <= parents[node] < node else []
        paths.append([*above, tokens[node]])
    return paths


def _children(tokens: list[int], parents: list[int]) -> dict[tuple[int, int], int]:
    """(parent, token) -> child; of two equal siblings the first counts."""
    children: dict[tuple[int, int], int] = {}
    for node in range(1, len(tokens)):
        children.setdefault((parents[node], tokens[node]), node)
    return children


__all__ = ["Verdict", "verify"]
