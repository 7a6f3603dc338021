"""A benchmark's figures as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Figures = dict[str, Any]


def summary_table(summary: Figures) -> str:
    """The summary of ``eagle_core.bench.summary.summarize`` as aligned tables."""
    methods: dict[str, Figures] = summary["methods"]
    parts = [_rates(methods), _speedups(methods), _inner_figures(methods)]
    parts.append(_categories(summary["categories"], list(methods)))
    bound = summary["bandwidth_bound_tok_s"]
    if bound is not None:
        parts.append(f"memory bandwidth bounds plain decoding at {bound:.0f} tok/s")
    return "\n\n".join(part for part in parts if part)


def _rates(methods: dict[str, Figures]) -> str:
    head = [
        "method",
        "tok/s",
        "median",
        "tau",
        "identical",
        "TTFT ms",
        "peak MB",
        "answers",
        "failed",
    ]
    rows = [
        [
            name,
            _number(one["decode_tok_s"], 1),
            _number(one["decode_tok_s_median"], 1),
            _number(one["tau"], 2),
            _percent(one["identical_rate"]),
            _number(one["ttft_s_median"], 0, 1000),
            _number(one["peak_memory_bytes"] or None, 0, 1e-6),
            str(one["n_rows"] - one["n_failed"]),
            str(one["n_failed"]),
        ]
        for name, one in methods.items()
    ]
    return align([head, *rows])


def _speedups(methods: dict[str, Figures]) -> str:
    head = ["speed-up", "over", "decode", "95%", "total", "per token", "median", "95%", "questions"]
    rows = [
        [
            name,
            reference,
            _number(one["decode"]["value"], 2),
            _interval(one["decode"]),
            _number(one["total"]["value"], 2),
            _number(one["per_token"]["value"], 2),
            _number(one["median"]["value"], 2),
            _interval(one["median"]),
            str(one["n_questions"]),
        ]
        for name, figures in methods.items()
        for reference, one in figures["speedup"].items()
        if one is not None
    ]
    return align([head, *rows]) if rows else ""


def _inner_figures(methods: dict[str, Figures]) -> str:
    lines = []
    for name, one in methods.items():
        if one["acceptance_at_depth"]:
            shares = " ".join(_percent(share) for share in one["acceptance_at_depth"])
            lines.append(f"{name}: acceptance at depth 1, 2, ...: {shares}")
        if one["differences"]:
            lines.append(f"{name}: {_differences(one['differences'])}")
        if one["time_split"]:
            shares = " ".join(
                f"{part} {_percent(share)}" for part, share in one["time_split"].items()
            )
            lines.append(f"{name}: decode time: {shares}")
    return "\n".join(lines)


def _differences(found: Sequence[Figures]) -> str:
    """How many answers differ, how many of them by rounding, and the first of them."""
    n_ties = sum(one["is_rounding_tie"] is True for one in found)
    n_wrong = sum(one["is_rounding_tie"] is False for one in found)
    what = "1 answer differs" if len(found) == 1 else f"{len(found)} answers differ"
    first = found[0]
    text = f"{what}: {n_ties} at a rounding tie, {n_wrong} by more than rounding"
    text += f"; question {first['question_id']} from token {first['index']}"
    if first["logit_gap"] is not None:
        text += f", logits {first['logit_gap']:.3g} apart"
    if first["logit_gap_float32"] is not None:
        text += f" ({first['logit_gap_float32']:.3g} in float32)"
    return text


def _categories(categories: dict[str, dict[str, Figures]], names: list[str]) -> str:
    head = ["category", "questions"]
    head += [f"{name} {figure}" for name in names for figure in ("tok/s", "tau", "x")]
    rows = []
    for category, methods in categories.items():
        row = [category, str(max(one["n_questions"] for one in methods.values()))]
        for name in names:
            one = methods[name]
            row += [
                _number(one["decode_tok_s"], 1),
                _number(one["tau"], 2),
                _number(one["speedup"], 2),
            ]
        rows.append(row)
    return align([head, *rows]) if rows else ""


def comparison_table(found: Figures) -> str:
    """What ``eagle_core.bench.compare.compare`` returned as an aligned table."""
    head = ["category", "questions", "tok/s", "before" if found["is_same_method"] else "baseline",
            "decode", "95%", "total", "95%", "median", "95%", "tau", "identical"]  # fmt: skip
    rows = []
    for category, one in found["rows"].items():
        faster = one["speedup"]
        kinds = [faster[kind] if faster else None for kind in ("decode", "total", "median")]
        cells = [category, str(faster["n_questions"] if faster else 0)]
        cells += [_number(rate, 1) for rate in one["tok_s"]]
        for kind in kinds:
            cells += ["-", "-"] if kind is None else [_number(kind["value"], 2), _interval(kind)]
        cells += [_number(one["tau"][0], 2), f"{one['n_identical']} of {one['n_compared']}"]
        rows.append(cells)
    text = f"{found['method']} against {found['baseline']}\n" + align([head, *rows])
    n_failed = sum(found["rows"]["all"]["n_failed"])
    return f"{text}\n{n_failed} failed answers are left out" if n_failed else text


def align(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _number(value: float | None, n_digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.{n_digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _interval(figure: Figures) -> str:
    if figure["low"] is None:
        return "-"
    return f"{figure['low']:.2f}-{figure['high']:.2f}"


__all__ = ["align", "comparison_table", "summary_table"]
