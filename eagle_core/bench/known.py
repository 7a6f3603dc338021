"""What a replay is given: known answers with their questions, and trees as words. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from eagle_core.bench.prompts import Question, QuestionId
from eagle_core.bench.records import BASELINE, BenchFile, Row
from eagle_core.config import TreeConfig
from eagle_core.errors import ConfigError


def known_rows(file: BenchFile, questions: Sequence[Question]) -> list[tuple[Question, Row]]:
    """Plain decoding's answers in a benchmark file, with their questions.

    Raises: ConfigError when the file has none to these questions.
    """
    by_id: dict[QuestionId, Question] = {one.question_id: one for one in questions}
    found = [
        (by_id[row.question_id], row)
        for row in file.rows
        if row.method == BASELINE
        and row.status == "ok"
        and row.repeat == 0
        and row.question_id in by_id
    ]
    if not found:
        raise ConfigError(
            "the file holds no answer of plain decoding to these questions",
            expected="rows of the method none",
            got=f"{len(file.rows)} rows",
            hint="make one: eagle-chat bench run --methods none --prompts FILE --out FILE",
        )
    return found


def parse_tree(text: str, tree: TreeConfig) -> TreeConfig:
    """A dynamic tree from ``depth/branching/size`` or ``depth/branching/size/lookup``.

    Raises: ConfigError when it is none.
    """
    try:
        numbers = [int(part) for part in text.split("/")]
        depth, branching, size, lookup = [*numbers, tree.lookup][:4]
        if len(numbers) > 4:
            raise ValueError("more than four numbers")
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no tree",
            expected="depth/branching/size or depth/branching/size/lookup",
            got=text,
            hint="for example 2/2/3 or 5/4/16/0",
        ) from error
    return dataclasses.replace(
        tree, policy="dynamic", depth=depth, branching=branching, size=size, lookup=lookup
    )


__all__ = ["known_rows", "parse_tree"]
