"""The benchmark's file: JSON lines, a header first, then one row per question, repeat and method.

Every row is flushed and synced before the next question is asked, so that a killed run goes on
where it stopped. Knows the file only: no model, no clock.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eagle_core.bench.prompts import QuestionId
from eagle_core.config import from_mapping
from eagle_core.differences import Difference, first_difference
from eagle_core.errors import ConfigError
from eagle_core.outputs import cannot_write, check_file
from eagle_core.stats import Stats

FORMAT = 1
BASELINE = "none"

Key = tuple[QuestionId, int, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One answer. ``stats`` is None, and nothing is timed, when the method failed on it.

    ``is_identical`` says whether the tokens are those of plain decoding for the same question and
    repeat, and ``first_difference`` where they part (None when identical); ``is_identical`` is None
    where there is nothing to compare with. ``logit_gap`` is how far the two tokens' logits are apart
    there. ``peak_memory_bytes`` is the accelerator's peak during this answer, or the process's peak so
    far where the model runs on the CPU.
    """

    question_id: QuestionId
    category: str
    repeat: int
    method: str
    status: Literal["ok", "failed"]
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    stats: Stats | None = None
    is_identical: bool | None = None
    first_difference: int | None = None
    logit_gap: float | None = None
    logit_gap_float32: float | None = None
    is_rounding_tie: bool | None = None
    peak_memory_bytes: int = 0
    error: dict[str, str] | None = None

    @property
    def key(self) -> Key:
        """What a row is about; a file holds each key once."""
        return self.question_id, self.repeat, self.method


Explain = Callable[[Row, Row], Difference | None]


def no_explanation(_baseline: Row, _row: Row) -> None:
    """The default for ``explain``: nothing is known about a difference but where it is."""


@dataclass(frozen=True, slots=True)
class BenchFile:
    """A benchmark file's content: provenance and settings, then the rows."""

    header: dict[str, Any]
    rows: list[Row] = field(default_factory=list)


def compare_with_baseline(row: Row, baseline: Row | None, explain: Explain = no_explanation) -> Row:
    """``row`` with its comparison filled in, unless one of the two failed or is missing.

    Args: explain: looks at the logits where the baseline's and the row's answers part; may not know.
    """
    if baseline is None or row.method == BASELINE or "failed" in (row.status, baseline.status):
        return row
    found = first_difference(baseline.token_ids, row.token_ids)
    if found is None:
        return dataclasses.replace(row, is_identical=True)
    found = explain(baseline, row) or found
    return dataclasses.replace(
        row,
        is_identical=False,
        first_difference=found.index,
        logit_gap=found.gap,
        logit_gap_float32=found.gap_float32,
        is_rounding_tie=found.is_tie,
    )


def read_bench_file(path: Path) -> BenchFile:
    """Read a benchmark file. A last line without a line end, left by a killed run, is skipped.

    Raises: ConfigError when the file is missing or is no benchmark file.
    """
    try:
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")[:-1]
        header = json.loads(lines[0])
        if header["type"] != "header" or header["format"] != FORMAT:
            raise ValueError(f"a header of type {header['type']}, format {header['format']}")
        rows = [_row_from_dict(json.loads(line)) for line in lines[1:]]
    except (OSError, ValueError, KeyError, IndexError, TypeError, ConfigError) as error:
        raise ConfigError(
            f"{path} is not a benchmark file",
            expected=f"the JSON lines, format {FORMAT}, that `eagle-chat bench run` writes",
            got=repr(error) if isinstance(error, KeyError | IndexError) else str(error),
            hint="check the path, or run the benchmark again",
        ) from error
    return BenchFile(header, rows)


def _row_from_dict(data: dict[str, Any]) -> Row:
    data = {key: value for key, value in data.items() if key != "type"}
    data["token_ids"] = tuple(data["token_ids"])
    if data["stats"] is not None:
        stats = {k: tuple(v) if isinstance(v, list) else v for k, v in data["stats"].items()}
        data["stats"] = from_mapping(Stats, stats)
    return from_mapping(Row, data)


def check_output(path: Path, settings: dict[str, Any], *, resume: bool) -> None:
    """Check that ``path`` can be made, or that it may be gone on with.

    Raises: ConfigError when it cannot be written, exists and ``resume`` is off, or holds rows of other
        settings.
    """
    check_file(path)
    if path.exists() and not resume:
        raise ConfigError(
            f"{path} exists already", hint="go on with --resume, or name another --out file"
        )
    if not _is_new(path):
        _check_same_settings(path, read_bench_file(path).header, settings)


def _is_new(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


class BenchWriter:
    """Appends rows to a benchmark file, each of them safe on disk before :meth:`write` returns."""

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool) -> None:
        """Open ``path``, new or to go on.

        Raises: ConfigError when it exists and ``resume`` is off, holds rows of other settings, or cannot
            be written.
        """
        check_output(path, header["settings"], resume=resume)
        is_new = _is_new(path)
        rows = [] if is_new else read_bench_file(path).rows
        self.done: dict[Key, Row] = {row.key: row for row in rows}
        if not is_new:
            _cut_unfinished_line(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise cannot_write(path, str(error)) from error
        if is_new:
            self._write({"type": "header", "format": FORMAT, **header})

    def write(self, row: Row) -> None:
        """Add one row."""
        self._write({"type": "row", **dataclasses.asdict(row)})
        self.done[row.key] = row

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: dict[str, Any]) -> None:
        self._file.write(json.dumps(data, ensure_ascii=False, default=str) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _check_same_settings(path: Path, found: dict[str, Any], settings: dict[str, Any]) -> None:
    # Compared as JSON reads them: tuples become lists on the way through the file.
    ours, theirs = json.loads(json.dumps(settings, default=str)), found["settings"]
    changed = sorted(k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k))
    if changed:
        raise ConfigError(
            f"{path} was measured with other settings",
            expected="; ".join(f"{name} = {theirs.get(name)}" for name in changed),
            got="; ".join(f"{name} = {ours.get(name)}" for name in changed),
            hint="name another --out file, or repeat the old settings",
        )


def _cut_unfinished_line(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


__all__ = [
    "BASELINE",
    "BenchFile",
    "BenchWriter",
    "Key",
    "Row",
    "check_output",
    "compare_with_baseline",
    "read_bench_file",
]
