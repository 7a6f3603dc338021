"""Random editing against a plain model of it: the database holds exactly the tree that was built."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core.errors import StaleConversation
from eagle_core.history import Conversation, Message, SqliteHistory
from eagle_core.history.exchange import from_json, from_markdown, to_json, to_markdown

# No carriage returns: Markdown files may come back with other line ends. No surrogates: they are no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=30)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["append", "select", "remove", "stale"]), st.integers(0, 99), TEXT),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(ACTIONS)
def test_the_database_is_the_tree(actions: list[tuple[str, int, str]]) -> None:
    store = SqliteHistory(None)
    conversation = store.create()
    old = conversation
    model: dict[str, tuple[str | None, str]] = {}  # id -> parent, text
    for kind, number, text in actions:
        ids = [None, *model]
        chosen = ids[number % len(ids)]
        previous, old_model = conversation, dict(model)
        if kind == "append":
            conversation = store.append(conversation, chosen, "user", text)
            assert conversation.active is not None
            model[conversation.active] = (chosen, text)
        elif kind == "select" and chosen is not None:
            conversation = store.select(conversation, chosen)
            assert conversation.active == chosen
        elif kind == "remove" and chosen is not None:
            conversation = store.remove(conversation, chosen)
            for message_id in conversation_below(old_model, chosen):
                del model[message_id]
        elif kind == "stale" and old.version != conversation.version:
            with pytest.raises(StaleConversation):
                store.append(old, None, "user", text)
        old = previous
        assert {m.id: (m.parent, m.text) for m in conversation.messages} == model
        assert conversation == store.load(conversation.id)
        assert conversation.active is None or conversation.active in model
        # An empty view would hide messages that are there.
        assert bool(conversation.path) or not model or conversation.active is None
    store.close()


def conversation_below(model: dict[str, tuple[str | None, str]], root: str) -> list[str]:
    found = [root]
    for message_id in model:  # in the order of writing
        if model[message_id][0] in found:
            found.append(message_id)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=6), TEXT)
def test_search_finds_what_is_there(texts: list[str], query: str) -> None:
    store = SqliteHistory(None)
    expected = set()
    words = query.casefold().split()
    for number, text in enumerate(texts):
        conversation = store.create(title=str(number))
        store.append(conversation, None, "user", text)
        if all(word in text.casefold() for word in words):
            expected.add(conversation.id)
    found = {hit.id for hit in store.search(query) if words and hit.snippet}
    # The index folds case a little less than Python ("ß" is not "ss" there): it may miss, never invent.
    assert found <= expected
    if query.isascii() and all(text.isascii() for text in texts) and words:
        titles = {hit.id for hit in store.search(query)} - expected
        assert {hit.id for hit in store.search(query)} == expected | titles
    store.close()


MESSAGES = st.lists(st.tuples(TEXT, st.integers(0, 99)), min_size=1, max_size=8)


def tree(parts: list[tuple[str, int]]) -> Conversation:
    messages: list[Message] = []
    for index, (text, number) in enumerate(parts):
        ids: list[str | None] = [None, *(m.id for m in messages)]
        role: Any = "assistant" if index % 2 else "user"
        messages.append(Message(str(index), ids[number % len(ids)], role, text))
    return Conversation("", "A title", tuple(messages), messages[-1].id)


@settings(max_examples=60, deadline=None)
@given(MESSAGES, TEXT)
def test_export_and_import_are_inverse(parts: list[tuple[str, int]], system_prompt: str) -> None:
    conversation = tree(parts)
    (read,) = from_json(to_json([conversation]))
    assert read == conversation
    with_prompt = Conversation(
        "", "A title", conversation.messages, conversation.active, system_prompt
    )
    again = from_markdown(to_markdown(with_prompt))
    assert [(m.role, m.text) for m in again.path] == [(m.role, m.text) for m in conversation.path]
    assert again.system_prompt == system_prompt
