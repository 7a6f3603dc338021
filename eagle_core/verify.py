"""Which drafted tokens stay: one walk from the root, led by the target's own choices.

At every node the target's token is fixed by its logits, the settings and the position's noise; the
rules ``greedy`` (argmax) and ``match`` (a draw) differ in nothing else. If a child holds that token,
the walk goes on there; otherwise the token is the step's last, the bonus. So the text is what the
target alone would write, whatever the tree (arXiv 2401.15077, 3.3; the draw is exact because the tree
was made without knowing the noise).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_core.config import GenerationConfig
from eagle_core.errors import DraftError
from eagle_core.sampling import check_finite, choose, position_noise
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


@torch.inference_mode()
def verify(
    tree: DraftTree, logits: Tensor, first_position: int, config: GenerationConfig
) -> Verdict:
    """Walk the tree with the target's choices.

    Args:
        logits: [N, V], the target's for every node.
        first_position: absolute position of the token that follows the pending one; a node of depth
            d chooses the token at first_position + d.
    Raises: DraftError when the tree is none; ModelError when the logits are not finite.
    """
    if logits.shape[0] != tree.n_nodes:
        raise DraftError(
            "logits and tree do not belong together",
            expected=f"{tree.n_nodes} rows",
            got=str(logits.shape[0]),
        )
    noise = position_noise(config.seed, first_position, tree.max_depth + 1)  # [max_depth + 1]
    if logits.device.type == "cpu":
        return _verify_lazily(tree, logits, noise, config)
    return _verify_at_once(tree, logits, noise, config)


def _verify_lazily(
    tree: DraftTree, logits: Tensor, noise: Tensor, config: GenerationConfig
) -> Verdict:
    """Choose only for the nodes that the walk meets: there is no transfer to save on the host."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    depth_of_tree = max(check_parents(parents, tree.max_depth))
    children = _children(tokens, parents)
    node, path, run, probabilities = 0, list[int](), list[int](), list[float]()
    while True:
        depth = len(path)
        token, probability = choose(logits[node : node + 1], noise[depth : depth + 1], config)
        run.append(int(token))
        probabilities.append(float(probability))
        child = children.get((node, run[-1]))
        if child is None:
            break
        path.append(child)
        node = child
    check_finite(probabilities)
    return Verdict(
        tuple(path), tuple(run), tuple(probabilities), tuple(tokens), tuple(parents), depth_of_tree
    )


def _verify_at_once(
    tree: DraftTree, logits: Tensor, noise: Tensor, config: GenerationConfig
) -> Verdict:
    """Choose for all nodes, then copy everything to the host in one transfer."""
    noise = noise.to(logits.device, non_blocking=True)[tree.depths]  # [N] f32
    chosen, probability = choose(logits, noise, config)  # [N] i64, [N] f32
    bits = probability.view(torch.int32).long()  # [N] i64, the same bits
    table = torch.stack((tree.tokens, tree.parents, chosen, bits)).cpu()  # [4, N] i64
    tokens, parents, choices = table[:3].tolist()
    chances = table[3].int().view(torch.float32).tolist()
    depth_of_tree = max(check_parents(parents, tree.max_depth))
    children = _children(tokens, parents)
    path: list[int] = []
    node: int | None = 0
    visited: list[int] = []
    while node is not None:
        visited.append(node)
        node = children.get((node, choices[node]))
        if node is not None:
            path.append(node)
    run = tuple(choices[node] for node in visited)
    probabilities = [chances[node] for node in visited]
    check_finite(probabilities)
    return Verdict(
        tuple(path), run, tuple(probabilities), tuple(tokens), tuple(parents), depth_of_tree
    )


def _children(tokens: list[int], parents: list[int]) -> dict[tuple[int, int], int]:
    """(parent, token) -> child; of two equal siblings the first counts."""
    children: dict[tuple[int, int], int] = {}
    for node in range(1, len(tokens)):
        children.setdefault((parents[node], tokens[node]), node)
    return children


__all__ = ["Verdict", "verify"]
