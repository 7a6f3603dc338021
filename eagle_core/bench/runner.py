"""Runs methods over questions and writes one row for each answer as soon as it is there.

All methods answer a question before the next one is asked, in an order that rotates, so that a
machine which slows down over time slows all of them alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eagle_core.bench.config import LLAMA, BenchConfig, family_of, is_peer
from eagle_core.bench.methods import Method
from eagle_core.bench.prompts import Question, fingerprint
from eagle_core.bench.provenance import peak_process_bytes
from eagle_core.bench.records import BASELINE, BenchWriter, Row, compare_with_baseline
from eagle_core.config import GenerationConfig, LoadConfig, TreeConfig
from eagle_core.differences import Difference
from eagle_core.errors import EagleError

WARMUP_TOKENS = 32


def settings_of(
    questions: list[Question],
    bench: BenchConfig,
    generation: GenerationConfig,
    tree: TreeConfig,
    load: LoadConfig,
) -> dict[str, Any]:
    """The settings that two runs must share for their rows to belong together."""
    return {
        "prompts_sha256": fingerprint(questions),
        "n_questions": len(questions),
        "bench": dataclasses.asdict(bench),
        "generation": dataclasses.asdict(generation),
        "tree": dataclasses.asdict(tree),
        "load": dataclasses.asdict(load),
    }


def n_rows(questions: list[Question], bench: BenchConfig) -> int:
    """Rows that a complete file holds."""
    return len(questions) * bench.repeats * len(bench.methods)


ExplainAnswers = Callable[
    [Sequence[int], Sequence[int], Sequence[int], GenerationConfig], Difference | None
]


def run_bench(
    questions: list[Question],
    methods: Sequence[Method],
    encode: Callable[[str], list[int]],
    generation: GenerationConfig,
    bench: BenchConfig,
    writer: BenchWriter,
    measure_peak: PeakMeter,
    explain: ExplainAnswers | None = None,
) -> Iterator[Row]:
    """Measure what ``writer`` does not hold yet; yields every row once it is on disk.

    Args:
        encode: a question's text to prompt ids, chat template included.
        explain: looks at the logits where an answer parts from plain decoding's: (prompt ids, plain ids,
            the other's ids, settings).
    Raises: what ``encode`` raises. A method's EagleError becomes a row of status "failed".
    """
    todo = [
        (index, question, repeat)
        for repeat in range(bench.repeats)
        for index, question in enumerate(questions)
        if any((question.question_id, repeat, m.name) not in writer.done for m in methods)
    ]
    if todo:
        _warm_up(questions[: bench.warmup], methods, encode, generation)
    for index, question, repeat in todo:
        prompt_ids = encode(question.text)
        turn = (index + repeat) % len(methods)
        rows = [
            _measure(method, question, repeat, prompt_ids, generation, measure_peak)
            for method in [*methods[turn:], *methods[:turn]]
            if (question.question_id, repeat, method.name) not in writer.done
        ]
        # Written together: a row carries its comparison with the baseline, which may come last.
        by_method = {row.method: row for row in rows}
        baseline = by_method.get(BASELINE) or writer.done.get(
            (question.question_id, repeat, BASELINE)
        )
        look = functools.partial(_explain, explain, prompt_ids, _with_seed(generation, repeat))
        for row in rows:
            writer.write(compare_with_baseline(row, baseline, look))
            yield writer.done[row.key]


def _warm_up(
    questions: list[Question],
    methods: Sequence[Method],
    encode: Callable[[str], list[int]],
    generation: GenerationConfig,
) -> None:
    short = dataclasses.replace(
        generation, max_new_tokens=min(WARMUP_TOKENS, generation.max_new_tokens)
    )
    for question in questions:
        for method in methods:
            with contextlib.suppress(EagleError):  # the measured rows will say so
                method.answer(encode(question.text), short)


def _explain(
    explain: ExplainAnswers | None,
    prompt_ids: list[int],
    generation: GenerationConfig,
    baseline: Row,
    row: Row,
) -> Difference | None:
    """What is to be known about a difference between answers that should be the same; else None."""
    # llama.cpp computes in another precision; whoever draws with other numbers draws other tokens.
    is_drawn_apart = is_peer(row.method) and generation.temperature > 0
    is_drawn_apart |= family_of(row.method) == LLAMA
    if explain is None or generation.acceptance == "sampling" or is_drawn_apart:
        return None
    return explain(prompt_ids, baseline.token_ids, row.token_ids, generation)


def _with_seed(generation: GenerationConfig, repeat: int) -> GenerationConfig:
    """A repeat at temperature > 0 is another sample, the same one for all methods."""
    return dataclasses.replace(generation, seed=generation.seed + repeat)


def _measure(
    method: Method,
    question: Question,
    repeat: int,
    prompt_ids: list[int],
    generation: GenerationConfig,
    measure_peak: PeakMeter,
) -> Row:
    generation = _with_seed(generation, repeat)
    measure_peak.restart()
    row = Row(
        question_id=question.question_id,
        category=question.category,
        repeat=repeat,
        method=method.name,
        status="failed",
        n_prompt_tokens=len(prompt_ids),
    )
    try:
        answer = method.answer(prompt_ids, generation)
    except EagleError as error:
        detail = {"code": error.code, "message": error.message, "hint": error.hint}
        return dataclasses.replace(row, error=detail)
    return dataclasses.replace(
        row,
        status="ok",
        n_cached_tokens=answer.n_cached_tokens,
        token_ids=answer.token_ids,
        finish_reason=answer.finish_reason,
        stats=answer.stats,
        peak_memory_bytes=answer.peak_memory_bytes or measure_peak.read(),
    )


class PeakMeter:
    """Peak memory of one answer on an accelerator, of the process so far on the CPU."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._is_cuda = device.startswith("cuda")

    def restart(self) -> None:
        """Forget the peak, where the device can."""
        if self._is_cuda:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> int:
        """Bytes since :meth:`restart`, or of the process's whole life on the CPU."""
        if self._is_cuda:
            import torch

            return torch.cuda.max_memory_allocated(self._device)
        return peak_process_bytes()


__all__ = [
    "PeakMeter",
    "n_rows",
    "run_bench",
    "settings_of",
]
