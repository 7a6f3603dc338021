"""Races of set-ups on one prompt: run one after the other, so that none slows another, kept to be replayed.

Pure but for the session that answers: no clock (times are the engine's), no HTML. A verdict says what holds:
identical, or where the answers part and by what, or that they were never meant to be the same.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.differences import Difference, describe
from eagle_core.events import Event, Finished, Span, StepDone, TextDelta
from eagle_core.stats import Stats
from eagle_core.transcript import Transcript

if TYPE_CHECKING:
    from eagle_core.session import Message, SessionInfo

# A set-up's first request compiles and records what later ones reuse; these tokens are not counted.
WARMUP_TOKENS = 16


class RaceSession(Protocol):
    """The part of a session that a race needs."""

    @property
    def info(self) -> SessionInfo:
        """What is loaded."""
        ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat in the model's own template."""
        ...

    def chat(
        self,
        messages: Sequence[Message],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Events of one answer."""
        ...

    def forget(self) -> None:
        """Drop the cached prompt."""
        ...

    def explain_difference(
        self,
        prompt_ids: Sequence[int],
        plain: Sequence[int],
        drafted: Sequence[int],
        generation: GenerationConfig,
    ) -> Difference | None:
        """Where two answers part, and why."""
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to answer."""

    name: str
    draft: DraftConfig
    generation: GenerationConfig


@dataclass(frozen=True, slots=True)
class Moment:
    """What became final at ``time_s`` (since the engine started on the request)."""

    time_s: float
    n_tokens: int
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """One set-up's answer."""

    setup: Setup
    moments: tuple[Moment, ...]
    transcript: Transcript
    token_ids: tuple[int, ...]

    @property
    def stats(self) -> Stats:
        """The answer's figures."""
        return self.transcript.stats

    @property
    def is_complete(self) -> bool:
        """Whether there is a full answer to compare."""
        return self.transcript.phase == "finished" and self.transcript.finish_reason != "cancelled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A lane beside the first one. Speed-ups are None where an answer is too short to say."""

    decode_speedup: float | None
    total_speedup: float | None
    is_identical: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class Race:
    """All set-ups' answers to one prompt, in the set-ups' order; a verdict for each lane but the first."""

    prompt: str
    lanes: tuple[Lane, ...]
    verdicts: tuple[Verdict, ...]


# Called with the set-up that runs, its place from 0, and its transcript so far.
OnProgress = Callable[[Setup, int, Transcript], None]


def run_races(
    session: RaceSession,
    prompts: Sequence[str],
    setups: Sequence[Setup],
    cancel: threading.Event,
    on_progress: OnProgress,
    system_prompt: str = "",
) -> Iterator[Race]:
    """Race the set-ups on each prompt; the order rotates, so that a machine that slows down slows all alike.

    Every answer reads its whole prompt. Ends early, without the prompt in progress, when cancelled.
    """
    for index, prompt in enumerate(prompts):
        messages: list[Message] = [{"role": "user", "content": prompt}]
        if system_prompt.strip():
            messages.insert(0, {"role": "system", "content": system_prompt})
        if index == 0:
            for setup in setups:
                warm_up(session, messages, setup, cancel)
        turn = index % len(setups)
        lanes: dict[int, Lane] = {}
        for place in [*range(turn, len(setups)), *range(turn)]:
            setup = setups[place]
            session.forget()
            events = session.chat(messages, setup.generation, setup.draft, cancel=cancel)
            lanes[place] = record(setup, events, place, on_progress)
            if cancel.is_set():
                return
        ordered = tuple(lanes[place] for place in range(len(setups)))
        verdicts = tuple(judge(session, messages, ordered[0], lane) for lane in ordered[1:])
        yield Race(prompt, ordered, verdicts)


def warm_up(
    session: RaceSession, messages: Sequence[Message], setup: Setup, cancel: threading.Event
) -> None:
    """Answer a little, unmeasured."""
    n_tokens = min(WARMUP_TOKENS, setup.generation.max_new_tokens)
    fewest = min(setup.generation.min_new_tokens, n_tokens)
    short = dataclasses.replace(setup.generation, max_new_tokens=n_tokens, min_new_tokens=fewest)
    for _ in session.chat(messages, short, setup.draft, cancel=cancel):
        pass


def record(setup: Setup, events: Iterator[Event], place: int, on_progress: OnProgress) -> Lane:
    """Fold one answer's events and keep when what became final."""
    transcript, moments, ids = Transcript(), list[Moment](), tuple[int, ...]()
    for event in events:
        transcript = transcript.apply(event)
        if isinstance(event, StepDone):
            moments.append(Moment(event.time_s, len(transcript.tokens), "", ()))
        elif isinstance(event, TextDelta) and moments:
            last = moments[-1]
            moments[-1] = dataclasses.replace(
                last, text=last.text + event.text, spans=(*last.spans, *event.spans)
            )
        elif isinstance(event, Finished):
            ids = event.token_ids
        on_progress(setup, place, transcript)
    return Lane(setup, tuple(moments), transcript, ids)


def judge(session: RaceSession, messages: Sequence[Message], first: Lane, other: Lane) -> Verdict:
    """Compare a lane with the first one."""
    if not first.is_complete or not other.is_complete:
        return Verdict(None, None, None, "Not compared: an answer is missing.")
    decode = ratio(
        first.stats.decode_s,
        first.stats.n_tokens - 1,
        other.stats.decode_s,
        other.stats.n_tokens - 1,
    )
    total = ratio(
        first.stats.total_s, first.stats.n_tokens, other.stats.total_s, other.stats.n_tokens
    )
    if first.setup.generation != other.setup.generation:
        words = "Other settings of the answer: the texts are not meant to be the same."
        return Verdict(decode, total, None, words)
    if "sampling" in (first.transcript.rule, other.transcript.rule):
        words = "Rule sampling: the same distribution, not the same text."
        return Verdict(decode, total, None, words)
    if first.token_ids == other.token_ids:
        return Verdict(decode, total, True, f"Identical answers: {len(first.token_ids)} tokens.")
    found = session.explain_difference(
        session.encode_chat(messages), first.token_ids, other.token_ids, first.setup.generation
    )
    assert found is not None, "the ids differ"
    words = f"First difference: {describe(found, len(first.token_ids))}."
    return Verdict(decode, total, False, words)


def ratio(first_s: float, n_first: int, other_s: float, n_other: int) -> float | None:
    """How many times less time the other takes per token.

    Example: 100 tokens in 2 s and 50 tokens in 0.5 s: 2.0.
    """
    if min(first_s, other_s) <= 0 or min(n_first, n_other) <= 0:
        return None
    return (first_s / n_first) / (other_s / n_other)


def summarize(races: Sequence[Race]) -> list[dict[str, Any]]:
    """Figures of each lane but the first over all compared races: sums of times, not means of ratios."""
    found = []
    for place in range(1, len(races[0].lanes) if races else 0):
        pairs = [
            (race.lanes[0].stats, race.lanes[place].stats, race.verdicts[place - 1])
            for race in races
            if race.verdicts[place - 1].total_speedup is not None
        ]
        judged = [
            verdict.is_identical for _, _, verdict in pairs if verdict.is_identical is not None
        ]
        first, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        n_steps = sum(stats.n_steps for stats in other)
        n_decoded = sum(stats.n_tokens - 1 for stats in other)
        found.append(
            {
                "n_races": len(pairs),
                "decode_speedup": ratio(
                    sum(stats.decode_s for stats in first), sum(s.n_tokens - 1 for s in first),
                    sum(stats.decode_s for stats in other), n_decoded,
                ),
                "total_speedup": ratio(
                    sum(stats.total_s for stats in first), sum(s.n_tokens for s in first),
                    sum(stats.total_s for stats in other), sum(s.n_tokens for s in other),
                ),
                "tau": n_decoded / n_steps if n_steps else None,
                "n_identical": sum(judged),
                "n_judged": len(judged),
            }
        )  # fmt: skip
    return found


__all__ = [
    "WARMUP_TOKENS",
    "Lane",
    "Moment",
    "OnProgress",
    "Race",
    "RaceSession",
    "Setup",
    "Verdict",
    "judge",
    "ratio",
    "record",
    "run_races",
    "summarize",
]
