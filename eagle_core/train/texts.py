"""Texts that people give to data collection: openings, and conversations of their own. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eagle_core.errors import ConfigError
from eagle_core.session_info import Message


def read_openings(path: Path) -> list[str]:
    """A user turn's first words from each line.

    Raises: ConfigError when the file cannot be read or is empty.
    """
    try:
        openings = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}", got=str(error)) from error
    if not openings:
        raise ConfigError(f"{path} holds no opening", expected="one per line", got="none")
    return openings


def read_talks(path: Path) -> list[Sequence[Message]]:
    """Conversations of a JSONL file, a list of messages under "messages" in each line.

    Raises: ConfigError when the file cannot be read, naming the line that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a U+2028 in a text ends no line
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}", got=str(error), hint="give a JSONL file"
        ) from error
    return [_messages(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _messages(path: Path, number: int, line: str) -> Sequence[Message]:
    try:
        messages: Sequence[Message] = json.loads(line)["messages"]
        is_fine = (
            len(messages) >= 2
            and messages[-1]["role"] == "assistant"
            and all(isinstance(m["content"], str) and isinstance(m["role"], str) for m in messages)
        )
    except (ValueError, KeyError, TypeError):
        is_fine = False
    if not is_fine:
        raise ConfigError(
            f"line {number} of {path} is no conversation",
            expected='{"messages": [{"role": "user", "content": "..."}, ..., an assistant turn]}',
            got=line[:80],
            hint="the last message must be the assistant's",
        )
    return messages


__all__ = ["read_openings", "read_talks"]
