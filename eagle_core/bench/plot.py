"""A benchmark's figures as a bar chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Figures = dict[str, Any]

COLOURS = ("#8a8f98", "#2563eb", "#d97706", "#059669")


def write_plot(summary: Figures, path: Path) -> None:
    """Write a PNG: decode rate by category and method, all together on the left, with speed-ups.

    Args:
        summary: what ``eagle_core.bench.summary.summarize`` returned.
    """
    # The canvas is made here, not by pyplot: no global state, and no display is needed.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    methods: dict[str, Figures] = summary["methods"]
    categories: dict[str, dict[str, Figures]] = summary["categories"]
    groups = ["all", *categories]
    figure = Figure(figsize=(max(6.0, 1.1 * len(groups) + 2), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / max(len(methods), 1)
    for index, (name, one) in enumerate(methods.items()):
        figures = [one, *(category[name] for category in categories.values())]
        heights = [entry["decode_tok_s"] or 0.0 for entry in figures]
        left = [x + (index - (len(methods) - 1) / 2) * width for x in range(len(groups))]
        bars = axes.bar(left, heights, width, label=name, color=COLOURS[index % len(COLOURS)])
        axes.bar_label(bars, [_speedup_label(entry) for entry in figures], fontsize=7, padding=2)
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    axes.set_ylabel("decoded tokens per second")
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    if methods:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150, format="png")


def _speedup_label(entry: Figures) -> str:
    found = entry["speedup"]
    if isinstance(found, dict):  # over all categories: by reference
        found = (found.get("none") or {}).get("decode", {}).get("value")
    return f"{found:.2f}x" if found is not None and abs(found - 1.0) > 1e-9 else ""


__all__ = ["write_plot"]
