"""Benchmark questions: JSON lines as in Spec-Bench (``question_id``, ``category``, ``turns``).

Only the first turn is asked: a second one would hold the first answer, and all methods must answer
the same prompt. Knows no model and no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_core.errors import ConfigError

QuestionId = int | str


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, the user's first turn."""

    question_id: QuestionId
    category: str
    text: str


def load_questions(path: Path) -> list[Question]:
    """Read a question file; blank lines are skipped.

    Raises: ConfigError when the file is missing or empty, or a line is no question.
    """
    try:
        # Not splitlines(): that would also split at a U+2028 within a question.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the questions in {path}",
            expected="a UTF-8 file of JSON lines",
            got=str(error),
            hint="give one with --prompts",
        ) from error
    questions = [
        _parse(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not questions:
        raise ConfigError(f"{path} holds no question", hint="give another file with --prompts")
    if len({question.question_id for question in questions}) < len(questions):
        raise ConfigError(
            f"{path} uses a question_id twice", hint="give every question its own question_id"
        )
    return questions


def _parse(line: str, where: str) -> Question:
    try:
        data: dict[str, Any] = json.loads(line)
        question_id, category, text = data["question_id"], data["category"], data["turns"][0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        got = f"no {error}" if isinstance(error, KeyError) else repr(error)
        raise _bad_line(where, got) from error
    if not isinstance(question_id, int | str) or not isinstance(text, str) or not text:
        raise _bad_line(where, f"question_id {question_id!r} and turn {text!r}")
    return Question(question_id, str(category), text)


def _bad_line(where: str, got: str) -> ConfigError:
    return ConfigError(
        f"{where} is not a question",
        expected='{"question_id": 1, "category": "qa", "turns": ["..."]}',
        got=got,
        hint="the layout is that of Spec-Bench",
    )


def evenly_spaced(questions: list[Question], n: int | None) -> list[Question]:
    """``n`` questions spread over the whole list, so that all categories are met; None: all.

    Example: 3 of [a, b, c, d, e, f] are [a, c, e].
    """
    if n is None or n >= len(questions):
        return questions
    return [questions[i * len(questions) // n] for i in range(n)]


def fingerprint(questions: list[Question]) -> str:
    """SHA-256 over the questions that are asked: two files with the same one asked the same."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(json.dumps([question.question_id, question.category, question.text]).encode())
    return digest.hexdigest()


__all__ = ["Question", "QuestionId", "evenly_spaced", "fingerprint", "load_questions"]
