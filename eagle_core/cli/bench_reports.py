"""``eagle-chat bench compare`` and ``bench report``: figures of what was measured before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_core.bench.records import BASELINE, BenchFile, read_bench_file
from eagle_core.cli.console import note, write_json, write_line
from eagle_core.cli.flags import UsageError, parse_names
from eagle_core.errors import ConfigError
from eagle_core.outputs import cannot_write, check_file, write_text

if TYPE_CHECKING:
    from eagle_core.bench.compare import Side


def add_parsers(actions: argparse._SubParsersAction[Any]) -> None:
    """Add ``bench compare`` and ``bench report``."""
    compare = actions.add_parser(
        "compare",
        help="one method against another, or a file against an earlier one",
        description="Compare methods of one file, or the same methods in two files (the second against the "
        "first), by category, with paired intervals.",
        allow_abbrev=False,
    )
    compare.add_argument("files", nargs="+", metavar="FILE", help="what `bench run` wrote")
    compare.add_argument(
        "--method", metavar="NAME", help="the one to judge (default: every method)"
    )
    compare.add_argument(
        "--baseline", metavar="NAME",
        help="what it is set against (default: none in one file, the same method in two)",
    )  # fmt: skip
    compare.add_argument(
        "--allow", type=parse_names, default=(), metavar="A,B",
        help="what may differ between two files: machine, model, precision, settings",
    )  # fmt: skip
    compare.add_argument("--json", action="store_true", help="the outcome as one JSON object")
    compare.set_defaults(run=run_compare)

    report = actions.add_parser(
        "report",
        help="summarize files of rows",
        description="Summarize what `bench run` wrote: on the terminal, as a page, or as Markdown.",
        allow_abbrev=False,
    )
    report.add_argument("files", nargs="+", metavar="FILE", help="what `bench run` wrote")
    report.add_argument("--out", metavar="HTML", help="write one self-contained page with charts")
    report.add_argument("--markdown", metavar="FILE", help="write the tables as Markdown")
    report.add_argument("--plot", metavar="PNG", help="draw a bar chart of the first file")
    report.add_argument("--json", action="store_true", help="the summaries as one JSON object")
    report.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> int:
    """Summarize existing files.

    Raises: EagleError.
    """
    files = [read_bench_file(Path(name)) for name in args.files]
    for name in filter(None, (args.out, args.markdown, args.plot)):
        check_file(name)
    if args.out or args.markdown:
        write_reports(files, args.out, args.markdown)
    if args.plot:
        from eagle_core.bench.plot import write_plot
        from eagle_core.bench.summary import summarize

        try:
            write_plot(summarize(files[0]), Path(args.plot))
        except OSError as error:
            raise cannot_write(args.plot, str(error)) from error
        note(f"drew {args.plot}")
    if len(files) == 1:
        write_summary(files[0], as_json=args.json)
    elif args.json:
        write_json({"runs": [summary_of(file) for file in files]})
    else:
        for name, file in zip(args.files, files, strict=True):
            write_line(f"{name}\n")
            write_summary(file, as_json=False)
            write_line()
    return 0


def write_reports(files: list[BenchFile], page: str | None, markdown: str | None) -> None:
    """The page, the Markdown, or both.

    Raises: ConfigError when one cannot be written.
    """
    from eagle_core.bench.findings import find
    from eagle_core.bench.report import html_report, markdown_report

    runs = [find(file) for file in files]
    for name, make in ((page, html_report), (markdown, markdown_report)):
        if name:
            write_text(name, make(runs))
            note(f"wrote {name}")


def run_compare(args: argparse.Namespace) -> int:
    """Compare methods or files.

    Raises: EagleError.
    """
    from eagle_core.bench.compare import check_comparable, compare
    from eagle_core.bench.table import comparison_table

    if len(args.files) > 2:
        raise UsageError("compare takes one file or two", hint="name the earlier one first")
    files = [read_bench_file(Path(name)) for name in args.files]
    differences = check_comparable(files[0], files[-1], args.allow)
    found = [compare(ours, theirs) for ours, theirs in sides_of(args, files)]
    for text in differences:
        note(f"note: {text}")
    if args.json:
        write_json({"comparisons": found, "differences": differences})
    else:
        write_line("\n\n".join(comparison_table(one) for one in found))
    return 0


def sides_of(args: argparse.Namespace, files: list[BenchFile]) -> list[tuple[Side, Side]]:
    """What is compared with what.

    Raises: ConfigError when nothing can be.
    """
    from eagle_core.bench.compare import Side, check_method, methods_of

    first, last = files[0], files[-1]
    is_one = len(files) == 1
    for name, file, where in (
        (args.method, last, args.files[-1]),
        (args.baseline, first, args.files[0]),
    ):
        if name is not None:
            check_method(file, name, where)
    measured = methods_of(last)
    names = [args.method] if args.method else measured
    if is_one:
        baseline = args.baseline or (BASELINE if BASELINE in measured else (measured or [""])[0])
        pairs = [(name, baseline) for name in names if name != baseline]
    else:
        pairs = [(name, args.baseline or name) for name in names]
        pairs = [(ours, theirs) for ours, theirs in pairs if theirs in methods_of(first)]
    if not pairs:
        raise ConfigError(
            "there is nothing to compare",
            expected="two methods in one file, or the same method in both",
            got=", ".join(measured) or "no row",
            hint="name them with --method and --baseline",
        )
    ours_of, theirs_of = ("", "") if is_one else (f" in {args.files[-1]}", f" in {args.files[0]}")
    return [
        (Side(last, ours, ours + ours_of), Side(first, theirs, theirs + theirs_of))
        for ours, theirs in pairs
    ]


def summary_of(file: BenchFile) -> dict[str, Any]:
    """A file's figures with its header."""
    from eagle_core.bench.summary import summarize

    return {"header": file.header, **summarize(file)}


def write_summary(file: BenchFile, *, as_json: bool) -> None:
    """The figures on stdout: tables, or one JSON object."""
    from eagle_core.bench.summary import summarize
    from eagle_core.bench.table import summary_table

    if as_json:
        write_json(summary_of(file))
    else:
        write_line(summary_table(summarize(file)))


__all__ = ["add_parsers", "run_compare", "run_report", "write_summary"]
