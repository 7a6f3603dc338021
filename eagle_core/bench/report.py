"""A report of benchmark files: one HTML page that needs nothing else, or Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from eagle_core.assets import asset_path
from eagle_core.bench.charts import Chart, draw_all
from eagle_core.bench.compare import entry
from eagle_core.bench.config import TRANSFORMERS, family_of, title_of
from eagle_core.bench.findings import ALL, Findings, sentences, times
from eagle_core.bench.records import BASELINE

Cells = list[str]

NOTES = (
    "Rates count decoding alone: all tokens but the first, over the time from the first to the last. "
    "Intervals are 95% bootstrap intervals over questions; ratios pair the answers to the same question. "
    "Methods answered every question in turn, in rotating order. tau is how many tokens one forward of the "
    "model yields. Identical: answers with exactly the tokens of plain decoding; llama.cpp computes in a "
    "precision of its own, so its answers may well differ."
)


def html_report(runs: Sequence[Findings]) -> str:
    """The whole page."""
    parts = [
        "<h1>Benchmark</h1>",
        f'<p class="soft">{_text(machine_line(runs[0].header))}</p>' if runs else "",
        _contents(runs),
    ]
    for index, found in enumerate(runs):
        parts.append(_run_section(found, f"run{index}"))
    parts.append(f'<h2 id="how">How it was measured</h2><p>{_text(NOTES)}</p>')
    body = "\n".join(part for part in parts if part)
    style = asset_path("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Benchmark</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _contents(runs: Sequence[Findings]) -> str:
    if len(runs) < 2:
        return ""
    entries = "".join(
        f'<li><a href="#run{index}">{_text(found.title)}</a></li>'
        for index, found in enumerate(runs)
    )
    return f'<nav aria-label="Runs"><ul>{entries}</ul></nav>'


def _run_section(found: Findings, key: str) -> str:
    said = "".join(f"<p>{_text(sentence)}</p>" for sentence in sentences(found))
    figures = "".join(_figure(chart) for chart in draw_all(found, key))
    return (
        f'<section><h2 id="{key}">{_text(found.title)}</h2>{said}'
        f"{_table(overall_table(found), 'All questions')}{figures}"
        f"{_table(category_table(found), 'Tokens per second by category, and times plain decoding')}"
        f"{_provenance(found.header)}</section>"
    )


def _figure(chart: Chart) -> str:
    alt = _text(chart.alt)
    return (
        f'<figure><h3>{_text(chart.title)}</h3><div role="img" aria-label="{alt}">{chart.svg}</div>'
        f"<details><summary>In words</summary><p>{alt}</p></details></figure>"
    )


def _table(rows: Sequence[Cells], caption: str) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in rows[0])
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{_text(cell)}</th>' if place == 0 else f"<td>{_text(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(caption)}"><table>'
        f"<caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _provenance(header: dict[str, Any]) -> str:
    rows = "".join(
        f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>"
        for name, value in provenance_of(header).items()
    )
    return f"<details><summary>Where these figures come from</summary><dl>{rows}</dl></details>"


def _text(value: object) -> str:
    return html.escape(str(value))


def machine_line(header: dict[str, Any]) -> str:
    """The machine and the day in one line."""
    machine = header.get("accelerator") or header.get("cpu") or "an unknown processor"
    day = str(header.get("created", ""))[:10]
    return f"{machine}, {header.get('n_threads', '?')} threads" + (f", {day}" if day else "")


def provenance_of(header: dict[str, Any]) -> dict[str, str]:
    """What produced a run, by name."""
    git = header.get("git") or {}
    generation = entry(header, "settings.generation") or {}
    found = {
        "measured": header.get("created"),
        "commit": f"{git.get('sha')}{' and changes' if git.get('is_dirty') else ''}"
        if git
        else None,
        "machine": machine_line(header),
        "system": header.get("platform"),
        "reads memory at": _bandwidth(header.get("read_bandwidth_bytes_s")),
        "model": _settings(header.get("model") or {}),
        "answers": _settings(generation),
        "tree": _settings(entry(header, "settings.tree") or {}),
        "questions": entry(header, "settings.prompts_sha256"),
        "versions": _settings(header.get("versions") or {}),
        "peers": "; ".join(
            f"{name}: {one['file']} ({one['file_bytes'] / 1e6:.0f} MB), build {one['build']}"
            for name, one in (header.get("peers") or {}).items()
        ),
    }
    return {name: str(value) for name, value in found.items() if value}


def _bandwidth(bytes_s: float | None) -> str | None:
    return f"{bytes_s / 1e9:.1f} GB/s" if bytes_s else None


def _settings(values: dict[str, Any]) -> str:
    shown = {k: v for k, v in values.items() if v not in (None, "", (), [], False)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def overall_table(found: Findings) -> list[Cells]:
    """One line for each method, head first."""
    references = [
        name for name in (BASELINE, TRANSFORMERS, *_llama(found.methods)) if name in found.methods
    ]
    head = ["method", "tokens/s (95%)"]
    head += [f"against {title_of(name)}" for name in references]
    head += ["tau", "identical", "first token", "failed"]
    return [head, *(_overall_row(found, name, references) for name in found.methods)]


def _llama(methods: Sequence[str]) -> list[str]:
    return [name for name in methods if family_of(name) == "llama.cpp"]


def _overall_row(found: Findings, name: str, references: Sequence[str]) -> Cells:
    one = found.summary["methods"][name]
    rate = found.rates[ALL][name]
    cells = [title_of(name), "-" if rate is None else _rate(rate)]
    for reference in references:
        speedup = one["speedup"].get(reference)
        same = "1" if reference == name else "-"
        cells.append(times(speedup["decode"]) if speedup else same)
    same = one["identical_rate"]
    n_same = one["n_compared"] - len(one["differences"])
    ttft_s = one["ttft_s_median"]
    return [
        *cells,
        "-" if one["tau"] is None else f"{one['tau']:.2f}",
        "-" if same is None else f"{n_same} of {one['n_compared']}",
        "-" if ttft_s is None else f"{1e3 * ttft_s:.0f} ms",
        str(one["n_failed"]),
    ]


def _rate(rate: dict[str, Any]) -> str:
    if rate["low"] is None:
        return f"{rate['value']:.1f}"
    return f"{rate['value']:.1f} ({rate['low']:.1f}-{rate['high']:.1f})"


def category_table(found: Findings) -> list[Cells]:
    """Tokens per second by category and method, with the speed-up over plain decoding behind it."""
    table = [["category", *(title_of(name) for name in found.methods)]]
    for group in found.groups:
        cells = [group]
        for name in found.methods:
            rate, speedup = found.rates[group][name], found.speedups[group].get(name)
            text = "-" if rate is None else f"{rate['value']:.1f}"
            cells.append(f"{text} / {speedup['decode']['value']:.2f}x" if speedup else text)
        table.append(cells)
    return table


def markdown_report(runs: Sequence[Findings]) -> str:
    """The same figures as tables."""
    parts = ["# Benchmark", NOTES]
    for found in runs:
        parts += [f"## {found.title}", machine_line(found.header) + ".", " ".join(sentences(found))]
        parts += [_markdown_table(overall_table(found))]
        parts += ["Tokens per second by category, and times plain decoding:"]
        parts += [_markdown_table(category_table(found))]
        shown = provenance_of(found.header)
        kept = [
            f"{name}: {shown[name]}" for name in ("commit", "questions", "peers") if name in shown
        ]
        parts.append("; ".join(kept))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(rows: Sequence[Cells]) -> str:
    rule = ["---", *("---:" for _ in rows[0][1:])]
    lines = [rows[0], rule, *rows[1:]]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


__all__ = [
    "category_table",
    "html_report",
    "markdown_report",
    "overall_table",
    "provenance_of",
]
