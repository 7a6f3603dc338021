"""``eagle-chat generate``: one prompt, one answer."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_core.cli.console import (
    note,
    printable,
    stats_line,
    stop_on_interrupt,
    write,
    write_json,
    write_line,
)
from eagle_core.cli.flags import (
    UsageError,
    add_config_flags,
    read_config,
    read_draft_config,
)
from eagle_core.cli.stream import Progress, open_session, read_answer
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError
from eagle_core.events import TextDelta
from eagle_core.transcript import Transcript

if TYPE_CHECKING:
    from eagle_core.session import Message, Session

EXIT_INTERRUPTED = 130


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "generate", help="answer one prompt", description="Answer one prompt.", allow_abbrev=False
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("--prompt-file", metavar="FILE", help="a UTF-8 text file; - reads stdin")
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the text, no chat template")
    parser.add_argument("--json", action="store_true", help="one JSON object, figures included")
    add_config_flags(parser, LoadConfig, GenerationConfig, DraftConfig, TreeConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer the prompt.

    Returns: 0, or 130 when Ctrl+C cut the answer short.
    Raises: EagleError.
    """
    load = read_config(args, LoadConfig)
    generation = read_config(args, GenerationConfig)
    draft = read_draft_config(args)
    if args.raw and args.system is not None:
        raise UsageError("--raw leaves no place for --system", hint="drop one of the two")
    prompt = args.prompt if args.prompt is not None else read_prompt(args.prompt_file)
    if not prompt.strip() and not args.raw:
        raise ConfigError("the prompt is empty", hint="write something after --prompt")
    progress = Progress()
    session = open_session(load, progress)
    try:
        with stop_on_interrupt() as stop:
            if args.raw:
                ids = session.encode(prompt)
                events = session.generate(ids, generation, draft, cancel=stop)
            else:
                messages = as_chat(prompt, args.system)
                events = session.chat(messages, generation, draft, cancel=stop)
            show = ignore_text if args.json else write_text
            transcript = read_answer(events, progress, show)
        if args.json:
            configs = {"load": load, "generation": generation, "draft": draft}
            write_json(answer_as_data(transcript, session, configs))
        else:
            write_line()
            note(stats_line(transcript.stats))
    finally:
        session.close()
    return EXIT_INTERRUPTED if transcript.finish_reason == "cancelled" else 0


def read_prompt(path: str) -> str:
    """A prompt from a file, or from stdin for "-".

    Raises: ConfigError when it cannot be read.
    """
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the prompt from {path}", got=str(error), hint="give a UTF-8 text file"
        ) from error


def as_chat(prompt: str, system: str | None) -> list[Message]:
    """A prompt as a chat of one turn, the system prompt before it."""
    messages: list[Message] = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return messages


def write_text(delta: TextDelta) -> None:
    """Stream the answer to stdout."""
    write(printable(delta.text) if sys.stdout.isatty() else delta.text)


def ignore_text(delta: TextDelta) -> None:
    """Stream nothing: the JSON object will hold the text."""


def answer_as_data(
    transcript: Transcript, session: Session, configs: dict[str, Any]
) -> dict[str, Any]:
    """An answer as plain data; ``origins`` has one entry for each of ``token_ids``."""
    stats = transcript.stats
    return {
        "text": transcript.text,
        "token_ids": [token.id for token in transcript.tokens],
        "origins": [token.origin for token in transcript.tokens],
        "finish_reason": transcript.finish_reason,
        "n_prompt_tokens": transcript.n_prompt_tokens,
        "drafter": transcript.drafter,
        "stats": {**dataclasses.asdict(stats), "acceptance_at_depth": stats.acceptance_at_depth},
        "notices": [notice.message for notice in transcript.notices],
        "config": {name: dataclasses.asdict(config) for name, config in configs.items()},
        "model": dataclasses.asdict(session.info),
    }


__all__ = ["add_parser", "run"]
