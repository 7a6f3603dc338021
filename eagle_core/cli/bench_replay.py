"""``eagle-chat bench replay``: tau of a head or a tree along known answers, far faster than decoding."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from eagle_core.bench.acceptance import Accepted, summarize_acceptance
from eagle_core.bench.known import known_rows, parse_tree
from eagle_core.bench.prompts import evenly_spaced, load_questions
from eagle_core.bench.records import read_bench_file
from eagle_core.cli.console import write_json, write_line
from eagle_core.cli.flags import add_config_flags, parse_names, positive, read_config
from eagle_core.cli.stream import Progress, open_session
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig, from_mapping
from eagle_core.errors import ConfigError


def add_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add ``bench replay``."""
    parser = actions.add_parser(
        "replay",
        help="tokens per step (tau) along known answers, without decoding them again",
        description="Let a drafter follow answers that plain decoding gave before, and count its steps: the "
        "same tau as decoding, in a fraction of the time, for several trees at once.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--answers", required=True, metavar="FILE", help="rows of `bench run --methods none`"
    )
    parser.add_argument("--prompts", required=True, metavar="FILE", help="the questions to them")
    parser.add_argument(
        "--trees", type=parse_names, metavar="D/B/S[/L],...",
        help="dynamic trees as depth/branching/size[/lookup], instead of the one of the flags",
    )  # fmt: skip
    parser.add_argument("--limit", type=positive, metavar="N", help="only this many, evenly spaced")
    parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")
    add_config_flags(parser, LoadConfig, DraftConfig, TreeConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay, then show.

    Raises: EagleError.
    """
    file = read_bench_file(Path(args.answers))
    questions = evenly_spaced(load_questions(Path(args.prompts)), args.limit)
    known = known_rows(file, questions)
    tree = read_config(args, TreeConfig)
    trees = [parse_tree(text, tree) for text in args.trees or ()] or [tree.ways[0]]
    draft = read_config(args, DraftConfig)
    if draft.drafter == "none":
        raise ConfigError("plain decoding drafts nothing", hint="use --drafter eagle or ngram")
    generation = generation_of(file.header)
    progress = Progress()
    session = open_session(read_config(args, LoadConfig), progress)
    from eagle_core.bench.replay import replay_all

    found: list[list[Accepted]] = []
    try:
        for one in replay_all(session, known, draft.drafter, trees, generation):
            found.append(one)
            progress.count("replaying", len(found), len(known), unit=" answers")
    finally:
        progress.close()
        session.close()
    runs = [
        {"tree": name_of(one), **summarize_acceptance([row[place] for row in found])}
        for place, one in enumerate(trees)
    ]
    if args.json:
        write_json({"runs": runs})
    else:
        write_line("\n\n".join(as_text(one) for one in runs))
    return 0


def generation_of(header: dict[str, Any]) -> GenerationConfig:
    """The settings that a file's answers were made with.

    Raises: ConfigError when the header does not say, or for answers that were cut by stop strings.
    """
    values = dict((header.get("settings") or {}).get("generation") or {})
    if not values:
        raise ConfigError(
            "the file does not say how its answers were made", hint="make it again by `bench run`"
        )
    generation = from_mapping(
        GenerationConfig,
        {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()},
    )
    if generation.stop:
        raise ConfigError(
            "answers that end at a stop string cannot be replayed",
            expected="no --stop",
            got=", ".join(map(repr, generation.stop)),
            hint="make the answers again without --stop",
        )
    return generation


def name_of(tree: TreeConfig) -> str:
    """A tree in a few words."""
    if tree.policy == "dynamic":
        return f"dynamic {tree.depth}/{tree.branching}/{tree.size}, lookup {tree.lookup}"
    return f"{tree.policy}, {tree.head_nodes} nodes, lookup {tree.lookup}"


def as_text(found: dict[str, Any]) -> str:
    """One tree's figures as lines."""
    tau = found["tau_mean"]
    lines = [
        f"{found['tree']}: "
        + (
            f"tau {tau:.3f} over {found['n_answers']} answers ({found['tau_all_steps']:.3f} over all steps)"
            if tau
            else "no answer took a step"
        )
    ]
    lines.append(
        "acceptance by depth " + " / ".join(f"{rate:.3f}" for rate in found["acceptance_at_depth"])
    )
    lines += [f"  {name:24} {value:.3f}" for name, value in found["tau_by_category"].items()]
    return "\n".join(lines)


__all__ = ["add_parser", "run"]
