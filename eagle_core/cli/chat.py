"""``eagle-chat chat``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from eagle_core.cli.console import (
    DIM_STYLE,
    coloured_text,
    note,
    printable,
    stats_line,
    stop_on_interrupt,
    styled,
    use_colour,
    write,
    write_line,
)
from eagle_core.cli.flags import add_config_flags, read_config, read_draft_config
from eagle_core.cli.stream import Progress, open_session, read_answer
from eagle_core.config import DraftConfig, DrafterName, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError, EagleError
from eagle_core.events import TextDelta

if TYPE_CHECKING:
    from eagle_core.session import Message, Session

HELP = """\
/eagle on|off     draft with the EAGLE head, or decode plainly: the answers are the same
/temperature X    0 takes the likeliest token; higher is more varied
/clear            forget the conversation
/help             this list
/exit             leave (so does Ctrl+D)
Ctrl+C stops an answer. Accepted draft tokens are underlined."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "chat", help="chat in the terminal", description="Chat in the terminal.", allow_abbrev=False
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_config_flags(parser, LoadConfig, GenerationConfig, DraftConfig, TreeConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Chat until /exit or the end of the input.

    Raises: EagleError when the model cannot be loaded.
    """
    load = read_config(args, LoadConfig)
    generation = read_config(args, GenerationConfig)
    draft = read_draft_config(args)
    progress = Progress()
    session = open_session(load, progress)
    from eagle_core.rehearsal import rehearse_in_background

    rehearse_in_background(session.rehearse)
    try:
        chat = TerminalChat(session, generation, draft, system=args.system, progress=progress)
        note(f"{session.info.base}. /help lists the commands.")
        chat.loop(read_line)
    finally:
        session.close()
    return 0


def read_line() -> str:
    """The user's next line.

    Raises: EOFError at the end of the input; KeyboardInterrupt on Ctrl+C.
    """
    if not sys.stdin.isatty():
        return input()
    with suppress(ImportError):  # gives input() its arrow keys and history, where it exists
        importlib.import_module("readline")
    return input("> ")


class TerminalChat:
    """One conversation. A command changes the settings of the answers after it."""

    def __init__(
        self,
        session: Session,
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        system: str | None,
        progress: Progress,
    ) -> None:
        self.generation = generation
        self.draft = draft
        self.messages: list[Message] = []
        self._system = system
        self._session = session
        self._progress = progress
        self._has_colour = use_colour(sys.stdout)
        self.clear()

    def clear(self) -> None:
        """Forget all but the system message."""
        self.messages = (
            [{"role": "system", "content": self._system}] if self._system is not None else []
        )

    def loop(self, next_line: Callable[[], str]) -> None:
        """Answer lines until /exit or EOFError."""
        while True:
            try:
                line = next_line().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                note("\n/exit or Ctrl+D leaves")
                continue
            if line in ("/exit", "/quit"):
                return
            try:
                if line.startswith("/"):
                    note(self.command(line))
                elif line:
                    self.answer(line)
            except EagleError as error:
                note(f"error: {error}")

    def command(self, line: str) -> str:
        """Carry out a command; returns what to tell the user.

        Raises: ConfigError on an unknown command or a bad value.
        """
        name, _, value = line.partition(" ")
        value = value.strip()
        if name == "/help":
            return HELP
        if name == "/clear":
            self.clear()
            return "the conversation is forgotten"
        if name == "/eagle" and value in ("on", "off"):
            drafter: DrafterName = "eagle" if value == "on" else "none"
            self.draft = DraftConfig(drafter=drafter, tree=self.draft.tree)
            return f"EAGLE is {value}"
        if name == "/temperature":
            self.generation = dataclasses.replace(self.generation, temperature=_number(value))
            return f"temperature {self.generation.temperature:g}"
        raise ConfigError(f"unknown command {line!r}", hint="/help lists the commands")

    def answer(self, text: str) -> None:
        """Stream the answer to a user's message, with a line of figures after it.

        A stopped answer stays in the conversation; a failed request leaves it as it was.
        Raises: EagleError.
        """
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        with stop_on_interrupt() as stop:
            events = self._session.chat(messages, self.generation, self.draft, cancel=stop)
            transcript = read_answer(events, self._progress, self._write)
        write_line()
        self.messages = [*messages, {"role": "assistant", "content": transcript.text}]
        figures = stats_line(transcript.stats)
        if transcript.finish_reason == "cancelled":
            figures = f"stopped | {figures}"
        note(styled(figures, DIM_STYLE, has_colour=use_colour(sys.stderr)))

    def _write(self, delta: TextDelta) -> None:
        # A model may write an escape character; the terminal must not obey it.
        text = printable(delta.text)
        write(coloured_text(text, delta.spans, has_colour=self._has_colour))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a number", hint="for example /temperature 0.7"
        ) from error


__all__ = ["TerminalChat", "add_parser", "run"]
