"""Words that a search looks for: where they stand, in any script, and the parts of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_core.history.words import holds, parts_of, places_of, snippet_of, words_of


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("A red fox, a RED hen", "red", [(2, 5), (13, 16)]),
        ("Straße und STRASSE", "strasse", [(0, 6), (11, 18)]),
        ("Straße", "ss", [(4, 5)]),
        ("İstanbul", "stan", [(1, 5)]),  # its first character is two once it is folded
        ("lighthouse", "light house", [(0, 10)]),  # what touches is one
        ("aaaa", "aa", [(0, 4)]),
        ("<b>red</b>", "<b>", [(0, 3)]),
        ("a.b", ".", [(1, 2)]),
        ("nothing", "red", []),
        ("nothing", "", []),
        ("", "red", []),
    ],
)
def test_places(text: str, query: str, expected: list[tuple[int, int]]) -> None:
    assert places_of(text, words_of(query)) == expected


def test_parts_alternate() -> None:
    assert parts_of("a red fox", ["red"]) == ["a ", "red", " fox"]
    assert parts_of("red", ["red"]) == ["", "red", ""]
    assert parts_of("fox", ["red"]) == ["fox"]


@given(st.text(max_size=60), st.text(max_size=8))
def test_parts_are_the_text_and_found_ones_hold_a_word(text: str, query: str) -> None:
    words = words_of(query)
    parts = parts_of(text, words)
    assert "".join(parts) == text
    assert all(any(word in part.casefold() for word in words) for part in parts[1::2])
    assert not any(word in part.casefold() for word in words for part in parts[::2])
    assert (len(parts) > 1) == any(holds(text, [word]) for word in words)


def test_a_snippet_is_around_the_word() -> None:
    text = f"{'x ' * 50}the Lighthouse{' y' * 50}"
    snippet = snippet_of(text, "lighthouse")
    assert "the Lighthouse y" in snippet
    assert (snippet[0], snippet[-1]) == ("…", "…")
    assert snippet_of("a\n b", "b") == "a b"
