"""``eagle-chat models``: which models there are, which fit this machine, and fetching and removing them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from eagle_core import catalog, own_models
from eagle_core.catalog import CatalogEntry
from eagle_core.cli.console import note, stop_on_interrupt, write, write_json, write_line
from eagle_core.cli.flags import UsageError
from eagle_core.cli.stream import Progress
from eagle_core.config import LoadConfig
from eagle_core.devices import check_device
from eagle_core.errors import Cancelled

if TYPE_CHECKING:
    from eagle_core.fit import Fit
    from eagle_core.models import Download, Measure

EXIT_INTERRUPTED = 130
NAME_HELP = "a known name, a Hub id or a folder"


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand with its own subcommands."""
    text = "list, measure, fetch and remove models"
    parser = subparsers.add_parser(
        "models", help=text, description=f"{text.capitalize()}.", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")

    def add(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(
            name, help=help, description=f"{help[0].upper()}{help[1:]}.", allow_abbrev=False
        )
        action.add_argument("--json", action="store_true", help="one JSON object")
        action.set_defaults(run=run)
        return action

    add("list", "the known pairs of base model and head", run_list)
    show = add("show", "all about one model", run_show)
    show.add_argument("name", help=NAME_HELP)
    show.add_argument("--offline", action="store_true", help="ask no Hub")
    fit = add(
        "fit", "whether a model fits this machine; without a name, the best one that does", run_fit
    )
    _add_fit_flags(fit)
    pull = add("pull", "fetch a model and its head; goes on where it was stopped", run_pull)
    pull.add_argument("name", help=NAME_HELP)
    pull.add_argument("--head", metavar="ID", help="another head: a Hub id or a folder")
    remove = add("rm", "remove a fetched model and its head from this machine", run_rm)
    remove.add_argument("name", help=NAME_HELP)
    remove.add_argument("--yes", action="store_true", help="do not ask")
    own = add("add", "give a name to a pair of your own", run_add)
    own.add_argument("name", help="its name")
    own.add_argument(
        "--base", required=True, metavar="ID", help="a Hub id, a folder or a .gguf file"
    )
    own.add_argument("--head", metavar="ID", help="a Hub id or a folder (default: none)")
    own.add_argument("--title", metavar="TEXT", help="how to show it")
    own.add_argument("--license", metavar="TEXT", help="for your own information")
    own.add_argument(
        "--method", choices=get_args(catalog.Method), default="eagle", help="(default: %(default)s)"
    )
    own.add_argument("--replace", action="store_true", help="in place of an own pair of this name")


def _add_fit_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help=NAME_HELP)
    parser.add_argument("--base", metavar="ID", help="the same as the name")
    parser.add_argument("--head", metavar="ID", help="another head: a Hub id or a folder")
    parser.add_argument("--device", default=LoadConfig().device, help="(default: %(default)s)")
    parser.add_argument(
        "--context-length", type=int, metavar="N", help="tokens of prompt and answer"
    )
    parser.add_argument(
        "--precision", choices=catalog.PRECISIONS, help="this one only (default: the best)"
    )
    parser.add_argument("--offline", action="store_true", help="ask no Hub")


def run_list(args: argparse.Namespace) -> int:
    """List the known pairs."""
    from eagle_core import models

    rows = [(entry, models.is_here(entry)) for entry in catalog.known_models()]
    if args.json:
        found = [
            entry_as_data(entry, here) | _as_data(models.to_fetch(entry, offline=True))
            for entry, here in rows
        ]
        write_json({"models": found})
        return 0
    width = max(len(entry.name) for entry, _ in rows)
    for entry, here in rows:
        marks = [
            "here" if here else "", "gated" if entry.is_gated else "", "own" if entry.is_own else "",
        ]  # fmt: skip
        line = f"{entry.name:<{width}}  {_billions(entry.n_parameters):>6}  {entry.method:<6}  "
        line += f"{_fetching(models.to_fetch(entry, offline=True)):>9}  "
        write_line((line + f"{entry.license:<24}  {' '.join(filter(None, marks))}").rstrip())
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Show all about one model."""
    from eagle_core import models

    entry = models.resolve(args.name)
    parts = models.parts_of(entry)
    rest = models.to_fetch(entry, offline=args.offline)
    if args.json:
        data = entry_as_data(entry, all(part.is_here for part in parts)) | _as_data(rest)
        write_json({**data, "parts": [dataclasses.asdict(part) for part in parts]})
        return 0
    write_line(f"{entry.title} ({_billions(entry.n_parameters)} parameters)")
    write_line(f"license     {entry.license}{', gated' if entry.is_gated else ''}")
    write_line(f"method      {entry.method}")
    write_line(f"precisions  {', '.join(entry.precisions)}")
    for part in parts:
        state = f"here, {_size(part.n_bytes)}" if part.is_here else "not here"
        if not part.is_here and part.n_bytes:
            state = f"{_size(part.n_bytes)} of it here"
        commit = f", commit {part.commit[:12]}" if part.commit else ""
        write_line(f"{part.role:<10}  {part.source} ({state}{commit})")
    if rest.n_bytes != 0:
        of = " (estimated from the parameters)" if rest.is_estimate else ""
        why = f" ({rest.note})" if rest.note else ""
        write_line(f"to fetch    {_fetching(rest)}{of}{why}")
    if entry.other_heads:
        write_line(f"others      {', '.join(entry.other_heads)}")
    return 0


def run_fit(args: argparse.Namespace) -> int:
    """Say whether a model fits, or which one to take."""
    if args.name and args.base:
        raise UsageError("a name and --base say the same", hint="drop one of the two")
    if args.context_length is not None and args.context_length < 1:
        raise UsageError("--context-length must be at least 1", hint="for example 4096")
    from eagle_core import models
    from eagle_core.fit import recommend
    from eagle_core.machine import this_machine

    name = args.name or args.base
    check_device(args.device)
    named = models.resolve(name, args.head) if name else None
    machine = this_machine(args.device)
    entry = named or recommend(machine)
    # What is proposed is judged by the catalogue's numbers: no network is needed for it.
    measured = models.measure(entry, offline=args.offline or not name)
    precisions = (args.precision,) if args.precision else None
    fit = models.fit(entry, measured, machine, args.context_length, precisions)
    if measured.note:
        note(f"from the catalogue's numbers: {measured.note}")
    if args.json:
        write_json(fit_as_data(entry, measured, fit, is_proposal=not name))
        return 0
    if not name:
        write_line(f"Best for this machine: {entry.name} ({entry.title})")
    write_line(
        f"{fit.sentence}: {fit.precision} on {fit.device}{f' - {fit.reason}' if fit.reason else ''}"
    )
    write_line(
        f"needs {_size(fit.estimate.needed_bytes)} for {fit.context_length} tokens; "
        f"{_size(fit.free_bytes)} are free, of which {_size(fit.margin_bytes)} should stay so"
    )
    if not name and not models.is_here(entry):
        write_line(f"fetch it: eagle-chat models pull {entry.name}")
    return 0


def run_pull(args: argparse.Namespace) -> int:
    """Fetch a pair.

    Returns: 0, or 130 when Ctrl+C stopped it.
    """
    from eagle_core import models

    entry = models.resolve(args.name, args.head)
    if entry.is_gated:
        note(f"{entry.source} is gated: its licence must be accepted on its page first")
    progress = Progress()
    try:
        with stop_on_interrupt() as stop:
            parts = models.pull(entry, progress, stop, _check_config)
    except Cancelled as error:
        note(str(error))
        return EXIT_INTERRUPTED
    finally:
        progress.close()
    if args.json:
        write_json({"name": entry.name, "parts": [dataclasses.asdict(part) for part in parts]})
    else:
        write_line(f"{entry.name} is here: eagle-chat chat --base {args.name}")
    return 0


def _check_config(folder: Path) -> None:
    """Refuse a model that cannot run; what knows that takes seconds to import."""
    from eagle_core.loading import check_config

    check_config(folder)


def run_rm(args: argparse.Namespace) -> int:
    """Remove a fetched pair, or an own pair's name."""
    from eagle_core import models

    entry = models.resolve(args.name)
    there = [part for part in models.parts_of(entry) if part.is_fetched]
    if there and not args.yes and not _is_sure(entry, sum(part.n_bytes for part in there)):
        note("nothing is removed")
        return 0
    removed = models.remove(entry)
    is_forgotten = entry.is_own and own_models.remove(entry.name)
    if args.json:
        write_json({**dataclasses.asdict(removed), "is_forgotten": is_forgotten})
        return 0
    if removed.names:
        write_line(f"removed {', '.join(removed.names)}: {_size(removed.n_bytes)} are free again")
    elif not is_forgotten:
        write_line(f"nothing of {entry.name} is on this machine")
    for repo_id in removed.kept:
        write_line(f"{repo_id} stays: another model that is here uses it")
    if is_forgotten:
        write_line(f"{entry.name} is no longer known")
    return 0


def _is_sure(entry: CatalogEntry, n_bytes: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would remove {_size(n_bytes)} of {entry.name}", hint="add --yes if you mean it"
        )
    write(f"Remove {entry.name}, {_size(n_bytes)}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def run_add(args: argparse.Namespace) -> int:
    """Write an own pair down."""
    from eagle_core.models import own_source

    entry = own_models.add(
        {
            "name": args.name,
            "base": own_source(args.base),
            "head": own_source(args.head) if args.head else None,
            "method": args.method if args.head else "ngram",
            "title": args.title,
            "license": args.license,
        },
        replace=args.replace,
    )
    if args.json:
        write_json({"name": entry.name, "file": str(catalog.own_file())})
    else:
        write_line(
            f"{entry.name} stands in {catalog.own_file()}: eagle-chat chat --base {entry.name}"
        )
    return 0


def entry_as_data(entry: CatalogEntry, is_here: bool) -> dict[str, Any]:
    """An entry as plain data."""
    return {
        "name": entry.name,
        "title": entry.title,
        "base": entry.source.package
        if isinstance(entry.source, catalog.WheelSource)
        else str(entry.source),
        "head": entry.head,
        "other_heads": list(entry.other_heads),
        "method": entry.method,
        "license": entry.license,
        "is_gated": entry.is_gated,
        "is_own": entry.is_own,
        "is_here": is_here,
        "n_parameters": entry.n_parameters,
        "precisions": list(entry.precisions),
        "tree": dataclasses.asdict(entry.tree),
    }


def _as_data(rest: Download) -> dict[str, Any]:
    """What is to be fetched, as plain data."""
    return {"download_bytes": rest.n_bytes, "is_estimate": rest.is_estimate}


def _fetching(rest: Download) -> str:
    """What is to be fetched, for people: "~8.5 GB" is an estimate."""
    if rest.n_bytes is None:
        return "?"
    return f"{'~' if rest.is_estimate else ''}{_size(rest.n_bytes)}" if rest.n_bytes else ""


def fit_as_data(
    entry: CatalogEntry, measured: Measure, fit: Fit, *, is_proposal: bool
) -> dict[str, Any]:
    """A verdict as plain data."""
    return {
        "name": entry.name,
        "head": entry.head,
        "is_proposal": is_proposal,
        "verdict": fit.verdict,
        "sentence": fit.sentence,
        "reason": fit.reason,
        "device": fit.device,
        "precision": fit.precision,
        "context_length": fit.context_length,
        "needed_bytes": fit.estimate.needed_bytes,
        "free_bytes": fit.free_bytes,
        "margin_bytes": fit.margin_bytes,
        "download_bytes": measured.download_bytes,
        "from_files": measured.is_read,
        "parts": dataclasses.asdict(fit.estimate),
    }


def _billions(n: int | None) -> str:
    if n is None:
        return "?"
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


__all__ = ["add_parser"]
