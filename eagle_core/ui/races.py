"""Races as plain data for the page's script, and as one HTML file that shows them without this app."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from eagle_core._version import __version__
from eagle_core.bench.provenance import cpu_name
from eagle_core.compare import Lane, Race, Setup, Verdict
from eagle_core.race_figures import summarize
from eagle_core.relay import precision_of
from eagle_core.ui.page import text_of
from eagle_core.ui.render import REASONS, utf16_runs

if TYPE_CHECKING:
    from eagle_core.session import SessionInfo

DRAFTERS = {"none": "Plain decoding", "ngram": "Prompt lookup", "eagle": "EAGLE"}
# In this order: each uses what those before it define.
SCRIPTS = ("race_plot.js", "race_picture.js", "race.js")
START = """
const data = JSON.parse(document.getElementById("data").textContent);
eagleRace.mount(document.getElementById("race"), data);
"""
# The file may run its own scripts, known by their hashes, and no other; it can load and send nothing.
REPORT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; form-action 'none'; base-uri 'none'; style-src 'unsafe-inline';
 script-src {hashes}">
<title>EAGLE chat: a comparison</title><style>{style}</style></head>
<body class="report"><main><h1>EAGLE chat: a comparison</h1><div id="race"></div></main>
<script type="application/json" id="data">{data}</script>
{scripts}
</body></html>
"""


def about(setup: Setup, loaded: str) -> str:
    """A set-up in one line. Args: loaded: the precision of what is loaded."""
    tree, generation = setup.draft.tree, setup.generation
    parts = [
        setup.precision or loaded,
        f"temperature {generation.temperature:g}",
        f"seed {generation.seed}",
    ]
    if setup.draft.drafter == "ngram":
        parts.append(f"up to {tree.lookup} looked-up tokens")
    elif setup.draft.drafter == "eagle":
        shape = f"{tree.policy} tree"
        if tree.policy == "dynamic":
            shape += f", depth {tree.depth}, branching {tree.branching}, {tree.size} nodes"
        parts.append(f"{shape}, {tree.lookup} looked up")
    return " · ".join(parts)


def machine_text(info: SessionInfo) -> str:
    """The machine that a session computes on, as a reader knows it."""
    if not info.device.startswith("cuda"):
        return cpu_name()
    import torch

    return torch.cuda.get_device_name(info.device)


def races_data(info: SessionInfo, races: Sequence[Race], machine: str) -> dict[str, Any]:
    """Everything that the page's script shows, as JSON data."""
    lanes = races[0].lanes if races else ()
    name, loaded = info.base.rstrip("/").rsplit("/", 1)[-1], precision_of(info)
    found = {lane.setup.precision or loaded: None for lane in lanes} or {loaded: None}
    return {
        "model": f"{name}, {' and '.join(found)} on {info.device}",
        "machine": machine,
        "version": f"EAGLE chat {__version__}",
        "created": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "setups": [{"name": lane.setup.name, "about": about(lane.setup, loaded)} for lane in lanes],
        "races": [
            {
                "prompt": race.prompt,
                "category": race.category,
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
    scripts = [*(text_of(name) for name in SCRIPTS), START]
    return REPORT.format(
        style=text_of("race.css"),
        hashes=" ".join(f"'sha256-{fingerprint(script)}'" for script in scripts),
        data=safe,
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def fingerprint(script: str) -> str:
    """A script's hash as a content policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


__all__ = ["DRAFTERS", "about", "machine_text", "races_data", "report_html"]
