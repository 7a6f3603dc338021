"""Devices by name: which names there are, and whether this machine has the one that is asked for.

What can be told without PyTorch, which takes seconds to import, is told without it.
"""

from __future__ import annotations

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_core.errors import ConfigError

if TYPE_CHECKING:
    import torch

SPLIT = "split"  # the device that stands for all of them
OWN = re.compile(r"(cpu|cuda|mps)(:\d+)?")


def check_device(name: str) -> None:
    """Whether ``name`` is a device, and one that the installed PyTorch can use; imports no PyTorch.

    Raises: ConfigError. Where PyTorch could use it, :func:`resolve_device` says whether the machine has it.
    """
    if name in ("auto", SPLIT):
        return
    kind = check_name(name, "auto, split, ")
    is_impossible = {"cuda": not is_built_for_gpus(), "mps": sys.platform != "darwin"}
    if is_impossible.get(kind, False):
        raise missing_device(name, "cpu")


def is_surely_cpu(name: str) -> bool:
    """Whether ``name`` means the CPU here, as far as that is known without PyTorch."""
    is_open = name in ("auto", SPLIT)
    return name.startswith("cpu") or (
        is_open and sys.platform != "darwin" and not is_built_for_gpus()
    )


def check_name(name: str, others: str = "") -> str:
    """The kind of the device called ``name``, whether it is here or not.

    Args: others: further names that could have been given, for the message.
    Raises: ConfigError for what is no device's name.
    """
    own = OWN.fullmatch(name)
    if own is None:
        raise ConfigError(
            "device is not known", expected=f"{others}cpu, cuda, cuda:1 or mps", got=repr(name)
        )
    return own[1]


def is_built_for_gpus() -> bool:
    """Whether the installed PyTorch knows GPUs that are called cuda, by its own note on its version."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True  # importing it will say what is wrong
    try:
        built_for = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return True
    return any(built_for.get(kind) is not None for kind in ("cuda", "hip"))


def resolve_device(name: str) -> torch.device:
    """The device called ``name``; "auto" is the first of cuda, mps, cpu that is there.

    Raises: ConfigError for a name that is no device, or a device that this machine lacks.
    """
    check_device(name)
    import torch

    has_mps = torch.backends.mps.is_available()
    if name in ("auto", SPLIT):
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu")
    device = torch.device(name)
    n_devices = {"cpu": 1, "mps": int(has_mps), "cuda": torch.cuda.device_count()}
    if (device.index or 0) >= n_devices[device.type]:
        raise missing_device(
            name, " or ".join(f"{kind} ({n})" for kind, n in n_devices.items() if n)
        )
    return device


def missing_device(name: str, there: str) -> ConfigError:
    """The error for a device that is not here."""
    return ConfigError(
        "this machine, or its PyTorch, does not have the device",
        expected=there,
        got=repr(name),
        hint="use --device auto",
    )


__all__ = ["SPLIT", "check_device", "check_name", "is_surely_cpu", "resolve_device"]
