"""The ``eagle-chat`` command. Results go to stdout, progress to stderr.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. With ``--json`` the last line of stdout is one
JSON object, ``{"error": {code, message, hint}}`` after a failure. Each subcommand is a module with
``add_parser`` and ``run``; whatever is heavy to import is imported in ``run``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from eagle_core._version import __version__
from eagle_core.cli import bench, chat, desktop, doctor, generate, models, serve, train, verify
from eagle_core.cli.console import note, report_error, use_utf8
from eagle_core.cli.flags import Parser, UsageError
from eagle_core.errors import EagleError

COMMANDS = (serve, desktop, chat, generate, bench, train, models, doctor, verify)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="eagle-chat",
        description="Chat with local models, faster and without changing the answer.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"eagle-chat {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; None: those of the process.
    Returns: the exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s: %(message)s"
    )
    use_utf8()
    try:
        args = build_parser().parse_args(arguments)
        code: int = args.run(args)
        return code
    except SystemExit as error:  # --help and --version
        return error.code if isinstance(error.code, int) else EXIT_FAILED
    except UsageError as error:
        if error.usage:
            note(error.usage.rstrip())
        report_error(error, as_json="--json" in arguments)
        return EXIT_USAGE
    except EagleError as error:
        report_error(error, as_json="--json" in arguments)
        return EXIT_FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader is gone (`| head`). Python flushes stdout once more at exit, so give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


__all__ = ["build_parser", "main"]
