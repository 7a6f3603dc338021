"""The Compare page: set-ups answer the same prompts one after the other, then the race is replayed.

While they run the page draws almost nothing, because drawing would slow what is measured.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gradio as gr

from eagle_core.assets import asset_path
from eagle_core.bench.prompts import load_questions
from eagle_core.compare import AS_LOADED, Prompt, Setup
from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.errors import ConfigError, EagleError
from eagle_core.precision import DeviceKind, meaning
from eagle_core.relay import OpenModel, options, precision_of
from eagle_core.ui import render
from eagle_core.ui.backend import KnowsMachine, SessionSlot
from eagle_core.ui.controls import make_control, specs
from eagle_core.ui.frames import error_notice
from eagle_core.ui.race_runner import Runner
from eagle_core.ui.races import DRAFTERS, machine_text, races_data, report_html

if TYPE_CHECKING:
    from eagle_core.session import SessionInfo

logger = logging.getLogger(__name__)

POLL_S = 0.5
MAX_OPEN_REQUESTS = 32
N_SETUPS = 3
NOTHING = "off"
LOADED = "loaded"
FIRST_DRAFTERS = ("none", "eagle", NOTHING)
SHARED_FIELDS = ("temperature", "seed", "max_new_tokens")
TREE_FIELDS = ("policy", "depth", "branching", "size", "lookup")
LONGEST = 256  # tokens of an answer at first: a race of a few seconds
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
ON_RACE = """
document.body.dataset.page = 'compare';
const place = element.querySelector('.race-place');
const show = () => window.eagleRace.mount(place, props.value);
watch('value', () => { show(); place.scrollIntoView({block: 'start'}); });
show();
"""
ON_TOP = "window.eaglePage.bar(element);"


class CompareHandlers:
    """The page's handlers; a tab has one comparison at a time.

    Args:
        open_model: opens the model in other precisions; None where strangers may not have it changed.
        in_use: whether an answer is being written in some tab.
    """

    def __init__(
        self,
        slot: SessionSlot,
        open_model: OpenModel | None = None,
        in_use: Callable[[], bool] = lambda: False,
    ) -> None:
        self._slot, self._open_model, self._in_use = slot, open_model, in_use
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
        async for found in self._races([Prompt(prompt)], request, values):
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

    def precisions(self) -> list[Any]:
        """Each set-up's choice of precisions, for what is loaded now."""
        return [self._choice()] * N_SETUPS

    def _choice(self) -> Any:
        session, config = self._slot.session, self._slot.config
        if session is None:
            return gr.skip()
        info = session.info
        choices = [(f"As loaded: {precision_of(info)}", LOADED)]
        if self._open_model is not None and config is not None and self._slot.can_lend:
            try:
                look = session.machine if isinstance(session, KnowsMachine) else None
                for option in options(config, info, look):
                    is_slow = option.fit is not None and option.fit.verdict == "slow"
                    device = cast(DeviceKind, info.device.partition(":")[0])
                    said = [meaning(option.precision, device), "may be slow" if is_slow else ""]
                    marks = "; ".join(filter(None, said))
                    name = f"{option.precision} ({marks})" if marks else option.precision
                    choices.append((name, option.precision))
            except EagleError as error:
                logger.info("no other precisions: %s", error.code)
        return gr.update(choices=choices)

    async def _races(
        self, prompts: Sequence[Prompt], request: gr.Request, values: Sequence[Any]
    ) -> AsyncIterator[Any]:
        tab = str(request.session_hash)
        if self._slot.session is None:
            yield frame(notice=render.opening_html(self._slot.opening))
            return
        if tab in self._runners:
            yield frame(
                notice=render.notice_html("info", "A comparison is running; stop it first.")
            )
            return
        info = self._slot.session.info
        try:
            setups = read_setups(values, precision_of(info))
            if self._runners and any(setup.precision != AS_LOADED for setup in setups):
                hint = "wait for it, or choose the precision as loaded"
                raise ConfigError("a comparison is running in another tab", hint=hint)
        except ConfigError as error:
            yield frame(notice=error_notice(error))
            return
        runner = Runner(self._slot, prompts, setups, self._open_model, self._in_use)
        self._runners[tab] = runner
        try:
            runner.start()
            yield frame(status=runner.status(), notice="", is_running=True)
            while not runner.is_done:
                await asyncio.sleep(POLL_S)
                yield frame(status=runner.status())
            yield await asyncio.to_thread(last_frame, info, runner)
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


def last_frame(info: SessionInfo, runner: Runner) -> list[Any]:
    """The result, or why there is none."""
    was_stopped = runner.cancel.is_set()
    name = "Failed" if runner.error else "Stopped" if was_stopped else "Done"
    status = render.status_line("done", name, "")
    notice = error_notice(runner.error) if runner.error else ""
    if not runner.races:
        if was_stopped and not notice:
            notice = render.notice_html("info", "Stopped before a race was complete.")
        return frame(status=status, notice=notice, is_running=False)
    data = races_data(info, runner.races, machine_text(info))
    saved = Path(tempfile.mkdtemp(prefix="eagle-compare-")) / "comparison.html"
    saved.write_text(report_html(data), encoding="utf-8")
    return frame(status=status, notice=notice, race=data, is_running=False, saved=saved)


def read_setups(values: Sequence[Any], loaded: str) -> list[Setup]:
    """The page's controls as set-ups.

    Args: loaded: precision of what is loaded; who chooses it by name needs no other model.
    Raises: ConfigError on a wrong value, or with fewer than two set-ups.
    """
    shared = dict(zip(SHARED_FIELDS, values, strict=False))
    check_given(shared)
    generation = GenerationConfig(**shared)
    n_controls = 3 + len(TREE_FIELDS)
    setups: list[Setup] = []
    for number in range(N_SETUPS):
        start = len(SHARED_FIELDS) + number * n_controls
        drafter, precision, temperature, *tree = values[start : start + n_controls]
        if drafter == NOTHING:
            continue
        own = generation
        if temperature and temperature.strip():
            own = dataclasses.replace(generation, temperature=read_temperature(temperature))
        given = dict(zip(TREE_FIELDS, tree, strict=True))
        check_given(given)
        draft = DraftConfig(drafter, TreeConfig(**given))
        other = AS_LOADED if precision in (None, LOADED, loaded) else precision
        setups.append(Setup(DRAFTERS[drafter], draft, own, other))
    if len(setups) < 2:
        raise ConfigError("one set-up alone is no race", hint="choose at least two set-ups")
    if any(setup.precision != AS_LOADED for setup in setups):
        setups = [
            dataclasses.replace(setup, name=f"{setup.name}, {setup.precision or loaded}")
            for setup in setups
        ]
    return with_distinct_names(setups)


def read_temperature(text: str) -> float:
    """Raises: ConfigError when the text is no number."""
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        hint = "type a number such as 0.7, or leave the field empty"
        raise ConfigError("the set-up's temperature is no number", got=text, hint=hint) from None


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


def example_prompts() -> list[Prompt]:
    """The prompts that ship with the project."""
    questions = load_questions(asset_path("compare_prompts.jsonl"))
    return [Prompt(question.text, question.category) for question in questions]


def build_compare(
    slot: SessionSlot,
    app: gr.Blocks,
    open_model: OpenModel | None = None,
    in_use: Callable[[], bool] = lambda: False,
) -> CompareHandlers:
    """Lay out the page inside the current route and wire its events; returns its handlers."""
    handlers = CompareHandlers(slot, open_model, in_use)
    with gr.Column(elem_id="compare"):
        gr.HTML(html_template=top(), js_on_load=ON_TOP, apply_default_css=False)
        prompt = gr.Textbox(
            label="Prompt", value=example_prompts()[0].text, lines=2, max_lines=10,
            elem_id="race-prompt",
        )  # fmt: skip
        controls, precisions = build_setups()
        with gr.Row(elem_classes="go"):
            go = gr.Button("Race", variant="primary", elem_id="race-go")
            label = f"Race all {len(example_prompts())} examples"
            batch = gr.Button(label, elem_id="race-batch")
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
    app.load(handlers.precisions, None, precisions, queue=False, **PRIVATE)
    return handlers


def build_setups() -> tuple[list[Any], list[Any]]:
    """Controls for what all set-ups share, then for each of them; and apart those of the precision."""
    generation, tree = specs(GenerationConfig), specs(TreeConfig)
    with gr.Row():
        shared = [renamed(make_control(generation[name]), f"race-{name}") for name in SHARED_FIELDS]
    shared[SHARED_FIELDS.index("max_new_tokens")].value = LONGEST
    controls, precisions = [*shared], []
    with gr.Row(elem_classes="setups"):
        for number, first in enumerate(FIRST_DRAFTERS):
            choices = [(label, name) for name, label in DRAFTERS.items()]
            if number >= 2:
                choices.append(("No set-up", NOTHING))
            with gr.Column(elem_classes="setup"):
                gr.HTML(f"<h3>Set-up {number + 1}</h3>", apply_default_css=False)
                drafter = gr.Dropdown(
                    choices, value=first, label="Drafting", elem_id=f"race-drafter-{number}"
                )
                precision = gr.Dropdown(
                    [("As loaded", LOADED)], value=LOADED, label="Precision",
                    elem_id=f"race-precision-{number}",
                    info="Another one is loaded when its turn comes, in place of the one in use.",
                )  # fmt: skip
                with gr.Accordion("Tree and temperature", open=False):
                    # A number field that is empty turns into 0 as soon as it is drawn.
                    temperature = gr.Textbox(
                        label="Temperature", info="Empty: the one above.", max_lines=1,
                        placeholder="as above", elem_id=f"race-temperature-{number}",
                    )  # fmt: skip
                    own = [
                        renamed(make_control(tree[name]), f"race-{name}-{number}")
                        for name in TREE_FIELDS
                    ]
            controls += [drafter, precision, temperature, *own]
            precisions.append(precision)
    return controls, precisions


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


__all__ = ["CompareHandlers", "build_compare", "read_setups"]
