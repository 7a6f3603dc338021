"""``eagle-chat verify``: proof, on this machine, that drafting changes no text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_core.certificate.records import (
    as_table,
    certificate_folder,
    certificate_path,
    write_certificate,
)
from eagle_core.cli.console import note, write_json, write_line
from eagle_core.cli.flags import add_config_flags, read_config
from eagle_core.cli.stream import Progress, open_session
from eagle_core.config import LoadConfig
from eagle_core.folders import make_cache_folder
from eagle_core.outputs import check_file

if TYPE_CHECKING:
    from eagle_core.certificate.records import Check

EXIT_FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "verify",
        help="prove that drafting changes no text",
        description="Check that answers are the same with and without drafting, and that the checks catch "
        "planted bugs. The last result is kept for the app.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--out", metavar="FILE", help="write the certificate there, too")
    add_config_flags(parser, LoadConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check everything and keep the result.

    Returns: 0, or 1 when a check failed.
    Raises: EagleError.
    """
    load = read_config(args, LoadConfig)
    out = Path(args.out) if args.out else None
    if out is not None:
        check_file(out)
    make_cache_folder(certificate_folder())
    session = open_session(load, Progress())
    from eagle_core.certificate.run import certify

    try:
        certificate = certify(session, _note_check)
    finally:
        session.close()
    paths = [certificate_path(certificate.base, certificate.head, certificate.dtype)]
    for path in [*paths, *([out] if out is not None else [])]:
        write_certificate(certificate, path)
    if args.json:
        write_json(certificate.to_dict())
    else:
        write_line(as_table(certificate))
    return 0 if certificate.passed else EXIT_FAILED


def _note_check(check: Check) -> None:
    note(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}")


__all__ = ["add_parser", "run"]
