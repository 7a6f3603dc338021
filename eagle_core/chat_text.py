"""A chat as token ids and token ids as text: tokenizer and chat template, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_core import templates


class ChatText:
    """Writes chats in a model's own template, or in another one.

    Args:
        tokenizer: the base model's.
        template: a built-in template's name or a file; None: the model's own.
        model: the base's name, for a template that is known for it.
    Raises: ConfigError when there is no such template.
    """

    def __init__(self, tokenizer: Any, template: str | None, model: str) -> None:
        self._tokenizer, self._model = tokenizer, model
        self._template = templates.named(template) if template is not None else None

    @property
    def template(self) -> templates.Template:
        """The template in use. Raises: NoChatTemplate when the model has none and none was given."""
        has_own = getattr(self._tokenizer, "chat_template", None) is not None
        return templates.choose(self._template, has_own, self._model)

    def use_template(self, name: str) -> str:
        """Take another template from now on; returns its name. Raises: ConfigError."""
        self._template = templates.named(name)
        return self._template.name

    def encode(self, messages: Sequence[Mapping[str, object]]) -> tuple[list[int], tuple[str, ...]]:
        """Token ids of a chat, ready for the answer, and what was changed to make the template take it.

        A last message of the assistant is an answer to be continued: its text is the answer's beginning.
        Raises: NoChatTemplate when the model has none; ConfigError when it refuses these messages.
        """
        turns = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
        is_continued = bool(turns) and turns[-1]["role"] == "assistant"
        beginning = turns.pop()["content"] if is_continued else ""
        rendered = templates.render(self._tokenizer, self.template, turns)
        ids = list(self._tokenizer(rendered.text + beginning, add_special_tokens=False).input_ids)
        return ids, rendered.notices

    def token_text(self, token_id: int) -> str:
        """One token for the eye; bytes that are no whole character are shown in the vocabulary's spelling."""
        text = str(self._tokenizer.decode([token_id]))
        if "\ufffd" in text or not text:
            return str(self._tokenizer.convert_ids_to_tokens(token_id))
        return text


__all__ = ["ChatText"]
