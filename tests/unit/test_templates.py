"""Chat templates: literal prompts, what is merged and said, and models that have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core import templates
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
from eagle_core.errors import ConfigError, NoChatTemplate
from eagle_core.events import Failed, Finished, Notice
from eagle_core.loading import LoadedBase
from eagle_core.session import Session
from eagle_core.templates import MERGED_SYSTEM, MERGED_TURNS, Template
from eagle_core.testing import tiny_model
from tests.support.tiny_models import byte_level_tokenizer, save_llama

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = {"role": "user", "content": "Hello!"}
ANSWER = {"role": "assistant", "content": "Hello!"}
SECOND = {"role": "user", "content": "How are you?"}
CHAT = [FIRST, ANSWER, SECOND]

# FastChat, docs/vicuna_weights_version.md, with the next answer left to be written.
VICUNA = (
    "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions. USER: Hello! ASSISTANT: Hello!</s>"
    "USER: How are you? ASSISTANT:"
)
# The layout in the model card of the chat versions, special tokens included.
LLAMA_2 = "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello! [/INST] Hello! </s><s>[INST] How are you? [/INST]"
CHATML = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n"
    "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
PLAIN = "<s>Be brief.\n\nUser: Hello!\n\nAssistant: Hello!\n\nUser: How are you?\n\nAssistant:"

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
REFUSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    found = byte_level_tokenizer()
    found.bos_token, found.eos_token = "<s>", "</s>"
    found.chat_template = None
    return found


def text(tokenizer: Any, template: str, *messages: dict[str, str]) -> str:
    kind = templates.named(template) if template in templates.names() else Template("x", template)
    return templates.render(tokenizer, kind, messages).text


@pytest.mark.parametrize(
    ("name", "messages", "expected"),
    [
        ("vicuna", CHAT, VICUNA),
        ("llama-2", [SYSTEM, *CHAT], LLAMA_2),
        ("chatml", [SYSTEM, *CHAT], CHATML),
        ("plain", [SYSTEM, *CHAT], PLAIN),
        ("llama-2", [FIRST], "<s>[INST] Hello! [/INST]"),
        ("vicuna", [SYSTEM, FIRST], "<s>Be brief. USER: Hello! ASSISTANT:"),
    ],
)
def test_prompts_are_those_of_the_models_own_authors(tokenizer, name, messages, expected) -> None:
    assert text(tokenizer, name, *messages) == expected


@pytest.mark.parametrize("name", templates.names())
def test_a_next_turn_goes_on_where_the_last_one_ended(tokenizer, name) -> None:
    """What was read and written stays a prefix: only the new turn is read."""
    before = text(tokenizer, name, FIRST)
    spaced = {"role": "assistant", "content": " Hello! "}  # as a model may write it
    assert text(tokenizer, name, FIRST, spaced, SECOND).startswith(before)
    assert text(tokenizer, name, FIRST, spaced, SECOND) == text(tokenizer, name, *CHAT)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (REFUSES_SYSTEM, "<user>Be brief.\n\nHello!<assistant>Hello!<user>How are you?<assistant>"),
        (DROPS_SYSTEM, "<user>Be brief.\n\nHello!<assistant>Hello!<user>How are you?<assistant>"),
    ],
)
def test_a_system_prompt_that_is_not_taken_is_merged_and_said(
    tokenizer, template, expected
) -> None:
    kind = Template("x", template)
    rendered = templates.render(tokenizer, kind, [SYSTEM, *CHAT])
    assert rendered.text == expected
    assert rendered.notices == (MERGED_SYSTEM,)
    assert templates.render(tokenizer, kind, CHAT).notices == ()
    taken = templates.render(tokenizer, Template("x", TURNS), [SYSTEM, *CHAT])
    assert taken.text.startswith("<system>Be brief.<user>Hello!")
    assert taken.notices == ()


def test_an_empty_system_prompt_is_none(tokenizer) -> None:
    empty = {"role": "system", "content": "  "}
    rendered = templates.render(tokenizer, Template("x", REFUSES_SYSTEM), [empty, FIRST])
    assert (rendered.text, rendered.notices) == ("<user>Hello!<assistant>", ())


def test_sides_alternate_after_regenerating_and_editing(tokenizer) -> None:
    strict = Template("x", REFUSES_SYSTEM)
    regenerated = CHAT  # the last answer is dropped, the question stays
    edited = [{"role": "user", "content": "Good day!"}]  # what followed the edited turn is gone
    stopped = [FIRST, SECOND]  # an answer that was stopped before its first word is no turn
    for chat, expected, notices in (
        (regenerated, "<user>Hello!<assistant>Hello!<user>How are you?<assistant>", ()),
        (edited, "<user>Good day!<assistant>", ()),
        (stopped, "<user>Hello!\n\nHow are you?<assistant>", (MERGED_TURNS,)),
        (
            [SYSTEM, *stopped],
            "<user>Be brief.\n\nHello!\n\nHow are you?<assistant>",
            (MERGED_TURNS, MERGED_SYSTEM),
        ),
        (
            [FIRST, ANSWER, ANSWER, SECOND],
            "<user>Hello!<assistant>Hello!\n\nHello!<user>How are you?<assistant>",
            (MERGED_TURNS,),
        ),
    ):
        rendered = templates.render(tokenizer, strict, chat)
        assert (rendered.text, rendered.notices) == (expected, notices)


def test_the_messages_given_are_left_as_they_are(tokenizer) -> None:
    messages = [dict(SYSTEM), dict(FIRST), dict(SECOND)]
    templates.render(tokenizer, Template("x", REFUSES_SYSTEM), messages)
    assert messages == [SYSTEM, FIRST, SECOND]


@pytest.mark.parametrize("messages", [[ANSWER, FIRST], [SYSTEM, ANSWER], [SYSTEM]])
def test_turns_that_no_order_mends_are_refused(tokenizer, messages) -> None:
    with pytest.raises(ConfigError, match="refuses these messages"):
        templates.render(tokenizer, Template("x", REFUSES_SYSTEM), messages)


@pytest.mark.parametrize("name", ["vicuna", "llama-2"])
def test_a_system_turn_in_the_middle_is_refused(tokenizer, name) -> None:
    with pytest.raises(ConfigError, match=f"the {name} chat template refuses"):
        text(tokenizer, name, FIRST, ANSWER, SYSTEM, SECOND)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("lmsys/vicuna-13b-v1.3", "vicuna"),
        ("vicuna-7b", "vicuna"),
        ("/models/Vicuna-7B-v1.5/", "vicuna"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2"),
        ("llama2-chat-7b", "llama-2"),
        ("meta-llama/Llama-2-7b-hf", None),
        ("meta-llama/Llama-3.2-1B-chat", None),
        ("vicuna/other", None),
        ("gpt2", None),
    ],
)
def test_models_that_are_known_to_want_a_built_in_template(model, name) -> None:
    assert templates.known_for(model) == name


def test_what_was_asked_for_comes_first_and_a_known_name_last() -> None:
    plain = templates.named("plain")
    assert templates.choose(plain, True, "vicuna-7b") == plain
    assert templates.choose(None, True, "vicuna-7b") == Template("own", None)
    assert templates.choose(None, False, "vicuna-7b") == templates.named("vicuna")
    with pytest.raises(NoChatTemplate, match="gpt2 has no chat template") as caught:
        templates.choose(None, False, "gpt2")
    assert all(name in caught.value.hint for name in templates.names())


def test_templates_from_files(tmp_path: Path, tokenizer) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(TURNS)
    assert templates.named(str(path)) == Template("mine.jinja", TURNS)
    assert templates.render(tokenizer, templates.named(str(path)), [FIRST]).text == (
        "<user>Hello!<assistant>"
    )
    assert templates.named("VICUNA").name == "vicuna"
    path.write_text("{% for m in messages %}")
    with pytest.raises(ConfigError, match=r"mine\.jinja is no chat template"):
        templates.named(str(path))
    with pytest.raises(ConfigError, match="chatml, llama-2, plain, vicuna, or a file"):
        templates.named("vicunna")


def open_session(name: str = "gpt2", own: str | None = None, **settings: Any) -> Session:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = own
    model = tiny_model("llama", vocab=len(tokenizer), dtype=torch.float32)
    return Session(LoadedBase(model, tokenizer, name, 512), None, **settings)


def ask(session: Session, *messages: Any) -> list[Any]:
    return list(session.chat(messages, GenerationConfig(4), DraftConfig("none")))


def test_a_base_model_is_refused_until_a_template_is_picked() -> None:
    session = open_session()
    assert session.info.chat_template is None
    (failed,) = ask(session, FIRST)
    assert isinstance(failed, Failed)
    assert failed.code == "no-chat-template"
    assert "--chat-template" in failed.hint
    assert list(session.generate([1, 2], GenerationConfig(2), DraftConfig("none")))[-1].token_ids
    with pytest.raises(ConfigError, match="not known"):
        session.use_template("nothing")
    session.use_template(templates.names()[0])
    assert session.info.chat_template == "chatml"
    assert isinstance(ask(session, FIRST)[-1], Finished)


def test_a_session_says_what_it_chats_by() -> None:
    assert open_session("lmsys/vicuna-7b-v1.3").info.chat_template == "vicuna"
    assert open_session("vicuna", own=TURNS).info.chat_template == "own"
    session = open_session("vicuna", own=TURNS, chat_template="llama-2")
    assert session.info.chat_template == "llama-2"
    bos = session.tokenizer.bos_token
    expected = session.tokenizer(f"{bos}[INST] Hello! [/INST]", add_special_tokens=False).input_ids
    assert session.encode_chat([FIRST]) == expected  # type: ignore[list-item]


def test_what_was_merged_is_a_notice_of_the_answer() -> None:
    events = ask(open_session(own=REFUSES_SYSTEM), SYSTEM, FIRST, SECOND)
    assert [e.message for e in events if isinstance(e, Notice)] == [MERGED_TURNS, MERGED_SYSTEM]
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(e, Notice) for e in ask(open_session(own=REFUSES_SYSTEM), FIRST))


def test_the_setting_reaches_the_session(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "base")
    config = LoadConfig(base=str(folder), device="cpu", chat_template="plain")
    assert Session.open(config).info.chat_template == "plain"
    config = LoadConfig(base=str(folder), device="cpu", chat_template="nothing")
    heard: list[Any] = []
    with pytest.raises(ConfigError, match="not known"):
        Session.open(config, heard.append)
    assert heard == [], "said before anything is loaded"
