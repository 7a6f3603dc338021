"""What the engine says while it works: frozen, JSON-serialisable values with no tensors and no HTML.

UI, CLI, benchmark and logs read this one stream, so none of them can show a number that another does not.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from eagle_core.config import DrafterName, Rule
from eagle_core.errors import EagleError
from eagle_core.stats import Stats

Origin = Literal["draft", "target"]
FinishReason = Literal["eos", "stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenOut:
    """A token that became part of the answer.

    ``origin`` is "draft" when it was proposed by the drafter, accepted *and kept*; ``depth`` is its depth in
    the tree (0 for a token of the target's own); ``probability`` is the target's probability for it. A
    drafted token also has its ``node`` in the step's tree and, unless it was looked up, the drafter's own
    ``draft_probability`` for it.
    """

    id: int
    origin: Origin
    depth: int
    probability: float
    node: int | None = None
    draft_probability: float | None = None


@dataclass(frozen=True, slots=True)
class TreeView:
    """A draft tree as plain integers; node 0 is the pending token and has parent -1."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; ``ahead`` requests come first."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Started:
    """The engine starts on the request. Times of later events count from here."""

    n_prompt_tokens: int
    n_cached_tokens: int
    context_length: int
    drafter: DrafterName
    rule: Rule
    seed: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prompt tokens read so far."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step: tokens that became final.

    ``index`` 0 is the prefill's own token (empty tree); steps over a tree count from 1. ``path`` holds the
    accepted nodes, the pending node 0 left out. Times in seconds; ``time_s`` counts from Started.
    """

    index: int
    tree: TreeView
    path: tuple[int, ...]
    tokens: tuple[TokenOut, ...]
    time_s: float
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """``n_chars`` consecutive characters (code points) of one origin."""

    origin: Origin
    n_chars: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became final; the spans' lengths add up to ``len(text)``."""

    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know, such as a drafter that was switched off and why."""

    level: Literal["info", "warning"]
    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete. ``token_ids`` holds all of it, a final end-of-text token included.

    After "stop" they end with the token that completed the stop string; the text ends before that string.
    """

    reason: FinishReason
    n_prompt_tokens: int
    token_ids: tuple[int, ...]
    stats: Stats


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed; the session stays usable."""

    code: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: EagleError) -> Failed:
        """The event for an error, with what was expected and what was there."""
        message = error.message
        if error.expected or error.got:
            expected, got = error.expected or "something else", error.got or "nothing"
            message += f" (expected {expected}; got {got})"
        return cls(error.code, message, error.hint)


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Bytes of ``what`` fetched so far; ``total_bytes`` is None while unknown."""

    what: str
    done_bytes: int
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Bytes of the file ``what`` worked through on this machine so far; ``doing`` says how: "unpacking"."""

    doing: str
    what: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A stage of loading that has no bytes to count, such as an import."""

    message: str


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One optimiser step. ``acceptance`` is by depth, held-out, and empty between evaluations."""

    step: int
    n_steps: int
    loss: float
    feature_loss: float
    token_loss: float
    learning_rate: float
    tokens_per_s: float
    elapsed_s: float
    acceptance: tuple[float, ...] = ()


Event = (
    Queued
    | Started
    | PrefillProgress
    | StepDone
    | TextDelta
    | Notice
    | Finished
    | Failed
    | DownloadProgress
    | FileProgress
    | LoadProgress
    | TrainStep
)


def to_dict(event: Event) -> dict[str, Any]:
    """An event as plain data, its type under ``"event"``."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


def to_json(event: Event) -> str:
    """An event as one line of JSON."""
    return json.dumps(to_dict(event), ensure_ascii=False)


__all__ = [
    "DownloadProgress",
    "Event",
    "Failed",
    "FileProgress",
    "FinishReason",
    "Finished",
    "LoadProgress",
    "Notice",
    "Origin",
    "PrefillProgress",
    "Queued",
    "Span",
    "Started",
    "StepDone",
    "TextDelta",
    "TokenOut",
    "TrainStep",
    "TreeView",
    "to_dict",
    "to_json",
]
