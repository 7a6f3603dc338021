"""Races as plain data for the page's script, and as one HTML file that shows them without this app."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eagle_core.compare import Lane, Race, Setup, Verdict, summarize
from eagle_core.ui.page import text_of
from eagle_core.ui.render import REASONS, utf16_runs

if TYPE_CHECKING:
    from eagle_core.session import SessionInfo

DRAFTERS = {"none": "Plain decoding", "ngram": "Prompt lookup", "eagle": "EAGLE"}
# The file may run its own script and nothing else; it can load nothing and send nothing.
REPORT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>EAGLE chat: a comparison</title><style>{style}</style></head>
<body class="report"><main><h1>EAGLE chat: a comparison</h1><div id="race"></div></main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
eagleRace.mount(document.getElementById("race"), data);
</script>
</body></html>
"""


def about(setup: Setup) -> str:
    """A set-up in one line."""
    tree, generation = setup.draft.tree, setup.generation
    parts = [f"temperature {generation.temperature:g}", f"seed {generation.seed}"]
    if setup.draft.drafter == "ngram":
        parts.append(f"up to {tree.lookup} looked-up tokens")
    elif setup.draft.drafter == "eagle":
        shape = f"{tree.policy} tree"
        if tree.policy == "dynamic":
            shape += f", depth {tree.depth}, branching {tree.branching}, {tree.size} nodes"
        parts.append(f"{shape}, {tree.lookup} looked up")
    return " · ".join(parts)


def races_data(info: SessionInfo, races: Sequence[Race]) -> dict[str, Any]:
    """Everything that the page's script shows, as JSON data."""
    lanes = races[0].lanes if races else ()
    name = info.base.rstrip("/").rsplit("/", 1)[-1]
    return {
        "model": f"{name}, {info.dtype} on {info.device}",
        "setups": [{"name": lane.setup.name, "about": about(lane.setup)} for lane in lanes],
        "races": [
            {
                "prompt": race.prompt,
                "lanes": [lane_data(lane) for lane in race.lanes],
                "verdicts": [verdict_data(verdict) for verdict in race.verdicts],
            }
            for race in races
        ],
        "summary": summarize(races),
    }


def lane_data(lane: Lane) -> dict[str, Any]:
    """One answer: its moments as [milliseconds, text, runs, tokens so far], and its figures."""
    stats, transcript = lane.stats, lane.transcript
    end = REASONS[transcript.finish_reason] if transcript.finish_reason else "failed"
    return {
        "moments": [
            [round(1000 * m.time_s, 1), m.text, utf16_runs(m.text, m.spans), m.n_tokens]
            for m in lane.moments
        ],
        "n_tokens": stats.n_tokens,
        "n_steps": stats.n_steps,
        "decode_tok_s": stats.decode_tok_s,
        "total_tok_s": stats.n_tokens / stats.total_s if stats.total_s > 0 else None,
        "total_ms": 1000 * stats.total_s,
        "ttft_ms": None if stats.ttft_s is None else 1000 * stats.ttft_s,
        "tau": stats.tau,
        "share": transcript.accepted_share,
        "end": end,
        "problem": transcript.error.message if transcript.error else "",
        "notices": [notice.message for notice in transcript.notices],
    }


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """A lane beside the first."""
    return {
        "decode": verdict.decode_speedup,
        "total": verdict.total_speedup,
        "is_identical": verdict.is_identical,
        "words": verdict.words,
    }


def report_html(data: dict[str, Any]) -> str:
    """One self-contained file. Text from the model and the user is data, which no parser of HTML reads."""
    safe = json.dumps(data).replace("<", "\\u003c")  # ASCII only, and no tag can close the element
    return REPORT.format(style=text_of("race.css"), script=text_of("race.js"), data=safe)


__all__ = ["DRAFTERS", "about", "races_data", "report_html"]
