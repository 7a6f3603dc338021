"""What a report shows of one benchmark file: plain numbers in the order in which they are drawn.

Pure: no chart, no HTML. The eight categories of MT-bench count as one group, as in Spec-Bench.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_core.bench.compare import entry, methods_of
from eagle_core.bench.config import family_of, is_peer, title_of
from eagle_core.bench.records import BASELINE, BenchFile, Row
from eagle_core.bench.summary import (
    THEIR_DECODE_S,
    THEIR_TOKENS,
    acceptance_at_depth,
    acceptance_length,
    decode_rate,
    paired_by_question,
    rate_with_interval,
    speedup,
    summarize,
)
from eagle_core.stats import Stats

MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
MT_BENCH_NAME = "mt-bench"
ALL = "all"
N_BINS = 6  # of prompts or answers by length, with as many questions each
FEWEST_IN_BIN = 3

Figures = dict[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Findings:
    """One file's figures.

    ``rates`` and ``taus`` are by group ("all" first), then method; ``split`` holds milliseconds of a step by
    part; ``ratios`` each question's rate over plain decoding's, sorted; ``by_answer`` and ``by_prompt``
    (length in tokens, tokens/s) of groups of questions of like length.
    """

    title: str
    header: Figures
    summary: Figures
    methods: list[str]
    groups: list[str]
    rates: dict[str, dict[str, Figures | None]]
    taus: dict[str, dict[str, float | None]]
    speedups: dict[str, dict[str, Figures | None]]
    split: dict[str, dict[str, float]]
    acceptance: dict[str, list[float]]
    ratios: dict[str, list[float]]
    by_answer: dict[str, list[Point]]
    by_prompt: dict[str, list[Point]]


def group_of(category: str) -> str:
    """The group that a category is shown in."""
    return MT_BENCH_NAME if category in MT_BENCH else category


def find(file: BenchFile) -> Findings:
    """All that a report shows of ``file``."""
    methods = methods_of(file)
    rows: dict[str, list[Row]] = {ALL: file.rows}
    for row in file.rows:
        rows.setdefault(group_of(row.category), []).append(row)
    groups = [ALL, *sorted(set(rows) - {ALL})]
    of = {
        group: {name: [row for row in rows[group] if row.method == name] for name in methods}
        for group in groups
    }
    stats = {
        name: [row.stats for row in of[ALL][name] if row.stats is not None] for name in methods
    }
    own = [name for name in methods if not is_peer(name)]
    return Findings(
        title=title_of_run(file),
        header=file.header,
        summary=summarize(file),
        methods=methods,
        groups=groups,
        rates={g: {name: rate_with_interval(of[g][name]) for name in methods} for g in groups},
        taus={
            g: {
                name: acceptance_length([r.stats for r in of[g][name] if r.stats is not None])
                for name in methods
            }
            for g in groups
        },
        speedups={g: _speedups(rows[g], methods) for g in groups},
        split={name: ms_per_step(stats[name]) for name in own if ms_per_step(stats[name])},
        acceptance={name: shares for name in own if (shares := acceptance_at_depth(stats[name]))},
        ratios={
            name: found
            for name in methods
            if name != BASELINE and (found := ratios(file.rows, name))
        },
        by_answer={name: by_length(of[ALL][name], _answer_tokens) for name in methods},
        by_prompt={name: by_length(of[ALL][name], _prompt_tokens) for name in methods},
    )


def _speedups(rows: Sequence[Row], methods: Sequence[str]) -> dict[str, Figures | None]:
    return {name: speedup(rows, name, BASELINE) for name in methods if name != BASELINE}


def title_of_run(file: BenchFile) -> str:
    """What tells a run from others: the model, its precision, the temperature."""
    header = file.header
    precision = entry(header, "model.quantization")
    if precision in (None, "none"):
        precision = entry(header, "model.dtype", "unknown precision")
    temperature = entry(header, "settings.generation.temperature", 0.0)
    n_questions = len({row.question_id for row in file.rows})
    return (
        f"{entry(header, 'model.base', 'a model')}, {precision}, temperature {temperature:g}, "
        f"{n_questions} questions"
    )


def ms_per_step(stats: Sequence[Stats]) -> dict[str, float]:
    """Milliseconds of a mean step: draft, target, host (everything else); {} when no step was timed."""
    n_steps = sum(one.n_steps for one in stats)
    target_s = sum(one.target_s for one in stats)
    if not n_steps or not target_s:
        return {}
    draft_s = sum(one.draft_s for one in stats)
    decode_s = sum(one.decode_s for one in stats)
    parts = {"draft": draft_s, "target": target_s, "host": max(decode_s - draft_s - target_s, 0.0)}
    return {name: 1e3 * seconds / n_steps for name, seconds in parts.items()}


def ratios(rows: Iterable[Row], name: str) -> list[float]:
    """Each question's decode rate over plain decoding's, lowest first."""
    pairs = paired_by_question(rows, name, BASELINE)  # [Q, 6]
    ours = pairs[:, 2] / pairs[:, 0]
    theirs = pairs[:, THEIR_TOKENS] / pairs[:, THEIR_DECODE_S]
    return sorted(float(ratio) for ratio in ours[theirs > 0] / theirs[theirs > 0])


def _answer_tokens(row: Row) -> int:
    return len(row.token_ids)


def _prompt_tokens(row: Row) -> int:
    return row.n_prompt_tokens


def by_length(rows: Sequence[Row], length: Any) -> list[Point]:
    """Answers in bins of equal count by length: the median length of each, and its decode rate."""
    done = [(length(row), row.stats) for row in rows if row.stats is not None]
    done = sorted(((n, one) for n, one in done if one.decode_s > 0), key=lambda pair: pair[0])
    n_bins = min(N_BINS, len(done) // FEWEST_IN_BIN)
    points: dict[float, list[Stats]] = defaultdict(list)
    for index in range(n_bins):
        part = done[index * len(done) // n_bins : (index + 1) * len(done) // n_bins]
        points[statistics.median(n for n, _ in part)] += [one for _, one in part]
    return [(n, rate) for n, found in points.items() if (rate := decode_rate(found)) is not None]


def best_eagle(found: Findings) -> str | None:
    """The fastest of the methods that draft with the head; None without one."""
    rates = {
        name: one["value"]
        for name, one in found.rates[ALL].items()
        if family_of(name) == "eagle" and one is not None
    }
    return max(rates, key=lambda name: rates[name]) if rates else None


def sentences(found: Findings) -> list[str]:
    """The run in words: how the fastest EAGLE method stands against plain decoding and each peer."""
    best = best_eagle(found)
    if best is None:
        return []
    said = []
    for reference, one in found.summary["methods"][best]["speedup"].items():
        if one is not None:
            text = (
                f"{title_of(best)} decodes {times(one['decode'])} as fast as {title_of(reference)}"
            )
            said.append(f"{text} over {one['n_questions']} questions.")
    groups = {g: one[best] for g, one in found.speedups.items() if g != ALL and one.get(best)}
    values = {g: one["decode"]["value"] for g, one in groups.items() if one is not None}
    if len(values) > 1:
        low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        said.append(
            f"Against plain decoding it gains least on {low} ({values[low]:.2f}x) and most on {high} "
            f"({values[high]:.2f}x)."
        )
    one = found.summary["methods"][best]
    if one["n_compared"]:
        n_same = one["n_compared"] - len(one["differences"])
        said.append(f"{n_same} of {one['n_compared']} answers hold the tokens of plain decoding.")
    return said


def times(figure: Figures) -> str:
    """A ratio with its interval: "1.57x (1.43-1.72)"."""
    text = f"{figure['value']:.2f}x"
    return text if figure["low"] is None else f"{text} ({figure['low']:.2f}-{figure['high']:.2f})"


__all__ = [
    "ALL",
    "Findings",
    "best_eagle",
    "by_length",
    "find",
    "group_of",
    "ms_per_step",
    "ratios",
    "sentences",
    "times",
    "title_of_run",
]
