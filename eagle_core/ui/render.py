"""Turns transcripts into what the page shows: figures, the side channel for colors, notices.

Every string that reaches HTML passes ``html.escape`` here. No timing and no counting: figures come from
the transcript and its stats.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from eagle_core.config import LoadConfig
from eagle_core.events import Span
from eagle_core.transcript import SeenToken, Transcript
from eagle_core.ui.backend import Opening
from eagle_core.ui.markdown import safe_markdown
from eagle_core.ui.rooms import Turn

if TYPE_CHECKING:
    from eagle_core.certificate.records import Certificate
    from eagle_core.session import SessionInfo

REASONS = {
    "eos": "complete",
    "stop": "ended by a stop string",
    "length": "reached the longest answer",
    "context": "context is full",
    "cancelled": "stopped",
}

BY_DEPTH = "Of the steps that drafted this deep: how often the model took a guess of this depth"
PARTS = {
    "prefill": "Reading the prompt, up to the first token",
    "draft": "The draft head guesses the next words",
    "target": "The model checks all guesses of a step in one pass",
    "verify": "Choosing the tokens that the model itself would have written",
    "commit": "Keeping what was chosen in the caches, and dropping the rest",
}
FACTS = {
    "steps": "Passes of the model after the prompt was read",
    "drafted tokens tried": "All guesses that were checked, kept or not",
    "prompt tokens": "Cached ones were read for an earlier answer",
    "context length": "The most tokens of prompt and answer together",
    "drafter": "Where the guesses come from",
    "rule": "How a guess is accepted; greedy: it is the likeliest token",
    "whole request": "From the start, reading the prompt included",
}
PAUSED = "drafting paused: plain decoding was faster here"


def chat_value(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """The conversation for ``gr.Chatbot``. Text blocks, because plain strings lose indentation there."""
    return [
        {"role": turn.role, "content": [{"type": "text", "text": safe_markdown(turn.text)}]}
        for turn in turns
    ]


def utf16_runs(text: str, spans: tuple[Span, ...]) -> str:
    """Runs of one origin as ``d4,t12``: lengths in UTF-16 units, the unit of a browser's strings.

    Example: "a😀b" with the first two characters drafted gives ``d3,t1``.
    """
    runs, start = [], 0
    for span in spans:
        part = text[start : start + span.n_chars]
        start += span.n_chars
        n_units = len(part) if part.isascii() else len(part.encode("utf-16-le")) // 2
        runs.append(f"{span.origin[0]}{n_units}")
    return ",".join(runs)


class TokenLines:
    """Tokens as lines of JSON that only ever grow, so that a frame sends the new ones alone."""

    def __init__(self, token_text: Callable[[int], str]) -> None:
        self._token_text = token_text
        self._n_tokens = 0
        self.lines = ""

    def update(self, tokens: tuple[SeenToken, ...]) -> str:
        """All lines for ``tokens``, which must continue those of the last call."""
        new = tokens[self._n_tokens :]
        self._n_tokens = len(tokens)
        self.lines += "".join(
            json.dumps(
                [
                    token.id,
                    token.origin[0],
                    token.depth,
                    token.step,
                    round(token.probability, 4),
                    self._token_text(token.id),
                    token.node,
                    None if token.draft_probability is None else round(token.draft_probability, 4),
                ],
                ensure_ascii=False,
            )
            + "\n"
            for token in new
        )
        return self.lines


def side_channel(
    chat_id: int, index: int, prompt: str, transcript: Transcript, tokens: str
) -> dict[str, Any]:
    """What the page's script needs to color answer ``index`` (counted from 0) of a chat."""
    return {
        "chat": chat_id,
        "index": index,
        "is_over": transcript.is_over,
        "used": transcript.n_prompt_tokens + len(transcript.tokens),
        "prompt": prompt,
        "text": transcript.text,
        "runs": utf16_runs(transcript.text, transcript.spans),
        "tokens": tokens,
        "footer": footer(transcript) if transcript.is_over else "",
    }


def empty_channel(chat_id: int) -> dict[str, Any]:
    """The side channel of a chat without answers."""
    return {
        "chat": chat_id, "index": -1, "is_over": True, "prompt": "", "text": "", "runs": "", "tokens": "",
        "footer": "",
    }  # fmt: skip


def number(value: float | None, pattern: str = "{:.1f}") -> str:
    """A figure, or a dash while it is unknown."""
    return "–" if value is None else pattern.format(value)


def milliseconds(seconds: float | None) -> str:
    """A time as a reader wants it: 85 ms, 1.3 s."""
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def duration(seconds: float) -> str:
    """A time to wait as people say it: 8 s, 2 min 05 s."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


def footer(transcript: Transcript) -> str:
    """One plain line about a finished answer."""
    stats, share = transcript.stats, transcript.accepted_share
    reason = REASONS[transcript.finish_reason] if transcript.finish_reason else "failed"
    parts = [
        f"{len(transcript.tokens)} tokens",
        f"{number(stats.decode_tok_s)} tok/s",
        f"first token {milliseconds(stats.ttft_s)}",
        f"{number(stats.tau, '{:.2f}')} tokens per step",
        f"{number(share, '{:.0%}')} drafted",
        reason,
    ]
    return " · ".join(parts)


def figure(value: str, label: str, title: str, extra: str = "") -> str:
    """One figure of the status line."""
    return (
        f'<span class="figure {extra}" title="{escape(title)}"><b>{escape(value)}</b>'
        f" <span>{escape(label)}</span></span>"
    )


def status_html(transcript: Transcript | None) -> str:
    """The line under the conversation: place in the queue, prefill, live or final figures."""
    if transcript is None:
        return status_line("idle", "Ready", "")
    if transcript.phase == "queued" and transcript.queue_ahead is not None:
        n_ahead = transcript.queue_ahead
        requests = "1 request" if n_ahead == 1 else f"{n_ahead} requests"
        return status_line("queued", f"Waiting: {requests} ahead", "")
    if transcript.phase in ("new", "queued"):
        return status_line("queued", "Starting", "")
    if transcript.phase == "prefill":
        done, total = transcript.n_prefilled, transcript.n_prompt_tokens
        return status_line("prefill", f"Reading the prompt: {done} of {total} tokens", "")
    if transcript.finish_reason:
        name = f"Done: {REASONS[transcript.finish_reason]}"
    else:
        name = "Failed" if transcript.phase == "failed" else "Generating"
    phase = "done" if transcript.is_over else "live"
    return status_line(phase, name, figures_html(transcript))


def figures_html(transcript: Transcript) -> str:
    """The figures of an answer, live or final."""
    stats = transcript.stats
    figures = []
    if not transcript.is_over:
        figures.append(
            figure(number(transcript.now_tok_s), "tok/s now", "Over the last 2 seconds", "now")
        )
    paused: list[str] = []
    if transcript.is_over and transcript.is_drafting_paused:
        paused = [figure("drafting paused", "", PAUSED)]
    used = transcript.n_prompt_tokens + len(transcript.tokens)
    figures += [
        figure(
            number(stats.decode_tok_s), "tok/s", "Decoding rate of the whole answer, without prefill",
            "" if figures else "now",
        ),
        figure(milliseconds(stats.ttft_s), "to first token", "From the engine's start; queue apart"),
        figure(
            number(stats.tau, "{:.2f}"), "tokens per step",
            "τ: tokens that one forward pass of the base model made final; plain decoding: 1.00",
        ),
        figure(
            number(transcript.accepted_share, "{:.0%}"), "drafted",
            "Share of the answer that was guessed ahead and confirmed by the base model",
        ),
        figure(str(len(transcript.tokens)), "tokens", "Tokens of the answer", "minor"),
        figure(
            f"{used} / {transcript.context_length}", "context",
            f"{transcript.n_prompt_tokens} prompt tokens and the answer, of the most the model can hold",
            "minor",
        ),
    ]  # fmt: skip
    return "".join([*figures, *paused])


def status_line(phase: str, name: str, figures: str) -> str:
    """The status line's frame."""
    return (
        f'<div class="status" data-phase="{phase}"><span class="phase">{escape(name)}</span>'
        f'<span class="figures">{figures}</span></div>'
    )


def bar_row(label: str, share: float, value: str, title: str) -> str:
    """A labelled bar; ``share`` in 0..1."""
    width = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    return (
        f'<div class="bar-line" title="{escape(title)}"><span>{escape(label)}</span><span class="track">'
        f'<span style="width:{width}"></span></span><b>{escape(value)}</b></div>'
    )


def details_html(transcript: Transcript | None) -> str:
    """Acceptance by depth, where the time went, and the request's facts."""
    if transcript is None or not transcript.tokens:
        return (
            '<p class="muted">Figures of the next answer appear here. Those of older answers unfold under '
            "each of them; times of their single parts are not kept.</p>"
        )
    stats = transcript.stats
    by_depth = zip(
        stats.acceptance_at_depth, stats.accepted_at_depth, stats.drafted_at_depth, strict=True
    )
    depths = "".join(
        bar_row(f"depth {depth}", rate, f"{rate:.0%} ({kept} of {drafted})", BY_DEPTH)
        for depth, (rate, kept, drafted) in enumerate(by_depth, start=1)
    )
    times = [(name, getattr(stats, f"{name}_s")) for name in PARTS]
    total = sum(seconds for _, seconds in times) or 1.0
    split = "".join(
        bar_row(name, seconds / total, milliseconds(seconds), PARTS[name])
        for name, seconds in times
    )
    facts = {
        "steps": str(stats.n_steps),
        "drafted tokens tried": str(stats.n_drafted),
        "prompt tokens": f"{transcript.n_prompt_tokens} ({transcript.n_cached_tokens} cached)",
        "context length": str(transcript.context_length),
        "drafter": transcript.drafter or "–",
        "rule": transcript.rule or "–",
        "seed": "–" if transcript.seed is None else str(transcript.seed),
        "whole request": milliseconds(stats.total_s),
    }
    rows = "".join(
        f'<dt title="{escape(FACTS.get(k, ""))}">{escape(k)}</dt><dd>{escape(v)}</dd>'
        for k, v in facts.items()
    )
    why = "No drafting in this answer."
    if transcript.is_drafting_paused:
        why = f"{PAUSED[0].upper()}{PAUSED[1:]}."
    return (
        '<div class="details"><section><h3>Accepted by depth</h3>'
        f"{depths or f'<p class=muted>{why}</p>'}</section>"
        f"<section><h3>Time</h3>{split}</section>"
        f"<section><h3>Request</h3><dl>{rows}</dl></section></div>"
    )


def notice_html(level: str, message: str, hint: str = "") -> str:
    """A notice above the message box."""
    role = "alert" if level == "error" else "status"
    more = f" <span>{escape(hint)}</span>" if hint else ""
    return f'<div class="notice {escape(level)}" role="{role}"><b>{escape(message)}</b>{more}</div>'


def opening_html(opening: Opening) -> str:
    """Progress of a download or of loading, or why it failed."""
    if opening.has_failed:
        return notice_html("error", opening.message, opening.hint)
    if opening.share is None:
        bar = '<progress aria-label="loading"></progress>'
    else:
        bar = f'<progress aria-label="loading" max="1" value="{opening.share:.3f}"></progress>'
    figures = f'<span class="pace">{escape(opening.figures)}</span>' if opening.figures else ""
    message = escape(opening.message)
    return f'<div class="notice opening" role="status"><b>{message}</b>{bar}{figures}</div>'


def header_html(info: SessionInfo | None, certificate: Certificate | None = None) -> str:
    """The title line: name, what is loaded, and what the last verification found."""
    chips = badge = why_chips = ""
    if info is not None:
        head = f" + {info.n_head_parameters / 1e6:.0f}M head" if info.head else ", no draft head"
        model = f"{info.n_parameters / 1e6:.0f}M{head}"
        names = [
            info.base.rstrip("/").rsplit("/", 1)[-1],
            model,
            f"{info.precision} on {info.device}",
        ]
        chips = "".join(f'<span class="chip">{escape(name)}</span>' for name in names)
        reasons = (
            (f"drafting: {info.drafting}", info.drafting_reason),
            ("answers may part", info.rounding_reason),
            ("note", info.precision_note),
        )
        why_chips = "".join(why_html(label, why) for label, why in reasons if why)
        badge = certificate_html(certificate, verify_command(info))
    return f'<div class="header"><h1>EAGLE chat</h1><div class="chips">{chips}</div>{why_chips}{badge}</div>'


def why_html(label: str, why: str) -> str:
    """A chip that unfolds its reason; a mere tooltip would need a mouse."""
    summary = f'<summary class="chip">{escape(label)}</summary>'
    return f'<details class="why">{summary}<p>{escape(why)}</p></details>'


def verify_command(info: SessionInfo) -> str:
    """The command that verifies what is loaded."""
    words = ["eagle-chat", "verify"]
    if info.base != LoadConfig().base:
        words += ["--base", info.base]
    if info.quantization != "none":
        words += ["--quantization", info.quantization]
    elif info.dtype != "float32":
        words += ["--dtype", info.dtype]
    return shlex.join(words)


def certificate_html(certificate: Certificate | None, command: str = "eagle-chat verify") -> str:
    """A badge with the last verification; its figures unfold."""
    if certificate is None:
        return (
            '<details class="verified" data-state="none"><summary class="chip">not verified</summary>'
            f"<p>This set-up is not verified yet: run <code>{escape(command)}</code> in a terminal. It "
            "checks that answers are the ones of plain decoding; then reload this page.</p></details>"
        )
    n_failed = sum(not check.passed for check in certificate.checks)
    day = certificate.created[:10]
    summary = f"verified: {len(certificate.checks)} checks, {day}"
    if not certificate.passed:
        summary = f"verification failed: {n_failed} of {len(certificate.checks)} checks, {day}"
    rows = "".join(
        f"<tr><td>{'ok' if check.passed else 'failed'}</td><td>{escape(check.name)}</td>"
        f"<td>{escape(check.detail)}</td></tr>"
        for check in certificate.checks
    )
    return (
        f'<details class="verified" data-state="{"passed" if certificate.passed else "failed"}">'
        f'<summary class="chip">{escape(summary)}</summary><table>{rows}</table></details>'
    )


__all__ = [
    "TokenLines",
    "certificate_html",
    "chat_value",
    "details_html",
    "duration",
    "empty_channel",
    "footer",
    "header_html",
    "notice_html",
    "opening_html",
    "side_channel",
    "status_html",
    "utf16_runs",
    "verify_command",
]
