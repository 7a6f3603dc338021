"""A request's events folded into what a reader needs: text, who wrote it, tokens, figures, how it ended.

Pure: ``apply`` returns a new value and never reads a clock, so the same events give the same transcript and a
snapshot may cross threads. Knows no tokenizer (tokens stay ids), no HTML and no user interface.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from eagle_core.config import DrafterName, Rule
from eagle_core.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Notice,
    Origin,
    PrefillProgress,
    Queued,
    Span,
    Started,
    StepDone,
    TextDelta,
    TokenOut,
    TreeView,
)
from eagle_core.stats import Stats, StatsBuilder

Phase = Literal["new", "queued", "prefill", "decoding", "finished", "failed"]

NOW_WINDOW_S = 2.0
# Below this span a rate is noise: two emissions a millisecond apart would claim thousands of tokens a second.
NOW_MIN_SPAN_S = 0.2


@dataclass(frozen=True, slots=True)
class SeenToken:
    """A token of the answer and the step that made it final (0: the prefill)."""

    id: int
    origin: Origin
    depth: int
    probability: float
    step: int
    node: int | None = None
    draft_probability: float | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything known about one request: start with ``Transcript()``, ``apply`` its events in order."""

    phase: Phase = "new"
    queue_ahead: int | None = None
    text: str = ""
    spans: tuple[Span, ...] = ()
    tokens: tuple[SeenToken, ...] = ()
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_prefilled: int = 0
    context_length: int = 0
    drafter: DrafterName | None = None
    rule: Rule | None = None
    seed: int | None = None
    stats: Stats = field(default_factory=Stats)
    finish_reason: FinishReason | None = None
    error: Failed | None = None
    notices: tuple[Notice, ...] = ()
    emissions: tuple[tuple[float, int], ...] = ()
    sums: StatsBuilder = field(default_factory=StatsBuilder, repr=False, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether the stream has said its last word."""
        return self.phase in ("finished", "failed")

    @property
    def n_drafted_tokens(self) -> int:
        """Tokens of the answer that the drafter proposed and the target accepted."""
        return sum(token.origin == "draft" for token in self.tokens)

    @property
    def accepted_share(self) -> float | None:
        """Share of the answer's tokens that were drafted; None before the first token."""
        return self.n_drafted_tokens / len(self.tokens) if self.tokens else None

    @property
    def is_drafting_paused(self) -> bool:
        """Whether a drafter was there and, after some steps, nothing had been drafted: it did not pay."""
        stats = self.stats
        return self.drafter == "eagle" and stats.n_steps > 0 and stats.n_drafted == 0

    @property
    def now_tok_s(self) -> float | None:
        """Tokens per second over the last ``NOW_WINDOW_S`` seconds; None while too little is known.

        The window's first emission starts the clock, so its tokens are not counted: emissions of 3 tokens at
        0.0 s, 2 at 0.5 s and 4 at 1.0 s give (2 + 4) / 1.0.
        """
        if len(self.emissions) < 2:
            return None
        span_s = self.emissions[-1][0] - self.emissions[0][0]
        if span_s < NOW_MIN_SPAN_S:
            return None
        return sum(n_tokens for _, n_tokens in self.emissions[1:]) / span_s

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens read per second; those that were cached are not counted. None before the answer."""
        n_read = self.n_prompt_tokens - self.n_cached_tokens
        return n_read / self.stats.prefill_s if self.stats.prefill_s > 0 and n_read > 0 else None

    @property
    def total_tok_s(self) -> float | None:
        """Tokens of the answer per second of the whole request, prefill included; None before its end."""
        has_time = self.is_over and self.stats.total_s > 0 and self.tokens
        return len(self.tokens) / self.stats.total_s if has_time else None

    def apply(self, event: Event) -> Transcript:
        """The transcript after ``event``. Events about downloads, loading and training leave it as it is."""
        match event:
            case Queued():
                return dataclasses.replace(self, phase="queued", queue_ahead=event.ahead)
            case Started():
                return dataclasses.replace(
                    self,
                    phase="prefill",
                    queue_ahead=None,
                    n_prompt_tokens=event.n_prompt_tokens,
                    n_cached_tokens=event.n_cached_tokens,
                    n_prefilled=event.n_cached_tokens,
                    context_length=event.context_length,
                    drafter=event.drafter,
                    rule=event.rule,
                    seed=event.seed,
                )
            case PrefillProgress():
                return dataclasses.replace(self, n_prefilled=event.done)
            case StepDone():
                return self._after_step(event)
            case TextDelta():
                return dataclasses.replace(
                    self, text=self.text + event.text, spans=joined(self.spans, event.spans)
                )
            case Notice():
                return dataclasses.replace(self, notices=(*self.notices, event))
            case Finished():
                return self._after_finish(event)
            case Failed():
                return dataclasses.replace(self, phase="failed", queue_ahead=None, error=event)
            case _:
                return self

    def _after_step(self, step: StepDone) -> Transcript:
        sums = dataclasses.replace(
            self.sums,
            drafted_at_depth=list(self.sums.drafted_at_depth),
            accepted_at_depth=list(self.sums.accepted_at_depth),
        )
        if step.index == 0:
            sums.add_prefill(step.time_s)
        else:
            sums.add_step(
                n_drafted=max(len(step.tree.tokens) - 1, 0),
                depth_drafted=tree_depth(step.tree),
                n_accepted=sum(token.origin == "draft" for token in step.tokens),
                draft_s=step.draft_s,
                target_s=step.target_s,
                verify_s=step.verify_s,
                commit_s=step.commit_s,
            )
        sums.add_emission(len(step.tokens), step.time_s)
        return dataclasses.replace(
            self,
            phase="decoding",
            n_prefilled=self.n_prompt_tokens,
            tokens=(*self.tokens, *(seen(token, step.index) for token in step.tokens)),
            emissions=recent(self.emissions, step.time_s, len(step.tokens)),
            stats=sums.build(step.time_s),
            sums=sums,
        )

    def _after_finish(self, event: Finished) -> Transcript:
        return dataclasses.replace(
            self,
            phase="finished",
            queue_ahead=None,
            finish_reason=event.reason,
            n_prompt_tokens=event.n_prompt_tokens,
            stats=event.stats,
        )


def seen(token: TokenOut, step: int) -> SeenToken:
    """A token with the index of its step."""
    return SeenToken(
        token.id,
        token.origin,
        token.depth,
        token.probability,
        step,
        token.node,
        token.draft_probability,
    )


def joined(spans: tuple[Span, ...], more: tuple[Span, ...]) -> tuple[Span, ...]:
    """Spans one after the other, equal neighbours merged and empty ones dropped."""
    merged = list(spans)
    for span in more:
        if span.n_chars == 0:
            continue
        if merged and merged[-1].origin == span.origin:
            merged[-1] = Span(span.origin, merged[-1].n_chars + span.n_chars)
        else:
            merged.append(span)
    return tuple(merged)


def recent(
    emissions: tuple[tuple[float, int], ...], time_s: float, n_tokens: int
) -> tuple[tuple[float, int], ...]:
    """Emissions of the last ``NOW_WINDOW_S`` seconds, the new one included."""
    if n_tokens == 0:
        return emissions
    kept = tuple(item for item in emissions if item[0] > time_s - NOW_WINDOW_S)
    return (*kept, (time_s, n_tokens))


def tree_depth(tree: TreeView) -> int:
    """Drafted tokens on the tree's longest path: parents (-1, 0, 1, 0) have depth 2."""
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


__all__ = ["NOW_WINDOW_S", "Phase", "SeenToken", "Transcript", "joined", "tree_depth"]
