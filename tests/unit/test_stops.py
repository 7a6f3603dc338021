"""Stop strings: the cut, what is held back, and that runs do not matter."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from eagle_core.events import Origin, TokenOut
from eagle_core.stops import StopStrings
from eagle_core.text import TextStream, special_ids
from tests.support.tiny_models import byte_fallback_tokenizer, byte_level_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
FALLBACK = byte_fallback_tokenizer()


class Reply:
    """Feeds tokens in runs as the session does, until the answer ends."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stops: tuple[str, ...]) -> None:
        skip = special_ids(tokenizer)
        self.stops = StopStrings(stops, tokenizer, skip)
        self.stream = TextStream(tokenizer, skip)
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.draft_chars = 0

    def feed(self, run: list[int]) -> bool:
        """Take a run; False once the answer is over."""
        n_kept = self.stops.cut(run)
        kept = run if n_kept is None else run[:n_kept]
        self.ids += kept
        origins: list[Origin] = ["draft"] * (len(kept) - 1) + ["target"]
        tokens = [TokenOut(i, origin, 0, 1.0) for i, origin in zip(kept, origins, strict=True)]
        self._show(self.stops.shown(self.stream.feed(tokens)))
        return n_kept is None

    def end(self) -> str:
        """The rest; returns the whole text."""
        self._show(self.stops.rest(self.stream.flush()))
        return "".join(self.texts)

    def _show(self, delta: object) -> None:
        if delta is not None:
            assert sum(span.n_chars for span in delta.spans) == len(delta.text) > 0
            self.draft_chars += sum(s.n_chars for s in delta.spans if s.origin == "draft")
            self.texts.append(delta.text)


def answer(
    ids: list[int],
    stops: tuple[str, ...],
    run: int = 1,
    tokenizer: PreTrainedTokenizerFast = BYTE_LEVEL,
) -> tuple[str, list[int], bool]:
    """Text, ids, and whether a stop string ended them."""
    reply = Reply(tokenizer, stops)
    for start in range(0, len(ids), run):
        if not reply.feed(ids[start : start + run]):
            break
    text = reply.end()
    return text, reply.ids, reply.stops.is_complete


def encode(text: str) -> list[int]:
    return list(BYTE_LEVEL.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def byte_ids(data: bytes) -> list[int]:
    """One token per byte."""
    from eagle_core.text import byte_alphabet

    sign = {byte: char for char, byte in byte_alphabet().items()}
    return [BYTE_LEVEL.convert_tokens_to_ids(sign[byte]) for byte in data]


def decode(ids: list[int], tokenizer: PreTrainedTokenizerFast = BYTE_LEVEL) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def expected_cut(text: str, stops: tuple[str, ...]) -> str | None:
    """By definition, character by character: what comes before the stop string that is complete first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return None


@pytest.mark.parametrize("run", [1, 2, 3, 5, 50])
def test_a_stop_string_ends_text_and_ids_wherever_runs_end(run):
    ids = byte_ids(b"one two END three")
    text, kept, is_complete = answer(ids, ("END",), run)
    assert (text, is_complete) == ("one two ", True)
    assert kept == ids[: len("one two END")]


def test_early_in_a_long_run_nothing_after_it_is_kept():
    ids = byte_ids(b"a\n\n" + b"x" * 40)
    assert answer(ids, ("\n\n",), 43) == ("a", ids[:3], True)


def test_a_start_that_does_not_complete_is_shown_later():
    reply = Reply(BYTE_LEVEL, ("abcd",))
    for letter in b"xabc":
        assert reply.feed(byte_ids(bytes([letter])))
    assert "".join(reply.texts) == "x", "abc may yet become the stop string"
    assert reply.feed(byte_ids(b"a"))
    assert "".join(reply.texts) == "xabc"
    assert reply.end() == "xabca"
    assert not reply.stops.is_complete


def test_of_several_the_first_complete_one_counts_and_then_the_longest():
    assert answer(byte_ids(b"xabcd"), ("abcd", "bc"))[0] == "xa"
    assert answer(byte_ids(b"xabcd"), ("bc", "abc"))[0] == "x"


def test_a_token_longer_than_the_stop_string_is_the_last():
    ids = encode("the cat sat on")
    text, kept, is_complete = answer(ids, ("at",), 4)
    assert is_complete
    assert text == "the c"
    assert decode(kept).startswith("the cat")
    assert "at" not in decode(kept[:-1])


@pytest.mark.parametrize("stop", ["語", "日本", "😀", "é"])
@pytest.mark.parametrize("run", [1, 2, 9])
def test_signs_of_several_tokens(stop, run):
    ids = byte_ids(f"wörld {stop} after".encode())
    text, kept, is_complete = answer(ids, (stop,), run)
    assert (text, is_complete) == ("wörld ", True)
    assert decode(kept) == f"wörld {stop}"


def test_bytes_that_never_become_a_sign_count_at_the_end():
    ids = byte_ids(b"ab" + "😀".encode()[:2])
    assert answer(ids, ("b\ufffd",)) == ("a", ids, True)
    assert answer(ids, ("c",)) == ("ab\ufffd", ids, False)


class Broken:
    """A tokenizer of another kind, one of whose tokens ends in the middle of a sign."""

    def decode(self, ids: list[int], **_: bool) -> str:
        return "".join(("a", "END\ufffd", "x")[i] for i in ids)


def test_text_before_an_unfinished_sign_is_searched_at_once():
    stops = StopStrings(("END",), Broken(), frozenset())
    stream = TextStream(Broken(), frozenset())
    assert stops.cut([0, 1, 2]) == 2
    shown = stops.shown(stream.feed([TokenOut(i, "target", 0, 1.0) for i in (0, 1)]))
    assert shown is not None
    assert shown.text == "a"
    assert stops.rest(stream.flush()) is None


def test_without_stop_strings_nothing_is_held():
    reply = Reply(BYTE_LEVEL, ())
    assert reply.feed(byte_ids(b"abc"))
    assert reply.texts == ["abc"]
    assert reply.end() == "abc"


def test_origins_survive_holding_back():
    reply = Reply(BYTE_LEVEL, ("bcZ",))
    reply.feed(byte_ids(b"abc"))  # drafted, drafted, target
    reply.feed(byte_ids(b"d"))
    assert reply.end() == "abcd"
    assert reply.draft_chars == 2


STOPS = st.lists(st.text("ab\n語", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("ab\n語😀", max_size=24),
    stops=STOPS,
    run=st.integers(1, 9),
    as_bytes=st.booleans(),
)
def test_the_text_ends_where_the_definition_says(
    text: str, stops: list[str], run: int, as_bytes: bool
) -> None:
    ids = byte_ids(text.encode()) if as_bytes else encode(text)
    found, kept, is_complete = answer(ids, tuple(stops), run)
    expected = expected_cut(text, tuple(stops))
    assert is_complete == (expected is not None)
    assert found == (text if expected is None else expected)
    assert kept == ids[: len(kept)]
    assert (found, kept, is_complete) == answer(ids, tuple(stops), 1), "runs must not matter"
    if is_complete:
        # Only the last token completes a stop string: nothing after it was kept.
        assert expected_cut(decode(kept), tuple(stops)) is not None
        assert expected_cut(decode(kept[:-1]), tuple(stops)) is None
        assert decode(kept).startswith(found)


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab\n", max_size=20), stops=STOPS)
def test_no_part_of_a_stop_string_is_ever_shown(text: str, stops: list[str]) -> None:
    reply = Reply(BYTE_LEVEL, tuple(stops))
    for token_id in byte_ids(text.encode()):
        if not reply.feed([token_id]):
            break
    shown = "".join(reply.texts)
    expected = expected_cut(text, tuple(stops))
    assert (text if expected is None else expected).startswith(shown)


def test_random_ids_with_both_tokenizers():
    rng = random.Random(3)
    # Most of the second tokenizer's ids are bytes that make no sign alone, and ``decode`` drops more of them.
    for tokenizer, n_expected in ((BYTE_LEVEL, 30), (FALLBACK, 15)):
        n_stopped = 0
        for _ in range(80):
            ids = [rng.randrange(len(tokenizer)) for _ in range(30)]
            stop = decode(ids[10:13], tokenizer).strip("\ufffd") or "the"
            one = answer(ids, (stop,), 1, tokenizer)
            assert answer(ids, (stop,), rng.randrange(2, 9), tokenizer) == one
            assert stop not in one[0]
            n_stopped += one[2]
        assert n_stopped > n_expected
