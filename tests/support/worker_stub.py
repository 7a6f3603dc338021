"""A worker without an engine: ``python -m tests.support.worker_stub``. What is opened says how it behaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from eagle_core.config import LoadConfig
from eagle_core.errors import ModelNotFound
from eagle_core.events import Event, LoadProgress
from eagle_core.session_info import SessionInfo
from eagle_core.worker.host import OpenSession, run
from tests.support.fake_session import FakeSession

COMMAND = (sys.executable, "-m", "tests.support.worker_stub")
TEXT = "It is written elsewhere, word by word by word. "


class ElsewhereSession(FakeSession):
    """A fake session that says of itself what a real one says."""

    def __init__(self) -> None:
        super().__init__(default=TEXT * 20, answers={"short": "Yes."})
        self.info: Any = SessionInfo("elsewhere", None, "bfloat16", "cpu", 4096, 1, 0)


def open_stub(config: LoadConfig, on_event: Callable[[Event], None]) -> Any:
    """What the base's name asks for: a session, an error, a surprise, or an end without a word."""
    print("a stray line that is no message")
    on_event(LoadProgress(f"loading {config.base}"))
    match config.base:
        case "missing":
            raise ModelNotFound(
                "it is not there", expected="a model", got="none", hint="look again"
            )
        case "surprise":
            raise KeyError("what nobody expected")
        case "silence":
            os._exit(3)
    return ElsewhereSession()


def prepare() -> OpenSession:
    """Nothing takes time here."""
    return open_stub


if __name__ == "__main__":
    run(prepare)
