"""Settings that the browser keeps, without a browser."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import gradio as gr
import pytest

from eagle_core.ui import presets
from eagle_core.ui.controls import NAMES, Panel, build_controls, default_values
from eagle_core.ui.kept_settings import changed, restored
from tests.support.chat_page import DEFAULTS, Page
from tests.support.chat_page import changed as with_value

TEMPERATURE = 1


def test_the_defaults_are_what_the_panel_shows() -> None:
    async def build() -> Panel:
        with gr.Blocks():
            return build_controls()

    panel = asyncio.run(build())
    assert [control.value for control in panel.controls] == list(default_values().values())
    assert tuple(default_values().values()) == DEFAULTS
    assert list(panel.by_name) == list(NAMES)


def test_what_differs_from_the_defaults_is_kept_and_comes_back() -> None:
    assert changed(DEFAULTS) == {}
    values = with_value(TEMPERATURE, 0.7)
    kept = json.loads(json.dumps(changed(values)))
    assert kept == {"temperature": 0.7}
    assert tuple(restored(kept).values()) == values


@pytest.mark.parametrize(
    "stored",
    [
        {"temperature": 99}, {"temperature": "<b>"}, {"temperature": True}, {"drafting": 1},
        {"policy": "none such"}, {"system_prompt": ["x"]}, {"unknown": 1}, {"shape": "0 x"},
        {"seed": None}, {"stop": 3}, {"temperature": float("nan")}, {"logit_bias": "7:9e99"},
    ],
)  # fmt: skip
def test_what_is_not_valid_stays_at_its_default(stored: dict[str, Any]) -> None:
    assert restored({**stored, "top_k": 40}) == {**default_values(), "top_k": 40}


def test_the_page_hands_settings_out_and_takes_them_back(page: Page) -> None:
    values = with_value(TEMPERATURE, 0.7)
    assert page.act("measure", values=values).state["settings"] == {"temperature": 0.7}
    wrong = page.act("measure", values=with_value(TEMPERATURE, 99))
    assert wrong.state["settings"] is None
    stored = {"temperature": 0.7, "system_prompt": "Arr."}
    *back, name = page.actions.restore(gr.EventData(None, {"settings": stored, "preset": "Mine"}))
    assert dict(zip(NAMES, back, strict=True)) == {**default_values(), **stored}
    assert name == "Mine"
    *back, name = page.actions.restore(gr.EventData(None, {"settings": stored, "chat": "1"}))
    assert dict(zip(NAMES, back, strict=True))["system_prompt"] == gr.skip()  # the chat has its own
    assert name == gr.skip()
    *back, _ = page.actions.restore(gr.EventData(None, {"settings": "x"}))
    assert tuple(back) == DEFAULTS
    assert page.actions.reset() == (*DEFAULTS, presets.NO_PRESET)
