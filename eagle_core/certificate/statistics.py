"""The distribution of what is written, against exact probabilities; and planted bugs, which must be caught.

The target is a table: the next token depends on the last one, in a vocabulary of five. So the probability of
every sequence of a few tokens is known exactly. Sequences are drawn with many seeds through the engine's own
``verify``; chi-square tests compare the counts of the second token, the first that a tree decides, and of the
whole. A right rule fails a test with probability ALPHA, fixed before any data; a planted bug must fail one.

A rule's ``Case`` says how a tree is proposed and verified; a new rule adds its cases to ``cases()``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_core.certificate import drawn
from eagle_core.certificate.drawn import Bug, Judge, Propose, drawn_tree, plainly, pruned_by_value
from eagle_core.certificate.records import Check
from eagle_core.config import GenerationConfig
from eagle_core.sampling import choose, position_noise, to_probabilities
from eagle_core.tree import DraftTree
from eagle_core.verify import Verdict, verify

N_TOKENS = 5
N_DRAWN = 3  # tokens of a sequence
N_SEEDS = 1500
N_SEEDS_SAMPLING = 400  # its trees cost more, and its planted bugs stand out more
ALPHA = 1e-4
LEAST_EXPECTED = 5.0  # cells below are joined, as the chi-square approximation wants
START = 0  # the prompt's last token, at position 0
CONFIG = GenerationConfig(N_DRAWN, temperature=0.9, top_p=0.95)
DRAWN = dataclasses.replace(CONFIG, rule="sampling")
REPLACED = dataclasses.replace(DRAWN, with_replacement=True)


@dataclass(frozen=True, slots=True)
class Case:
    """How sequences are drawn: the rule, the tree and, for a planted bug, what verifies it wrongly.

    ``accepts`` says what must show that the case is no empty one: some drafted tokens, or none.
    """

    name: str
    rule: str
    propose: Propose
    judge: Judge = verify
    is_planted: bool = False
    config: GenerationConfig = CONFIG
    n_tokens: int = N_DRAWN
    n_seeds: int = N_SEEDS
    accepts: bool = True


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


def likely_tree(
    pending: int, logits: Tensor, _position: int, _config: GenerationConfig
) -> DraftTree:
    """The two likeliest children, and below each its own likeliest one: a good drafter."""
    first, second = logits[pending].topk(2).indices.tolist()
    below = [int(logits[first].argmax()), int(logits[second].argmax())]
    return DraftTree(
        torch.tensor([pending, first, second, *below]), torch.tensor([-1, 0, 0, 1, 2]), 2
    )


def unlikely_tree(
    pending: int, logits: Tensor, position: int, config: GenerationConfig
) -> DraftTree:
    """The least likely tokens: a bad drafter."""
    return likely_tree(pending, -logits, position, config)


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
        *_sampling_cases(),
    )


def _sampling_cases() -> tuple[Case, ...]:
    """Heads from good to hopeless, with and without replacement; each bug where it weighs."""
    p = to_probabilities(table(), CONFIG)  # [V, V]
    narrow = dataclasses.replace(DRAWN, top_p=0.7)  # three or more tokens are impossible
    good = drawn_tree(drawn.good_head(p), drawn.TREE)
    wrong = drawn_tree(drawn.wrong_head(p), drawn.TREE)
    hopeless = drawn_tree(drawn.hopeless_head(to_probabilities(table(), narrow)), drawn.SIBLINGS)
    siblings = drawn_tree(drawn.good_head(p), drawn.SIBLINGS)
    deep = drawn_tree(drawn.good_head(p), drawn.CHAIN)
    sure = drawn_tree(drawn.sure_head(p), drawn.CHAIN)

    def case(name: str, propose: Propose, config: GenerationConfig = DRAWN, **rest: Any) -> Case:
        return Case(name, "sampling", propose, config=config, n_seeds=N_SEEDS_SAMPLING, **rest)

    def planted(propose: Propose, bug: Bug, config: GenerationConfig = DRAWN) -> Case:
        return case(bug.value, propose, config, judge=plainly(bug), is_planted=True)

    return (
        case("good head", good),
        case("good head, with replacement", good, REPLACED),
        case("confidently wrong head", wrong),
        case("confidently wrong head, with replacement", wrong, REPLACED),
        case("all siblings rejected", hopeless, narrow, accepts=False),
        case(
            "all siblings rejected, with replacement",
            hopeless,
            dataclasses.replace(narrow, with_replacement=True),
            accepts=False,
        ),
        case("deep chain", deep, n_tokens=1 + len(drawn.CHAIN)),
        case("deep chain, sure head", sure, n_tokens=1 + len(drawn.CHAIN)),
        planted(good, Bug.ACCEPTS_P),
        planted(wrong, Bug.KEEPS_P, REPLACED),
        planted(wrong, Bug.NOT_NORMALISED),
        planted(wrong, Bug.STALE, REPLACED),
        planted(wrong, Bug.KEEPS_Q),
        planted(sure, Bug.SAME_NUMBER),
        case("children pruned by value", pruned_by_value(siblings), is_planted=True),
        case("path off by one", good, judge=_next_node, is_planted=True),
    )


def sequence_probabilities(logits: Tensor, config: GenerationConfig, n_tokens: int) -> Tensor:
    """[V] * n_tokens f64: of every sequence after START, from the table."""
    rows = to_probabilities(logits, config).double()  # [V, V]
    exact = rows[START]  # [V]
    for _ in range(n_tokens - 1):
        exact = exact.unsqueeze(-1) * rows  # one dimension more
    return exact


def draw(case: Case, logits: Tensor, n_seeds: int) -> tuple[Counter[tuple[int, ...]], int]:
    """Sequences with their counts, and how many drafted tokens were kept."""
    counts: Counter[tuple[int, ...]] = Counter()
    n_accepted = 0
    for seed in range(n_seeds):
        config = dataclasses.replace(case.config, seed=seed)
        token, _ = choose(logits[START][None], position_noise(seed, 1, 1), config)
        tokens = [int(token)]  # tokens[i] is at position i + 1
        while len(tokens) < case.n_tokens:
            tree = case.propose(tokens[-1], logits, len(tokens), config)
            verdict = case.judge(tree, logits[tree.tokens], len(tokens) + 1, config)
            n_accepted += len(verdict.path)
            tokens += verdict.run
        counts[tuple(tokens[: case.n_tokens])] += 1
    return counts, n_accepted


def examine(case: Case, n_seeds: int | None = None) -> Outcome:
    """Draw, and compare with what is exact. Without ``n_seeds`` as many as the case takes."""
    logits, n_seeds = table(), n_seeds or case.n_seeds
    exact = sequence_probabilities(logits, case.config, case.n_tokens)
    counts, n_accepted = draw(case, logits, n_seeds)
    seen = torch.zeros_like(exact)
    for sequence, count in counts.items():
        seen[sequence] = count
    others = [i for i in range(case.n_tokens) if i != 1]
    second, exact_second = seen.sum(dim=others), exact.sum(dim=others)  # [V] each
    return Outcome(
        chi_square_p(second, exact_second * n_seeds),
        chi_square_p(seen.flatten(), exact.flatten() * n_seeds),
        0.5 * float((second / n_seeds - exact_second).abs().sum()),
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


def statistical_checks(n_seeds: int | None = None) -> Iterator[Check]:
    """A check per case: a right rule must pass both tests, a planted bug must not."""
    for case in cases():
        n = n_seeds or case.n_seeds
        outcome = examine(case, n)
        is_rejected = outcome.p_value < ALPHA
        is_empty = case.accepts is not (outcome.n_accepted > 0)
        figures = (
            f"p {outcome.p_token:.2g} and {outcome.p_sequence:.2g}, distance {outcome.distance:.3f}"
        )
        if is_empty:
            verdict = f"the case proves nothing, {outcome.n_accepted} accepted"
        elif case.is_planted:
            verdict = "caught" if is_rejected else "NOT caught"
        else:
            verdict = "differs" if is_rejected else "as exact"
        yield Check(
            "planted" if case.is_planted else "statistics",
            f"{case.rule}, {case.name}",
            is_rejected is case.is_planted and not is_empty,
            f"{verdict}: {n} seeds, {figures}, alpha {ALPHA:.0e}",
            {"n_seeds": n, "alpha": ALPHA, "caught": case.is_planted and is_rejected}
            | dataclasses.asdict(outcome),
        )


__all__ = ["ALPHA", "Case", "Outcome", "cases", "chi_square_p", "examine", "statistical_checks"]
