"""The Compare page: set-ups answer the same prompts one after the other, then the race is replayed.

While they run the page draws almost nothing, because drawing would slow what is measured.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

import gradio as gr

from eagle_core.assets import asset_path
from eagle_core.bench.prompts import load_questions
from eagle_core.compare import Race, Setup
from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.errors import ConfigError, EagleError
from eagle_core.transcript import Transcript
from eagle_core.ui import render
from eagle_core.ui.backend import ChatSession, SessionSlot, races_of
from eagle_core.ui.controls import make_control, specs
from eagle_core.ui.frames import error_notice
from eagle_core.ui.races import DRAFTERS, races_data, report_html

logger = logging.getLogger(__name__)

POLL_S = 0.5
MAX_OPEN_REQUESTS = 32
N_SETUPS = 3
NOTHING = "off"
FIRST_DRAFTERS = ("none", "eagle", NOTHING)
SHARED_FIELDS = ("temperature", "seed", "max_new_tokens")
TREE_FIELDS = ("policy", "depth", "branching", "size", "lookup")
LONGEST = 256  # tokens of an answer at first: a race of a few seconds
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
ON_RACE = """
document.body.dataset.page = 'compare';
const show = () => window.eagleRace.mount(element.querySelector('.race-place'), props.value);
watch('value', show);
show();
"""
ON_TOP = "window.eaglePage.bar(element);"


class Runner:
    """Runs races in a thread of its own; its attributes may be read at any time."""

    def __init__(
        self, session: ChatSession, prompts: Sequence[str], setups: Sequence[Setup]
    ) -> None:
        self.cancel = threading.Event()
        self.races: tuple[Race, ...] = ()
        self.error: EagleError | None = None
        self.place, self.transcript = 0, Transcript()
        self._session, self._prompts, self._setups = session, prompts, setups
        # A shared GPU is asked for in the name of the visitor whose request this is.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="race", daemon=True
        )

    def start(self) -> None:
        """Start."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether all is over, or stopped, or failed."""
        return not self._thread.is_alive()

    def status(self) -> str:
        """What is going on, as a line of the page."""
        name = self._setups[self.place].name
        n_tokens, rate = len(self.transcript.tokens), self.transcript.now_tok_s
        prompt = (
            f"prompt {len(self.races) + 1} of {len(self._prompts)}, "
            if len(self._prompts) > 1
            else ""
        )
        text = f"Measuring: {prompt}{name}, {n_tokens} tokens"
        return render.status_line("live", text, f"{render.number(rate)} tok/s" if rate else "")

    def _run(self) -> None:
        try:
            for race in races_of(
                self._session, self._prompts, self._setups, self.cancel, self._on_progress
            ):
                self.races = (*self.races, race)
        except EagleError as error:
            self.error = error
        except Exception:  # the page must say that it failed
            logger.exception("a comparison failed")
            self.error = EagleError(
                "the comparison failed", hint="try again; the log has the details"
            )

    def _on_progress(self, _setup: Setup, place: int, transcript: Transcript) -> None:
        self.place, self.transcript = place, transcript


class CompareHandlers:
    """The page's handlers; a tab has one comparison at a time."""

    def __init__(self, slot: SessionSlot) -> None:
        self._slot = slot
        self._runners: dict[str, Runner] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a comparison is running in some tab."""
        return bool(self._runners)

    async def race(self, prompt: str, request: gr.Request, *values: Any) -> AsyncIterator[Any]:
        """Race the set-ups on one prompt."""
        if not prompt.strip():
            yield frame(notice=render.notice_html("info", "Write a prompt first."))
            return
        async for found in self._races([prompt], request, values):
            yield found

    async def examples(self, request: gr.Request, *values: Any) -> AsyncIterator[Any]:
        """Race the set-ups on all example prompts."""
        async for found in self._races(example_prompts(), request, values):
            yield found

    async def stop(self, request: gr.Request) -> None:
        """Stop the tab's comparison; what is complete is shown."""
        runner = self._runners.get(str(request.session_hash))
        if runner is not None:
            runner.cancel.set()

    async def _races(
        self, prompts: Sequence[str], request: gr.Request, values: Sequence[Any]
    ) -> AsyncIterator[Any]:
        tab, session = str(request.session_hash), self._slot.session
        if session is None:
            message = "The model is not loaded yet; try again in a moment."
            yield frame(notice=render.notice_html("info", message))
            return
        if tab in self._runners:
            yield frame(
                notice=render.notice_html("info", "A comparison is running; stop it first.")
            )
            return
        try:
            setups = read_setups(values)
        except ConfigError as error:
            yield frame(notice=error_notice(error))
            return
        runner = self._runners[tab] = Runner(session, prompts, setups)
        try:
            runner.start()
            yield frame(status=runner.status(), notice="", is_running=True)
            while not runner.is_done:
                await asyncio.sleep(POLL_S)
                yield frame(status=runner.status())
            yield await asyncio.to_thread(last_frame, session, runner)
        finally:
            runner.cancel.set()
            del self._runners[tab]


def frame(
    status: Any = None,
    notice: Any = None,
    race: Any = None,
    is_running: bool | None = None,
    saved: Path | None = None,
) -> list[Any]:
    """Values for the page's outputs; what is None stays as it is."""
    skip = gr.skip()
    buttons = [skip] * 3
    if is_running is not None:
        buttons = [gr.update(interactive=not is_running)] * 2 + [gr.update(interactive=is_running)]
    save = skip if saved is None else gr.update(value=str(saved), interactive=True)
    shown = [skip if part is None else part for part in (status, notice, race)]
    return [*shown, *buttons, save]


def last_frame(session: ChatSession, runner: Runner) -> list[Any]:
    """The result, or why there is none."""
    was_stopped = runner.cancel.is_set()
    name = "Stopped" if was_stopped else "Failed" if runner.error else "Done"
    status = render.status_line("done", name, "")
    notice = error_notice(runner.error) if runner.error else ""
    if not runner.races:
        if was_stopped and not notice:
            notice = render.notice_html("info", "Stopped before a race was complete.")
        return frame(status=status, notice=notice, is_running=False)
    data = races_data(session.info, runner.races)
    saved = Path(tempfile.mkdtemp(prefix="eagle-compare-")) / "comparison.html"
    saved.write_text(report_html(data), encoding="utf-8")
    return frame(status=status, notice=notice, race=data, is_running=False, saved=saved)


def read_setups(values: Sequence[Any]) -> list[Setup]:
    """The page's controls as set-ups.

    Raises: ConfigError on a wrong value, or with fewer than two set-ups.
    """
    shared = dict(zip(SHARED_FIELDS, values, strict=False))
    check_given(shared)
    generation = GenerationConfig(**shared)
    n_controls = 2 + len(TREE_FIELDS)
    setups: list[Setup] = []
    for number in range(N_SETUPS):
        start = len(SHARED_FIELDS) + number * n_controls
        drafter, temperature, *tree = values[start : start + n_controls]
        if drafter == NOTHING:
            continue
        own = generation
        if temperature is not None:
            own = dataclasses.replace(generation, temperature=temperature)
        given = dict(zip(TREE_FIELDS, tree, strict=True))
        check_given(given)
        draft = DraftConfig(drafter, TreeConfig(**given))
        setups.append(Setup(DRAFTERS[drafter], draft, own))
    if len(setups) < 2:
        raise ConfigError("one set-up alone is no race", hint="choose at least two set-ups")
    return with_distinct_names(setups)


def check_given(values: dict[str, Any]) -> None:
    """Raises: ConfigError when a field was left empty."""
    for name, value in values.items():
        if value is None:
            raise ConfigError(f"{name} is empty", hint="type a number")


def with_distinct_names(setups: Sequence[Setup]) -> list[Setup]:
    """Set-ups of one name get a letter: EAGLE A, EAGLE B."""
    names = [setup.name for setup in setups]
    found, counts = [], dict[str, int]()
    for setup in setups:
        counts[setup.name] = counts.get(setup.name, 0) + 1
        letter = f" {chr(64 + counts[setup.name])}" if names.count(setup.name) > 1 else ""
        found.append(dataclasses.replace(setup, name=setup.name + letter))
    return found


def example_prompts() -> list[str]:
    """The prompts that ship with the project."""
    return [question.text for question in load_questions(asset_path("compare_prompts.jsonl"))]


def build_compare(slot: SessionSlot, app: gr.Blocks) -> CompareHandlers:
    """Lay out the page inside the current route and wire its events; returns its handlers."""
    handlers = CompareHandlers(slot)
    with gr.Column(elem_id="compare"):
        gr.HTML(html_template=top(), js_on_load=ON_TOP, apply_default_css=False)
        prompt = gr.Textbox(
            label="Prompt", value=example_prompts()[0], lines=2, max_lines=10, elem_id="race-prompt"
        )
        controls = build_setups()
        with gr.Row(elem_classes="go"):
            go = gr.Button("Race", variant="primary", elem_id="race-go")
            batch = gr.Button("Race all examples", elem_id="race-batch")
            stop = gr.Button("Stop", interactive=False, elem_id="race-stop")
            save = gr.DownloadButton(
                "Save as one HTML file", interactive=False, elem_id="race-save"
            )
        status = gr.HTML(render.status_line("idle", "Ready", ""), elem_id="race-status")
        notice = gr.HTML("", elem_id="race-notice")
        race = gr.HTML(
            {}, html_template='<div class="race-place"></div>', js_on_load=ON_RACE,
            apply_default_css=False, elem_id="race",
        )  # fmt: skip
    long: dict[str, Any] = {
        "outputs": [status, notice, race, go, batch, stop, save], "concurrency_id": "answers",
        "concurrency_limit": MAX_OPEN_REQUESTS, **PRIVATE,
    }  # fmt: skip
    go.click(handlers.race, [prompt, *controls], **long)
    batch.click(handlers.examples, controls, **long)
    stop.click(handlers.stop, queue=False, **PRIVATE)
    app.unload(handlers.stop)
    return handlers


def build_setups() -> list[Any]:
    """Controls for what all set-ups share, then for each of them."""
    generation, tree = specs(GenerationConfig), specs(TreeConfig)
    with gr.Row():
        shared = [renamed(make_control(generation[name]), f"race-{name}") for name in SHARED_FIELDS]
    shared[SHARED_FIELDS.index("max_new_tokens")].value = LONGEST
    controls = [*shared]
    with gr.Row(elem_classes="setups"):
        for number, first in enumerate(FIRST_DRAFTERS):
            choices = [(label, name) for name, label in DRAFTERS.items()]
            if number >= 2:
                choices.append(("Nothing", NOTHING))
            with gr.Column(elem_classes="setup"):
                gr.HTML(f"<h3>Set-up {number + 1}</h3>", apply_default_css=False)
                drafter = gr.Dropdown(
                    choices, value=first, label="Drafting", elem_id=f"race-drafter-{number}"
                )
                with gr.Accordion("Tree and temperature", open=False):
                    temperature = gr.Number(
                        value=None, label="Temperature", info="Empty: the one above.", minimum=0, maximum=5,
                        step=0.05, elem_id=f"race-temperature-{number}",
                    )  # fmt: skip
                    own = [
                        renamed(make_control(tree[name]), f"race-{name}-{number}")
                        for name in TREE_FIELDS
                    ]
            controls += [drafter, temperature, *own]
    return controls


def renamed(control: Any, elem_id: str) -> Any:
    """A control with an id of its own on the page."""
    control.elem_id = elem_id.replace("_", "-")
    return control


def top() -> str:
    """The title, and the way back."""
    return (
        '<div class="compare-top"><h1>EAGLE chat</h1><nav class="segmented" aria-label="Pages">'
        '<a href="./">Chat</a><a href="compare" aria-current="page">Compare</a>'
        '<a href="models">Models</a></nav>'
        "<span>The same prompt, one set-up after the other; then both on one clock.</span>"
        '<div class="bar"><button type="button" data-theme aria-label="Light or dark" '
        'title="Light or dark"></button></div></div>'
    )


__all__ = ["CompareHandlers", "Runner", "build_compare", "read_setups"]
