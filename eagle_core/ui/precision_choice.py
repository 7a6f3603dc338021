"""The choice of precisions on the Models page."""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle_core.fit import SLOW_ON_CPU, Machine
from eagle_core.overview import Row, precisions_for

AUTO = "auto"


def precision_choice(row: Row, machine: Machine) -> Any:
    """The precisions of a pair, the recommended one chosen."""
    best = row.fit.precision if row.fit is not None else None
    notes = dict.fromkeys(SLOW_ON_CPU if machine.device == "cpu" else (), "saves memory, not time")
    notes |= {best: "recommended"} if best is not None else {}
    choices = [
        (f"{one} ({notes[one]})" if one in notes else one, one)
        for one in precisions_for(row.entry, machine)
    ]
    return gr.update(choices=[("Automatic", AUTO), *choices], value=best or AUTO)


__all__ = ["AUTO", "precision_choice"]
