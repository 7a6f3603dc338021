"""The report's charts as inline SVG that takes the page's text colour, each with its content in words.

Text stays text, ids are made unique, and nothing refers to anything outside: a chart can stand in any page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle_core.bench.config import title_of
from eagle_core.bench.findings import ALL, Findings
from eagle_core.bench.records import BASELINE
from eagle_core.row_costs import UNFIT, RowCosts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of a middle brightness, so that they show on white and on black; told apart by markers, too.
COLOURS = ("#7d8590", "#2f81f7", "#d97706", "#16a34a", "#a855f7", "#db2777", "#0891b2", "#b45309",
           "#dc2626", "#65a30d")  # fmt: skip
MARKERS = "osD^vPXd<>"
PARTS = {"draft": "#d97706", "target": "#2f81f7", "host": "#7d8590"}
INK = "#010203"  # stands for the page's own text colour
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, what it is of, and its content in words."""

    title: str
    svg: str
    alt: str


class _Canvas:
    """One figure that becomes SVG."""

    def __init__(self, width: float, height: float) -> None:
        # The canvas is made here, not by pyplot: no display is needed.
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(self.figure)
        self.axes: Axes = self.figure.add_subplot()

    def svg(self, key: str) -> str:
        """The drawing; ``key`` makes its ids unique within a page."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", metadata={"Date": None})
        return tidy(out.getvalue(), key)


@contextmanager
def drawing(width: float, height: float, key: str) -> Iterator[_Canvas]:
    """A canvas with the report's style."""
    import matplotlib

    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": key}):
        yield _Canvas(width, height)


def tidy(svg: str, key: str) -> str:
    """SVG for a page: from the <svg> tag on, scaled by the page, in its text colour, ids made unique."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>',
                 r'<svg xmlns="http://www.w3.org/2000/svg" '
                 r'xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="\1" aria-hidden="true">',
                 svg, count=1)  # fmt: skip
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font: \1 system-ui, sans-serif", svg)
    return svg.replace(INK, "currentColor").strip()


def colour_of(found: Findings, method: str) -> str:
    """The same colour for a method in all charts of a run."""
    return COLOURS[found.methods.index(method) % len(COLOURS)]


def marker_of(found: Findings, method: str) -> str:
    """The same marker for a method in all charts of a run."""
    return MARKERS[found.methods.index(method) % len(MARKERS)]


def overall(found: Findings, key: str) -> Chart | None:
    """Tokens per second of all methods, with intervals and the bandwidth bound of plain decoding."""
    shown = {name: one for name in found.methods if (one := found.rates[ALL][name]) is not None}
    if not shown:
        return None
    names = list(shown)
    bound = found.summary["bandwidth_bound_tok_s"]
    with drawing(8, 0.9 + 0.36 * len(names), key) as canvas:
        axes = canvas.axes
        values = [shown[name]["value"] for name in names]
        axes.barh(names, values, color=[colour_of(found, name) for name in names], height=0.62,
                  xerr=_whiskers(list(shown.values())), error_kw={"ecolor": INK, "capsize": 2.5,
                                                                  "elinewidth": 1})  # fmt: skip
        for place, one in enumerate(shown.values()):
            axes.annotate(f" {one['value']:.1f}", (one["high"] or one["value"], place),
                          va="center", xytext=(3, 0), textcoords="offset points")  # fmt: skip
        axes.set_yticks(range(len(names)), [title_of(name) for name in names])
        axes.invert_yaxis()
        axes.margins(x=0.09)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("decoded tokens per second, 95% interval over questions")
        plain = shown[BASELINE]["value"] if BASELINE in shown else 0.0
        # Where plain decoding is beyond it, the file counts other bytes than are read: no bound.
        if bound is not None and plain <= bound < 2 * max(values):
            axes.axvline(bound, color=INK, linestyle=":", linewidth=1)
            axes.annotate("memory bound of plain decoding ", (bound, -0.5), ha="right", va="bottom",
                          fontsize=8, annotation_clip=False)  # fmt: skip
        svg = canvas.svg(key)
    said = [f"{title_of(name)} {_with_interval(one, 1)}" for name, one in shown.items()]
    return Chart(
        "Tokens per second, all questions", svg, "Decoded tokens per second: " + _list(said)
    )


def by_group(found: Findings, key: str) -> Chart | None:
    """Tokens per second by category, as a point and a whisker for each method."""
    if not any(one is not None for one in found.rates[ALL].values()):
        return None
    n_methods = len(found.methods)
    with drawing(8, 1.2 + len(found.groups) * (0.22 + 0.11 * n_methods), key) as canvas:
        axes = canvas.axes
        for index, name in enumerate(found.methods):
            offset = 0.7 * ((index + 0.5) / n_methods - 0.5)
            points = [
                (one, place + offset)
                for place, group in enumerate(found.groups)
                if (one := found.rates[group][name]) is not None
            ]
            axes.errorbar(
                [one["value"] for one, _ in points], [place for _, place in points],
                xerr=_whiskers([one for one, _ in points]), fmt=marker_of(found, name),
                color=colour_of(found, name), markersize=4.5, capsize=2, linewidth=1,
                label=title_of(name),
            )  # fmt: skip
        for place in range(1, len(found.groups)):
            axes.axhline(place - 0.5, color=INK, alpha=0.15, linewidth=0.8)
        axes.set_yticks(range(len(found.groups)), found.groups)
        axes.set_ylim(len(found.groups) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
        axes.set_xlabel("decoded tokens per second, 95% interval over questions")
        _legend(canvas, n_methods)
        svg = canvas.svg(key)
    said = [
        f"{group}: "
        + _list([f"{title_of(n)} {_number(one)}" for n, one in found.rates[group].items()], ", ")
        for group in found.groups
    ]
    return Chart("Tokens per second by category", svg, _list(said))


def taus(found: Findings, key: str) -> Chart | None:
    """Tokens per forward (tau) by category, for the methods that draft."""
    names = [name for name in found.methods if (found.taus[ALL][name] or 1.0) > 1.0]
    if not names:
        return None
    width = 0.8 / len(names)
    with drawing(8, 3.2, key) as canvas:
        axes = canvas.axes
        for index, name in enumerate(names):
            left = [x + (index - (len(names) - 1) / 2) * width for x in range(len(found.groups))]
            heights = [found.taus[group][name] or 0.0 for group in found.groups]
            axes.bar(left, heights, width, color=colour_of(found, name), label=title_of(name))
        axes.axhline(1.0, color=INK, linestyle=":", linewidth=1)
        axes.set_xticks(range(len(found.groups)), found.groups, rotation=20, ha="right")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("tau: tokens per forward")
        _legend(canvas, len(names))
        svg = canvas.svg(key)
    said = [
        f"{title_of(name)}: "
        + _list(
            [f"{g} {found.taus[g][name]:.2f}" for g in found.groups if found.taus[g][name]], ", "
        )
        for name in names
    ]
    return Chart("Tokens per forward of the model (tau; plain decoding: 1)", svg, _list(said))


def split(found: Findings, key: str) -> Chart | None:
    """Where the time of a step goes."""
    if not found.split:
        return None
    names = list(found.split)
    with drawing(8, 1.1 + 0.36 * len(names), key) as canvas:
        axes = canvas.axes
        left = [0.0] * len(names)
        for part, colour in PARTS.items():
            widths = [found.split[name][part] for name in names]
            axes.barh(range(len(names)), widths, left=left, color=colour, height=0.62, label=part)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(names)), [title_of(name) for name in names])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("milliseconds of a mean step")
        _legend(canvas, len(PARTS))
        svg = canvas.svg(key)
    said = [
        f"{title_of(name)}: " + _list([f"{p} {parts[p]:.1f} ms" for p in PARTS], ", ")
        for name, parts in found.split.items()
    ]
    return Chart(
        "Time of a step: draft, target (the forward that verifies), host (all the rest)", svg, _list(said)
    )  # fmt: skip


def acceptance(found: Findings, key: str) -> Chart | None:
    """How often a drafted token of each depth was kept."""
    series = {
        name: [(depth + 1.0, 100 * share) for depth, share in enumerate(shares)]
        for name, shares in found.acceptance.items()
    }
    alt = [
        f"{title_of(name)}: " + ", ".join(f"{y:.0f}%" for _, y in points)
        for name, points in series.items()
    ]
    return _lines(
        found, key, series, "Acceptance by depth of the draft", "depth", "kept, % of steps so deep",
        "By depth 1, 2, ...: " + _list(alt),
    )  # fmt: skip


def ratios(found: Findings, key: str) -> Chart | None:
    """Every question's speed-up, sorted: how many questions gain, and how much."""
    series = {
        name: [(100 * (i + 0.5) / len(values), value) for i, value in enumerate(values)]
        for name, values in found.ratios.items()
    }
    alt = [
        f"{title_of(name)}: lowest {v[0]:.2f}, median {v[len(v) // 2]:.2f}, highest {v[-1]:.2f}, "
        f"{sum(one < 0.97 for one in v)} of {len(v)} questions more than 3% slower"
        for name, v in found.ratios.items()
    ]
    return _lines(
        found, key, series, "Speed-up over plain decoding, question by question",
        "questions, sorted, %", "times plain decoding", _list(alt), level=1.0, has_markers=False,
    )  # fmt: skip


def row_costs(found: Findings, key: str) -> Chart | None:
    """What a forward takes by its rows, as it was measured before the first question."""
    try:
        costs = RowCosts.read(found.header.get("row_costs"))
    except UNFIT:  # on accelerators; of other versions
        return None
    series = [
        (n, seconds / costs.seconds[0])
        for n, seconds in zip(costs.rows, costs.seconds, strict=True)
    ]
    with drawing(8, 3.2, key) as canvas:
        axes = canvas.axes
        axes.plot(*zip(*series, strict=True), color=COLOURS[1], marker="o", markersize=4.5)
        axes.axhline(1.0, color=INK, linestyle=":", linewidth=1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("rows: the pending token and drafted ones")
        axes.set_ylabel("times a forward of one row")
        svg = canvas.svg(key)
    alt = (
        f"One row: {1000 * costs.seconds[0]:.1f} ms. Times that for more rows: "
        + ", ".join(f"{times:.2f} for {n}" for n, times in series[1:])
        + f". A level of the head: {1000 * costs.level_s:.1f} ms. Forwards beside the head's take "
        f"{costs.crowding:.2f} times as long."
    )
    return Chart("What a forward costs", svg, alt)


def by_answer(found: Findings, key: str) -> Chart | None:
    """Rate against the length of the answer."""
    return _by_length(found, key, found.by_answer, "answer")


def by_prompt(found: Findings, key: str) -> Chart | None:
    """Rate against the length of the prompt."""
    return _by_length(found, key, found.by_prompt, "prompt")


def _by_length(
    found: Findings, key: str, series: dict[str, list[tuple[float, float]]], what: str
) -> Chart | None:
    alt = [
        f"{title_of(name)}: " + ", ".join(f"{y:.0f} at {x:.0f}" for x, y in points)
        for name, points in series.items()
        if points
    ]
    return _lines(
        found, key, {name: points for name, points in series.items() if points},
        f"Speed against the length of the {what}", f"tokens of the {what} (medians of groups)",
        "tokens per second", "Tokens per second at tokens: " + _list(alt),
    )  # fmt: skip


def _lines(
    found: Findings,
    key: str,
    series: dict[str, list[tuple[float, float]]],
    title: str,
    x_label: str,
    y_label: str,
    alt: str,
    *,
    level: float | None = None,
    has_markers: bool = True,
) -> Chart | None:
    if not any(series.values()):
        return None
    with drawing(8, 3.2, key) as canvas:
        axes = canvas.axes
        for name, points in series.items():
            axes.plot(
                [x for x, _ in points], [y for _, y in points], label=title_of(name),
                color=colour_of(found, name), linewidth=1.6,
                marker=marker_of(found, name) if has_markers else None, markersize=4.5,
            )  # fmt: skip
        if level is not None:
            axes.axhline(level, color=INK, linestyle=":", linewidth=1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        _legend(canvas, len(series))
        svg = canvas.svg(key)
    return Chart(title, svg, alt)


def _legend(canvas: _Canvas, n_entries: int) -> None:
    handles, labels = canvas.axes.get_legend_handles_labels()
    canvas.figure.legend(
        handles, labels, loc="outside upper left", ncols=min(n_entries, 3), fontsize=9
    )


def _whiskers(figures: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Lengths below and above each value."""
    return [
        [
            one["value"] - (one["low"] if one["low"] is not None else one["value"])
            for one in figures
        ],
        [
            (one["high"] if one["high"] is not None else one["value"]) - one["value"]
            for one in figures
        ],
    ]


def _number(figure: dict[str, Any] | None) -> str:
    return "nothing" if figure is None else f"{figure['value']:.1f}"


def _with_interval(figure: dict[str, Any], n_digits: int) -> str:
    text = f"{figure['value']:.{n_digits}f}"
    if figure["low"] is None:
        return text
    return f"{text} ({figure['low']:.{n_digits}f} to {figure['high']:.{n_digits}f})"


def _list(parts: Sequence[str], between: str = "; ") -> str:
    return between.join(parts)


DRAWERS = (overall, by_group, ratios, taus, acceptance, split, row_costs, by_answer, by_prompt)


def draw_all(found: Findings, key: str) -> list[Chart]:
    """All charts of a run that have something to show; ``key`` tells runs on one page apart."""
    charts = (draw(found, f"{key}-{draw.__name__}") for draw in DRAWERS)
    return [chart for chart in charts if chart is not None]


__all__ = ["Chart", "draw_all", "tidy"]
