"""Where two answers to one prompt part, and by how little the model preferred one token there.

Pure: the figures come from ``rounding``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that two answers do not share; None for an answer that ended before it.

    ``gap`` is the plain token's logit minus the drafted one's in the model's precision, ``gap_float32`` the
    same in float32; ``lead`` is what decided, in logits: the gap at temperature 0, above it the gap with the
    position's random numbers. ``rounding`` is how far the precision may move it. None where not known.
    """

    index: int
    plain: int | None
    drafted: int | None
    gap: float | None = None
    gap_float32: float | None = None
    lead: float | None = None
    rounding: float | None = None

    @property
    def is_tie(self) -> bool | None:
        """Whether rounding can have decided here; None where that is not known."""
        if self.lead is None or self.rounding is None:
            return None
        return abs(self.lead) <= self.rounding


def first_difference(plain: Sequence[int], drafted: Sequence[int]) -> Difference | None:
    """Compare two answers to one prompt, the one without drafting first; None when they are the same.

    Example: (5, 6, 7) and (5, 6, 8) part at index 2.
    """
    for index, (left, right) in enumerate(zip_longest(plain, drafted)):
        if left != right:
            return Difference(index, left, right)
    return None


def describe(found: Difference, n_tokens: int, spell: Callable[[int], str] | None = None) -> str:
    """A difference in words; ``n_tokens`` is the plain answer's length, ``spell`` gives a token's text."""

    def name(token: int | None) -> str:
        if token is None:
            return "the end"
        return str(token) if spell is None else "“" + spell(token).replace("\n", "↵") + "”"

    text = (
        f"token {found.index} of {n_tokens} is {name(found.drafted)}, plainly {name(found.plain)}"
    )
    if found.gap is not None:
        text += f"; their logits are {found.gap:.3g} apart"
    if found.gap_float32 is not None:
        text += f", {found.gap_float32:.3g} in float32"
    if found.is_tie is not None:
        text += ": a rounding tie" if found.is_tie else ": more than rounding"
    return text


__all__ = ["Difference", "describe", "first_difference"]
