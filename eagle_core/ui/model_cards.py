"""What the Models page shows: cards of pairs, the work in progress. Every string is escaped here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from eagle_core import catalog, hub
from eagle_core.overview import InUse, Row, disk_bytes
from eagle_core.progress import size_text
from eagle_core.work import State

if TYPE_CHECKING:
    from eagle_core.session import SessionInfo


def work_html(state: State) -> str:
    """The work in progress with its bar and its Cancel; nothing when there is none."""
    if not state.is_running:
        return ""
    value = "" if state.share is None else f' max="1" value="{state.share:.4f}"'
    percent = "" if state.share is None else f"{100 * state.share:.0f}%"
    figures = " · ".join(part for part in (percent, state.pace) if part)
    button = (
        "<span>Stopping</span>"
        if state.is_stopping
        else '<button type="button" data-do="cancel">Cancel</button>'
    )
    return (
        f'<div class="notice work" role="status"><b>{escape(state.title)}</b>'
        f"<span>{escape(state.message)}</span>"
        f'<progress aria-label="progress"{value}></progress>'
        f'<span class="pace">{escape(figures)}</span>{button}</div>'
    )


def loaded_html(info: SessionInfo) -> str:
    """What is in use."""
    head = f" with {info.head}" if info.head else ", no draft head"
    text = f"{info.base}{head}, in {info.precision} on {info.device}"
    return f'<p class="in-use">In use: <b>{escape(text)}</b></p>'


def token_html() -> str:
    """Whether a token is there; never the token."""
    if hub.is_token_from_environment():
        return (
            "<p>A token is given by the environment (HF_TOKEN); it goes before one kept here.</p>"
        )
    text = "A token is kept." if hub.has_token() else "No token is kept."
    return f"<p>{text}</p>"


def rows_html(
    rows: tuple[Row, ...], in_use: InUse | None, can_change: bool = True
) -> tuple[str, str]:
    """The proposed pair, and all others."""
    cards = {row.entry.name: card_html(row, in_use=in_use, can_change=can_change) for row in rows}
    top = "".join(cards[row.entry.name] for row in rows if row.is_proposed)
    others = "".join(cards[row.entry.name] for row in rows if not row.is_proposed)
    n_here = sum(row.disk_bytes > 0 for row in rows)
    disk = f"{n_here} on this machine, {size_text(disk_bytes(rows))} of disk."
    if not n_here:
        disk = "None is on this machine yet."
    return (
        f"<h2>Recommended for this machine</h2>{top}",
        f'<h2>All known pairs</h2><p class="muted">{disk}</p><div class="cards">{others}</div>',
    )


def card_html(
    row: Row, head: str | None = None, in_use: InUse | None = None, can_change: bool = True
) -> str:
    """One pair: what it is, whether it fits, what can be done with it."""
    entry, fit = row.entry, row.fit
    pill = f'<span class="pill {fit.verdict}">{fit.sentence}</span>' if fit else ""
    marks = [entry.license, "gated" if entry.is_gated else "", "own" if entry.is_own else ""]
    now = in_use if in_use is not None and in_use.is_pair(entry) else None
    marks.append("here" if row.is_here and now is None else "")
    marks.append("partly here" if row.has_parts else "")
    chips = "".join(f'<span class="chip">{escape(mark)}</span>' for mark in marks if mark)
    if now is not None:
        chips = f'<span class="chip now">in use, in {escape(now.precision)}</span>{chips}'
    facts = []
    if fit is not None:
        needs = f"needs {size_text(fit.estimate.needed_bytes)}"
        needs = fit.reason if fit.verdict == "too-large" else needs  # it says both
        facts.append(f"{fit.precision}, {needs}")
        facts += [fit.reason] if fit.verdict == "slow" else []
    elif not row.note:
        facts.append("whether it fits is not known yet")
    if row.disk_bytes:
        facts.append(f"{size_text(row.disk_bytes)} on disk")
    if row.download_bytes:
        facts.append(f"about {size_text(row.download_bytes)} to fetch")
    drafts = f"{entry.method} head {entry.head}" if entry.head else "no head: drafts by lookup"
    note = f"<p>{escape(row.note)}</p>" if row.note else ""
    if can_change and row.disk_bytes and in_use is not None and in_use.needs_files_of(entry):
        whose = "It" if now is not None else "A part of it"
        note += f"<p>{whose} is in use, and can be deleted once another model is loaded.</p>"
    return (
        f'<article class="model" data-model="{escape(entry.name)}">'
        f"<header><h3>{escape(entry.title)}</h3>{pill}</header>"
        f'<p class="muted">{escape(entry.name)} · {escape(drafts)}</p>'
        f"<p>{escape('; '.join(facts))}</p>{note}"
        f'<div class="foot"><div>{chips}</div>'
        f"<div>{buttons_html(row, head, in_use) if can_change else ''}</div></div></article>"
    )


def buttons_html(row: Row, head: str | None, in_use: InUse | None) -> str:
    """What can be done with a pair; what is in use is not deleted, and not loaded again as it is."""
    entry, found = row.entry, []
    is_now = in_use is not None and in_use.is_pair(entry)
    is_needed = in_use is not None and in_use.needs_files_of(entry)
    ask = f"Delete {size_text(row.disk_bytes)} of {entry.name} from this machine?"
    if not row.is_here:
        found.append(("fetch", "Resume" if row.has_parts else "Fetch", ""))
    if row.fit is None and not row.note:
        found.append(("check", "Check", ""))
    if not is_now and (row.fit is None or row.fit.verdict != "too-large"):
        found.append(("load", "Load" if row.is_here else "Fetch and load", ""))
    if is_now:
        found.append(("choose", "Another precision", ""))
    elif head is None and catalog.lookup(entry.name) is not None:
        found.append(("choose", "Precision", ""))
    if row.disk_bytes:
        found.append(("delete", "Delete", ask))
    attributes = f'data-name="{escape(entry.name)}" data-head="{escape(head or "")}"'
    return "".join(
        f'<button type="button" data-do="{do}" {attributes} data-ask="{escape(ask)}" '
        f'aria-label="{label}{" for" if do == "choose" else ""} {escape(entry.title)}"'
        f"{' disabled' if do == 'delete' and is_needed else ''}>{label}</button>"
        for do, label, ask in found
    )


__all__ = ["card_html", "loaded_html", "rows_html", "token_html", "work_html"]
