"""``eagle-chat bench run``: measure methods against each other; the other actions are added here, too."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_core.bench.build import build_methods, check_methods, describe_peers
from eagle_core.bench.config import BenchConfig
from eagle_core.bench.prompts import evenly_spaced, load_questions
from eagle_core.bench.provenance import provenance
from eagle_core.bench.records import BenchWriter, Row, check_output, read_bench_file
from eagle_core.bench.runner import PeakMeter, n_rows, run_bench, settings_of
from eagle_core.cli import bench_gpu, bench_replay, bench_reports
from eagle_core.cli.bench_reports import write_summary
from eagle_core.cli.console import interrupted_by_termination, note
from eagle_core.cli.flags import add_config_flags, read_config
from eagle_core.cli.stream import Progress, open_session
from eagle_core.config import GenerationConfig, LoadConfig, TreeConfig

if TYPE_CHECKING:
    from eagle_core.session import Session

EXIT_FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``bench`` and its actions."""
    bench = subparsers.add_parser("bench", help="measure speed", description="Measure speed.")
    actions = bench.add_subparsers(dest="action", required=True, metavar="action")

    measure = actions.add_parser(
        "run",
        help="measure methods on a file of questions",
        description="Measure methods on the same questions.",
        allow_abbrev=False,
    )
    measure.add_argument("--prompts", required=True, metavar="FILE", help="questions, JSON lines")
    measure.add_argument("--out", required=True, metavar="FILE", help="where the rows go")
    measure.add_argument(
        "--resume", action="store_true", help="go on with an unfinished --out file"
    )
    measure.add_argument("--json", action="store_true", help="the summary as one JSON object")
    add_config_flags(measure, BenchConfig, LoadConfig, GenerationConfig, TreeConfig)
    measure.set_defaults(run=run)

    bench_reports.add_parsers(actions)
    bench_replay.add_parser(actions)
    bench_gpu.add_parser(actions)


def run(args: argparse.Namespace) -> int:
    """Measure, then summarize.

    Returns: 0, or 1 when an answer failed.
    Raises: EagleError.
    """
    load = read_config(args, LoadConfig)
    generation = read_config(args, GenerationConfig)
    tree = read_config(args, TreeConfig)
    bench = read_config(args, BenchConfig)
    out = Path(args.out)
    questions = evenly_spaced(load_questions(Path(args.prompts)), bench.limit)
    settings = settings_of(questions, bench, generation, tree, load)
    check_output(out, settings, resume=args.resume)  # before the model is loaded, as the next
    check_methods(bench, load, generation)
    progress = Progress()
    session = open_session(load, progress)
    with interrupted_by_termination(), contextlib.ExitStack() as stack:
        stack.callback(session.close)
        note("measuring what forwards cost on this machine")
        session.rehearse()
        methods = build_methods(bench, session, tree, load, stack, progress)
        header = {**header_of(session, settings), "peers": describe_peers(methods)}
        with contextlib.closing(BenchWriter(out, header, resume=args.resume)) as writer:
            rows = run_bench(
                questions,
                methods,
                lambda text: session.encode_chat([{"role": "user", "content": text}]),
                generation,
                bench,
                writer,
                PeakMeter(session.info.device),
                session.explain_difference,
            )
            show_rows(rows, writer, n_rows(questions, bench), progress)
    found = read_bench_file(out)
    write_summary(found, as_json=args.json)
    return EXIT_FAILED if any(row.status == "failed" for row in found.rows) else 0


def header_of(session: Session, settings: dict[str, Any]) -> dict[str, Any]:
    """The file's first line: machine, code, model, settings."""
    info = session.info
    return {
        **provenance(info.device),
        "model": dataclasses.asdict(info),
        "weight_bytes": info.weight_bytes,
        "row_costs": session.row_costs.known() if session.row_costs is not None else None,
        "settings": settings,
    }


def show_rows(rows: Iterable[Row], writer: BenchWriter, total: int, progress: Progress) -> None:
    """Drive the benchmark and show how far it is."""
    for row in rows:
        if row.status == "failed":
            progress.close()
            note(failure(row))
        progress.count("answers", len(writer.done), total, unit="")
    progress.close()


def failure(row: Row) -> str:
    """A failed row in one line."""
    message = row.error["message"] if row.error else "failed"
    return f"{row.method} failed on question {row.question_id}: {message}"


__all__ = ["add_parser", "run"]
