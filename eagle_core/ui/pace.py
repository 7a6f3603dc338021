"""How often the page is drawn, and what a frame costs: the model may share the processor with the page."""

from __future__ import annotations

import copy
from typing import Any

import gradio as gr

FASTEST_S = 1 / 13
SLOWEST_S = 1 / 4
# Share of the time that frames may take. The rest belongs to the model.
FRAME_SHARE = 0.15
SMOOTHING = 0.3


class Pace:
    """Says when the next frame is due: the longer frames take, the fewer there are.

    Example: frames that take 30 ms come every 200 ms, frames that take 5 ms thirteen times a second.
    """

    def __init__(self) -> None:
        self._cost_s = 0.0

    def next_s(self, frame_s: float) -> float:
        """Seconds to wait after a frame that took ``frame_s``."""
        self._cost_s += SMOOTHING * (frame_s - self._cost_s)
        return min(max(self._cost_s / FRAME_SHARE, FASTEST_S), SLOWEST_S)


class QuietBlocks(gr.Blocks):
    """Blocks for which a skipped output costs nothing.

    Gradio builds a skipped component anew on every frame (about a millisecond each); a stream that touches
    two outputs of nine would spend most of its frame there.
    """

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: Any) -> list[Any]:
        """As Gradio does, for the outputs that change."""
        if not isinstance(predictions, list) or len(predictions) != len(block_fn.outputs):
            return await super().postprocess_data(block_fn, predictions, state)
        changed = [i for i, value in enumerate(predictions) if not is_skip(value)]
        if len(block_fn.outputs) < 2 or len(changed) == len(predictions):
            return await super().postprocess_data(block_fn, predictions, state)
        fewer = copy.copy(block_fn)
        fewer.outputs = [block_fn.outputs[i] for i in changed]
        values: list[Any] = [predictions[i] for i in changed]
        given = values[0] if len(values) == 1 and not block_fn.batch else values
        found = await super().postprocess_data(fewer, given, state) if values else []
        results: list[Any] = [gr.skip() for _ in predictions]
        for i, value in zip(changed, found, strict=True):
            results[i] = value
        return results


def is_skip(value: Any) -> bool:
    """Whether a handler left an output as it is."""
    return isinstance(value, dict) and value == gr.skip()


__all__ = ["Pace", "QuietBlocks"]
