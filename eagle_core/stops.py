"""Stop strings: where the answer ends, and which text may be shown before that is known.

Two readers of the same tokens. ``cut`` reads a run before it is committed, token by token, and ends it with
the token that completes a stop string. ``shown`` takes the text that became final and holds back an end that
may yet become one. The result depends on the text alone, never on how the tokens came in runs: the answer
ends at the stop string that is complete first, and of those that end there at the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from eagle_core.events import Origin, TextDelta, TokenOut
from eagle_core.text import TextStream, to_delta


class StopStrings:
    """Watches one answer.

    Args:
        stops: texts of at least one character.
        tokenizer, skip_ids: as for the stream whose deltas :meth:`shown` gets.
    """

    def __init__(
        self,
        stops: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        skip_ids: frozenset[int],
    ) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._stream = TextStream(tokenizer, skip_ids)
        self._n_read = 0  # characters that the watched stream has made final
        self._recent = ""  # the last of them, as many as a stop string may reach back
        self._end: int | None = None  # characters of the answer, once a stop string is complete
        self._n_shown = 0
        self._held: list[tuple[Origin, str]] = []

    @property
    def is_complete(self) -> bool:
        """Whether a stop string ended the answer."""
        return self._end is not None

    def cut(self, run: Sequence[int]) -> int | None:
        """How many tokens of ``run`` stay, the one that completes a stop string being the last; None: all."""
        if not self._stops or self.is_complete:
            return None
        for i, token_id in enumerate(run):
            delta = self._stream.feed((TokenOut(token_id, "target", 0, 1.0),))
            if self._completes(delta.text if delta is not None else ""):
                return i + 1
        return None

    def _completes(self, text: str) -> bool:
        """Whether a stop string ends in ``text``, or in what the stream will surely add to it."""
        known = self._recent + text
        searched = known + self._stream.held_text()
        found = _first(searched, self._stops)
        first_char = self._n_read - len(self._recent)  # place of searched[0] in the answer
        if found is not None:
            self._end = first_char + found
        self._n_read += len(text)
        self._recent = known[-(self._longest - 1) :] if self._longest > 1 else ""
        return found is not None

    def shown(self, delta: TextDelta | None, *, is_last: bool = False) -> TextDelta | None:
        """What may be shown once ``delta`` is final: never a part of a stop string.

        Args: is_last: no more text comes, so an end that looks like the start of a stop string is none.
        """
        if not self._stops:
            return delta
        if delta is not None:
            start = 0
            for span in delta.spans:
                self._held.append((span.origin, delta.text[start : start + span.n_chars]))
                start += span.n_chars
        if self._end is not None:
            return self._release(self._end - self._n_shown)
        held = "".join(text for _, text in self._held)
        return self._release(len(held) - (0 if is_last else _open_end(held, self._stops)))

    def rest(self, delta: TextDelta | None) -> TextDelta | None:
        """The last text, ``delta`` being what the shown stream still held.

        Bytes that never became a character are text now, too, and may complete a stop string.
        """
        if self._stops and not self.is_complete:
            tail = self._stream.flush()
            self._completes(tail.text if tail is not None else "")
        return self.shown(delta, is_last=True)

    def _release(self, n_chars: int) -> TextDelta | None:
        """Give out the first ``n_chars`` of what is held."""
        parts: list[tuple[Origin, str]] = []
        while self._held and n_chars > 0:
            origin, text = self._held.pop(0)
            if len(text) > n_chars:
                self._held.insert(0, (origin, text[n_chars:]))
                text = text[:n_chars]
            parts.append((origin, text))
            n_chars -= len(text)
            self._n_shown += len(text)
        return to_delta(parts)


def _first(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string starts that is complete first; of two that end together the longer one."""
    found = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _open_end(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of ``text`` are the start of some stop string."""
    return max(
        (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0
    )


__all__ = ["StopStrings"]
