"""Token ids -> text, as far as it is final: an incremental detokenizer.

The pieces add up to ``tokenizer.decode`` of all ids. A character of several tokens (an emoji, a rare sign) is
held back until its last byte is there; work per token is bounded. Special tokens are known by id, never by
their text. Knows no model and no loop.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Protocol

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase

from eagle_core.events import Origin, Span, TextDelta, TokenOut

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
# Decoders other than byte-level look at neighbours: so many earlier tokens are decoded along.
MAX_CONTEXT = 8
MAX_HELD = 8


class Pieces(Protocol):
    """Turns one more token into the text that it makes final."""

    def push(self, token_id: int) -> tuple[str, str]:
        """Text that earlier tokens' bytes end in, and text that this token completes."""
        ...

    def held(self) -> str:
        """Text that is known, though not given out yet, whatever comes next."""
        ...

    def finish(self) -> str:
        """What is still held back."""
        ...


class TextStream:
    """Detokenizes one answer.

    Args:
        tokenizer: the base model's.
        skip_ids: tokens that make no text, usually ``special_ids(tokenizer)``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_ids: frozenset[int]) -> None:
        self._skip_ids = skip_ids
        self._pieces: Pieces = (
            BytePieces(tokenizer) if is_byte_level(tokenizer) else WindowPieces(tokenizer)
        )
        self._last_origin: Origin = "target"

    def feed(self, tokens: Sequence[TokenOut]) -> TextDelta | None:
        """Text that became final with ``tokens``; None when none did.

        A character takes the origin of the token that completed it.
        """
        parts: list[tuple[Origin, str]] = []
        for token in tokens:
            if token.id in self._skip_ids:
                continue
            before, text = self._pieces.push(token.id)
            parts += [(self._last_origin, before), (token.origin, text)]
            self._last_origin = token.origin
        return to_delta(parts)

    def held_text(self) -> str:
        """Text of the tokens so far that is certain, but not final yet, for whoever looks ahead."""
        return self._pieces.held()

    def flush(self) -> TextDelta | None:
        """What was held back, at the end of the answer: bytes that make no character read as U+FFFD."""
        return to_delta([(self._last_origin, self._pieces.finish())])


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that ``tokenizer.decode(..., skip_special_tokens=True)`` leaves out."""
    added = getattr(tokenizer, "added_tokens_decoder", {})  # not in every test double
    marked = {token_id for token_id, token in added.items() if token.special}
    return frozenset(marked | set(tokenizer.all_special_ids))


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether every token stands for bytes of its own, whatever its neighbours are."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and isinstance(backend.decoder, decoders.ByteLevel)


def byte_alphabet() -> dict[str, int]:
    """The character that byte-level vocabularies write for each byte: itself if printable, else U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + n): byte for n, byte in enumerate(others)}


class BytePieces:
    """Byte-level BPE: tokens are bytes, so text is an incremental UTF-8 decoding."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._alphabet = byte_alphabet()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> tuple[str, str]:
        """See :class:`Pieces`; bytes never need to be ended early here."""
        return "", self._utf8.decode(self._bytes(token_id))

    def held(self) -> str:
        """See :class:`Pieces`; what is held are parts of one character."""
        return ""

    def finish(self) -> str:
        """See :class:`Pieces`."""
        return self._utf8.decode(b"", final=True)

    def _bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):  # an id beyond the vocabulary, in a padded embedding
            return b""
        try:
            return bytes(self._alphabet[char] for char in token)
        except KeyError:  # an added token is written as it is
            return token.encode("utf-8")


class WindowPieces:
    """Any other tokenizer: decode the new tokens after some earlier ones, and take what was added.

    ``<0x41>``-like tokens (byte fallback) are decoded here: the tokenizer shows a run of them as nothing but
    U+FFFD as long as one byte is missing. A run that stays invalid keeps its valid characters here, while
    ``decode`` drops them; everything else is equal to it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._has_byte_tokens = self._decode_ids(self._byte_token_ids(0x41)) == "A"
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token_id: int) -> tuple[str, str]:
        """See :class:`Pieces`."""
        byte = self._byte(token_id)
        if byte is not None:
            before = self._take() if self._held else ""
            self._remember([token_id])
            return before, self._utf8.decode(byte)
        before = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._held.append(token_id)
        added = self._added()
        if added.endswith(REPLACEMENT) and len(self._held) < MAX_HELD:
            return before, ""
        return before, self._take()

    def held(self) -> str:
        """See :class:`Pieces`."""
        return self._added().rstrip(REPLACEMENT)

    def finish(self) -> str:
        """See :class:`Pieces`."""
        return self._utf8.decode(b"", final=True) + self._take()

    def _byte_token_ids(self, byte: int) -> list[int]:
        if not hasattr(self._tokenizer, "convert_tokens_to_ids"):
            return []
        token_id = self._tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>")
        is_known = isinstance(token_id, int) and token_id != self._tokenizer.unk_token_id
        return [token_id] if is_known and isinstance(token_id, int) else []

    def _byte(self, token_id: int) -> bytes | None:
        if not self._has_byte_tokens:
            return None
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        match = BYTE_TOKEN.fullmatch(token) if isinstance(token, str) else None
        return bytes([int(match[1], 16)]) if match else None

    def _added(self) -> str:
        """Text of the held tokens."""
        if not self._held:
            return ""
        context = self._decode_ids(self._context)
        return self._decode_ids(self._context + self._held)[len(context) :]

    def _take(self) -> str:
        """Text of the held tokens, which become context."""
        added = self._added()
        if added:
            self._context = []
        self._remember(self._held)
        self._held = []
        return added

    def _remember(self, token_ids: list[int]) -> None:
        """Context must make text of its own, or a decoder that strips the first space would strip another."""
        self._context = (self._context + token_ids)[-MAX_CONTEXT:]

    def _decode_ids(self, token_ids: list[int]) -> str:
        text = self._tokenizer.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text


def to_delta(parts: Sequence[tuple[Origin, str]]) -> TextDelta | None:
    """Join pieces into one delta, neighbouring pieces of one origin into one span."""
    spans: list[Span] = []
    for origin, text in parts:
        if not text:
            continue
        if spans and spans[-1].origin == origin:
            spans[-1] = Span(origin, spans[-1].n_chars + len(text))
        else:
            spans.append(Span(origin, len(text)))
    if not spans:
        return None
    return TextDelta("".join(text for _, text in parts), tuple(spans))


__all__ = ["TextStream", "special_ids"]
