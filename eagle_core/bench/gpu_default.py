"""A real model's speed-up in a few minutes, for machines on which nothing shall be fetched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle_core import catalog
from eagle_core.assets import asset_path
from eagle_core.bench.methods import Answer, SessionMethod
from eagle_core.bench.prompts import Question, evenly_spaced, load_questions
from eagle_core.bench.records import BASELINE, Row
from eagle_core.bench.summary import acceptance_length, decode_rate, speedup
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import EagleError

N_QUESTIONS, N_TOKENS, N_WARM = 12, 64, 2


def real_speedup(
    load: LoadConfig, say: Callable[[str], None], prompts: Path | None = None
) -> dict[str, Any]:
    """EAGLE against plain decoding on a few questions, answered in turn; nothing is fetched.

    Args: prompts: a file of questions; None: the examples of the Compare page.
    Returns: rates, tau, the speed-up as of ``summary.speedup`` and how many answers were the same; or
        ``skipped`` with the reason.
    """
    try:
        from eagle_core.session import Session

        session = Session.open(dataclasses.replace(load, offline=True))
    except (EagleError, ImportError) as error:
        return {"skipped": str(error)}
    try:
        if session.info.head is None:
            return {"skipped": f"no head is known for {load.base}; name one with --head"}
        tree = tree_for(load, session.info.device)
        questions = load_questions(prompts or asset_path("compare_prompts.jsonl"))
        questions = evenly_spaced(questions, N_QUESTIONS)
        say(f"{load.base} in {session.info.dtype}: {len(questions)} questions")
        methods = [
            SessionMethod(name, session, DraftConfig(name, tree)) for name in ("none", "eagle")
        ]
        rows = answers(session, methods, questions)
    except EagleError as error:
        return {"skipped": str(error)}
    finally:
        session.close()
    return figures(rows) | {
        "base": load.base,
        "dtype": session.info.dtype,
        "tree": dataclasses.asdict(tree),
    }


def tree_for(load: LoadConfig, device: str) -> TreeConfig:
    """The tree that the catalogue recommends for the base on this device; else the default."""
    return catalog.default_tree(catalog.lookup(load.base), device)


def answers(session: Any, methods: list[SessionMethod], questions: list[Question]) -> list[Row]:
    """A row for each question and method; a few questions are answered before, unmeasured."""
    generation = GenerationConfig(max_new_tokens=N_TOKENS)
    rows = []
    for index, question in enumerate([*questions[:N_WARM], *questions]):
        prompt = session.encode_chat([{"role": "user", "content": question.text}])
        for method in methods if index % 2 else methods[::-1]:
            answer = method.answer(prompt, generation)
            if index >= N_WARM:
                rows.append(row_of(question.question_id, question.category, method.name, answer))
    return rows


def row_of(question_id: int | str, category: str, method: str, answer: Answer) -> Row:
    """An answer as a benchmark row."""
    return Row(
        question_id, category, 0, method, "ok", token_ids=answer.token_ids, stats=answer.stats
    )


def figures(rows: list[Row]) -> dict[str, Any]:
    """Figures of the two methods."""
    stats = {
        name: [row.stats for row in rows if row.method == name and row.stats is not None]
        for name in (BASELINE, "eagle")
    }
    texts = [
        {row.question_id: row.token_ids for row in rows if row.method == name} for name in stats
    ]
    return {
        "plain_tok_s": decode_rate(stats[BASELINE]),
        "eagle_tok_s": decode_rate(stats["eagle"]),
        "tau": acceptance_length(stats["eagle"]),
        "speedup": speedup(rows, "eagle", BASELINE),
        "n_questions": len(texts[0]),
        "n_identical": sum(texts[1].get(question) == ids for question, ids in texts[0].items()),
    }


__all__ = ["real_speedup"]
