"""How much of a drafter's trees the target accepts: tau and acceptance per depth, without timing anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from eagle_core.bench.prompts import Question
from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.errors import EagleError
from eagle_core.events import Failed, Finished
from eagle_core.stats import Stats

if TYPE_CHECKING:
    from eagle_core.session import Session


@dataclass(frozen=True, slots=True)
class Accepted:
    """One answer: its question and its figures, or why there is none."""

    question: Question
    stats: Stats | None
    error: str | None = None


def measure_acceptance(
    session: Session, questions: list[Question], generation: GenerationConfig, draft: DraftConfig
) -> Iterator[Accepted]:
    """Answer every question's first turn and yield its figures; a failed answer is kept as failed."""
    for question in questions:
        stats, error = None, None
        try:
            prompt_ids = session.encode_chat([{"role": "user", "content": question.text}])
        except EagleError as problem:
            yield Accepted(question, None, problem.message)
            continue
        for event in session.generate(prompt_ids, generation, draft):
            if isinstance(event, Finished):
                stats = event.stats
            elif isinstance(event, Failed):
                error = event.message
        yield Accepted(question, stats, error)


def summarize_acceptance(rows: list[Accepted]) -> dict[str, Any]:
    """Mean tau over answers (also per category), tau over all steps, and acceptance per depth.

    Answers of one token take no step; they and failed ones are counted apart, and in no mean.
    """
    kept = [
        (row.question.category, row.stats)
        for row in rows
        if row.stats is not None and row.stats.n_steps
    ]
    taus: dict[str, list[float]] = {}
    drafted: list[int] = []
    accepted: list[int] = []
    for category, stats in kept:
        taus.setdefault(category, []).append((stats.n_tokens - 1) / stats.n_steps)
        missing = len(stats.drafted_at_depth) - len(drafted)
        drafted += [0] * missing
        accepted += [0] * missing
        for depth, count in enumerate(stats.drafted_at_depth):
            drafted[depth] += count
            accepted[depth] += stats.accepted_at_depth[depth]
    n_steps = sum(stats.n_steps for _, stats in kept)
    n_decoded = sum(stats.n_tokens - 1 for _, stats in kept)
    return {
        "n_answers": len(kept),
        "n_failed": sum(row.error is not None for row in rows),
        "n_tokens": sum(stats.n_tokens for _, stats in kept),
        "tau_mean": mean(t for group in taus.values() for t in group) if kept else None,
        "tau_all_steps": n_decoded / n_steps if n_steps else None,
        "tau_by_category": {name: mean(group) for name, group in sorted(taus.items())},
        "acceptance_at_depth": [a / d for a, d in zip(accepted, drafted, strict=True) if d],
    }


__all__ = ["Accepted", "measure_acceptance", "summarize_acceptance"]
