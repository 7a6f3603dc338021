"""``eagle-chat serve``: the chat page."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eagle_core.cli.console import report_error, write_line
from eagle_core.cli.flags import UsageError, add_config_flags, read_config
from eagle_core.cli.stream import Progress
from eagle_core.config import LoadConfig
from eagle_core.errors import EagleError
from eagle_core.events import Event
from eagle_core.ports import free_port
from eagle_core.startup import quick_imports

if TYPE_CHECKING:
    from eagle_core.worker import Worker, WorkerSession

AUTH_VARIABLE = "EAGLE_AUTH"


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
    group.add_argument(
        "--auth", metavar="USER:PASSWORD",
        help=f"ask for this login; better kept out of the list of processes, in {AUTH_VARIABLE}",
    )  # fmt: skip
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
    auth = credentials(args.auth if args.auth is not None else os.environ.get(AUTH_VARIABLE))
    free_port(args.host, 0)  # a wrong host is said before the page is imported
    open_session = Opener(load)
    try:
        with quick_imports("gradio"):
            from eagle_core.ui.access import Credentials
            from eagle_core.ui.app import launch

        launch(
            open_session,
            host=args.host,
            port=args.port,
            open_browser=not args.no_browser,
            settings=load,
            auth=Credentials(*auth) if auth is not None else None,
            on_ready=lambda url: write_line(f"{url} (Ctrl+C stops)"),
        )
    finally:
        open_session.close()
    return 0


def credentials(text: str | None) -> tuple[str, str] | None:
    """User and password of ``user:password``, None for None. A password may hold colons.

    Raises: UsageError, which does not repeat the text.
    """
    if text is None:
        return None
    user, _, password = text.partition(":")
    if (
        not user or not password
    ):  # an empty text, too: a variable that was not set must not open the app
        raise UsageError(
            "the login is not user:password",
            hint=f"give both with a colon between, with --auth or in {AUTH_VARIABLE}",
        )
    return user, password


class Opener:
    """Opens the model in a process of its own, and shows its progress in the terminal, too.

    That process is started at once: it imports the engine while this one imports the page.

    Raises: EagleError when the model cannot be what it is called.
    """

    def __init__(self, load: LoadConfig) -> None:
        from eagle_core.sources import check_load

        check_load(load)
        from eagle_core.worker import Worker

        self._load, self._progress = load, Progress()
        self._worker: Worker | None = Worker()

    def __call__(self, on_event: Callable[[Event], None]) -> WorkerSession:
        """Open the model. Raises: EagleError, which was told in the terminal then."""
        from eagle_core.worker import open_in_worker

        def show(event: Event) -> None:
            self._progress(event)
            on_event(event)

        worker, self._worker = self._worker, None
        try:
            return open_in_worker(self._load, show, worker)
        except EagleError as error:  # the page says it, too
            self._progress.close()
            report_error(error, as_json=False)
            raise
        finally:
            self._progress.close()

    def close(self) -> None:
        """End the process that was started if nothing was opened in it."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


__all__ = ["Opener", "add_parser", "credentials", "run"]
