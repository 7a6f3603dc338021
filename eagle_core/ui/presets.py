"""System prompts with a name: a few to begin with, and the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_core.config import GenerationConfig
from eagle_core.errors import ConfigError
from eagle_core.history import HistoryStore, Preset

NO_PRESET = "None"
BUILT_IN = (
    Preset(NO_PRESET, ""),
    Preset("Concise", "Answer in as few words as the question needs. No introduction, no summary."),
    Preset(
        "Teacher",
        "Explain step by step for a curious beginner. Use one small example, and say what new words mean.",
    ),
    Preset(
        "Programmer",
        "You help with code. Show working code first, in a fenced block, then explain the choices in short.",
    ),
    Preset(
        "Editor",
        "Improve the user's text: correct mistakes, keep its meaning and tone, and list what you changed.",
    ),
    Preset(
        "Storyteller", "Write vividly, with concrete details.", {"temperature": 0.8, "top_p": 0.95}
    ),
)
# Settings that belong to a way of answering; the seed and the longest answer do not.
KEPT_SETTINGS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
MAX_NAME = 60


def all_presets(store: HistoryStore) -> list[Preset]:
    """The built-in presets, then the user's; one of the user's may replace a built-in one."""
    own = store.presets()
    names = {preset.name for preset in own}
    return [*(preset for preset in BUILT_IN if preset.name not in names), *own]


def find_preset(store: HistoryStore, name: str) -> Preset | None:
    """The preset of that name."""
    return next((preset for preset in all_presets(store) if preset.name == name), None)


def preset_from(name: str, system_prompt: str, generation: GenerationConfig) -> Preset:
    """A preset of the current settings; those at their defaults are left out.

    Raises: ConfigError when it has no name of its own.
    """
    name = " ".join(name.split())[:MAX_NAME]
    if not name or name == NO_PRESET:
        raise ConfigError("the preset has no name", hint="type a name in the preset field first")
    defaults = GenerationConfig()
    settings = {
        key: getattr(generation, key)
        for key in KEPT_SETTINGS
        if getattr(generation, key) != getattr(defaults, key)
    }
    return Preset(name, system_prompt, settings)


def kept_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a preset that are valid now; the others keep what the panel says."""
    known = {spec.name for spec in dataclasses.fields(GenerationConfig)} & set(KEPT_SETTINGS)
    kept: dict[str, Any] = {}
    for key, value in settings.items():
        if key in known:
            try:
                GenerationConfig(**{key: value})
            except ConfigError:
                continue
            kept[key] = value
    return kept


def names_of(presets: Sequence[Preset]) -> list[str]:
    """Names for a list of choices."""
    return [preset.name for preset in presets]


__all__ = [
    "BUILT_IN", "KEPT_SETTINGS", "NO_PRESET", "all_presets", "find_preset", "kept_settings", "names_of",
    "preset_from",
]  # fmt: skip
