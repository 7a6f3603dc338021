"""Number fields that take whatever is typed.

Gradio refuses a wrong number before a handler runs: the request fails, and nobody learns why. Here it reaches
the handler, so that the check of the settings names the field and its limits.
"""

from __future__ import annotations

import math
from typing import Any

import gradio as gr


class TypedBlocks(gr.Blocks):
    """Blocks whose number fields and sliders hand on what was typed; None for nothing or no number."""

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], state: Any, explicit_call: bool = False
    ) -> list[Any]:
        """As Gradio does, without its check of limits."""
        harmless = list(inputs)
        typed: dict[int, float | int | None] = {}
        for i, block in enumerate(block_fn.inputs[: len(inputs)]):
            if isinstance(block, (gr.Number, gr.Slider)):
                typed[i] = harmless[i] = typed_number(inputs[i], block.precision)
                if not is_within(typed[i], block):
                    harmless[i] = block.minimum if isinstance(block, gr.Slider) else None
        found = await super().preprocess_data(block_fn, harmless, state, explicit_call)
        return [typed.get(i, value) for i, value in enumerate(found)]


def is_within(value: float | None, block: gr.Number | gr.Slider) -> bool:
    """Whether Gradio lets the number pass."""
    low, high = block.minimum, block.maximum
    return value is not None and (low is None or low <= value) and (high is None or value <= high)


def typed_number(payload: Any, precision: int | None) -> float | int | None:
    """What a browser sends for a number field as a number, rounded as the field says."""
    if isinstance(payload, bool) or not isinstance(payload, (int, float, str)):
        return None
    try:
        value = payload if isinstance(payload, int) else float(payload)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return gr.Number.round_to_precision(value, precision)


__all__ = ["TypedBlocks", "typed_number"]
