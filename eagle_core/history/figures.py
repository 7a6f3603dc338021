"""An answer's figures as plain data, to be kept beside its text.

Definitions are those of :mod:`eagle_core.stats`; nothing is computed here.
"""

from __future__ import annotations

from typing import Any

from eagle_core.transcript import Transcript


def figures_of(
    transcript: Transcript, model: str, precision: str, temperature: float
) -> dict[str, Any]:
    """The figures of a finished answer. A figure that is unknown is None."""
    stats = transcript.stats
    return {
        "model": model,
        "dtype": precision,
        "drafter": transcript.drafter,
        "rule": transcript.rule,
        "temperature": temperature,
        "seed": transcript.seed,
        "finish_reason": transcript.finish_reason or "failed",
        "n_tokens": len(transcript.tokens),
        "n_drafted_tokens": transcript.n_drafted_tokens,
        "n_steps": stats.n_steps,
        "n_prompt_tokens": transcript.n_prompt_tokens,
        "n_cached_tokens": transcript.n_cached_tokens,
        "context_length": transcript.context_length,
        "decode_tok_s": stats.decode_tok_s,
        "total_tok_s": transcript.total_tok_s,
        "prefill_tok_s": transcript.prefill_tok_s,
        "ttft_s": stats.ttft_s,
        "total_s": stats.total_s,
        "tau": stats.tau,
        "accepted_share": transcript.accepted_share,
        "is_paused": transcript.is_drafting_paused,
        "acceptance_at_depth": list(stats.acceptance_at_depth),
    }


__all__ = ["figures_of"]
