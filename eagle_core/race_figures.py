"""Figures over all races of a batch: sums of times, not means of ratios; 95% intervals over the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle_core.bench.summary import with_intervals
from eagle_core.compare import Race
from eagle_core.stats import Stats

Pair = tuple[Stats, Stats]
# Columns of a table with one race in each row: seconds and tokens of the first set-up, then of the other.
FIRST_S, FIRST_TOKENS, OTHER_S, OTHER_TOKENS = range(4)


def summarize(races: Sequence[Race]) -> list[dict[str, Any]]:
    """Figures of each lane but the first over all races with a speed-up."""
    return [figures(races, place) for place in range(1, len(races[0].lanes) if races else 0)]


def figures(races: Sequence[Race], place: int) -> dict[str, Any]:
    """One lane beside the first: speed-ups with intervals (None with a single race), tau, identical answers.

    ``categories`` has the decoding speed-up of each kind of prompt, in the order of the prompts.
    """
    kept = [race for race in races if race.verdicts[place - 1].total_speedup is not None]
    pairs = pairs_of(kept, place)
    judged = [
        verdict for race in kept if (verdict := race.verdicts[place - 1].is_identical) is not None
    ]
    n_steps = sum(other.n_steps for _, other in pairs)
    n_decoded = sum(other.n_tokens - 1 for _, other in pairs)
    decode, total = decode_table(pairs), total_table(pairs)
    names = list(dict.fromkeys(race.category for race in kept if race.category))
    return {
        "n_races": len(kept),
        "decode_speedup": speedup(decode),
        "decode_interval": interval(decode),
        "total_speedup": speedup(total),
        "total_interval": interval(total),
        "tau": n_decoded / n_steps if n_steps else None,
        "n_identical": sum(judged),
        "n_judged": len(judged),
        "categories": [
            category(name, [race for race in kept if race.category == name], place)
            for name in names
        ],
    }


def category(name: str, races: Sequence[Race], place: int) -> dict[str, Any]:
    """One kind of prompt."""
    found = speedup(decode_table(pairs_of(races, place)))
    return {"name": name, "n_races": len(races), "decode_speedup": found}


def pairs_of(races: Sequence[Race], place: int) -> list[Pair]:
    """The first answer's stats and the other's."""
    return [(race.lanes[0].stats, race.lanes[place].stats) for race in races]


def decode_table(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """Decoding alone, all tokens but the first; answers of one token say nothing. [R, 4] f64"""
    rows = [
        (one.decode_s, one.n_tokens - 1, two.decode_s, two.n_tokens - 1)
        for one, two in pairs
        if one.decode_s > 0 and two.decode_s > 0
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def total_table(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """Whole requests. [R, 4] f64"""
    rows = [(one.total_s, one.n_tokens, two.total_s, two.n_tokens) for one, two in pairs]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def times_faster(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many times less time the other takes per token. Args: table: [..., R, 4] f64. Returns: [...] f64"""
    sums = table.sum(axis=-2)  # [..., 4]
    first = sums[..., FIRST_S] / sums[..., FIRST_TOKENS]
    return np.asarray(first / (sums[..., OTHER_S] / sums[..., OTHER_TOKENS]))


def speedup(table: NDArray[np.float64]) -> float | None:
    """The speed-up over all rows; None without any."""
    return float(times_faster(table)) if len(table) else None


def interval(table: NDArray[np.float64]) -> list[float] | None:
    """95% interval of the speed-up under resampling of the prompts; None with fewer than two."""
    if len(table) < 2:
        return None
    found = with_intervals(table, {"speedup": times_faster})["speedup"]
    low, high = found["low"], found["high"]
    return None if low is None or high is None else [low, high]


__all__ = ["summarize"]
