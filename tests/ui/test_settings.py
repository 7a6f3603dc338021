"""The settings panel without a browser."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.errors import ConfigError
from eagle_core.history import SqliteHistory
from eagle_core.ui import controls
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.controls import read_settings
from eagle_core.ui.handlers import Handlers
from eagle_core.ui.pace import QuietBlocks
from eagle_core.ui.rooms import Rooms
from tests.support.chat_page import ADVANCED, DEFAULTS, run
from tests.support.fake_session import FakeSession


def test_settings_default_to_the_configs() -> None:
    settings = read_settings(DEFAULTS)
    assert settings.generation == GenerationConfig()
    assert settings.draft == DraftConfig()
    assert settings.system_prompt == ""


def test_settings_are_read() -> None:
    shown = (False, 0.7, 0.9, 3, 64, "Be brief.", "static", 2, 3, 9, 5, "0 1 00", *ADVANCED, "stop")
    settings = read_settings(shown)
    assert settings.generation == GenerationConfig(64, 0.7, 0.9, 3)
    assert settings.draft == DraftConfig(
        "none", TreeConfig("static", 2, 3, 9, ((0,), (1,), (0, 0)), 5)
    )
    assert settings.system_prompt == "Be brief."
    assert settings.overflow == "stop"


def test_advanced_settings_are_read() -> None:
    advanced = (40, 0.05, 1.2, 0.5, -0.5, 8, "7:-5 3:2.5", "END\n\\n\\n\n", "sampling", True)
    assert read_settings((*DEFAULTS[:-11], *advanced, "drop")).generation == GenerationConfig(
        top_k=40, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.5,
        min_new_tokens=8, logit_bias={7: -5, 3: 2.5}, stop=("END", "\n\n"), rule="sampling",
        with_replacement=True,
    )  # fmt: skip


def test_every_answer_setting_has_a_control() -> None:
    fields = {*controls.GENERATION_FIELDS, *controls.ADVANCED_FIELDS}
    specs = controls.specs(GenerationConfig)
    assert fields == set(specs)
    made = {name: controls.make_control(specs[name]) for name in controls.ADVANCED_FIELDS}
    assert [control.value for control in made.values()] == list(ADVANCED)
    assert all(control.label and control.info for control in made.values())


@pytest.mark.parametrize(
    ("position", "value", "word"),
    [(12, -1, "Top-k"), (15, None, "Presence"), (18, "7", "logit_bias"),
     (1, 9.0, "Temperature"), (3, None, "Seed"), (4, 0, "out of range"),
     (4, -5, "1 to 1000000"), (11, "0 x1", "x1"),
     (11, "0 11", "no parent")],
)  # fmt: skip
def test_wrong_settings_name_themselves(position: int, value: object, word: str) -> None:
    values = [*DEFAULTS]
    values[position] = value  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=word):
        read_settings(values)


@pytest.mark.parametrize(
    ("payload", "typed"),
    [(None, None), ("", None), ("x", None), (float("nan"), None), (True, None), (-5, -5), ("7", 7), (2.6, 3)],
)  # fmt: skip
def test_a_field_takes_what_is_typed(payload: object, typed: object) -> None:
    async def scenario() -> list[Any]:
        with QuietBlocks() as app:
            seed = controls.make_control(controls.specs(GenerationConfig)["seed"])
            depth = controls.make_control(controls.specs(TreeConfig)["depth"])
            gr.Button().click(lambda *_: None, [seed, gr.Textbox(), depth])
        (block_fn,) = app.fns.values()
        return await app.preprocess_data(block_fn, [payload, "x", payload], SessionState(app))

    assert asyncio.run(scenario()) == [typed, "x", typed]


def test_a_wrong_number_is_a_notice() -> None:
    session = FakeSession()
    handlers = Handlers(SessionSlot(session), Rooms(lambda: SqliteHistory(None)))  # type: ignore[arg-type]
    values = (*DEFAULTS[:4], -5, *DEFAULTS[5:])
    request: Any = SimpleNamespace(session_hash="a")
    (updates,) = run(handlers.send("hi", request, *values))
    assert "Longest answer is out of range (expected 1 to 1000000; got -5)" in str(updates)
    assert session.seen == []
