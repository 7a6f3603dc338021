"""Settings panel made from the config dataclasses: defaults, limits and help have one source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import gradio as gr

from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig, parse_shape
from eagle_core.errors import ConfigError

LABELS = {
    "max_new_tokens": "Longest answer",
    "temperature": "Temperature",
    "top_p": "Top-p",
    "seed": "Seed",
    "policy": "Tree policy",
    "depth": "Depth",
    "branching": "Branching",
    "size": "Tree size",
    "lookup": "Lookup nodes",
    "shape": "Static shape",
}
GENERATION_FIELDS = ("temperature", "top_p", "seed", "max_new_tokens")
TREE_FIELDS = ("policy", "depth", "branching", "size", "lookup", "shape")
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


def build_controls() -> list[Any]:
    """Create the controls inside the current layout, in the order that ``read_settings`` expects."""
    generation = specs(GenerationConfig)
    with gr.Group(elem_classes="panel"):
        drafting = gr.Checkbox(
            value=DraftConfig().drafter == "eagle",
            label="EAGLE drafting",
            info="Faster; the answer stays the same. Off: plain decoding.",
            elem_id="drafting",
        )
    with gr.Group(elem_classes="panel"):
        answer = [make_control(generation[name]) for name in GENERATION_FIELDS]
    with gr.Group(elem_classes="panel"):
        system_prompt = gr.Textbox(
            label="System prompt",
            info="Sent before the conversation. Empty: none.",
            lines=2,
            max_lines=8,
            elem_id="system-prompt",
        )
    with gr.Accordion("Draft tree", open=False, elem_classes="panel"):
        tree = specs(TreeConfig)
        shape = [make_control(tree[name]) for name in TREE_FIELDS]
    return [drafting, *answer, system_prompt, *shape]


def read_settings(values: Sequence[Any]) -> Settings:
    """The panel's values as configs.

    Raises: ConfigError naming the setting that is wrong.
    """
    is_drafting, n_generation = values[0], len(GENERATION_FIELDS)
    answer = values[1 : 1 + n_generation]
    system_prompt, tree = values[1 + n_generation], values[2 + n_generation :]
    generation_values = dict(zip(GENERATION_FIELDS, answer, strict=True))
    tree_values = dict(zip(TREE_FIELDS, tree, strict=True))
    tree_values["shape"] = parse_shape(tree_values["shape"] or "")
    for name, value in (generation_values | tree_values).items():
        if value is None and name != "shape":
            raise ConfigError(f"{LABELS[name]} is empty", hint="Type a number.")
    return Settings(
        GenerationConfig(**generation_values),
        DraftConfig("eagle" if is_drafting else "none", TreeConfig(**tree_values)),
        system_prompt or "",
    )


def specs(config: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """A config's fields by name."""
    return {spec.name: spec for spec in dataclasses.fields(config)}


def make_control(spec: dataclasses.Field[Any]) -> Any:
    """The control that fits a field's default and limits."""
    limits, default = spec.metadata, cast("Any", spec.default)
    common: dict[str, Any] = {
        "label": LABELS[spec.name],
        "info": limits["help"],
        "elem_id": spec.name.replace("_", "-"),
    }
    if "choices" in limits:
        return gr.Radio(list(limits["choices"]), value=default, **common)
    if "min" not in limits:
        return gr.Textbox(value=default or "", placeholder="0 1 00 01 000", **common)
    low, high, step = limits["min"], limits["max"], limits.get("step", 1)
    if (high - low) / step <= MAX_SLIDER_STOPS:
        precision = 0 if isinstance(default, int) else None
        return gr.Slider(low, high, value=default, step=step, precision=precision, **common)
    return gr.Number(
        value=default,
        minimum=low,
        maximum=min(high, MAX_SAFE_INTEGER),
        step=step,
        precision=0,
        **common,
    )


__all__ = ["Settings", "build_controls", "make_control", "read_settings", "specs"]
