"""What is sent, without a browser: the context, files, presets, system prompts."""

from __future__ import annotations

import base64

import gradio as gr
import pytest

from eagle_core.config import GenerationConfig
from eagle_core.errors import ConfigError
from eagle_core.history import Conversation, Preset
from eagle_core.ui import presets, view
from eagle_core.ui.attachments import MAX_FILE_BYTES, read_attachment, with_attachments
from eagle_core.ui.controls import read_settings
from tests.support.chat_page import DEFAULTS, MAX_NEW, SYSTEM_PROMPT, Page, changed
from tests.support.fake_session import FakeSession


def test_the_oldest_turns_are_left_out_visibly() -> None:
    page = Page(FakeSession(default="word " * 60, step_s=0.0, context_length=400))
    values = changed(MAX_NEW, 100)
    for number in range(7):
        frame = page.send(f"question {number}", values=values)
    sent = page.session.seen[-1]
    assert sent[-1]["content"] == "question 6"
    assert 1 < len(sent) < 13
    assert sent[0]["role"] == "user"
    flags = [turn["is_sent"] for turn in frame.state["turns"]]
    assert flags[0] is False
    assert flags[-1] is True
    assert frame.state["meter"]["n_left_out"] == flags.count(False)
    assert sum(n for _, n in frame.state["meter"]["parts"]) <= 400
    stop = (*values[:-1], "stop")
    n_requests = len(page.session.seen)
    frame = page.send("one more", values=stop)
    assert "no longer fits the context" in frame.notice
    assert len(page.session.seen) == n_requests
    assert page.texts()[-1].startswith("word")


def test_the_meter_counts_the_system_prompt(page: Page) -> None:
    empty = page.act("measure").state["meter"]
    assert empty["used"] == 0
    full = page.act("measure", values=changed(SYSTEM_PROMPT, "x" * 14000)).state["meter"]
    assert full["used"] == 4 + 3500
    assert full["level"] in ("high", "full")
    assert dict(map(tuple, full["parts"]))["system prompt"] == full["used"]


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_a_file_goes_into_the_message(page: Page) -> None:
    frame = page.act("attach", name="dir/a.py", content=encoded(b"print('``` and ````')\r\n"))
    assert frame.state["attachments"] == [{"name": "a.py", "n_bytes": 22}]
    page.act("attach", name="b.md", content=encoded("# Ü".encode("utf-16")))
    page.act("detach", index=1)
    frame = page.send("What does it do?")
    assert frame.state["attachments"] == []
    content = page.session.seen[-1][-1]["content"]
    assert content == "`a.py`:\n\n`````python\nprint('``` and ````')\n`````\n\nWhat does it do?"
    assert page.texts()[0] == content
    assert page.store.search()[0].title == "What does it do?"


def test_files_come_back_with_a_message_that_was_not_answered(page: Page) -> None:
    page.act("attach", name="a.txt", content=encoded(b"x" * 3000))
    frame = page.send("too long")
    assert frame.box["value"] == "too long"
    assert [file["name"] for file in frame.state["attachments"]] == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\x00\x00", "not a text file"),
        ("a.txt", b"abc\x00def", "not a text file"),
        ("a.txt", b"caf\xe9", "not a text file"),
        ("a.txt", b" \n", "is empty"),
        ("a.txt", b"x" * (MAX_FILE_BYTES + 1), "too large"),
    ],
)
def test_a_wrong_file_is_refused(page: Page, name: str, content: bytes, words: str) -> None:
    frame = page.act("attach", name=name, content=encoded(content))
    assert words in frame.notice
    assert f"The file {name} " in frame.notice
    assert "<span>" in frame.notice  # the next step
    assert page.room().attachments == []


def test_a_file_that_the_browser_did_not_read() -> None:
    with pytest.raises(ConfigError, match="at most 256 kB"):
        read_attachment("big.bin", "", 5_000_000)
    with pytest.raises(ConfigError, match="damaged"):
        read_attachment("a.txt", "no base64!")
    assert read_attachment("<b>`.txt", encoded(b"x")).name == "_b__.txt"
    assert with_attachments("hi", []) == "hi"


def test_there_is_a_limit_of_files(page: Page) -> None:
    for _ in range(8):
        page.act("attach", name="a.txt", content=encoded(b"x"))
    assert "attached already" in page.act("attach", name="a.txt", content=encoded(b"x")).notice


def test_presets_are_kept_and_chosen(page: Page) -> None:
    values = changed(SYSTEM_PROMPT, "Arr.")
    values = (*values[:1], 0.7, *values[2:])
    choices, notice = page.actions.save_preset("Pirate", page.tab("a"), *values)
    assert "Pirate" in choices["choices"]
    assert "is kept" in notice
    assert page.store.presets() == [Preset("Pirate", "Arr.", {"temperature": 0.7})]
    prompt, temperature, *rest = page.actions.choose_preset("Pirate", page.tab("a"))
    assert (prompt, temperature) == ("Arr.", 0.7)
    assert all(value == gr.skip() for value in rest)
    assert page.actions.choose_preset("nobody", page.tab("a"))[0] == gr.skip()
    assert "no name" in page.actions.save_preset(" ", page.tab("a"), *values)[1]
    assert "of your own" in page.actions.delete_preset("Concise", page.tab("a"))[1]
    choices, _ = page.actions.delete_preset("Pirate", page.tab("a"))
    assert choices["value"] == presets.NO_PRESET
    assert page.actions.list_presets(page.tab("a"))["choices"] == presets.names_of(presets.BUILT_IN)


def test_built_in_presets_are_valid() -> None:
    names = presets.names_of(presets.BUILT_IN)
    assert len(set(names)) == len(names) >= 5
    for preset in presets.BUILT_IN:
        assert presets.kept_settings(preset.settings) == preset.settings
    assert presets.kept_settings({"temperature": 99, "seed": 3, "top_p": 0.5}) == {"top_p": 0.5}
    preset = presets.preset_from("  my \n own ", "x", GenerationConfig(top_k=4, seed=7))
    assert preset == Preset("my own", "x", {"top_k": 4})


def test_a_system_prompt_belongs_to_its_chat(page: Page) -> None:
    page.send("q", values=changed(SYSTEM_PROMPT, "Be kind."))
    assert page.session.seen[-1][0] == {"role": "system", "content": "Be kind."}
    chat = page.room().conversation.id
    page.act("new")
    assert page.act("open", chat=chat).system_prompt == "Be kind."
    page.send("other", values=changed(SYSTEM_PROMPT, "Be brief."))
    assert page.store.load(chat).system_prompt == "Be brief."


def test_views_of_nothing() -> None:
    assert view.visible(None) == []
    assert view.turns_of(Conversation("1", "t")) == []
    settings = read_settings(DEFAULTS)
    fit = view.measure(FakeSession(), [], settings)  # type: ignore[arg-type]
    assert (fit.n_tokens, fit.length) == (0, 4096)
