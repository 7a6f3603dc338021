"""For tests of the command line: a random head on disk, and a session that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from eagle_core.heads.eagle1 import Eagle1Head, config_for_base

Output = tuple[int, str, str]  # exit code, stdout, stderr
Run = Callable[..., Output]


def save_head(base: Path, folder: Path) -> Path:
    """A head with random weights that fits the model in ``base``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        head = Eagle1Head(config_for_base(AutoConfig.from_pretrained(base)))
    head.save(folder, dtype=torch.float32)
    return folder


class OneAnswer:
    """A session whose answers are the given events."""

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.prompts: list[Any] = []
        self.is_closed = False
        self.info = type("Info", (), {"base": "fake"})()

    def encode_chat(self, messages: Any) -> list[int]:
        return [1]

    def generate(self, prompt_ids: Any, *_: Any, **__: Any) -> Iterator[Any]:
        self.prompts.append(prompt_ids)
        yield from self.events

    chat = generate

    def close(self) -> None:
        self.is_closed = True
