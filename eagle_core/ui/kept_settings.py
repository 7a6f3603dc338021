"""The panel's settings as the browser keeps them: what differs from the defaults, checked when it comes back.

They lie in the browser's own storage, so a reload finds them, and a visitor's settings stay with the visitor.
Knows no browser: the page's script stores what :func:`changed` gives and hands it to :func:`restored`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_core.errors import ConfigError
from eagle_core.ui.controls import NAMES, default_values, read_settings


def changed(values: Sequence[Any]) -> dict[str, Any]:
    """What the panel says beyond its defaults.

    Example: the defaults with temperature 0.7 give ``{"temperature": 0.7}``.
    """
    given = dict(zip(NAMES, values, strict=True))
    defaults = default_values()
    return {name: value for name, value in given.items() if value != defaults[name]}


def restored(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every control: the stored one where it is valid beside the others, else the default."""
    values = default_values()
    for name in NAMES:
        if name not in stored or not is_alike(stored[name], values[name]):
            continue
        tried = {**values, name: stored[name]}
        try:
            read_settings([tried[key] for key in NAMES])
        except ConfigError:
            continue
        values = tried
    return values


def is_alike(value: Any, default: Any) -> bool:
    """Whether a stored value is of the default's kind; whole numbers stand for others, too."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, (int, float))
    return isinstance(value, type(default))


__all__ = ["changed", "restored"]
