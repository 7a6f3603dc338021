"""A training run as a picture: losses, and held-out acceptance per depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle_core.train.config import FitConfig

SMOOTHING = 20


def write_training_plot(history: list[dict[str, Any]], path: Path, config: FitConfig) -> None:
    """Write a PNG. ``history`` holds one TrainStep as a dict for each optimiser step."""
    # The canvas is made here, not by pyplot: no global state, and no display is needed.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in history]
    for key, label, colour in (
        ("token_loss", "soft cross-entropy", "#2563eb"),
        ("feature_loss", "SmoothL1 on features", "#d97706"),
    ):
        losses = [row[key] for row in history]
        if any(losses):  # an EAGLE-3 head has no loss on features
            left.plot(steps, _smooth(losses), label=label, color=colour)
    left.set_yscale("log")
    left.set_xlabel(f"optimiser step ({config.batch_tokens} tokens each)")
    left.set_ylabel("training loss, first step")
    left.legend(frameon=False)
    measured = [row for row in history if row["acceptance"]]
    for depth in range(max((len(row["acceptance"]) for row in measured), default=0)):
        right.plot(
            [row["step"] for row in measured],
            [row["acceptance"][depth] for row in measured],
            label=f"depth {depth + 1}",
        )
    right.set_xlabel("optimiser step")
    right.set_ylabel("held-out top-1 agreement")
    if measured:
        right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, format="png")


def _smooth(values: list[float]) -> list[float]:
    out = []
    for end in range(1, len(values) + 1):
        window = values[max(0, end - SMOOTHING) : end]
        out.append(sum(window) / len(window))
    return out


__all__ = ["write_training_plot"]
