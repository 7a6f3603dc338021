"""The distribution of what is written, against exact probabilities; and planted bugs, which must be caught.

The target is a table: the next token depends on the last one, in a vocabulary of five. So the probability of
every sequence of three tokens is known exactly. Sequences are drawn with many seeds through the engine's own
``verify``; chi-square tests compare the counts of the second token, the first that a tree decides, and of all
three. A right rule fails a test with probability ALPHA, fixed before any data; a planted bug must fail one.

A rule's ``Case`` says how a tree is proposed and verified; a new rule adds its cases to ``cases()``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_core.certificate.records import Check
from eagle_core.config import GenerationConfig
from eagle_core.sampling import choose, position_noise, to_probabilities
from eagle_core.tree import DraftTree
from eagle_core.verify import Verdict, verify

N_TOKENS = 5
N_DRAWN = 3  # tokens of a sequence
N_SEEDS = 1500
ALPHA = 1e-4
LEAST_EXPECTED = 5.0  # cells below are joined, as the chi-square approximation wants
START = 0  # the prompt's last token, at position 0
CONFIG = GenerationConfig(N_DRAWN, temperature=0.9, top_p=0.95)

Propose = Callable[[int, Tensor], DraftTree]
Judge = Callable[[DraftTree, Tensor, int, GenerationConfig], Verdict]


@dataclass(frozen=True, slots=True)
class Case:
    """How sequences are drawn: the rule, the tree and, for a planted bug, what verifies it wrongly."""

    name: str
    rule: str
    propose: Propose
    judge: Judge = verify
    is_planted: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """``p_value`` is the smaller of the two tests'; ``distance`` the total variation of the second token."""

    p_token: float
    p_sequence: float
    distance: float
    n_accepted: int

    @property
    def p_value(self) -> float:
        """The smaller one."""
        return min(self.p_token, self.p_sequence)


def table(seed: int = 4) -> Tensor:
    """[V, V] logits: row t holds those of what follows token t."""
    return torch.randn(N_TOKENS, N_TOKENS, generator=torch.Generator().manual_seed(seed)) * 1.2


def likely_tree(pending: int, logits: Tensor) -> DraftTree:
    """The two likeliest children, and below each its own likeliest one: a good drafter."""
    first, second = logits[pending].topk(2).indices.tolist()
    below = [int(logits[first].argmax()), int(logits[second].argmax())]
    return DraftTree(
        torch.tensor([pending, first, second, *below]), torch.tensor([-1, 0, 0, 1, 2]), 2
    )


def unlikely_tree(pending: int, logits: Tensor) -> DraftTree:
    """The least likely tokens: a bad drafter."""
    return likely_tree(pending, -logits)


def _next_node(
    tree: DraftTree, logits: Tensor, first_position: int, config: GenerationConfig
) -> Verdict:
    """Bug: the path is read one node too far, so that another child's token is written."""
    right = verify(tree, logits, first_position, config)
    if not right.path:
        return right
    nodes = [min(node + 1, tree.n_nodes - 1) for node in right.path]
    tokens = [int(tree.tokens[node]) for node in nodes]
    return dataclasses.replace(right, run=(*tokens, right.run[-1]))


def _generous(
    tree: DraftTree, logits: Tensor, first_position: int, config: GenerationConfig
) -> Verdict:
    """Bug: one time in seven the first child is taken although the target chose something else."""
    right = verify(tree, logits, first_position, config)
    if right.path or config.seed % 7:
        return right
    return dataclasses.replace(right, run=(int(tree.tokens[1]),))


def _same_noise(
    tree: DraftTree, logits: Tensor, first_position: int, config: GenerationConfig
) -> Verdict:
    """Bug: the draw after the pending token uses the number of the position before."""
    return verify(tree, logits, first_position - 1, config)


def _greedy(
    tree: DraftTree, logits: Tensor, first_position: int, config: GenerationConfig
) -> Verdict:
    """Bug: drafted tokens are checked against the likeliest token, whatever the temperature."""
    return verify(tree, logits, first_position, dataclasses.replace(config, temperature=0.0))


def cases() -> tuple[Case, ...]:
    """Every rule with good and bad drafters, and the planted bugs."""
    return (
        Case("likely tree", "match", likely_tree),
        Case("unlikely tree", "match", unlikely_tree),
        Case("path off by one", "match", likely_tree, _next_node, True),
        Case("accepts what was not chosen", "match", unlikely_tree, _generous, True),
        Case("noise of the wrong position", "match", likely_tree, _same_noise, True),
        Case("temperature ignored", "match", likely_tree, _greedy, True),
    )


def sequence_probabilities(logits: Tensor) -> Tensor:
    """[V, V, V] f64: of every three tokens after START, from the table."""
    rows = to_probabilities(logits, CONFIG).double()  # [V, V]
    first, second = rows[START][:, None, None], rows[:, :, None]
    return first * second * rows[None]


def draw(case: Case, logits: Tensor, n_seeds: int) -> tuple[Counter[tuple[int, ...]], int]:
    """Sequences with their counts, and how many drafted tokens were kept."""
    counts: Counter[tuple[int, ...]] = Counter()
    n_accepted = 0
    for seed in range(n_seeds):
        config = dataclasses.replace(CONFIG, seed=seed)
        token, _ = choose(logits[START][None], position_noise(seed, 1, 1), config)
        tokens = [int(token)]  # tokens[i] is at position i + 1
        while len(tokens) < N_DRAWN:
            tree = case.propose(tokens[-1], logits)
            verdict = case.judge(tree, logits[tree.tokens], len(tokens) + 1, config)
            n_accepted += len(verdict.path)
            tokens += verdict.run
        counts[tuple(tokens[:N_DRAWN])] += 1
    return counts, n_accepted


def examine(case: Case, n_seeds: int = N_SEEDS) -> Outcome:
    """Draw, and compare with what is exact."""
    logits = table()
    exact = sequence_probabilities(logits)  # [V, V, V]
    counts, n_accepted = draw(case, logits, n_seeds)
    seen = torch.zeros_like(exact)
    for sequence, count in counts.items():
        seen[sequence] = count
    second = seen.sum(dim=(0, 2))  # [V]
    distance = 0.5 * float((second / n_seeds - exact.sum(dim=(0, 2))).abs().sum())
    return Outcome(
        chi_square_p(second, exact.sum(dim=(0, 2)) * n_seeds),
        chi_square_p(seen.flatten(), exact.flatten() * n_seeds),
        distance,
        n_accepted,
    )


def chi_square_p(seen: Tensor, expected: Tensor) -> float:
    """How likely counts at least this far from what is expected are, by Pearson's chi-square.

    Args: seen, expected: [C] counts with the same sum; small cells are joined.
    Returns: 0 also for a count where nothing is expected.
    """
    if float(seen[expected == 0].sum()) > 0:
        return 0.0
    is_large = expected >= LEAST_EXPECTED
    joined_seen, joined = seen[is_large], expected[is_large]
    rest = float(expected[~is_large].sum())
    if rest > 0:
        joined_seen = torch.cat((joined_seen, seen[~is_large].sum()[None]))
        joined = torch.cat((joined, expected[~is_large].sum()[None]))
    statistic = ((joined_seen - joined) ** 2 / joined).sum()
    degrees = torch.tensor((len(joined) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic.double() / 2))


def statistical_checks(n_seeds: int = N_SEEDS) -> Iterator[Check]:
    """A check per case: a right rule must pass both tests, a planted bug must not."""
    for case in cases():
        outcome = examine(case, n_seeds)
        is_rejected = outcome.p_value < ALPHA
        figures = (
            f"p {outcome.p_token:.2g} and {outcome.p_sequence:.2g}, distance {outcome.distance:.3f}"
        )
        if case.is_planted:
            verdict = "caught" if is_rejected else "NOT caught"
        else:
            verdict = "differs" if is_rejected else "as exact"
        yield Check(
            "planted" if case.is_planted else "statistics",
            f"{case.rule}, {case.name}",
            is_rejected is case.is_planted,
            f"{verdict}: {n_seeds} seeds, {figures}, alpha {ALPHA:.0e}",
            {"n_seeds": n_seeds, "alpha": ALPHA, "caught": case.is_planted and is_rejected}
            | dataclasses.asdict(outcome),
        )


__all__ = ["ALPHA", "Case", "Outcome", "cases", "chi_square_p", "examine", "statistical_checks"]
