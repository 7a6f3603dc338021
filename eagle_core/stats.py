"""Definitions of every number the project reports. UI, CLI, API and benchmark all take them from here.

- A *step* is one forward of the target over a draft tree; the prefill is not a step. The prefill's own
  token is emitted at once, so it belongs to no step.
- *acceptance length* tau = (accepted + bonus) per step = (n_tokens - 1) / n_steps; plain decoding has 1.00.
- *decode rate* = (n_tokens - 1) / (time of the last emission - time of the first): prefill is left out.
- *TTFT* = time of the first emission - time the engine started on the request; waiting in the queue apart.
- *acceptance at depth d* = steps in which a drafted token of depth d was kept / steps that drafted that deep.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stats:
    """One answer's figures. Times in seconds; tuples are indexed by depth - 1."""

    n_tokens: int = 0
    n_steps: int = 0
    n_accepted: int = 0
    n_drafted: int = 0
    tau: float | None = None
    ttft_s: float | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_tok_s: float | None = None
    total_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    drafted_at_depth: tuple[int, ...] = ()
    accepted_at_depth: tuple[int, ...] = ()

    @property
    def acceptance_at_depth(self) -> tuple[float, ...]:
        """Share of the steps that drafted to a depth and kept a token there."""
        pairs = zip(self.accepted_at_depth, self.drafted_at_depth, strict=True)
        return tuple(kept / drafted if drafted else 0.0 for kept, drafted in pairs)


@dataclass(slots=True)
class StatsBuilder:
    """Adds up steps into :class:`Stats`. All times are seconds since the engine started on the request."""

    n_tokens: int = 0
    n_steps: int = 0
    n_accepted: int = 0
    n_drafted: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    drafted_at_depth: list[int] = field(default_factory=list)
    accepted_at_depth: list[int] = field(default_factory=list)

    def add_prefill(self, prefill_s: float) -> None:
        """Count the prefill's time."""
        self.prefill_s = prefill_s

    def add_emission(self, n_tokens: int, time_s: float) -> None:
        """Count ``n_tokens`` that became final at ``time_s``."""
        if n_tokens == 0:
            return
        self.n_tokens += n_tokens
        self.first_s = time_s if self.first_s is None else self.first_s
        self.last_s = time_s

    def add_step(
        self,
        *,
        n_drafted: int,
        depth_drafted: int,
        n_accepted: int,
        draft_s: float,
        target_s: float,
        verify_s: float,
        commit_s: float,
    ) -> None:
        """Count one forward of the target over a tree."""
        self.n_steps += 1
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        self.draft_s += draft_s
        self.target_s += target_s
        self.verify_s += verify_s
        self.commit_s += commit_s
        missing = depth_drafted - len(self.drafted_at_depth)
        self.drafted_at_depth += [0] * missing
        self.accepted_at_depth += [0] * missing
        for depth in range(depth_drafted):
            self.drafted_at_depth[depth] += 1
            self.accepted_at_depth[depth] += depth < n_accepted

    def build(self, total_s: float) -> Stats:
        """The figures so far."""
        decode_s = self.last_s - self.first_s if self.first_s is not None else 0.0
        n_decoded = self.n_tokens - 1
        return Stats(
            n_tokens=self.n_tokens,
            n_steps=self.n_steps,
            n_accepted=self.n_accepted,
            n_drafted=self.n_drafted,
            tau=n_decoded / self.n_steps if self.n_steps else None,
            ttft_s=self.first_s,
            prefill_s=self.prefill_s,
            decode_s=decode_s,
            decode_tok_s=n_decoded / decode_s if n_decoded > 0 and decode_s > 0 else None,
            total_s=total_s,
            draft_s=self.draft_s,
            target_s=self.target_s,
            verify_s=self.verify_s,
            commit_s=self.commit_s,
            drafted_at_depth=tuple(self.drafted_at_depth),
            accepted_at_depth=tuple(self.accepted_at_depth),
        )


__all__ = ["Stats", "StatsBuilder"]
