"""Settings panel made from the config dataclasses: defaults, limits and help have one source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gradio as gr

from eagle_core.config import (
    ChatConfig,
    DraftConfig,
    GenerationConfig,
    LoadConfig,
    Overflow,
    TreeConfig,
    parse_logit_bias,
    parse_shape,
    parse_stop,
)
from eagle_core.errors import ConfigError
from eagle_core.ui.presets import BUILT_IN, NO_PRESET, names_of

LABELS = {
    "max_new_tokens": "Longest answer",
    "temperature": "Temperature",
    "top_p": "Top-p",
    "seed": "Seed",
    "top_k": "Top-k",
    "min_p": "Min-p",
    "repetition_penalty": "Repetition penalty",
    "presence_penalty": "Presence penalty",
    "frequency_penalty": "Frequency penalty",
    "min_new_tokens": "Shortest answer",
    "logit_bias": "Token biases",
    "stop": "Stop strings",
    "rule": "Acceptance rule",
    "with_replacement": "Draw with replacement",
    "policy": "Tree policy",
    "depth": "Depth",
    "branching": "Branching",
    "size": "Tree size",
    "lookup": "Lookup nodes",
    "shape": "Static shape",
    "overflow": "Full context",
    "reproducible": "Reproducible in 16 bits",
}
GENERATION_FIELDS = ("temperature", "top_p", "seed", "max_new_tokens")
ADVANCED_FIELDS = (
    "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "min_new_tokens", "logit_bias", "stop", "rule", "with_replacement",
)  # fmt: skip
TREE_FIELDS = ("policy", "depth", "branching", "size", "lookup", "shape")
NAMES = (
    "drafting", *GENERATION_FIELDS, "system_prompt", *TREE_FIELDS, *ADVANCED_FIELDS, "overflow",
)  # fmt: skip
# What a text field holds when it is not empty. A text with several lines is one entry per line.
EXAMPLES = {"shape": "0 1 00 01 000", "logit_bias": "123:-5 42:2.5", "stop": "one per line"}
# A slider with more stops than this cannot be set with a finger: use a number field.
MAX_SLIDER_STOPS = 300
# Browsers keep integers exact up to here.
MAX_SAFE_INTEGER = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What the panel says, checked."""

    generation: GenerationConfig
    draft: DraftConfig
    system_prompt: str
    overflow: Overflow = "drop"


@dataclass(frozen=True, slots=True)
class Panel:
    """The panel's components: ``controls`` in the order that ``read_settings`` expects, the presets', and the
    switch that acts on the session at once.
    """

    controls: list[Any]
    by_name: dict[str, Any]
    preset: Any
    save_preset: Any
    delete_preset: Any
    reproducible: Any
    reset: Any


def build_controls() -> Panel:
    """Create the controls inside the current layout."""
    generation = specs(GenerationConfig)
    with gr.Group(elem_classes="panel"):
        drafting = gr.Checkbox(
            value=default_values()["drafting"],
            label="EAGLE drafting",
            info="Faster; the answer stays the same. Off: plain decoding.",
            elem_id="drafting",
        )
        reproducible = make_control(specs(LoadConfig)["reproducible"])
    with gr.Group(elem_classes="panel"):
        answer = [make_control(generation[name]) for name in GENERATION_FIELDS]
    with gr.Group(elem_classes="panel"):
        preset = gr.Dropdown(
            names_of(BUILT_IN),
            value=NO_PRESET,
            label="Preset",
            info="A system prompt with its settings. Type a name and press Save to keep your own.",
            allow_custom_value=True,
            elem_id="preset",
        )
        with gr.Row(elem_classes="buttons"):
            save_preset = gr.Button("Save preset", size="sm", elem_id="save-preset")
            delete_preset = gr.Button("Delete preset", size="sm", elem_id="delete-preset")
        system_prompt = gr.Textbox(
            value=default_values()["system_prompt"],
            label="System prompt",
            info="Sent before the conversation. Empty: none.",
            lines=2,
            max_lines=8,
            elem_id="system-prompt",
        )
        overflow = make_control(specs(ChatConfig)["overflow"])
    with gr.Accordion("Draft tree", open=False, elem_classes="panel"):
        tree = specs(TreeConfig)
        shape = [make_control(tree[name]) for name in TREE_FIELDS]
    with gr.Accordion("Advanced sampling", open=False, elem_classes="panel"):
        advanced = [make_control(generation[name]) for name in ADVANCED_FIELDS]
    reset = gr.Button("Reset settings", size="sm", elem_id="reset-settings")
    # In the order of NAMES.
    controls = [drafting, *answer, system_prompt, *shape, *advanced, overflow]
    return Panel(
        controls,
        dict(zip(NAMES, controls, strict=True)),
        preset,
        save_preset,
        delete_preset,
        reproducible,
        reset,
    )


def default_values() -> dict[str, Any]:
    """What every control shows at first, by name."""
    values = {
        name: initial(spec)
        for config in (GenerationConfig, TreeConfig, ChatConfig)
        for name, spec in specs(config).items()
        if name in NAMES
    }
    values |= {"drafting": DraftConfig().drafter == "eagle", "system_prompt": ""}
    return {name: values[name] for name in NAMES}


def initial(spec: dataclasses.Field[Any]) -> Any:
    """A field's default as its control shows it: an empty text stands for none."""
    default = cast("Any", spec.default)
    has_own = spec.metadata.keys() & {"choices", "min"} or isinstance(default, bool)
    return default if has_own else default or ""


def read_settings(values: Sequence[Any]) -> Settings:
    """The panel's values as configs.

    Raises: ConfigError naming the setting that is wrong.
    """
    given = dict(zip(NAMES, values, strict=True))
    generation_values = {name: given[name] for name in (*GENERATION_FIELDS, *ADVANCED_FIELDS)}
    generation_values["logit_bias"] = parse_logit_bias(given["logit_bias"] or "")
    lines = (given["stop"] or "").splitlines()
    generation_values["stop"] = tuple(parse_stop(line) for line in lines if line)
    tree_values = {name: given[name] for name in TREE_FIELDS}
    tree_values["shape"] = parse_shape(given["shape"] or "")
    check_typed(generation_values, GenerationConfig)
    check_typed(tree_values, TreeConfig)
    return Settings(
        GenerationConfig(**generation_values),
        DraftConfig("eagle" if given["drafting"] else "none", TreeConfig(**tree_values)),
        given["system_prompt"] or "",
        ChatConfig(given["overflow"]).overflow,
    )


def check_typed(values: Mapping[str, Any], config: type[Any]) -> None:
    """Compare typed numbers with the limits of their config's fields.

    Raises: ConfigError naming the field as the page does.
    """
    for name, spec in specs(config).items():
        if "min" not in spec.metadata or name not in values:
            continue
        value, (low, high) = values[name], limits_of(spec)
        if value is None:
            raise ConfigError(
                f"{LABELS[name]} is empty", hint=f"type a number from {low} to {high} in Settings"
            )
        if not low <= value <= high:
            raise ConfigError(
                f"{LABELS[name]} is out of range",
                expected=f"{low} to {high}",
                got=str(value),
                hint="change it in Settings",
            )


def limits_of(spec: dataclasses.Field[Any]) -> tuple[Any, Any]:
    """Least and largest number of a field; a browser cannot type all of the largest ones."""
    return spec.metadata["min"], min(spec.metadata["max"], MAX_SAFE_INTEGER)


def specs(config: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """A config's fields by name."""
    return {spec.name: spec for spec in dataclasses.fields(config)}


def make_control(spec: dataclasses.Field[Any]) -> Any:
    """The control that fits a field's default and limits."""
    limits, default = spec.metadata, initial(spec)
    common: dict[str, Any] = {
        "label": LABELS[spec.name],
        "info": limits["help"],
        "elem_id": spec.name.replace("_", "-"),
    }
    if "choices" in limits:
        return gr.Radio(list(limits["choices"]), value=default, **common)
    if isinstance(default, bool):
        return gr.Checkbox(value=default, **common)
    if "min" not in limits:
        n_lines = 2 if limits.get("repeats") else 1
        common |= {"placeholder": EXAMPLES[spec.name], "lines": n_lines, "max_lines": 4 * n_lines}
        return gr.Textbox(value=default, **common)
    (low, high), step = limits_of(spec), limits.get("step", 1)
    if (high - low) / step <= MAX_SLIDER_STOPS:
        precision = 0 if isinstance(default, int) else None
        return gr.Slider(low, high, value=default, step=step, precision=precision, **common)
    return gr.Number(
        value=default,
        minimum=low,
        maximum=high,
        step=step,
        precision=0,
        **common,
    )


__all__ = [
    "NAMES", "Panel", "Settings", "build_controls", "default_values", "make_control", "read_settings",
    "specs",
]  # fmt: skip
