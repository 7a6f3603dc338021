"""``eagle-chat desktop``: the chat page in a window of its own."""

from __future__ import annotations

import argparse
from typing import Any

from eagle_core.cli.console import write_line
from eagle_core.cli.flags import add_config_flags, read_config
from eagle_core.cli.serve import Opener
from eagle_core.config import LoadConfig
from eagle_core.instance import bring_forward, only_instance
from eagle_core.startup import quick_imports
from eagle_core.toolkit import load_toolkit


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "desktop",
        help="open the chat page in a window of its own",
        description="Open the chat page in a window of its own. A second start brings that window to "
        "the front.",
        allow_abbrev=False,
    )
    add_config_flags(parser, LoadConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the window until it is closed, or bring one forward that is open already.

    Raises: EagleError when there is nothing to draw it with.
    """
    from eagle_core.sources import check_load

    load = read_config(args, LoadConfig)
    check_load(load)
    with only_instance() as is_only:
        if is_only:
            show(load)
        else:
            write_line(bring_forward())
    return 0


def show(load: LoadConfig) -> None:
    """Show the window until it is closed."""
    load_toolkit()  # what is missing to draw with is said before the page is imported
    open_session = Opener(load)
    try:
        with quick_imports("gradio"):
            from eagle_core.ui.desktop import run_window

        run_window(open_session, load, say=write_line)
    finally:
        open_session.close()


__all__ = ["add_parser", "run"]
