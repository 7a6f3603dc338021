"""``eagle-chat serve``: the chat page."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eagle_core.cli.console import write_line
from eagle_core.cli.flags import add_config_flags, read_config
from eagle_core.cli.stream import Progress
from eagle_core.config import LoadConfig
from eagle_core.events import Event

if TYPE_CHECKING:
    from eagle_core.session import Session


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "serve", help="open the chat page", description="Open the chat page.", allow_abbrev=False
    )
    group = parser.add_argument_group("page")
    group.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="interface to listen on (default: %(default)s, this machine only)",
    )  # fmt: skip
    group.add_argument(
        "--port", type=port, metavar="N", help="wanted port (default: 7860, or a free one)"
    )
    group.add_argument("--no-browser", action="store_true", help="do not open a browser")
    add_config_flags(parser, LoadConfig)
    parser.set_defaults(run=run)


def port(text: str) -> int:
    """A port number.

    Raises: argparse.ArgumentTypeError.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; ports are 1 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl+C; the model loads behind it, and the page shows how far it is."""
    load = read_config(args, LoadConfig)
    from eagle_core.ui.app import launch

    progress = Progress()

    def open_session(on_event: Callable[[Event], None]) -> Session:
        from eagle_core.session import Session

        def show(event: Event) -> None:
            progress(event)
            on_event(event)

        try:
            return Session.open(load, show)
        finally:
            progress.close()

    launch(
        open_session,
        host=args.host,
        port=args.port,
        open_browser=not args.no_browser,
        settings=load,
        on_ready=lambda url: write_line(f"{url} (Ctrl+C stops)"),
    )
    return 0


__all__ = ["add_parser", "run"]
