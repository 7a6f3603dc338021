"""Chats as prompts: the tokenizer's own template, a built-in one, or a file; and what a template refuses.

Knows no model and no token ids. The built-in templates are for models whose repositories lack one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from eagle_core.errors import ConfigError, NoChatTemplate

# The manner of FastChat for Vicuna from v1.1 on: a space after a question, an end of text after an answer.
VICUNA: Final = (
    "{%- set system = 'A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user\\'s questions.' -%}"
    "{%- set turns = messages -%}"
    "{%- if messages and messages[0].role == 'system' -%}"
    "{%- set system = messages[0].content | trim -%}{%- set turns = messages[1:] -%}"
    "{%- endif -%}"
    "{{- bos_token -}}{%- if system -%}{{- system + ' ' -}}{%- endif -%}"
    "{%- for turn in turns -%}"
    "{%- if turn.role == 'user' -%}{{- 'USER: ' + turn.content | trim + ' ' -}}"
    "{%- elif turn.role == 'assistant' -%}{{- 'ASSISTANT: ' + turn.content | trim + eos_token -}}"
    "{%- else -%}{{- raise_exception('only the first turn may be a system turn') -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}"
)
# The manner of Llama 2's own chat code: each exchange is a text of its own, the system prompt in the first.
LLAMA_2: Final = (
    "{%- set turns = messages -%}{%- set ns = namespace(system='') -%}"
    "{%- if messages and messages[0].role == 'system' -%}"
    "{%- set turns = messages[1:] -%}"
    "{%- set ns.system = '<<SYS>>\\n' + messages[0].content | trim + '\\n<</SYS>>\\n\\n' -%}"
    "{%- endif -%}"
    "{%- for turn in turns -%}"
    "{%- if turn.role == 'user' -%}"
    "{{- bos_token + '[INST] ' + ns.system + turn.content | trim + ' [/INST]' -}}"
    "{%- set ns.system = '' -%}"
    "{%- elif turn.role == 'assistant' -%}{{- ' ' + turn.content | trim + ' ' + eos_token -}}"
    "{%- else -%}{{- raise_exception('only the first turn may be a system turn') -}}{%- endif -%}"
    "{%- endfor -%}"
)
CHATML: Final = (
    "{%- for turn in messages -%}"
    "{{- '<|im_start|>' + turn.role + '\\n' + turn.content | trim + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# For models that were never taught to chat.
PLAIN: Final = (
    "{{- bos_token -}}"
    "{%- for turn in messages -%}"
    "{%- if turn.role == 'system' -%}{{- turn.content | trim + '\\n\\n' -}}"
    "{%- else -%}{{- turn.role | capitalize + ': ' + turn.content | trim + '\\n\\n' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}"
)
BUILT_IN: Final[Mapping[str, str]] = {
    "chatml": CHATML,
    "llama-2": LLAMA_2,
    "plain": PLAIN,
    "vicuna": VICUNA,
}
# Models that are known to want a built-in template where their repository has none.
KNOWN: Final = (
    ("vicuna", re.compile(r"vicuna", re.IGNORECASE)),
    ("llama-2", re.compile(r"llama-?2(?![\d.]).*chat", re.IGNORECASE)),
)
OWN = "own"  # the tokenizer's own template
BETWEEN_TURNS = "\n\n"
MERGED_SYSTEM = (
    "this model's chat template takes no system prompt: it was put before the first question"
)
MERGED_TURNS = (
    "turns of one side in a row were sent as one: this model expects the sides to alternate"
)

Turn = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Template:
    """``text`` is Jinja, or None for the tokenizer's own."""

    name: str
    text: str | None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as text, and what was changed to make the template take it."""

    text: str
    notices: tuple[str, ...] = ()


def names() -> tuple[str, ...]:
    """The built-in templates, for a picker."""
    return tuple(BUILT_IN)


def known_for(model: str) -> str | None:
    """The built-in template that a model of this name wants, or None."""
    name = model.rstrip("/").rsplit("/", 1)[-1]
    return next((template for template, pattern in KNOWN if pattern.search(name)), None)


def named(name: str) -> Template:
    """A built-in template, or one from a file of Jinja.

    Raises: ConfigError when it is neither, or no Jinja.
    """
    if name.lower() in BUILT_IN:
        return Template(name.lower(), BUILT_IN[name.lower()])
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        ImmutableSandboxedEnvironment().parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the chat template is not known",
            expected=f"{', '.join(names())}, or a file",
            got=name,
            hint="check the spelling or the path",
        ) from error
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"{path.name} is no chat template",
            expected="a Jinja template",
            got=f"line {error.lineno}: {error.message}",
            hint=f"mend the file, or use one of {', '.join(names())}",
        ) from error
    return Template(path.name, text)


def choose(asked: Template | None, has_own: bool, model: str) -> Template:
    """What was asked for, else the tokenizer's own, else the one known for the model.

    Raises: NoChatTemplate naming the choices.
    """
    if asked is not None:
        return asked
    if has_own:
        return Template(OWN, None)
    known = known_for(model)
    if known is None:
        choices = ", ".join(names())
        raise NoChatTemplate(
            f"{model} has no chat template",
            expected="an instruct or chat model",
            got="a base model",
            hint=f"choose an instruct model, say how to chat with --chat-template ({choices}, or a file), "
            "or use `eagle-chat generate --raw`",
        )
    return Template(known, BUILT_IN[known])


def alternating(messages: Sequence[Turn]) -> list[Turn]:
    """The chat with turns of one role in a row made one, and without an empty system turn."""
    turns: list[Turn] = []
    for message in messages:
        if message["role"] == "system" and not message["content"].strip():
            continue
        if turns and turns[-1]["role"] == message["role"]:
            joined = BETWEEN_TURNS.join((turns[-1]["content"], message["content"]))
            turns[-1] = {"role": message["role"], "content": joined}
        else:
            turns.append(message)
    return turns


def without_system(turns: Sequence[Turn]) -> list[Turn] | None:
    """The system turn put before the first user turn; None when there is no user turn after it."""
    if len(turns) < 2 or turns[1]["role"] != "user":
        return None
    joined = BETWEEN_TURNS.join((turns[0]["content"].strip(), turns[1]["content"]))
    return [{"role": "user", "content": joined}, *turns[2:]]


def render(tokenizer: Any, template: Template, messages: Sequence[Turn]) -> Rendered:
    """A chat as text that ends where the answer starts.

    Raises: ConfigError when the template refuses the turns, however they are put.
    """
    turns, notices = alternating(messages), []
    n_empty = sum(m["role"] == "system" and not m["content"].strip() for m in messages)
    if len(turns) < len(messages) - n_empty:
        notices.append(MERGED_TURNS)
    has_system = bool(turns) and turns[0]["role"] == "system"
    merged = without_system(turns) if has_system else None
    try:
        text = _apply(tokenizer, template, turns)
        if merged is None or turns[0]["content"].strip() in text:
            return Rendered(text, tuple(notices))
    except TemplateError as error:
        if merged is None:
            raise _refused(template, error) from error
    try:
        text = _apply(tokenizer, template, merged)
    except TemplateError as error:
        raise _refused(template, error) from error
    return Rendered(text, (*notices, MERGED_SYSTEM))


def _apply(tokenizer: Any, template: Template, turns: Sequence[Turn]) -> str:
    own = {} if template.text is None else {"chat_template": template.text}
    turns = [dict(turn) for turn in turns]
    return str(
        tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **own)
    )


def _refused(template: Template, error: TemplateError) -> ConfigError:
    which = "the model's own" if template.name == OWN else f"the {template.name}"
    return ConfigError(
        f"{which} chat template refuses these messages",
        expected="turns that the template knows",
        got=str(error),
        hint="leave the system prompt empty, and let user and assistant take turns",
    )


__all__ = [
    "BUILT_IN",
    "MERGED_SYSTEM",
    "MERGED_TURNS",
    "OWN",
    "Rendered",
    "Template",
    "alternating",
    "choose",
    "known_for",
    "named",
    "names",
    "render",
    "without_system",
]
