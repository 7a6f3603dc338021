"""Algorithm 1 keeps the target's distribution: exact probabilities against many seeds.

The error rate is fixed in advance: a correct rule fails one of these tests with probability ``ALPHA`` in all,
and the seeds are fixed, so it does not. Planted bugs show that the same tests find a wrong rule.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from eagle_core import sampling
from eagle_core import verify as verify_module
from eagle_core.config import GenerationConfig, Shape, TreeConfig
from eagle_core.drafters.base import Budget
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.events import Finished
from eagle_core.sampling import draw_candidates, draw_in_rounds, position_noise, stream_noise
from eagle_core.testing import TableDrafter, tiny_target

ALPHA = 1e-4
N_TESTS = 40  # more than there are comparisons with a correct rule
N_ROWS = 6000
MAX_DRAWS = 4

Rounds = Callable[..., tuple[Tensor, Tensor]]

# p, q, draws. Rows sum to 1.
CASES: dict[str, tuple[list[float], list[float], int]] = {
    "confidently wrong": ([0.05, 0.9, 0.05], [0.97, 0.02, 0.01], 2),
    "all rejected": ([0.0, 0.0, 0.6, 0.4], [0.5, 0.5, 0.0, 0.0], 2),
    "equal": ([0.5, 0.3, 0.15, 0.05], [0.5, 0.3, 0.15, 0.05], 2),
    "flat and peaked": ([0.125] * 8, [0.65] + [0.05] * 7, 4),
    "peaked and flat": ([0.65] + [0.05] * 7, [0.125] * 8, 4),
    "opposite slopes": ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], 3),
    "more draws than tokens": ([0.2, 0.3, 0.5], [0.5, 0.5, 0.0], 4),
    "single draw": ([0.3, 0.3, 0.4], [0.6, 0.3, 0.1], 1),
}


@pytest.fixture(scope="module")
def noise() -> tuple[Tensor, Tensor, Tensor]:
    """Draft, accept and position numbers for ``N_ROWS`` rows."""
    return (
        stream_noise("draft", 1, 0, N_ROWS, MAX_DRAWS),
        stream_noise("accept", 1, 0, N_ROWS, MAX_DRAWS),
        position_noise(1, 0, N_ROWS),
    )


def deviation(counts: Tensor, expected: Tensor) -> float:
    """Chi-square over its critical value; above 1 the counts do not follow ``expected`` ([V] each).

    Outcomes that are expected less than five times count as one. An impossible one is found at once.
    """
    n = counts.sum()
    if bool((counts[expected == 0] > 0).any()):
        return float("inf")
    counts, hoped = counts[expected > 0].double(), (n * expected[expected > 0]).double()
    rare = hoped < 5
    if bool(rare.any()):
        counts = torch.cat((counts[~rare], counts[rare].sum().reshape(1)))
        hoped = torch.cat((hoped[~rare], hoped[rare].sum().reshape(1)))
    chi_square = float(((counts - hoped) ** 2 / hoped).sum())
    return chi_square / float(chi2.isf(ALPHA / N_TESTS, max(len(hoped) - 1, 1)))


def check_case(
    name: str,
    noise: tuple[Tensor, Tensor, Tensor],
    *,
    with_replacement: bool,
    rounds: Rounds = draw_in_rounds,
    prune: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> float:
    """The deviation of one case."""
    p, q, n_draws = (torch.tensor(value) for value in CASES[name])
    k = int(n_draws)
    rows_p, rows_q = p.expand(N_ROWS, -1), q.expand(N_ROWS, -1)
    candidates = draw_candidates(rows_q, noise[0][:, :k], k, with_replacement=with_replacement)
    if prune is not None:
        candidates = prune(candidates, q)
    tokens, _ = rounds(
        rows_p, rows_q, candidates, noise[1][:, :k], noise[2], with_replacement=with_replacement
    )
    return deviation(torch.bincount(tokens, minlength=len(p)), p)


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_one_node_has_the_law_of_the_target(name, with_replacement, noise):
    assert check_case(name, noise, with_replacement=with_replacement) < 1


def test_drafts_are_accepted_as_often_as_theory_says(noise):
    """One draw: sum of min(p, q). Equal distributions: always."""
    for name, expected in (("single draw", 0.3 + 0.3 + 0.1), ("equal", 1.0)):
        p, q = (torch.tensor(value).expand(N_ROWS, -1) for value in CASES[name][:2])
        candidates = draw_candidates(q, noise[0][:, :1], 1, with_replacement=False)
        _, is_drafted = draw_in_rounds(p, q, candidates, noise[1][:, :1], noise[2])
        assert abs(float(is_drafted.float().mean()) - expected) < 0.03  # 5 standard errors


def test_without_replacement_accepts_more(noise):
    shares = []
    for with_replacement in (True, False):
        p, q = (torch.tensor(value).expand(N_ROWS, -1) for value in CASES["flat and peaked"][:2])
        candidates = draw_candidates(q, noise[0], 4, with_replacement=with_replacement)
        _, is_drafted = draw_in_rounds(
            p, q, candidates, noise[1], noise[2], with_replacement=with_replacement
        )
        shares.append(float(is_drafted.float().mean()))
    assert shares[1] > shares[0] + 0.1


def test_a_draft_vocabulary_is_a_part_of_the_tokens(noise):
    p = torch.tensor([0.3, 0.05, 0.25, 0.1, 0.3])
    q, vocabulary = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([3, 0, 4])
    rows = q.expand(N_ROWS, -1)
    candidates = draw_candidates(rows, noise[0][:, :2], 2, with_replacement=False)
    tokens, is_drafted = draw_in_rounds(
        p.expand(N_ROWS, -1), rows, candidates, noise[1][:, :2], noise[2], vocabulary=vocabulary
    )
    assert deviation(torch.bincount(tokens, minlength=5), p) < 1
    assert set(tokens[is_drafted].tolist()) == {0, 3, 4}


def test_candidates_have_the_law_of_drawing_one_after_the_other(noise):
    q = torch.tensor([0.5, 0.3, 0.2])
    pairs = draw_candidates(q.expand(N_ROWS, -1), noise[0], 2, with_replacement=False)
    counts = torch.bincount(pairs[:, 0] * 3 + pairs[:, 1], minlength=9)
    expected = torch.tensor(
        [0.0 if i == j else q[i] * q[j] / (1 - q[i]) for i in range(3) for j in range(3)]
    )
    assert deviation(counts, expected) < 1
    pairs = draw_candidates(q.expand(N_ROWS, -1), noise[0], 2, with_replacement=True)
    counts = torch.bincount(pairs[:, 0] * 3 + pairs[:, 1], minlength=9)
    assert deviation(counts, torch.outer(q, q).flatten()) < 1


# What to plant: in the rule's own source, text -> wrong text.
BUGS = {
    "accepted with p instead of min(1, p / q)": ("accept[:, i : i + 1] * q < p", "accept[:, i : i + 1] < p"),
    "always accepted": ("accept[:, i : i + 1] * q < p", "q > 0"),
    "residual not normalised": ("rest / total", "rest"),
    "q not subtracted": ("rest / total", "probabilities"),
    "q keeps the rejected token": ("left / left.sum(dim=1, keepdim=True)", "draft"),
    "q not normalised anew": ("left / left.sum(dim=1, keepdim=True)", "left"),
}  # fmt: skip


def mutant(old: str, new: str) -> Rounds:
    """The rule with a bug in it."""
    source = inspect.getsource(draw_in_rounds)
    assert source.count(old) == 1
    names: dict[str, Any] = dict(vars(sampling))
    exec(source.replace(old, new), names)
    found: Rounds = names["draw_in_rounds"]
    return found


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, noise):
    rounds = mutant(*BUGS[bug])
    worst = max(check_case(name, noise, with_replacement=False, rounds=rounds) for name in CASES)
    assert worst > 1


def test_children_pruned_by_value_are_found(noise):
    """Keeping the likelier of the draws only, as a tree grown by confidence would."""

    def prune(candidates: Tensor, q: Tensor) -> Tensor:
        value = torch.where(candidates >= 0, q[candidates.clamp(min=0)], -1.0)
        return candidates.gather(1, value.argmax(dim=1, keepdim=True))

    worst = max(check_case(name, noise, with_replacement=False, prune=prune) for name in CASES)
    assert worst > 1


# A chain of tokens: row t is p, or q, after token t.
P = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
Q = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.2, 0.7], [0.34, 0.33, 0.33]])
N_TOKENS = 3
SHAPES: dict[str, Shape] = {
    "deep chain": tuple((0,) * depth for depth in range(1, 5)),
    "tree": ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)),
}


def chain_counts(shape: Shape, n_seeds: int, *, with_replacement: bool) -> Tensor:
    """How often each sequence of ``N_TOKENS`` came, [27], steps repeated until it was complete."""
    counts: Counter[tuple[int, ...]] = Counter()
    walks = (verify_module._verify_lazily, verify_module._verify_at_once)
    for seed in range(n_seeds):
        config = GenerationConfig(
            temperature=1, rule="sampling", seed=seed, with_replacement=with_replacement
        )
        tokens = [0]
        while len(tokens) <= N_TOKENS:
            drafter = TableDrafter(Q, shape, length=len(tokens))
            tree = drafter.sample(torch.tensor(tokens[-1]), Budget(32, 8), config)
            noise = verify_module._Noise.of(tree, len(tokens), seed)
            verdict = walks[seed % 2](tree, P.log()[tree.tokens], noise, config)
            tokens += verdict.run
        counts[tuple(tokens[1 : N_TOKENS + 1])] += 1
    outcomes = itertools.product(range(3), repeat=N_TOKENS)
    return torch.tensor([counts[outcome] for outcome in outcomes])


def chain_law() -> Tensor:
    """Exact probabilities of the sequences after token 0, [27]."""
    return torch.einsum("a,ab,bc->abc", P[0], P, P).flatten()


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_sequences_over_several_steps_have_the_law_of_the_target(shape, with_replacement):
    counts = chain_counts(SHAPES[shape], 250, with_replacement=with_replacement)
    assert deviation(counts, chain_law()) < 1


def test_a_bug_shows_in_sequences_too(monkeypatch):
    monkeypatch.setattr(verify_module, "draw_in_rounds", mutant(*BUGS["always accepted"]))
    assert deviation(chain_counts(SHAPES["tree"], 250, with_replacement=False), chain_law()) > 1


def test_the_whole_loop_has_the_law_of_the_model():
    """Second and third token of a tiny model under top-p, a penalty and a wrong drafter."""
    vocab, n_seeds, prompt = 5, 200, [1, 2, 3]
    target = tiny_target("llama", seed=2, vocab=vocab)
    q = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(0)).softmax(-1)
    settings: dict[str, Any] = {
        "temperature": 1.5, "top_p": 0.95, "presence_penalty": 0.5, "max_new_tokens": 3,
    }  # fmt: skip
    expected = torch.zeros(vocab, vocab)
    for first, second in itertools.product(range(vocab), repeat=2):
        chance = 1.0
        for prefix, token in (([], first), ([first], second)):
            chance *= float(_next_law(target, prompt, prefix, settings)[token])
        if chance > 0:
            expected[second] += chance * _next_law(target, prompt, [first, second], settings)
    counts = torch.zeros(vocab * vocab, dtype=torch.long)
    n_accepted = 0
    for seed in range(n_seeds):
        config = GenerationConfig(rule="sampling", seed=seed, **settings)
        drafter = TableDrafter(q, SHAPES["tree"])
        *_, done = generate_tokens(
            target, target.new_cache(16), drafter, prompt, config, TreeConfig(size=6, depth=3),
            frozenset(),
        )  # fmt: skip
        assert isinstance(done, Finished)
        counts[done.token_ids[1] * vocab + done.token_ids[2]] += 1
        n_accepted += done.stats.n_accepted
    assert n_accepted > 0
    assert deviation(counts, expected.flatten()) < 1


def _next_law(target: Any, prompt: list[int], prefix: list[int], settings: Any) -> Tensor:
    """The plain engine's distribution [V] after a prefix, by many forwards of the model alone."""
    from eagle_core.processors import processors_for

    config = GenerationConfig(**settings)
    process = processors_for(config, prompt, frozenset(), target.vocab_size)
    assert process is not None
    process.extend(prefix)
    logits = target.prefill_chunk(torch.tensor(prompt + prefix), target.new_cache(16)).logits
    return sampling.to_probabilities(process(logits, [()]), config)[0]


def test_plain_decoding_serves_the_rule_as_well():
    """Without drafts the rule has nothing to accept: same tokens as under match."""
    target = tiny_target("llama", seed=2)
    answers = []
    for rule in ("match", "sampling"):
        config = GenerationConfig(temperature=1, rule=rule, max_new_tokens=8)
        *_, done = generate_tokens(
            target, target.new_cache(), NoDrafter(), [5, 6], config, TreeConfig(), frozenset()
        )
        answers.append(done.token_ids)
    assert answers[0] == answers[1]
