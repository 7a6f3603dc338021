"""Races of set-ups on prompts: run one after the other, so that none slows another, kept to be replayed.

Pure but for the sessions that answer: no clock (times are the engine's), no HTML. A verdict says what holds:
identical, or where the answers part and by what, or that they were never meant to be the same. Set-ups in
other precisions have other models, which a stage gives one after the other; see ``relay``.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle_core.config import DraftConfig, GenerationConfig
from eagle_core.differences import Difference, describe, first_difference
from eagle_core.events import Event, Finished, Span, StepDone, TextDelta
from eagle_core.stats import Stats
from eagle_core.transcript import Transcript

if TYPE_CHECKING:
    from eagle_core.session import Message, SessionInfo

# A set-up's first request compiles and records what later ones reuse; these tokens are not counted.
WARMUP_TOKENS = 16
AS_LOADED = ""  # the precision of what is loaded when the race begins


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

    def token_text(self, token_id: int) -> str:
        """Printable form of one token."""
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


class Stage(Protocol):
    """Where a race gets its model from. It holds one at a time: taking another lets the last one go."""

    def take(self, precision: str) -> RaceSession:
        """The model in a precision. Raises: EagleError when it cannot be loaded."""
        ...


class OneModel:
    """A stage with nothing but what is loaded."""

    def __init__(self, session: RaceSession) -> None:
        self.session = session

    def take(self, precision: str) -> RaceSession:
        """What is loaded."""
        assert precision == AS_LOADED, "this stage has one precision"
        return self.session


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to answer. ``precision``: another than that of what is loaded, such as "int8"."""

    name: str
    draft: DraftConfig
    generation: GenerationConfig
    precision: str = AS_LOADED


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked, and of which kind it is."""

    text: str
    category: str = ""


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


NOT_COMPARED = Verdict(None, None, None, "Not compared: an answer is missing.")


@dataclass(frozen=True, slots=True)
class Race:
    """All set-ups' answers to one prompt, in the set-ups' order; a verdict for each lane but the first."""

    prompt: str
    lanes: tuple[Lane, ...]
    verdicts: tuple[Verdict, ...]
    category: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the races are: which set-up answers which prompt (counted from 0), and what it wrote.

    ``left_s`` is about the time that is left, without loading models; None before the first whole answer.
    """

    setup: Setup
    n_prompt: int
    transcript: Transcript
    n_done: int
    n_answers: int
    left_s: float | None


OnProgress = Callable[[Standing], None]


def run_races(
    stage: Stage,
    prompts: Sequence[Prompt],
    setups: Sequence[Setup],
    cancel: threading.Event,
    on_progress: OnProgress,
    system_prompt: str = "",
) -> Iterator[Race]:
    """Race the set-ups on each prompt, a precision after the other, first the one that is loaded.

    Within a precision the order rotates, so that a machine that slows down slows all alike. Every answer
    reads its whole prompt. Ends early, with the prompts that all set-ups answered, when cancelled.
    """
    board = Board(prompts, setups, system_prompt, on_progress)
    phases = by_precision(setups)
    for phase in phases:
        session = stage.take(setups[phase[0]].precision)
        for index in range(len(prompts)):
            if index == 0:
                for place in phase:
                    warm_up(session, board.messages[0], setups[place], cancel)
            turn = index % len(phase)
            for place in (*phase[turn:], *phase[:turn]):
                board.answer(session, index, place, cancel)
                if cancel.is_set():
                    return
            board.judge(session, index, phase)
            if phase is phases[-1]:
                yield board.race(index)
        del session  # the stage alone holds it: it must be gone before the next one is loaded


def by_precision(setups: Sequence[Setup]) -> list[list[int]]:
    """Places of the set-ups that share a model; those of the loaded one first.

    Example: int8, loaded, int8 gives [[1], [0, 2]].
    """
    found: dict[str, list[int]] = {}
    for place, setup in enumerate(setups):
        found.setdefault(setup.precision, []).append(place)
    return sorted(found.values(), key=lambda places: setups[places[0]].precision != AS_LOADED)


class Board:
    """The answers and verdicts so far, by prompt and place."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        setups: Sequence[Setup],
        system_prompt: str,
        on_progress: OnProgress,
    ) -> None:
        self.messages = [messages_of(prompt.text, system_prompt) for prompt in prompts]
        self._prompts, self._setups, self._on_progress = prompts, setups, on_progress
        self._lanes: list[dict[int, Lane]] = [{} for _ in prompts]
        self._verdicts: list[dict[int, Verdict]] = [{} for _ in prompts]

    def answer(self, session: RaceSession, index: int, place: int, cancel: threading.Event) -> None:
        """Let a set-up answer a prompt."""
        setup = self._setups[place]
        n_answers = len(self._prompts) * len(self._setups)
        times = [(p, lane.stats.total_s) for lanes in self._lanes for p, lane in lanes.items()]
        left_s = time_left_s(times, len(self._prompts), len(self._setups))

        def report(transcript: Transcript) -> None:
            now = transcript.emissions[-1][0] if transcript.emissions else 0.0
            left = None if left_s is None else max(left_s - now, 0.0)
            self._on_progress(Standing(setup, index, transcript, len(times), n_answers, left))

        session.forget()
        events = session.chat(self.messages[index], setup.generation, setup.draft, cancel=cancel)
        self._lanes[index][place] = record(setup, events, report)

    def judge(self, session: RaceSession, index: int, places: Sequence[int]) -> None:
        """Compare what ``session`` wrote with the first set-up's answer, if that is its own."""
        for place in places[1:] if 0 in places else ():
            self._verdicts[index][place] = judge(
                session, self.messages[index], self._lanes[index][0], self._lanes[index][place]
            )

    def race(self, index: int) -> Race:
        """A prompt's race, once all set-ups answered."""
        lanes = tuple(self._lanes[index][place] for place in range(len(self._setups)))
        kept = self._verdicts[index]
        verdicts = tuple(
            kept[place] if place in kept else judge_models(lanes[0], lanes[place])
            for place in range(1, len(lanes))
        )
        prompt = self._prompts[index]
        return Race(prompt.text, lanes, verdicts, prompt.category)


def messages_of(prompt: str, system_prompt: str) -> list[Message]:
    """A chat of one message."""
    messages: list[Message] = [{"role": "user", "content": prompt}]
    if system_prompt.strip():
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


def time_left_s(times: Sequence[tuple[int, float]], n_prompts: int, n_setups: int) -> float | None:
    """About the time that the remaining answers take, as long as those of their set-up took so far.

    A set-up that has not answered yet is taken for an average one.

    Args: times: (place, seconds) of each answer.
    Example: two prompts, two set-ups, answers (0, 4.0) and (1, 2.0): 6 seconds are left.
    """
    if not times:
        return None
    usual = sum(seconds for _, seconds in times) / len(times)
    left = 0.0
    for place in range(n_setups):
        own = [seconds for p, seconds in times if p == place]
        left += (n_prompts - len(own)) * (sum(own) / len(own) if own else usual)
    return left


def warm_up(
    session: RaceSession, messages: Sequence[Message], setup: Setup, cancel: threading.Event
) -> None:
    """Answer a little, unmeasured."""
    n_tokens = min(WARMUP_TOKENS, setup.generation.max_new_tokens)
    fewest = min(setup.generation.min_new_tokens, n_tokens)
    short = dataclasses.replace(setup.generation, max_new_tokens=n_tokens, min_new_tokens=fewest)
    for _ in session.chat(messages, short, setup.draft, cancel=cancel):
        pass


def record(setup: Setup, events: Iterator[Event], report: Callable[[Transcript], None]) -> Lane:
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
        report(transcript)
    return Lane(setup, tuple(moments), transcript, ids)


def judge(session: RaceSession, messages: Sequence[Message], first: Lane, other: Lane) -> Verdict:
    """Compare a lane with the first one, both of this session."""
    if not first.is_complete or not other.is_complete:
        return NOT_COMPARED
    decode, total = speedups(first, other)
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
    said = describe(found, len(first.token_ids), session.token_text)
    words = f"First difference: {said}."
    return Verdict(decode, total, False, words)


def judge_models(first: Lane, other: Lane) -> Verdict:
    """Compare a lane with the first one, of another precision: that is another model."""
    if not first.is_complete or not other.is_complete:
        return NOT_COMPARED
    found = first_difference(first.token_ids, other.token_ids)
    here = "the same" if found is None else f"another from token {found.index + 1} on"
    words = f"Another precision is another model: its text may differ. Here it is {here}."
    if first.setup.generation != other.setup.generation:
        words = "Another model and other settings: the texts are not meant to be the same."
    return Verdict(*speedups(first, other), None, words)


def speedups(first: Lane, other: Lane) -> tuple[float | None, float | None]:
    """How many times faster the other is: in decoding, and all in all."""
    one, two = first.stats, other.stats
    decode = ratio(one.decode_s, one.n_tokens - 1, two.decode_s, two.n_tokens - 1)
    return decode, ratio(one.total_s, one.n_tokens, two.total_s, two.n_tokens)


def ratio(first_s: float, n_first: int, other_s: float, n_other: int) -> float | None:
    """How many times less time the other takes per token.

    Example: 100 tokens in 2 s and 50 tokens in 0.5 s: 2.0.
    """
    if min(first_s, other_s) <= 0 or min(n_first, n_other) <= 0:
        return None
    return (first_s / n_first) / (other_s / n_other)


__all__ = [
    "AS_LOADED",
    "WARMUP_TOKENS",
    "Lane",
    "Moment",
    "OnProgress",
    "OneModel",
    "Prompt",
    "Race",
    "RaceSession",
    "Setup",
    "Stage",
    "Standing",
    "Verdict",
    "by_precision",
    "judge",
    "judge_models",
    "ratio",
    "record",
    "run_races",
    "time_left_s",
]
