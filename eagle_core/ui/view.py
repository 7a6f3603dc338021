"""What the page's own script draws, as plain data: tools of each message, its figures, the context, the list.

The script puts every text into the page as text, never as markup, so nothing is escaped here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from eagle_core.context import Fit, fit
from eagle_core.errors import EagleError
from eagle_core.history import Conversation, Message, Summary, parts_of, spans_of, words_of
from eagle_core.ui import render
from eagle_core.ui.attachments import MAX_FILE_BYTES
from eagle_core.ui.backend import ChatSession
from eagle_core.ui.controls import Settings
from eagle_core.ui.rooms import Room, Turn, messages_of

DAY_S = 24 * 3600
WARN_SHARE = 0.8
# A rate over fewer prompt tokens than this says more about the clock than about the machine.
MIN_READ = 32
# A longer list takes long to draw; the search finds the others.
MAX_LISTED = 400
# Label, key, format and explanation of an answer's figures; the first row is always in sight.
FIGURES: tuple[tuple[str, str, str, str], ...] = (
    ("tok/s", "decode_tok_s", "{:.1f}", "Decoding rate of the whole answer, without prefill"),
    ("first token", "ttft_s", "time", "From the engine's start to the first token; queue apart"),
    ("tok/s prefill", "prefill_tok_s", "{:.0f}", "Prompt tokens read per second, cached ones left out"),
    ("τ", "tau", "{:.2f}", "Tokens per forward pass of the base model after the first; plain: 1.00"),
    ("drafted", "accepted_share", "{:.0%}", "Share of the answer that was guessed ahead and confirmed"),
)  # fmt: skip
NO_FIGURES: dict[str, Any] = {"line": [], "details": [], "counts": [0, 0]}
DETAILS: tuple[tuple[str, str, str], ...] = (
    ("tokens", "n_tokens", "{}"),
    ("steps", "n_steps", "{}"),
    ("end to end", "total_tok_s", "{:.1f} tok/s"),
    ("whole request", "total_s", "time"),
    ("prompt tokens", "n_prompt_tokens", "{}"),
    ("of these cached", "n_cached_tokens", "{}"),
    ("context length", "context_length", "{}"),
    ("model", "model", "{}"),
    ("drafter", "drafter", "{}"),
    ("rule", "rule", "{}"),
    ("temperature", "temperature", "{}"),
)


def page_state(room: Room, shown: Fit | None, is_written: Callable[[str], bool]) -> dict[str, Any]:
    """The conversation in view: its messages' tools, attached files and the context's use."""
    conversation = room.conversation
    messages = visible(conversation)
    return {
        "chat": room.chat_id,
        "id": conversation.id if conversation is not None else None,
        "title": conversation.title if conversation is not None else "",
        "is_private": room.private is not None,
        "is_busy": room.is_busy,
        "turns": [
            turn_view(
                conversation,
                message,
                index >= room.n_left_out,
                is_written,
                room.is_busy and room.writing == message.id,
            )
            for index, message in enumerate(messages)
            if conversation is not None
        ],
        "max_file_bytes": MAX_FILE_BYTES,
        "attachments": [{"name": f.name, "n_bytes": f.n_bytes} for f in room.attachments],
        "meter": meter_view(shown, room.n_left_out) if shown is not None else None,
    }


def visible(conversation: Conversation | None) -> list[Message]:
    """The messages that have a row on the page: an answer without a word has none."""
    path = conversation.path if conversation is not None else ()
    return [message for message in path if message.role == "user" or message.text]


def turns_of(conversation: Conversation | None) -> list[Turn]:
    """The rows of the page."""
    return [Turn(message.role, message.text) for message in visible(conversation)]


def turn_view(
    conversation: Conversation,
    message: Message,
    is_sent: bool,
    is_written: Callable[[str], bool],
    is_own: bool = False,
) -> dict[str, Any]:
    """One message's row; ``is_own`` while this tab writes it: its figures are those of before."""
    versions = [m for m in conversation.versions(message) if m.text or m.id == message.id]
    number = [version.id for version in versions].index(message.id)
    return {
        "id": message.id,
        "role": message.role,
        "text": message.text,
        "runs": render.utf16_runs(message.text, spans_of(message.runs)),
        "version": number + 1,
        "before": versions[number - 1].id if number else None,
        "after": versions[number + 1].id if number + 1 < len(versions) else None,
        "n_versions": len(versions),
        "is_sent": is_sent,
        "is_written": not message.is_finished and is_written(message.id) and not is_own,
        "is_finished": message.is_finished or is_own,
        **(NO_FIGURES if is_own else figures_view(message)),
    }


def figures_view(message: Message) -> dict[str, Any]:
    """An answer's figures as texts: a line, and what unfolds. They may come from an imported file."""
    figures = message.figures
    if not figures:
        return NO_FIGURES
    line = [
        {"value": shown(figures.get(key), pattern), "label": label, "title": title}
        for label, key, pattern, title in FIGURES
        if key != "prefill_tok_s" or n_read(figures) >= MIN_READ
    ]
    if figures.get("is_continuation") is True:
        title = "These figures are those of the part that Continue added"
        line.insert(0, {"value": "continuation:", "label": "", "title": title})
    reason = render.REASONS.get(str(figures.get("finish_reason")), "failed")
    line.append({"value": reason, "label": "", "title": "Why the answer ended"})
    line.append({"value": text_of(figures, "dtype"), "label": "", "title": "Precision of the base"})
    seed = f"seed {text_of(figures, 'seed')}"
    temperature = f"temperature {text_of(figures, 'temperature')}"
    line.append({"value": temperature, "label": "", "title": "How varied the answer may be"})
    line.append({"value": seed, "label": "", "title": "Same seed, same answer"})
    details = [[label, shown(figures.get(key), pattern)] for label, key, pattern in DETAILS]
    if figures.get("is_paused") is True:
        line.append({"value": "drafting paused", "label": "", "title": render.PAUSED})
        details.append(["drafting", render.PAUSED])
    rates = figures.get("acceptance_at_depth")
    for depth, rate in enumerate(rates if isinstance(rates, list) else [], start=1):
        details.append([f"accepted at depth {depth}", shown(rate, "{:.0%}")])
    n_tokens, n_drafted = figures.get("n_tokens"), figures.get("n_drafted_tokens")
    counts = [0, 0]
    if isinstance(n_tokens, int) and isinstance(n_drafted, int):
        counts = [n_drafted, n_tokens - n_drafted]
    return {"line": line, "details": details, "counts": counts}


def n_read(figures: dict[str, Any]) -> int:
    """Prompt tokens that were read, not cached; 0 when unknown."""
    n_prompt, n_cached = figures.get("n_prompt_tokens"), figures.get("n_cached_tokens")
    return n_prompt - n_cached if isinstance(n_prompt, int) and isinstance(n_cached, int) else 0


def text_of(figures: dict[str, Any], key: str) -> str:
    """A figure that is a name or a whole number, or a dash."""
    value = figures.get(key)
    return "–" if value is None else str(value)[:80]


def shown(value: Any, pattern: str) -> str:
    """A figure in its pattern, or a dash when it is none."""
    if pattern == "{}":
        return "–" if value is None else str(value)[:80]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–"
    return render.milliseconds(value) if pattern == "time" else pattern.format(value)


def meter_view(shown_fit: Fit, n_left_out: int) -> dict[str, Any]:
    """The context's use: what the system prompt, the chat and the answer's room take. Shares add up to 1."""
    length = shown_fit.length
    n_chat = shown_fit.n_tokens - shown_fit.n_system
    is_over = shown_fit.n_tokens + shown_fit.n_reserved > length
    return {
        "length": length,
        "used": shown_fit.n_tokens,
        "parts": [
            ["system prompt", shown_fit.n_system],
            ["conversation", n_chat],
            ["kept for the answer", min(shown_fit.n_reserved, max(length - shown_fit.n_tokens, 0))],
        ],
        "warn_at": round(WARN_SHARE * length),
        "level": "full" if is_over else "high" if shown_fit.share >= WARN_SHARE else "ok",
        "n_left_out": n_left_out,
    }


def measure(
    session: ChatSession,
    turns: Sequence[Turn],
    settings: Settings,
    policy: str = "",
) -> Fit:
    """How much of the turns fits. Raises: ContextOverflow under the policy "stop"; ModelError."""

    def count(part: Sequence[Turn]) -> int:
        messages = messages_of(list(part), settings.system_prompt)
        if part:
            return session.count_tokens(messages)
        try:
            return session.count_tokens(messages) if messages else 0
        except EagleError:  # a template that wants a user's message
            return 0

    starts = [index for index, turn in enumerate(turns) if turn.role == "user"]
    if not turns:
        n_system = count([])
        reserved = min(settings.generation.max_new_tokens, session.info.context_length // 4)
        return Fit(0, n_system, n_system, reserved, session.info.context_length)
    return fit(
        turns,
        starts,
        count,
        session.info.context_length,
        settings.generation.max_new_tokens,
        "stop" if policy == "stop" else "drop",
    )


def library_state(
    room: Room, found: Sequence[Summary], now_s: float | None = None
) -> dict[str, Any]:
    """The list of conversations, in groups by day."""
    now_s = time.time() if now_s is None else now_s
    words = words_of(room.query)
    return {
        "current": room.conversation.id if room.conversation and not room.private else None,
        "query": room.query,
        "is_kept": room.saved.is_kept,
        "n_more": max(len(found) - MAX_LISTED, 0),
        "items": [
            {
                "id": summary.id,
                "title": summary.title,
                "group": group_of(summary, now_s),
                "is_pinned": summary.is_pinned,
                "tags": list(summary.tags),
                "snippet": summary.snippet,
                "message": summary.message,
                **({"found": found_view(summary, words)} if words else {}),
            }
            for summary in found[:MAX_LISTED]
        ],
        "download": None,
    }


def found_view(summary: Summary, words: Sequence[str]) -> dict[str, Any]:
    """A hit's texts in parts; every second one is a word that was looked for."""
    return {
        "title": parts_of(summary.title, words),
        "snippet": parts_of(summary.snippet, words),
        "tags": [parts_of(tag, words) for tag in summary.tags],
    }


def group_of(summary: Summary, now_s: float) -> str:
    """The heading that a conversation stands under."""
    if summary.is_pinned:
        return "Pinned"
    today = time.localtime(now_s)
    day = time.localtime(summary.updated_s)
    n_days = round((midnight(today) - midnight(day)) / DAY_S)
    if n_days <= 0:
        return "Today"
    if n_days == 1:
        return "Yesterday"
    return "Last 7 days" if n_days < 7 else time.strftime("%B %Y", day)


def midnight(day: time.struct_time) -> float:
    """When a day began."""
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))


__all__ = [
    "figures_view", "library_state", "measure", "meter_view", "page_state", "turn_view", "turns_of",
    "visible",
]  # fmt: skip
