"""From rows to figures: pure functions over a benchmark file, no clock and no model.

Definitions, besides those of ``eagle_core.stats``:

- *rate* = sum of (n_tokens - 1) / sum of decode times; the median is over questions.
- *speed-up* = sum of the baseline's times / sum of the method's times, over the answers that both
  completed. ``decode`` uses decode times and ``total`` whole requests, prefill included;
  ``per_token`` divides both sums by their tokens, the fair one when answers differ in length;
  ``median`` is the median over questions of the ratio of rates.
- *interval* = 95% percentile bootstrap over questions, from a fixed seed.
- *identical* = share of compared answers with exactly the tokens of plain decoding.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle_core.bench.config import LLAMA, TRANSFORMERS, family_of
from eagle_core.bench.prompts import QuestionId
from eagle_core.bench.records import BASELINE, BenchFile, Row
from eagle_core.stats import Stats

N_RESAMPLES = 2000
BOOTSTRAP_SEED = 0
REFERENCES = (BASELINE, TRANSFORMERS, LLAMA)  # families that all others are set against

# Columns of a table with one question's sums for the two methods of a speed-up in each row.
OUR_DECODE_S, OUR_TOTAL_S, OUR_TOKENS, THEIR_DECODE_S, THEIR_TOTAL_S, THEIR_TOKENS = range(6)
Pairs = NDArray[np.float64]
Estimate = Callable[[Pairs], Pairs]


def summarize(file: BenchFile) -> dict[str, Any]:
    """All figures of a benchmark as plain data.

    Returns: ``methods`` by name, in the order of the file's settings; ``categories`` by name, each
    with a few figures by method; ``bandwidth_bound_tok_s``, which plain decoding cannot exceed.
    """
    names = list(dict.fromkeys(row.method for row in file.rows))
    order = list(file.header.get("settings", {}).get("bench", {}).get("methods", names))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    references = [name for one in REFERENCES for name in names if family_of(name) == one]
    categories = sorted({row.category for row in file.rows})
    return {
        "methods": {name: _method_summary(file.rows, name, references) for name in names},
        "categories": {
            category: {
                name: _category_summary([r for r in file.rows if r.category == category], name)
                for name in names
            }
            for category in categories
        },
        "bandwidth_bound_tok_s": bandwidth_bound(file.header),
    }


def bandwidth_bound(header: dict[str, Any]) -> float | None:
    """Tokens a second at which reading the weights takes all the bandwidth; None: unknown."""
    bandwidth, weights = header.get("read_bandwidth_bytes_s"), header.get("weight_bytes")
    return bandwidth / weights if bandwidth and weights else None


def _method_summary(rows: Sequence[Row], name: str, references: Sequence[str]) -> dict[str, Any]:
    mine = [row for row in rows if row.method == name]
    stats = [row.stats for row in mine if row.stats is not None]
    compared = [row for row in mine if row.is_identical is not None]
    n_same = sum(row.is_identical is True for row in compared)
    by_question = _by_question(mine)
    return {
        "n_rows": len(mine),
        "n_failed": len(mine) - len(stats),
        "n_questions": len(by_question),
        "n_tokens": sum(one.n_tokens for one in stats),
        "decode_tok_s": decode_rate(stats),
        "decode_tok_s_median": _median(decode_rate(group) for group in by_question.values()),
        "tau": acceptance_length(stats),
        "tau_mean": _mean(acceptance_length(group) for group in by_question.values()),
        "acceptance_at_depth": acceptance_at_depth(stats),
        "time_split": time_split(stats),
        "ttft_s_median": _median(one.ttft_s for one in stats),
        "identical_rate": n_same / len(compared) if compared else None,
        "n_compared": len(compared),
        "differences": [_difference(row) for row in compared if not row.is_identical],
        "peak_memory_bytes": max((row.peak_memory_bytes for row in mine), default=0),
        "speedup": {ref: speedup(rows, name, ref) for ref in references if ref != name},
    }


def _difference(row: Row) -> dict[str, Any]:
    """Where an answer parts from plain decoding's, and what is known about it."""
    return {
        "question_id": row.question_id,
        "repeat": row.repeat,
        "index": row.first_difference,
        "logit_gap": row.logit_gap,
        "logit_gap_float32": row.logit_gap_float32,
        "is_rounding_tie": row.is_rounding_tie,
    }


def _category_summary(rows: Sequence[Row], name: str) -> dict[str, Any]:
    stats = [row.stats for row in rows if row.method == name and row.stats is not None]
    pairs = paired_by_question(rows, name, BASELINE)
    return {
        "n_questions": len(
            {r.question_id for r in rows if r.method == name and r.stats is not None}
        ),
        "decode_tok_s": decode_rate(stats),
        "tau": acceptance_length(stats),
        "speedup": float(_decode(pairs)) if len(pairs) else None,
    }


def decode_rate(stats: Sequence[Stats]) -> float | None:
    """Tokens a second while decoding; None when nothing was decoded."""
    n_tokens = sum(max(one.n_tokens - 1, 0) for one in stats)
    decode_s = sum(one.decode_s for one in stats)
    return n_tokens / decode_s if n_tokens and decode_s > 0 else None


def acceptance_length(stats: Sequence[Stats]) -> float | None:
    """Tau over all steps; None when there was no step."""
    n_steps = sum(one.n_steps for one in stats)
    return sum(one.n_tokens - 1 for one in stats if one.n_steps) / n_steps if n_steps else None


def acceptance_at_depth(stats: Sequence[Stats]) -> list[float]:
    """Kept over drafted by depth, over all steps that drafted so deep.

    Example: drafted (4, 2) and (2,), kept (2, 1) and (1,), in two answers: [0.5, 0.5].
    """
    drafted: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    for one in stats:
        for depth, (n_accepted, n_drafted) in enumerate(
            zip(one.accepted_at_depth, one.drafted_at_depth, strict=True)
        ):
            accepted[depth] += n_accepted
            drafted[depth] += n_drafted
    return [
        accepted[depth] / drafted[depth] if drafted[depth] else 0.0 for depth in sorted(drafted)
    ]


def time_split(stats: Sequence[Stats]) -> dict[str, float] | None:
    """Share of the decode time by part, ``other`` for the rest; None when no part was timed."""
    decode_s = sum(one.decode_s for one in stats)
    parts = {
        "draft": sum(one.draft_s for one in stats),
        "target": sum(one.target_s for one in stats),
        "verify": sum(one.verify_s for one in stats),
        "commit": sum(one.commit_s for one in stats),
    }
    if decode_s <= 0 or not any(parts.values()):
        return None
    shares = {name: seconds / decode_s for name, seconds in parts.items()}
    return {**shares, "other": max(1.0 - sum(shares.values()), 0.0)}


def paired_by_question(rows: Iterable[Row], name: str, reference: str) -> Pairs:
    """Sums for each question over the repeats that both methods completed.

    Returns: [Q, 6] f64 in the columns named at the top of this file.
    """
    found = {row.key: row.stats for row in rows if row.stats is not None}
    sums: dict[QuestionId, Pairs] = {}
    for (question_id, repeat, method), ours in found.items():
        theirs = found.get((question_id, repeat, reference))
        if method == name and theirs is not None:
            pair = sums.setdefault(question_id, np.zeros(6))
            pair += [value for one in (ours, theirs) for value in _times_and_tokens(one)]
    # An answer of one token has no decode time: it says nothing about the rate.
    kept = [pair for pair in sums.values() if pair[OUR_DECODE_S] > 0 and pair[THEIR_DECODE_S] > 0]
    return np.stack(kept) if kept else np.zeros((0, 6))


def _times_and_tokens(stats: Stats) -> tuple[float, float, float]:
    return stats.decode_s, stats.total_s, max(stats.n_tokens - 1, 0)


def speedup(rows: Iterable[Row], name: str, reference: str) -> dict[str, Any] | None:
    """How much faster ``name`` is than ``reference``; None without an answer that both completed.

    Returns: for each kind of speed-up (module docstring) ``value``, and ``low`` and ``high`` of its
    interval (None with a single question); ``n_questions``.
    """
    pairs = paired_by_question(rows, name, reference)  # [Q, 6]
    if len(pairs) == 0:
        return None
    return {"n_questions": len(pairs), **with_intervals(pairs, ESTIMATES)}


def rate_with_interval(rows: Iterable[Row]) -> dict[str, float | None] | None:
    """Decode rate of one method's rows: ``value``, ``low`` and ``high``; None when nothing was decoded."""
    sums = [
        [sum(max(one.n_tokens - 1, 0) for one in group), sum(one.decode_s for one in group)]
        for group in _by_question(rows).values()
    ]
    table = np.array([pair for pair in sums if pair[1] > 0], dtype=np.float64)  # [Q, 2]
    return with_intervals(table, {"rate": _rate})["rate"] if len(table) else None


def with_intervals(
    table: Pairs, estimates: Mapping[str, Estimate]
) -> dict[str, dict[str, float | None]]:
    """Each estimate of ``table`` [Q, C] with its 95% percentile interval under resampling of questions.

    Returns: ``value``, ``low`` and ``high``; the interval is None for fewer than two questions.
    """
    n = len(table)
    found: dict[str, dict[str, float | None]] = {
        name: {"value": float(estimate(table)), "low": None, "high": None}
        for name, estimate in estimates.items()
    }
    if n < 2:
        return found
    draws = np.random.default_rng(BOOTSTRAP_SEED).integers(n, size=(N_RESAMPLES, n))  # [R, Q]
    resamples = table[draws]  # [R, Q, C]
    for name, estimate in estimates.items():
        low, high = np.percentile(estimate(resamples), [2.5, 97.5])
        found[name] |= {"low": float(low), "high": float(high)}
    return found


# Each maps [..., Q, C] to [...]: one table, or one for each resample.


def _rate(table: Pairs) -> Pairs:
    sums = table.sum(axis=-2)
    return np.asarray(sums[..., 0] / sums[..., 1])


def _decode(pairs: Pairs) -> Pairs:
    sums = pairs.sum(axis=-2)
    return np.asarray(sums[..., THEIR_DECODE_S] / sums[..., OUR_DECODE_S])


def _total(pairs: Pairs) -> Pairs:
    sums = pairs.sum(axis=-2)
    return np.asarray(sums[..., THEIR_TOTAL_S] / sums[..., OUR_TOTAL_S])


def _per_token(pairs: Pairs) -> Pairs:
    sums = pairs.sum(axis=-2)
    return np.asarray(_decode(pairs) * sums[..., OUR_TOKENS] / sums[..., THEIR_TOKENS])


def _median_of_ratios(pairs: Pairs) -> Pairs:
    ours = pairs[..., OUR_TOKENS] / pairs[..., OUR_DECODE_S]
    theirs = pairs[..., THEIR_TOKENS] / pairs[..., THEIR_DECODE_S]
    return np.asarray(np.median(ours / theirs, axis=-1))


ESTIMATES: Mapping[str, Estimate] = {
    "decode": _decode,
    "total": _total,
    "per_token": _per_token,
    "median": _median_of_ratios,
}


def _by_question(rows: Iterable[Row]) -> dict[QuestionId, list[Stats]]:
    found: dict[QuestionId, list[Stats]] = defaultdict(list)
    for row in rows:
        if row.stats is not None:
            found[row.question_id].append(row.stats)
    return found


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


__all__ = [
    "acceptance_at_depth",
    "acceptance_length",
    "bandwidth_bound",
    "decode_rate",
    "paired_by_question",
    "rate_with_interval",
    "speedup",
    "summarize",
    "time_split",
    "with_intervals",
]
