"""The choice of precisions on the Models page: what each means, which is recommended, which is in use."""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle_core.catalog import Precision
from eagle_core.config import DEFAULT_BASE
from eagle_core.fit import Machine
from eagle_core.overview import Row, precisions_for
from eagle_core.precision import INT8_SPEEDUP, meaning

AUTO = "auto"
INFO = "Check, or a card's own button, shows what fits."


def precision_choice(row: Row, machine: Machine, in_use: str | None = None) -> Any:
    """The precisions of a pair, the recommended one chosen.

    Args: in_use: the one that the pair is in use in, if it is.
    """
    best = row.fit.precision if row.fit is not None else None
    offered = precisions_for(row.entry, machine)
    is_measured = row.entry.name == DEFAULT_BASE

    def label(one: Precision) -> str:
        marks = [
            meaning(one, machine.device, is_measured),
            "recommended" if one == best else "",
            "in use" if one == in_use else "",
        ]
        return f"{one} ({'; '.join(mark for mark in marks if mark)})"

    info = INFO
    if machine.device == "cpu" and {"float32", "int8"} <= {*offered}:
        info = f"On a CPU int8 decodes the default model {INT8_SPEEDUP} times as fast as float32."
    choices = [("Automatic", AUTO), *((label(one), one) for one in offered)]
    return gr.update(choices=choices, value=best or AUTO, info=info)


__all__ = ["AUTO", "INFO", "precision_choice"]
