"""The app on Hugging Face Spaces: what is loaded there, on which hardware, within which limits."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from eagle_core.config import DEFAULT_BASE, LoadConfig
from eagle_core.ui.app import serve
from eagle_core.ui.backend import ChatSession, OnEvent, OpenSession
from eagle_core.ui.shared import Limited, Limits
from eagle_core.worker import open_in_worker

logger = logging.getLogger(__name__)

# The owner of a Space may name another pair in its variables.
BASE_VARIABLE, HEAD_VARIABLE = "EAGLE_BASE", "EAGLE_HEAD"
HOST, PORT = "0.0.0.0", 7860  # noqa: S104 - a Space is reached through its proxy only


@dataclass(frozen=True, slots=True)
class Space:
    """What a Space serves: an open session where a GPU is lent per call, else what opens one."""

    session: ChatSession | OpenSession
    limits: Limits
    load: LoadConfig


def is_space(environment: Mapping[str, str]) -> bool:
    """Whether this process runs on Hugging Face Spaces."""
    return environment.get("SYSTEM") == "spaces"


def has_zero_gpu(environment: Mapping[str, str]) -> bool:
    """Whether GPUs are lent per call here, and the package that asks for them is there."""
    is_zero = environment.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")
    return is_zero and importlib.util.find_spec("spaces") is not None


def load_space(environment: Mapping[str, str] = os.environ) -> Space | None:
    """What this Space serves; None on any other machine.

    On ZeroGPU base and head are loaded now, so call it from the main module, in the main thread.
    Raises: EagleError when they cannot be loaded.
    """
    if not is_space(environment):
        return None
    load = LoadConfig(
        base=environment.get(BASE_VARIABLE) or DEFAULT_BASE,
        head=environment.get(HEAD_VARIABLE) or None,
    )
    if not has_zero_gpu(environment):
        limits = Limits()

        def open_limited(on_event: OnEvent) -> ChatSession:
            return Limited(open_in_worker(load, on_event), limits)

        return Space(open_limited, limits, load)
    gpu = importlib.import_module("spaces").GPU  # before anything looks for a GPU
    from eagle_core.ui.zero import LONGEST_S, Pair, ZeroSession

    limits = Limits(n_gpu_s=LONGEST_S)
    return Space(Limited(ZeroSession(Pair(load), gpu), limits), limits, load)


def serve_space(space: Space) -> None:
    """Serve until the Space is stopped."""
    running = serve(space.session, HOST, PORT, settings=space.load, limits=space.limits)
    try:
        running.app.block_thread()
    finally:
        running.close()


__all__ = ["Space", "has_zero_gpu", "is_space", "load_space", "serve_space"]
