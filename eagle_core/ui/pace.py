"""How often the page is drawn, and what a frame costs: the model may share the processor with the page."""

from __future__ import annotations

import copy
import secrets
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from eagle_core.ui.fields import TypedBlocks

FASTEST_S = 1 / 13
SLOWEST_S = 1 / 4
# Share of the time that frames may take. The rest belongs to the model.
FRAME_SHARE = 0.15
SMOOTHING = 0.3
# A page that says that it lags gets its frames less often, and slowly more often again.
LAG_FACTOR = 1.6
MAX_LAG_FACTOR = 8.0
RECOVERY = 0.97


class Pace:
    """Says when an answer's next frame is due: the longer frames take, here or in the browser, the fewer.

    Example: frames that take 30 ms come every 200 ms, frames that take 5 ms thirteen times a second.
    """

    def __init__(self) -> None:
        self.key = secrets.token_hex(8)
        self._cost_s = 0.0
        self._factor = 1.0

    def next_s(self, frame_s: float) -> float:
        """Seconds to wait after a frame that took ``frame_s``."""
        self._cost_s += SMOOTHING * (frame_s - self._cost_s)
        wait_s = min(max(self._cost_s / FRAME_SHARE, FASTEST_S), SLOWEST_S) * self._factor
        self._factor = max(1.0, RECOVERY * self._factor)
        return wait_s

    def slow_down(self) -> None:
        """The browser draws later than frames come."""
        self._factor = min(MAX_LAG_FACTOR, LAG_FACTOR * self._factor)


class Paces:
    """The paces of the answers in progress, by a key that only their pages know."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def new(self) -> Pace:
        """The pace of a new answer."""
        pace = Pace()
        self._paces[pace.key] = pace
        return pace

    def drop(self, pace: Pace) -> None:
        """The answer is over."""
        self._paces.pop(pace.key, None)

    def route(self) -> Route:
        """Where a page says that it lags."""
        return Route("/eagle/lag/{key}", self._lag, methods=["POST"])

    async def _lag(self, request: Request) -> Response:
        pace = self._paces.get(request.path_params["key"])
        if pace is not None:
            pace.slow_down()
        return Response(status_code=204)


class QuietBlocks(TypedBlocks):
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


__all__ = ["Pace", "Paces", "QuietBlocks"]
