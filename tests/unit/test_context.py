"""What fits the context: checked against trying every start."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_core.context import fit
from eagle_core.errors import ContextOverflow


def count(sizes: Sequence[int]) -> int:
    return 5 + sum(sizes)


def test_the_oldest_turns_stay_out() -> None:
    result = fit([10] * 5, [0, 2, 4], count, 50, 10)
    assert (result.first, result.n_tokens, result.n_reserved) == (2, 35, 10)
    assert result.n_system == 5
    assert fit([10] * 3, [0, 2], count, 50, 10).first == 0


def test_the_answer_takes_a_quarter_at_most() -> None:
    assert fit([10], [0], count, 100, 5000).n_reserved == 25


def test_stopping_says_what_to_do() -> None:
    with pytest.raises(ContextOverflow, match="55 tokens") as error:
        fit([10] * 5, [0, 2, 4], count, 50, 10, "stop")
    assert "new chat" in error.value.hint
    assert fit([100], [0], count, 50, 10, "stop").first == 0  # the engine refuses it


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(4, 200))
def test_as_many_turns_as_fit(sizes: list[int], length: int) -> None:
    starts = list(range(0, len(sizes), 2))
    result = fit(sizes, starts, count, length, 20)
    fitting = [s for s in starts if count(sizes[s:]) + result.n_reserved <= length]
    assert result.first == (min(fitting) if fitting else starts[-1])
    assert result.n_tokens == count(sizes[result.first :])
