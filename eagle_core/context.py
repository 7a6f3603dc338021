"""How much of a chat fits the model's context, and what is left out when it does not.

Nothing is ever left out silently: :class:`Fit` says which message is the first one sent, and the app marks
the others. Knows no tokenizer; whoever asks brings a function that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from eagle_core.config import Overflow
from eagle_core.errors import ContextOverflow

M = TypeVar("M")

# Room that is kept free for the answer: its longest length, but no more than this share of the context.
MAX_RESERVED_SHARE = 4


@dataclass(frozen=True, slots=True)
class Fit:
    """Which messages are sent: those from index ``first`` on. Sizes in tokens.

    ``n_system`` is what the system prompt takes of ``n_tokens``; ``n_reserved`` is kept for the answer.
    """

    first: int
    n_tokens: int
    n_system: int
    n_reserved: int
    length: int

    @property
    def share(self) -> float:
        """Taken part of the context, the answer's room left out."""
        return self.n_tokens / self.length


def fit(
    turns: Sequence[M],
    starts: Sequence[int],
    count: Callable[[Sequence[M]], int],
    length: int,
    max_new_tokens: int,
    policy: Overflow = "drop",
) -> Fit:
    """Find how many of the oldest turns must stay out so that the rest and an answer fit.

    Args:
        turns: the chat's messages without the system prompt, which ``count`` adds.
        starts: indices where a chat may begin, ascending; usually the user's messages.
        count: tokens of the system prompt and some messages; more messages have more tokens.
        length: tokens that the context holds.
        max_new_tokens: longest answer.
    Returns: the fit; if even the last start is too long it is that one, and the engine will refuse it.
    Raises: ContextOverflow under the policy "stop" when something would have to stay out.

    Example: messages of 10 tokens, starts 0, 2, 4, ``length`` 40 and 10 reserved: of 50 the first 2 stay out.
    """
    reserved = min(max_new_tokens, length // MAX_RESERVED_SHARE)
    n_system = count([])
    candidates = list(starts) or [0]
    low, high = 0, len(candidates) - 1
    whole = count(turns[candidates[0] :])
    n_tokens = whole
    if whole + reserved > length:
        low = 1 if high else 0
        while low < high:  # the first start from which the rest fits
            middle = (low + high) // 2
            if count(turns[candidates[middle] :]) + reserved > length:
                low = middle + 1
            else:
                high = middle
        n_tokens = count(turns[candidates[low] :])
        if policy == "stop" and low > 0:
            raise ContextOverflow(
                "the chat no longer fits the context",
                expected=f"{length} tokens, {reserved} of them kept for the answer",
                got=f"{whole} tokens",
                hint="delete messages, start a new chat, or let the oldest turns be left out (Settings)",
            )
    return Fit(candidates[low], n_tokens, min(n_system, n_tokens), reserved, length)


__all__ = ["Fit", "fit"]
