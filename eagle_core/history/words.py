"""Words that a search looks for in a text: whether it holds them, where they stand, and what is around one.

Case does not matter, in any script: both sides are case-folded, which may change their length ("ß" is "ss").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

SNIPPET_CHARS = 40


def words_of(query: str) -> list[str]:
    """The words of a query, case-folded."""
    return query.casefold().split()


def holds(text: str, words: Sequence[str]) -> bool:
    """Whether a text holds all words, which are case-folded."""
    folded = text.casefold()
    return all(word in folded for word in words)


def places_of(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Where the words stand, as ranges of characters; those that touch are one.

    Example: "Straße" with ["ss"] gives [(4, 5)].
    """
    owner = [i for i, sign in enumerate(text) for _ in sign.casefold()]  # of each folded character
    folded = text.casefold()
    is_found = [False] * len(text)
    for word in words:
        at = folded.find(word) if word else -1
        while at >= 0:
            for i in range(owner[at], owner[at + len(word) - 1] + 1):
                is_found[i] = True
            at = folded.find(word, at + 1)
    places: list[tuple[int, int]] = []
    for i in (i for i, found in enumerate(is_found) if found):
        start = places.pop()[0] if places and places[-1][1] == i else i
        places.append((start, i + 1))
    return places


def parts_of(text: str, words: Sequence[str]) -> list[str]:
    """A text in parts that alternate: what was not looked for, what was, and so on.

    Example: "a red fox" with ["red"] gives ["a ", "red", " fox"].
    """
    ends = [0, *(end for place in places_of(text, words) for end in place), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def snippet_of(text: str, word: str) -> str:
    """The text around a word, on one line."""
    at = max(text.casefold().find(word), 0)
    start = max(at - SNIPPET_CHARS, 0)
    end = at + len(word) + SNIPPET_CHARS
    part = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{part}{'…' if end < len(text) else ''}"


__all__ = ["holds", "parts_of", "places_of", "snippet_of", "words_of"]
