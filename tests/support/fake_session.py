"""A session without a model: it speaks the same events, on a script, with real waiting and cancelling."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_core import templates
from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.differences import Difference, first_difference
from eagle_core.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Queued,
    Span,
    Started,
    StepDone,
    TextDelta,
    TokenOut,
    TreeView,
)
from eagle_core.session_info import SessionInfo
from eagle_core.stats import StatsBuilder

CONTEXT_LENGTH = 4096
MAX_PROMPT = 2000
LONG = "This answer goes on and on, word after word. " * 40
ANSWERS = {
    "one": "First answer.", "two": "Second answer with `code`.", "edited": "Answer to the edited message.",
    "raw": "See <b>bold</b> & ![image](http://x.invalid/y.png)", "long": LONG, "silent": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FakeInfo:
    base: str = "tests/fake-135M"
    head: str | None = "tests/fake-head"
    dtype: str = "bfloat16"
    device: str = "cpu"
    context_length: int = CONTEXT_LENGTH
    n_parameters: int = 135_000_000
    n_head_parameters: int = 8_000_000
    drafting: str = "tree"
    drafting_reason: str = ""
    reproducible: bool = True
    rounding_reason: str = ""
    precision_note: str = ""
    chat_template: str | None = "own"
    weight_bytes: int = 0
    quantization: str = "none"

    precision = SessionInfo.precision


class FakeSession:
    """Answers from ``answers`` (prompt to text) or ``default``; tokens are pieces of 1 to 4 characters.

    Every third step accepts nothing, the others two or three drafted tokens. ``prefill_s`` is how long a
    prompt takes to read, in chunks between which Stop is seen. The last message of a chat picks the answer;
    if it is the assistant's, ``continued`` is what comes after it.
    """

    def __init__(
        self,
        answers: dict[str, str] | None = None,
        default: str = "Hello!",
        step_s: float = 0.01,
        prefill_s: float = 0.0,
        context_length: int = CONTEXT_LENGTH,
    ) -> None:
        self.info = FakeInfo(context_length=context_length)
        self.prefill_s = prefill_s
        self.continued = " And so on."
        self.answers = answers or {}
        self.default = default
        self.step_s = step_s
        self.seen: list[list[dict[str, Any]]] = []
        self.generations: list[tuple[GenerationConfig, DraftConfig]] = []
        self.is_busy = False
        self.n_forgotten = 0
        self.freed_at = 0.0
        self._turn = threading.Condition()
        self._waiting: list[object] = []
        self._ids: dict[str, int] = {}
        self._pieces: dict[int, str] = {}

    def count_tokens(self, messages: Sequence[Any]) -> int:
        return sum(4 + len(message["content"]) // 4 for message in messages)

    def encode_chat(self, messages: Sequence[Any]) -> list[int]:
        return [1] * self.count_tokens(messages)

    def forget(self) -> None:
        self.n_forgotten += 1

    def explain_difference(
        self, prompt_ids: Any, plain: Any, drafted: Any, generation: Any
    ) -> Difference | None:
        return first_difference(plain, drafted)

    def token_text(self, token_id: int) -> str:
        return self._pieces[token_id]

    def set_reproducible(self, is_on: bool) -> None:
        """As a session whose answers part when it is off."""
        why = "" if is_on else "in bfloat16 a row can round differently"
        self.info = dataclasses.replace(self.info, reproducible=is_on, rounding_reason=why)

    def use_template(self, name: str) -> None:
        self.info = dataclasses.replace(self.info, chat_template=templates.named(name).name)

    def close(self) -> None:
        pass

    def chat(
        self,
        messages: Sequence[Any],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        cancel = cancel or threading.Event()
        ticket, is_answering = object(), False
        with self._turn:
            self._waiting.append(ticket)
        try:
            ahead = -1
            while True:
                with self._turn:
                    place = self._waiting.index(ticket)
                    if place == 0:
                        break
                    if place != ahead:
                        ahead = place
                    else:
                        self._turn.wait(0.02)
                        if not cancel.is_set():
                            continue
                yield Queued(ahead)
                if cancel.is_set():
                    yield finished("cancelled", 0, (), StatsBuilder(), 0.0)
                    return
            self.is_busy = is_answering = True
            self.seen.append([dict(message) for message in messages])
            self.generations.append((generation, draft))
            yield from self._answer(messages[-1], generation, draft, cancel)
        finally:
            with self._turn:
                self._waiting.remove(ticket)
                self._turn.notify_all()
            if is_answering:
                self.is_busy = False
                self.freed_at = time.monotonic()

    def _answer(
        self,
        last: dict[str, Any],
        generation: GenerationConfig,
        draft: DraftConfig,
        cancel: threading.Event,
    ) -> Iterator[Event]:
        prompt = str(last["content"])
        if len(prompt) > MAX_PROMPT:
            yield Failed(
                "context-overflow",
                f"The conversation has {len(prompt)} tokens, the context holds {MAX_PROMPT}",
                "Shorten the message or start a new chat.",
            )
            return
        text = self.answers.get(prompt, self.default)
        if last["role"] == "assistant":
            text = self.continued
        n_prompt = max(len(prompt) // 4, 1)
        yield Started(
            n_prompt,
            0,
            self.info.context_length,
            draft.drafter,
            generation.acceptance,
            generation.seed,
        )
        start, stats, ids = time.monotonic(), StatsBuilder(), []
        reason: FinishReason = "eos"
        while time.monotonic() - start < self.prefill_s:
            share = (time.monotonic() - start) / self.prefill_s
            yield PrefillProgress(int(n_prompt * share), n_prompt)
            if cancel.is_set():
                yield finished("cancelled", n_prompt, (), stats, time.monotonic() - start)
                return
            time.sleep(0.02)
        yield PrefillProgress(n_prompt, n_prompt)
        for index, group in enumerate(grouped(pieces(text), draft.drafter != "none")):
            if cancel.is_set():
                reason = "cancelled"
                break
            time.sleep(self.step_s)
            time_s = time.monotonic() - start
            tokens = tuple(
                TokenOut(self._id(piece), origin, depth, 0.5 + 0.1 * depth, *guessed(origin, depth))
                for piece, origin, depth in group
            )
            ids += [token.id for token in tokens]
            stats.add_emission(len(tokens), time_s)
            n_accepted = sum(token.origin == "draft" for token in tokens)
            tree = TreeView((), ())
            if index == 0:
                stats.add_prefill(time_s)
            else:
                n_drafted = 5 if draft.drafter != "none" else 0
                tree = TreeView(tuple(range(n_drafted + 1)), (-1, 0, 1, 2, 3, 4)[: n_drafted + 1])
                stats.add_step(
                    n_drafted=n_drafted, depth_drafted=n_drafted, n_accepted=n_accepted,
                    draft_s=0.002, target_s=0.006, verify_s=0.001, commit_s=0.001,
                )  # fmt: skip
            yield StepDone(
                index, tree, tuple(range(1, n_accepted + 1)), tokens, time_s,
                0.002, 0.006, 0.001, 0.001,
            )  # fmt: skip
            yield TextDelta(
                "".join(piece for piece, _, _ in group),
                tuple(Span(origin, len(piece)) for piece, origin, _ in group),
            )
            if len(ids) >= generation.max_new_tokens:
                reason = "length"
                break
        yield finished(reason, n_prompt, tuple(ids), stats, time.monotonic() - start)

    def _id(self, piece: str) -> int:
        token_id = self._ids.setdefault(piece, len(self._ids))
        self._pieces[token_id] = piece
        return token_id


def finished(
    reason: FinishReason, n_prompt: int, ids: tuple[int, ...], stats: StatsBuilder, total_s: float
) -> Finished:
    return Finished(reason, n_prompt, ids, stats.build(total_s))


def guessed(origin: str, depth: int) -> tuple[int | None, float | None]:
    """Node and draft probability of a token; the third of a path is as if looked up."""
    if origin == "target":
        return None, None
    return depth, 0.9 - 0.2 * depth if depth < 3 else None


def pieces(text: str) -> Iterator[str]:
    """Pieces of 1 to 4 characters, always the same for the same text."""
    start, size = 0, 1
    while start < len(text):
        yield text[start : start + size]
        start += size
        size = size % 4 + 1


def grouped(parts: Iterator[str], is_drafting: bool) -> Iterator[list[tuple[str, Any, int]]]:
    """Groups of one step each: the prefill's token, then steps with 0, 2 or 3 drafted tokens and one more."""
    first = next(parts, None)
    if first is None:
        return
    yield [(first, "target", 0)]
    step = 0
    while True:
        step += 1
        n_drafted = (0, 2, 3)[step % 3] if is_drafting else 0
        group: list[tuple[str, Any, int]] = []
        for depth in range(1, n_drafted + 2):
            part = next(parts, None)
            if part is None:
                break
            group.append(
                (part, "draft" if depth <= n_drafted else "target", depth % (n_drafted + 1))
            )
        if not group:
            return
        yield group
