"""The fold from events to a transcript: golden values, purity, and the live rate."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_core.events import (
    DownloadProgress,
    Event,
    Failed,
    Finished,
    Notice,
    PrefillProgress,
    Queued,
    Span,
    Started,
    StepDone,
    TextDelta,
    TokenOut,
    TreeView,
)
from eagle_core.stats import Stats
from eagle_core.transcript import SeenToken, Transcript, joined, tree_depth

STARTED = Started(
    n_prompt_tokens=12,
    n_cached_tokens=4,
    context_length=2048,
    drafter="eagle",
    rule="greedy",
    seed=7,
)
FIRST = StepDone(0, TreeView((), ()), (), (TokenOut(10, "target", 0, 0.9),), 0.10)
SECOND = StepDone(
    index=1,
    tree=TreeView((10, 11, 12, 13), (-1, 0, 1, 0)),
    path=(1, 2),
    tokens=(
        TokenOut(11, "draft", 1, 0.8),
        TokenOut(12, "draft", 2, 0.7),
        TokenOut(14, "target", 0, 0.6),
    ),
    time_s=0.60,
    draft_s=0.1,
    target_s=0.3,
    verify_s=0.05,
    commit_s=0.05,
)
THIRD = StepDone(
    index=2,
    tree=TreeView((14, 15), (-1, 0)),
    path=(),
    tokens=(TokenOut(16, "target", 0, 0.5),),
    time_s=1.10,
)


def fold(*events: Event) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript = transcript.apply(event)
    return transcript


def test_a_whole_answer() -> None:
    final = Stats(n_tokens=5, n_steps=2, tau=2.0)
    seen = fold(
        Queued(2),
        Queued(1),
        STARTED,
        PrefillProgress(12, 12),
        FIRST,
        TextDelta("A", (Span("target", 1),)),
        SECOND,
        TextDelta("bcd", (Span("draft", 2), Span("target", 1))),
        THIRD,
        TextDelta("e", (Span("target", 1),)),
        Finished("eos", 12, (10, 11, 12, 14, 16), final),
    )
    assert seen.phase == "finished"
    assert seen.is_over
    assert seen.text == "Abcde"
    assert seen.spans == (Span("target", 1), Span("draft", 2), Span("target", 2))
    assert seen.tokens == (
        SeenToken(10, "target", 0, 0.9, 0),
        SeenToken(11, "draft", 1, 0.8, 1),
        SeenToken(12, "draft", 2, 0.7, 1),
        SeenToken(14, "target", 0, 0.6, 1),
        SeenToken(16, "target", 0, 0.5, 2),
    )
    assert seen.finish_reason == "eos"
    assert seen.stats is final
    assert seen.queue_ahead is None
    assert (seen.n_prompt_tokens, seen.n_cached_tokens, seen.context_length) == (12, 4, 2048)
    assert (seen.drafter, seen.rule, seen.seed) == ("eagle", "greedy", 7)
    assert seen.n_drafted_tokens == 2
    assert seen.accepted_share == pytest.approx(2 / 5)


def test_live_stats_follow_the_definitions() -> None:
    stats = fold(STARTED, FIRST, SECOND, THIRD).stats
    assert stats.n_tokens == 5
    assert stats.n_steps == 2
    assert stats.tau == pytest.approx(2.0)  # (5 - 1) / 2
    assert stats.ttft_s == pytest.approx(0.10)
    assert stats.decode_tok_s == pytest.approx(4 / 1.0)
    assert stats.drafted_at_depth == (2, 1)
    assert stats.accepted_at_depth == (1, 1)
    assert stats.n_drafted == 4
    assert (stats.draft_s, stats.target_s) == pytest.approx((0.1, 0.3))


def test_now_rate_counts_two_seconds() -> None:
    seen = fold(STARTED, FIRST)
    assert seen.now_tok_s is None
    seen = seen.apply(SECOND).apply(THIRD)
    assert seen.now_tok_s == pytest.approx((3 + 1) / 1.0)
    late = StepDone(3, TreeView((16,), (-1,)), (), (TokenOut(1, "target", 0, 1.0),) * 2, 2.9)
    seen = seen.apply(late)
    # The window (0.9, 2.9] holds the emissions at 1.1 s and 2.9 s; the first one starts the clock.
    assert seen.now_tok_s == pytest.approx(2 / 1.8)


def test_a_burst_has_no_rate() -> None:
    burst = [
        StepDone(i, TreeView((1,), (-1,)), (), (TokenOut(1, "target", 0, 1.0),) * 5, 0.1 + i / 1000)
        for i in range(4)
    ]
    assert fold(STARTED, *burst).now_tok_s is None


def test_queue_and_prefill() -> None:
    seen = fold(Queued(3))
    assert (seen.phase, seen.queue_ahead) == ("queued", 3)
    seen = seen.apply(STARTED)
    assert (seen.phase, seen.queue_ahead, seen.n_prefilled) == ("prefill", None, 4)
    seen = seen.apply(PrefillProgress(8, 12))
    assert seen.n_prefilled == 8
    assert seen.apply(FIRST).phase == "decoding"


def test_failure_keeps_what_was_said() -> None:
    error = Failed("out-of-memory", "no memory", "smaller tree")
    seen = fold(STARTED, FIRST, TextDelta("A", (Span("target", 1),)), error)
    assert seen.phase == "failed"
    assert seen.is_over
    assert seen.text == "A"
    assert seen.error == error


def test_notices_are_kept_and_other_events_ignored() -> None:
    notice = Notice("warning", "no head")
    seen = fold(notice, DownloadProgress("x", 1, 2))
    assert seen.notices == (notice,)
    assert seen == fold(notice)


def test_apply_changes_nothing_in_place() -> None:
    before = fold(STARTED, FIRST, SECOND)
    copy = fold(STARTED, FIRST, SECOND)
    first = before.apply(THIRD).stats
    again = before.apply(THIRD).stats
    assert before == copy
    assert first == again


spans_strategy = st.lists(
    st.builds(Span, st.sampled_from(["draft", "target"]), st.integers(0, 5)), max_size=12
)


@given(spans_strategy, spans_strategy)
def test_joined_spans_keep_every_character(left: list[Span], right: list[Span]) -> None:
    merged = joined(joined((), tuple(left)), tuple(right))
    letters = "".join(span.origin[0] * span.n_chars for span in [*left, *right])
    assert "".join(span.origin[0] * span.n_chars for span in merged) == letters
    neighbours = itertools.pairwise(merged)
    assert all(a.origin != b.origin for a, b in neighbours)
    assert all(span.n_chars for span in merged)


@pytest.mark.parametrize(
    ("parents", "depth"), [((), 0), ((-1,), 0), ((-1, 0, 1, 0), 2), ((-1, 0, 0, 2, 3), 3)]
)
def test_tree_depth(parents: tuple[int, ...], depth: int) -> None:
    assert tree_depth(TreeView(tuple(range(len(parents))), parents)) == depth
