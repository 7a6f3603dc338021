"""The terminal: chatting in it, colours, progress and Ctrl+C."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core.cli import chat, console, main, stream
from eagle_core.cli.flags import add_config_flags, read_config
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.events import (
    DownloadProgress,
    Failed,
    Finished,
    LoadProgress,
    Notice,
    PrefillProgress,
    Queued,
    Span,
    TextDelta,
)
from eagle_core.session import Session
from eagle_core.stats import Stats
from tests.support.cli import OneAnswer

# --- chat


@pytest.fixture
def session(base: Path, head: Path) -> Iterator[Session]:
    session = Session.open(LoadConfig(base=str(base), head=str(head), dtype="float32"))
    yield session
    session.close()


def terminal_chat(session: Any, system: str | None = None) -> chat.TerminalChat:
    return chat.TerminalChat(
        session,
        GenerationConfig(max_new_tokens=6),
        DraftConfig(tree=TreeConfig(depth=2, size=4)),
        system=system,
        progress=stream.Progress(),
    )


def talk(conversation: chat.TerminalChat, *lines: str | type[BaseException]) -> None:
    rest = iter(lines)

    def next_line() -> str:
        line = next(rest, EOFError)
        if isinstance(line, str):
            return line
        raise line

    conversation.loop(next_line)


def test_chat_answers_each_line_and_remembers(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = terminal_chat(session, system="be kind")
    talk(conversation, "the cat", "", "the dog", "/exit", "never read")
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    captured = capsys.readouterr()
    answers = [message["content"] for message in conversation.messages[2::2]]
    assert captured.out == "".join(answer + "\n" for answer in answers)
    assert captured.err.count("6 tokens | ") == 2


def test_chat_commands(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = terminal_chat(session)
    talk(conversation, "/eagle off", "/temperature 0.5", "one", "/clear", "/help")
    assert conversation.draft.drafter == "none"
    assert conversation.draft.tree.depth == 2
    assert conversation.generation.temperature == 0.5
    assert conversation.messages == []
    talk(conversation, "/eagle on", "/eagle maybe", "/temperature hot", "/temperature 99", "/x")
    assert conversation.draft.drafter == "eagle"
    assert conversation.generation.temperature == 0.5
    err = capsys.readouterr().err
    assert "/temperature X" in err
    assert "unknown command '/eagle maybe'" in err
    assert "'hot' is not a number" in err
    assert "temperature is out of range" in err
    assert "unknown command '/x'" in err


def test_chat_outlives_ctrl_c_and_a_failed_request(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = terminal_chat(OneAnswer(Failed("context-overflow", "too long", "shorten it")))
    talk(conversation, KeyboardInterrupt, "a very long story")
    assert conversation.messages == []
    err = capsys.readouterr().err
    assert "/exit or Ctrl+D leaves" in err
    assert "error: too long. shorten it" in err


def test_an_escape_character_of_the_model_does_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    delta = TextDelta("a\x1b[2Jb", (Span("target", 6),))
    talk(terminal_chat(OneAnswer(delta, Finished("eos", 1, (), Stats()))), "hi")
    assert capsys.readouterr().out == "a\ufffd[2Jb\n"


def test_an_error_while_showing_an_answer_gives_the_engine_back(session: Session) -> None:
    def broken(_: TextDelta) -> None:
        raise BrokenPipeError

    for _ in range(2):  # the second request would wait for ever behind the first
        events = session.generate([5, 6], GenerationConfig(max_new_tokens=6), DraftConfig())
        with pytest.raises(BrokenPipeError) as caught:
            stream.read_answer(events, stream.Progress(), broken)
        session.forget()
        assert caught.traceback


def test_a_stopped_answer_stays_in_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    answer = OneAnswer(
        TextDelta("half", (Span("target", 4),)), Finished("cancelled", 1, (), Stats())
    )
    conversation = terminal_chat(answer)
    talk(conversation, "a story")
    assert conversation.messages[-1] == {"role": "assistant", "content": "half"}
    assert "stopped | " in capsys.readouterr().err


def test_chat_command_reads_piped_lines(
    base: Path, head: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n/exit\n"))
    assert main(["chat", "--base", str(base), "--head", str(head), "--max-new-tokens", "4"]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    assert "/help lists the commands" in captured.err


# --- the terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_accepted_draft_tokens_are_underlined() -> None:
    spans = (Span("target", 3), Span("draft", 5), Span("target", 1))
    marked = console.coloured_text("onetwo\n3.", spans, has_colour=True)
    # A line end inside a draft span is not underlined; the text is what it was.
    assert marked == "one\x1b[4;36mtwo\x1b[0m\n\x1b[4;36m3\x1b[0m."
    assert console.coloured_text("onetwo\n3.", spans, has_colour=False) == "onetwo\n3."


def test_colour_needs_a_willing_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert console.use_colour(Terminal())
    assert not console.use_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not console.use_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not console.use_colour(Terminal())


def test_the_first_ctrl_c_stops_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with console.stop_on_interrupt() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_a_few_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = stream.Progress()
    for done in range(1001):
        progress(DownloadProgress("model", done * 1000, 1_000_000))
    progress(DownloadProgress("other", 5_000_000, None))
    progress(LoadProgress("loading"))
    progress(Notice("warning", "no head"))
    progress(Queued(2))
    progress(PrefillProgress(10, 20))
    progress(PrefillProgress(600, 1200))
    progress.close()
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[0] == "model: 0% of 1.0 MB"
    assert lines[10] == "model: 100% of 1.0 MB"
    assert lines[11:] == [
        "other: 5.0 MB", "loading", "warning: no head", "waiting for 2 earlier request(s)",
        "reading the prompt: 50% of 1200 tokens",
    ]  # fmt: skip
    assert captured.out == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = stream.Progress()
    progress(DownloadProgress("model", 0, 1_000_000))
    progress(DownloadProgress("model", 1_000_000, 1_000_000))
    progress(LoadProgress("loading"))
    shown = terminal.getvalue()
    assert "model: 100%" in shown
    assert shown.endswith("loading\n")


def test_a_setting_that_is_on_can_be_turned_off() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, LoadConfig)

    def read(*flags: str) -> LoadConfig:
        return read_config(parser.parse_args(flags), LoadConfig)

    assert read().reproducible
    assert not read("--no-reproducible").reproducible
    assert read("--reproducible", "--offline").offline
