"""Two sets of answers to the same questions against each other: ratios by category, with paired intervals.

Either two methods of one file, or the same method in two files (before and after a change, say). Files are
compared only where everything else is the same: ``obstacles`` says what is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from eagle_core.bench.records import BenchFile, Row
from eagle_core.bench.summary import acceptance_length, decode_rate, speedup
from eagle_core.errors import ConfigError

Aspect = Literal["machine", "prompts", "model", "precision", "settings"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
# Which entries of the header make up an aspect, as paths.
PLACES: dict[Aspect, tuple[str, ...]] = {
    "machine": ("cpu", "accelerator", "n_threads"),
    "prompts": ("settings.prompts_sha256",),
    "model": ("model.base", "model.n_parameters"),
    "precision": ("model.dtype", "model.quantization", "model.device"),
    "settings": ("settings.generation",),
}
WORDS: dict[Aspect, str] = {
    "machine": "they were measured on other machines",
    "prompts": "they asked other questions",
    "model": "they measured other models",
    "precision": "the models have another precision, or another device",
    "settings": "the answers were made by other settings",
}
ALL = "all"
OURS, THEIRS = "ours", "theirs"
MISSING = object()  # older files lack some entries: what is not known is not a difference


@dataclass(frozen=True, slots=True)
class Side:
    """A method in a file. ``label`` tells it from the other side."""

    file: BenchFile
    method: str
    label: str


def entry(header: dict[str, Any], path: str, default: Any = None) -> Any:
    """The header's entry at a dotted path; ``default`` where there is none."""
    value: Any = header
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return value


def obstacles(one: BenchFile, other: BenchFile) -> dict[Aspect, str]:
    """What differs between two files, with both values: why their figures may not be compared."""
    found: dict[Aspect, str] = {}
    for aspect, paths in PLACES.items():
        differing = []
        for path in paths:
            ours, theirs = (entry(file.header, path, MISSING) for file in (one, other))
            if MISSING not in (ours, theirs) and ours != theirs:
                differing.append(f"{path.rpartition('.')[2]} {_short(ours)} and {_short(theirs)}")
        if differing:
            found[aspect] = "; ".join(differing)
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_comparable(one: BenchFile, other: BenchFile, allowed: Sequence[str] = ()) -> list[str]:
    """What differs but was allowed to, as sentences.

    Raises: ConfigError when something else differs. Other questions are never allowed.
    """
    unknown = sorted(set(allowed) - (set(ASPECTS) - {"prompts"}))
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} cannot be allowed to differ",
            expected="some of machine, model, precision, settings",
            got=", ".join(allowed),
            hint="two files that asked other questions are never compared",
        )
    found = obstacles(one, other)
    wrong = [aspect for aspect in found if aspect not in allowed]
    if wrong:
        may = [aspect for aspect in wrong if aspect != "prompts"]
        raise ConfigError(
            "the two files cannot be compared: " + ", and ".join(WORDS[a] for a in wrong),
            expected="the same machine, questions, model, precision and settings",
            got="; ".join(found[aspect] for aspect in wrong),
            hint="measure both the same way"
            + (f", or say --allow {','.join(may)} if that is what you compare" if may else ""),
        )
    return [f"{WORDS[aspect]}: {text}" for aspect, text in found.items()]


def methods_of(file: BenchFile) -> list[str]:
    """The methods that a file holds rows of, in the order of its settings."""
    found = dict.fromkeys(row.method for row in file.rows)
    order = [m for m in entry(file.header, "settings.bench.methods") or () if m in found]
    return [*order, *(method for method in found if method not in order)]


def check_method(file: BenchFile, method: str, name: str) -> None:
    """Raises: ConfigError when the file has no answer by the method."""
    if method not in methods_of(file):
        raise ConfigError(
            f"{name} has no answer by {method}",
            expected=" or ".join(methods_of(file)) or "rows",
            got=method,
            hint="name a method that was measured",
        )


def compare(ours: Side, theirs: Side) -> dict[str, Any]:
    """``ours`` against ``theirs``, over all questions and by category.

    Returns: ``rows`` by category, ``all`` first. Each has the two rates and taus, ``speedup`` as of
        ``summary.speedup`` (None without a pair), and how many answers were compared and were the same.
    """
    rows = [
        *(dataclasses.replace(row, method=OURS) for row in _of(ours)),
        *(dataclasses.replace(row, method=THEIRS) for row in _of(theirs)),
    ]
    categories = sorted({row.category for row in rows})
    return {
        "method": ours.label,
        "baseline": theirs.label,
        "is_same_method": ours.method == theirs.method,
        "rows": {
            ALL: _figures(rows),
            **{name: _figures([r for r in rows if r.category == name]) for name in categories},
        },
    }


def _of(side: Side) -> Iterable[Row]:
    return (row for row in side.file.rows if row.method == side.method)


def _figures(rows: Sequence[Row]) -> dict[str, Any]:
    pairs = _pairs(rows)
    ours = [row.stats for row, _ in pairs if row.stats is not None]
    theirs = [row.stats for _, row in pairs if row.stats is not None]
    failed = [row.method for row in rows if row.status == "failed"]
    return {
        "tok_s": [decode_rate(ours), decode_rate(theirs)],
        "tau": [acceptance_length(ours), acceptance_length(theirs)],
        "speedup": speedup(rows, OURS, THEIRS),
        "n_compared": len(pairs),
        "n_identical": sum(one.token_ids == other.token_ids for one, other in pairs),
        "n_failed": [failed.count(OURS), failed.count(THEIRS)],
    }


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Completed answers of both sides to the same question and repeat."""
    done = {row.key: row for row in rows if row.stats is not None}
    return [
        (row, done[question, repeat, THEIRS])
        for (question, repeat, method), row in done.items()
        if method == OURS and (question, repeat, THEIRS) in done
    ]


__all__ = [
    "ALL",
    "Side",
    "check_comparable",
    "check_method",
    "compare",
    "entry",
    "methods_of",
    "obstacles",
]
