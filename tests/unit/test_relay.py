"""A model in one precision after another: never two at once, what fits, and what was in use comes back."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle_core import relay
from eagle_core.compare import Prompt, Setup
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
from eagle_core.errors import ModelNotFound, OutOfMemory
from eagle_core.events import LoadProgress
from eagle_core.fit import Machine
from eagle_core.relay import ModelRelay, options, precision_of
from eagle_core.session import Session
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.race_runner import Runner
from tests.support.fake_session import FakeSession
from tests.support.tiny_models import save_llama

GENERATION = GenerationConfig(max_new_tokens=12)
PLAIN = Setup("Plain, float32", DraftConfig("none"), GENERATION)
LOOKUP = Setup("Lookup, bfloat16", DraftConfig("ngram"), GENERATION, "bfloat16")
ROOMY = Machine("cpu", 10**11, 10**11)


class Opener:
    """Opens fake sessions and knows which of them are still there."""

    def __init__(self, base: str = "tests/fake-135M") -> None:
        self.base = base
        self.opened: list[LoadConfig] = []
        self.alive: list[weakref.ref[FakeSession]] = []
        self.fails_for = ""

    def __call__(self, config: LoadConfig, on_event: Callable[[Any], None]) -> Any:
        gc.collect()
        assert [one for one in self.alive if one() is not None] == [], "two models at once"
        self.opened.append(config)
        on_event(LoadProgress("reading the weights"))
        if self.fails_for == config.dtype != "auto":
            raise ModelNotFound("the weights are gone", hint="fetch them again")
        session = FakeSession(default="An answer of some words.", step_s=0.001)
        dtype = "float32" if config.dtype == "auto" else config.dtype
        session.info = dataclasses.replace(session.info, base=self.base, dtype=dtype)
        self.alive.append(weakref.ref(session))
        return session


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(save_llama(tmp_path / "base"))


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """The machine that the relay sees."""
    machines = [ROOMY]
    monkeypatch.setattr(relay, "this_machine", lambda device=None: machines[0])
    return machines


def slot_with(opener: Opener, folder: str) -> SessionSlot:
    slot = SessionSlot()
    slot.config = LoadConfig(base=folder)
    slot.open_in_background(lambda on_event: opener(LoadConfig(base=folder), on_event))
    wait_for(lambda: slot.session is not None)
    return slot


def wait_for(is_true: Callable[[], bool], timeout_s: float = 100.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s, "it takes too long"
        time.sleep(0.01)


def run(slot: SessionSlot, opener: Opener, setups: list[Setup], **options: Any) -> Runner:
    runner = Runner(slot, [Prompt("one"), Prompt("two")], setups, opener, **options)
    runner.start()
    wait_for(lambda: runner.is_done)
    return runner


def test_one_model_after_the_other_and_the_first_comes_back(folder: str) -> None:
    opener = Opener(folder)
    slot = slot_with(opener, folder)
    runner = run(slot, opener, [PLAIN, LOOKUP])
    assert runner.error is None
    assert [config.dtype for config in opener.opened] == ["auto", "bfloat16", "auto"]
    assert opener.opened[1].quantization == "none"
    assert [race.prompt for race in runner.races] == ["one", "two"]
    assert "another model" in runner.races[0].verdicts[0].words
    assert slot.session is not None
    assert slot.session.info.dtype == "float32"
    assert slot.can_lend


def test_what_is_loaded_is_not_touched_without_need(folder: str) -> None:
    opener = Opener(folder)
    slot = slot_with(opener, folder)
    before = slot.session
    runner = run(slot, opener, [PLAIN, dataclasses.replace(LOOKUP, precision="")])
    assert len(runner.races) == 2
    assert slot.session is before
    assert len(opener.opened) == 1


def test_what_does_not_fit_is_said_before_it_is_loaded(folder: str, room: list[Machine]) -> None:
    opener = Opener(folder)
    slot = slot_with(opener, folder)
    room[0] = Machine("cpu", 1_000_000, 1_000_000)
    runner = run(slot, opener, [PLAIN, LOOKUP])
    assert isinstance(runner.error, OutOfMemory)
    assert "bfloat16 the model does not fit: it needs" in runner.error.message
    assert "another precision" in runner.error.hint
    assert runner.races == ()
    assert [config.dtype for config in opener.opened] == ["auto", "auto"]
    assert slot.session is not None


def test_a_model_that_fails_to_load_leaves_the_first_in_use(folder: str) -> None:
    opener = Opener(folder)
    slot = slot_with(opener, folder)
    opener.fails_for = "bfloat16"
    runner = run(slot, opener, [PLAIN, LOOKUP])
    assert isinstance(runner.error, ModelNotFound)
    assert slot.session is not None
    assert slot.session.info.dtype == "float32"


def test_an_answer_in_another_tab_is_waited_for(folder: str) -> None:
    opener = Opener(folder)
    slot = slot_with(opener, folder)
    busy = threading.Event()
    busy.set()
    runner = Runner(slot, [Prompt("one")], [PLAIN, LOOKUP], opener, busy.is_set)
    runner.start()
    wait_for(lambda: "Waiting for the answer" in runner.status())
    assert slot.session is not None
    busy.clear()
    wait_for(lambda: runner.is_done)
    assert len(runner.races) == 1


def test_stopping_while_waiting_changes_nothing(folder: str) -> None:
    opener = Opener(folder)
    slot = slot_with(opener, folder)
    before = slot.session
    runner = Runner(slot, [Prompt("one")], [PLAIN, LOOKUP], opener, lambda: True)
    runner.start()
    wait_for(lambda: "Waiting for the answer" in runner.status())
    runner.cancel.set()
    wait_for(lambda: runner.is_done)
    assert runner.error is None
    assert runner.races == ()
    assert slot.session is before


def test_a_session_that_cannot_be_opened_again_is_not_lent() -> None:
    slot = SessionSlot(FakeSession())  # type: ignore[arg-type]
    assert not slot.can_lend
    runner = run(slot, Opener(), [PLAIN, LOOKUP])
    assert runner.error is not None
    assert "as loaded" in runner.error.hint


def test_the_status_tells_what_is_going_on(folder: str) -> None:
    opener = Opener(folder)
    slot = slot_with(opener, folder)
    runner = Runner(slot, [Prompt("one"), Prompt("two")], [PLAIN, LOOKUP], opener)
    seen: list[str] = []
    relay_event, progress = runner._on_event, runner._on_progress

    def on_event(event: Any) -> None:
        relay_event(event)
        seen.append(runner.status())

    def on_progress(standing: Any) -> None:
        progress(standing)
        seen.append(runner.status())

    runner._on_event, runner._on_progress = on_event, on_progress  # type: ignore[method-assign]
    runner.start()
    wait_for(lambda: runner.is_done)
    text = " ".join(seen)
    assert "Opening the model in bfloat16" in text
    assert "Opening the model that was in use again" in text
    assert "prompt 2 of 2, Lookup, bfloat16" in text
    assert "3 of 4 answers" in text
    assert "left" in text


# ---- with real models --------------------------------------------------------------------------------


def test_options_of_what_is_loaded(folder: str, room: list[Machine]) -> None:
    session = Session.open(LoadConfig(base=folder, dtype="float32", quantization="none"))
    assert precision_of(session.info) == "float32"
    found = options(LoadConfig(base=folder), session.info)
    assert [one.precision for one in found] == ["bfloat16", "int8", "nf4"]
    assert all(one.fit is not None and one.fit.verdict != "too-large" for one in found)
    room[0] = Machine("cpu", 1_000_000, 1_000_000)
    assert options(LoadConfig(base=folder), session.info) == ()
    assert options(LoadConfig(base=folder, device="split"), session.info) == ()


def test_a_race_of_two_precisions_of_a_real_model(folder: str) -> None:
    config = LoadConfig(base=folder, dtype="float32", quantization="none", chat_template="plain")
    slot = SessionSlot()
    slot.config = config
    slot.open_in_background(lambda on_event: Session.open(config, on_event))
    wait_for(lambda: slot.session is not None)
    let_go = weakref.ref(slot.session)  # type: ignore[arg-type]
    runner = Runner(slot, [Prompt("some words")], [PLAIN, LOOKUP], Session.open)
    runner.start()
    wait_for(lambda: runner.is_done)
    assert runner.error is None
    gc.collect()
    assert let_go() is None
    (race,) = runner.races
    assert all(len(lane.token_ids) == 12 for lane in race.lanes)
    assert slot.session is not None
    assert slot.session.info.dtype == "float32"


def test_nothing_is_brought_back_that_was_not_let_go(folder: str) -> None:
    held, calls = FakeSession(), list[str]()
    stage = ModelRelay(
        held, LoadConfig(base=folder), Opener(), lambda: calls.append("go"),
        lambda: calls.append("back"), lambda event: None,
    )  # type: ignore[arg-type]  # fmt: skip
    assert stage.take("") is held
    stage.close()
    assert calls == []
