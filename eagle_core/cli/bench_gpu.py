"""``eagle-chat bench gpu``: one command that says what a GPU makes of this engine, in a few minutes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from eagle_core.bench.accelerator import accelerator
from eagle_core.bench.config import GpuConfig
from eagle_core.bench.prompts import load_questions
from eagle_core.bench.provenance import provenance
from eagle_core.bench.table import align
from eagle_core.cli.console import note, write_json, write_line
from eagle_core.cli.flags import add_config_flags, read_config
from eagle_core.config import LoadConfig
from eagle_core.outputs import check_file, write_text

GB = 1e9
BAR_TITLES = {
    "plain_of_bound": ("plain decoding / memory bound", "at least"),
    "verify_60": ("60 rows / 1 row", "at most"),
    "draft_step": ("draft step / 1 row", "at most"),
}


def add_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add ``bench gpu``."""
    parser = actions.add_parser(
        "gpu",
        help="what a GPU makes of this engine, in a few minutes, with nothing to fetch",
        description="Measure a large model's shape with random weights on a GPU: plain decoding against the "
        "memory's speed, what rows and drafts cost, and the default model's speed-up if it is here.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON, too")
    parser.add_argument(
        "--base",
        default=LoadConfig().base,
        metavar="TEXT",
        help="a real model to measure, if it is on this machine (default: %(default)s)",
    )
    parser.add_argument("--head", metavar="TEXT", help="its head (default: the one known for it)")
    parser.add_argument(
        "--prompts", metavar="FILE", help="questions to it, twelve at most (default: examples)"
    )
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    add_config_flags(parser, GpuConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, then show.

    Raises: EagleError.
    """
    config = read_config(args, GpuConfig)
    prompts = Path(args.prompts) if args.prompts else None
    if prompts is not None:
        load_questions(prompts)
    if args.out:
        check_file(args.out)
    device = accelerator(config.device)
    from eagle_core.bench.gpu import measure
    from eagle_core.bench.gpu_default import real_speedup

    started_s = time.monotonic()

    def say(text: str) -> None:
        note(f"{time.monotonic() - started_s:5.0f} s  {text}")

    found: dict[str, Any] = {
        "header": {**provenance(str(device)), "settings": dataclasses.asdict(config)},
        "shape": config.shape,
    }
    found.update(measure(config, say))
    if time.monotonic() - started_s < 60 * config.max_minutes:
        load = LoadConfig(base=args.base, head=args.head, device=str(device))
        found["real"] = real_speedup(load, say, prompts)
    else:
        found["real"] = {"skipped": f"{config.max_minutes:g} minutes are over"}
    found["took_s"] = time.monotonic() - started_s
    if args.out:
        write_text(args.out, json.dumps(found, indent=1, default=str) + "\n")
        note(f"wrote {args.out}")
    if args.json:
        write_json(found)
    else:
        write_line(gpu_table(found, config.precisions))
    return 0


def gpu_table(found: dict[str, Any], precisions: tuple[str, ...]) -> str:
    """The figures as text."""
    header = found["header"]
    copy = found["copy"]["bandwidth_bytes_s"]
    machine = header["accelerator"] or header["cpu"]
    parts = [f"{machine}: copies {copy / GB:.0f} GB/s, read and written bytes together"]
    for precision in precisions:
        part = found[precision]
        title = f"{found['shape']}, {precision}"
        if "skipped" in part:
            parts.append(f"{title}: skipped: {part['skipped']}")
            continue
        parts += [f"{title}: {_precision_line(part)}", _rows_table(part), _draft_table(part)]
        parts.append(_bars_table(part["bars"]))
        if (part["graph"] or {}).get("bars"):
            parts += _graph_parts(f"{title}, CUDA graphs", part)
    parts.append(_real_line(found["real"]))
    parts.append(f"{found['took_s']:.0f} s in all")
    return "\n\n".join(parts)


def _precision_line(part: dict[str, Any]) -> str:
    return (
        f"{part['weight_bytes'] / GB:.2f} GB of weights, {part['bound_ms']:.2f} ms for a forward at the "
        f"least; plain decoding {part['plain_tok_s']:.1f} tok/s ({part['plain_ms']:.2f} ms); peak memory "
        f"{part['peak_bytes'] / GB:.2f} GB"
    )


def _rows_table(part: dict[str, Any]) -> str:
    verify = part["verify_ms"]
    graph = {"verify_ms": {}, "reason": "", "verify_reproducible_ms": {}} | (part["graph"] or {})
    rows = [
        ["rows", *map(str, verify)],
        ["ms", *(f"{ms:.2f}" for ms in verify.values())],
        ["times 1 row", *(f"{ms / verify[1]:.2f}" for ms in verify.values())],
    ]
    for name, found in (
        ("reproducible, ms", part["verify_reproducible_ms"]),
        ("as a CUDA graph, ms", graph["verify_ms"]),
        ("both, ms", graph["verify_reproducible_ms"]),
    ):
        if found:
            rows.append([name, *(f"{found[n]:.2f}" if n in found else "-" for n in verify)])
    text = align(rows)
    return f"{text}\nno CUDA graph: {graph['reason']}" if graph["reason"] else text


def _graph_parts(title: str, part: dict[str, Any]) -> list[str]:
    """Plain decoding, drafts and aims with forwards replayed as CUDA graphs."""
    graph = part["graph"]
    faster = part["plain_ms"] / graph["plain_ms"]
    line = (
        f"{title}: plain decoding {graph['plain_tok_s']:.1f} tok/s ({graph['plain_ms']:.2f} ms), "
    )
    line += f"{faster:.2f} times as fast as launched from Python"
    return [line, _draft_table(graph), _bars_table(graph["bars"])]


def _draft_table(part: dict[str, Any]) -> str:
    one = part["verify_ms"][1]
    rows = [["head", "weights", "step ms", "of 1 row", "chain of 5, ms", "tree of 60, ms"]]
    for name, draft in part["draft"].items():
        rows.append(
            [
                name,
                f"{draft['n_parameters'] / 1e6:.1f} M",
                f"{draft['step_ms']:.3f}",
                f"{draft['step_ms'] / one:.3f}",
                f"{draft['chain_ms']:.2f}",
                f"{draft['tree_ms']['dynamic']:.2f}",
            ]
        )
    return align(rows)


def _bars_table(bars: dict[str, Any]) -> str:
    rows = [["aim", "", "measured", ""]]
    for name, one in bars.items():
        title, word = BAR_TITLES[name]
        verdict = "met" if one["is_met"] else "missed"
        rows.append([title, f"{word} {one['bar']:.2f}", f"{one['value']:.3f}", verdict])
    return align(rows)


def _real_line(real: dict[str, Any]) -> str:
    if "skipped" in real:
        return f"a real model: skipped: {real['skipped']}"
    decode = (real["speedup"] or {}).get("decode")
    text = f"{real['base']}, {real['dtype']}: plain {real['plain_tok_s']:.1f} tok/s, "
    text += f"EAGLE {real['eagle_tok_s']:.1f} tok/s, tau {real['tau']:.2f}"
    if decode is not None:
        text += f", {decode['value']:.2f}x"
        if decode["low"] is not None:
            text += f" ({decode['low']:.2f}-{decode['high']:.2f})"
    return f"{text}, {real['n_identical']} of {real['n_questions']} answers identical"


__all__ = ["add_parser", "gpu_table", "run"]
