"""The incremental detokenizer: its pieces add up to ``decode`` of everything, for any tokens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from eagle_core.events import Origin, Span, TextDelta, TokenOut
from eagle_core.text import TextStream, special_ids
from tests.support.tiny_models import byte_fallback_tokenizer, byte_level_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
FALLBACK = byte_fallback_tokenizer()
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


def out(token_id: int, origin: Origin = "draft") -> TokenOut:
    return TokenOut(token_id, origin, 1, 0.5)


def stream(tokenizer: PreTrainedTokenizerFast, ids: list[int], run: int = 1) -> str:
    """Feed ``ids`` in runs of ``run`` and join what comes out."""
    text_stream = TextStream(tokenizer, special_ids(tokenizer))
    deltas = [
        text_stream.feed([out(i) for i in ids[start : start + run]])
        for start in range(0, len(ids), run)
    ]
    deltas.append(text_stream.flush())
    found = [delta for delta in deltas if delta is not None]
    assert all(delta.text for delta in found)
    assert all(sum(span.n_chars for span in d.spans) == len(d.text) for d in found)
    return "".join(delta.text for delta in found)


def decode(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(0, len(BYTE_LEVEL) - 1), max_size=30),
    run=st.integers(1, 7),
)
def test_byte_level_pieces_equal_decode_for_any_ids(ids: list[int], run: int) -> None:
    assert stream(BYTE_LEVEL, ids, run) == decode(BYTE_LEVEL, ids)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, run=st.integers(1, 7))
def test_byte_level_pieces_equal_the_text(text: str, run: int) -> None:
    ids = BYTE_LEVEL.backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert stream(BYTE_LEVEL, ids, run) == decode(BYTE_LEVEL, ids)
    if not any(special in text for special in BYTE_LEVEL.all_special_tokens):
        assert stream(BYTE_LEVEL, ids, run) == text


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.sampled_from(["▁the", "▁cat", "▁", "s", "▁é", "日", "😀", "</s>", "\ufffd"]))
)
def test_byte_fallback_pieces_equal_decode(words: list[str]) -> None:
    ids: list[int] = []
    for word in words:
        known = FALLBACK.convert_tokens_to_ids(word)
        unknown = FALLBACK.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in word.encode()])
        ids += [known] if known != FALLBACK.unk_token_id else unknown
    assert stream(FALLBACK, ids) == decode(FALLBACK, ids)


def bytes_to_ids(data: bytes) -> list[int]:
    """One token per byte of ``data``."""
    by_text = {BYTE_LEVEL.decode([i]): i for i in range(len(BYTE_LEVEL))}
    alphabet = TextStream(BYTE_LEVEL, frozenset())._pieces._alphabet  # type: ignore[attr-defined]
    char_of = {byte: char for char, byte in alphabet.items()}
    assert by_text
    return [BYTE_LEVEL.convert_tokens_to_ids(char_of[byte]) for byte in data]


@pytest.mark.parametrize("sign", ["é", "語", "😀"])
def test_a_character_of_several_tokens_comes_whole_and_takes_the_last_origin(sign: str) -> None:
    text_stream = TextStream(BYTE_LEVEL, frozenset())
    first, *rest = bytes_to_ids(sign.encode())
    assert text_stream.feed([out(first, "target")]) is None
    for token_id in rest[:-1]:
        assert text_stream.feed([out(token_id, "target")]) is None
    assert text_stream.feed([out(rest[-1], "draft")]) == TextDelta(sign, (Span("draft", 1),))
    assert text_stream.flush() is None


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    text_stream = TextStream(BYTE_LEVEL, frozenset())
    assert text_stream.feed([out(i) for i in bytes_to_ids("😀".encode()[:3])]) is None
    assert text_stream.flush() == TextDelta("\ufffd", (Span("draft", 1),))
    assert text_stream.flush() is None


def test_a_replacement_character_that_was_meant_is_shown_at_once() -> None:
    text_stream = TextStream(BYTE_LEVEL, frozenset())
    delta = text_stream.feed([out(i) for i in bytes_to_ids("\ufffd".encode())])
    assert delta == TextDelta("\ufffd", (Span("draft", 1),))


def test_special_tokens_are_skipped_by_id_and_their_text_is_not() -> None:
    eos = BYTE_LEVEL.eos_token
    spelled = bytes_to_ids(eos.encode())
    ids = [*spelled, BYTE_LEVEL.eos_token_id, BYTE_LEVEL.convert_tokens_to_ids("⟦tool⟧")]
    assert stream(BYTE_LEVEL, ids) == eos + "⟦tool⟧"


def test_neighbouring_tokens_of_one_origin_share_a_span() -> None:
    ids = bytes_to_ids(b"abcd")
    origins: list[Origin] = ["draft", "draft", "target", "draft"]
    delta = TextStream(BYTE_LEVEL, frozenset()).feed(
        [out(i, origin) for i, origin in zip(ids, origins, strict=True)]
    )
    assert delta == TextDelta("abcd", (Span("draft", 2), Span("target", 1), Span("draft", 1)))


def test_an_id_beyond_the_vocabulary_makes_no_text() -> None:
    assert stream(BYTE_LEVEL, [10**6]) == ""


def test_byte_fallback_keeps_the_space_of_the_second_word() -> None:
    ids = FALLBACK.convert_tokens_to_ids(["▁", "▁the", "▁cat"])
    assert stream(FALLBACK, ids) == decode(FALLBACK, ids) == " the cat"


def test_byte_fallback_shows_a_broken_run_and_goes_on() -> None:
    ids = FALLBACK.convert_tokens_to_ids(["▁the", "<0xF0>", "<0x9F>", "▁cat"])
    assert stream(FALLBACK, ids) == "the\ufffd cat"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, FALLBACK], ids=["byte-level", "byte-fallback"])
def test_work_per_token_does_not_grow(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0
    plain_decode = PreTrainedTokenizerFast.decode

    def counted(self: PreTrainedTokenizerFast, ids: list[int], **options: bool) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        text = plain_decode(self, ids, **options)
        assert isinstance(text, str)
        return text

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", counted)
    rng = random.Random(0)
    ids = [rng.randrange(len(tokenizer)) for _ in range(2000)]
    assert stream(tokenizer, ids)
    assert longest <= 16  # MAX_CONTEXT + MAX_HELD
