"""Conversations as files: JSON holds everything, Markdown the chat in view.

Both can be read back. Files come from anywhere, so every field is checked before anything is kept.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from eagle_core.errors import HistoryError
from eagle_core.history.records import Conversation, Message, Role, title_of

FORMAT = "eagle-chat"
FORMAT_VERSION = 1
HEADINGS = {"system": "System prompt", "user": "You", "assistant": "Assistant"}
MARKER = re.compile(r"^<!-- eagle-chat (system|user|assistant) -->$", re.MULTILINE)
LOOKS_LIKE_MARKER = re.compile(r"^<!-- (\\*)eagle-chat", re.MULTILINE)
ESCAPED_MARKER = re.compile(r"^<!-- \\(\\*)eagle-chat", re.MULTILINE)
RUNS = re.compile(r"(?:[dt]\d{1,9}(?:,[dt]\d{1,9})*)?")
MESSAGE_FIELDS = {
    "id": str, "parent": (str, type(None)), "role": str, "text": str, "runs": str, "figures": dict,
    "is_finished": bool, "created_s": (int, float),
}  # fmt: skip
CONVERSATION_FIELDS = {
    "title": str, "active": (str, type(None)), "system_prompt": str, "is_pinned": bool, "tags": list,
    "created_s": (int, float), "updated_s": (int, float), "messages": list,
}  # fmt: skip


def to_json(conversations: Sequence[Conversation]) -> str:
    """Everything about the conversations: all branches, who wrote what, figures, tags."""
    kept = []
    for conversation in conversations:
        values = dataclasses.asdict(conversation)
        kept.append({name: values[name] for name in CONVERSATION_FIELDS})
    document = {"format": FORMAT, "version": FORMAT_VERSION, "conversations": kept}
    return json.dumps(document, ensure_ascii=False, indent=1)


def from_json(text: str) -> list[Conversation]:
    """Read what :func:`to_json` wrote.

    Raises: HistoryError naming what is wrong; then nothing was read.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise import_error(f"it is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise import_error('it has no "format": "eagle-chat"')
    if document.get("version") != FORMAT_VERSION:
        raise import_error(f"its version is {document.get('version')!r}, not {FORMAT_VERSION}")
    conversations = document.get("conversations")
    if not isinstance(conversations, list):
        raise import_error("it has no list of conversations")
    return [read_conversation(values) for values in conversations]


def read_conversation(values: Any) -> Conversation:
    """One conversation of a JSON file."""
    checked = checked_fields(values, CONVERSATION_FIELDS, "conversation")
    messages: list[Message] = []
    known: set[str | None] = {None}
    for entry in checked.pop("messages"):
        message = read_message(entry)
        if message.id in known or message.parent not in known:
            raise import_error("a message comes twice, or before the one that it answers")
        known.add(message.id)
        messages.append(message)
    tags = checked.pop("tags")
    if not all(isinstance(tag, str) for tag in tags):
        raise import_error("a tag is no text")
    if checked["active"] not in known:
        raise import_error("the message in view is missing")
    return Conversation("", messages=tuple(messages), tags=tuple(tags), **checked)


def read_message(values: Any) -> Message:
    """One message of a JSON file."""
    checked = checked_fields(values, MESSAGE_FIELDS, "message")
    if checked["role"] not in ("user", "assistant"):
        raise import_error(f"a message's role is {checked['role']!r}")
    if not RUNS.fullmatch(checked["runs"]):
        raise import_error("a message's runs are not lengths with their origin")
    return Message(**checked)


def checked_fields(values: Any, fields: dict[str, Any], what: str) -> dict[str, Any]:
    """The values, if they have exactly these fields, of these types."""
    if not isinstance(values, dict) or values.keys() != fields.keys():
        raise import_error(f"a {what} has other fields than {', '.join(fields)}")
    for name, kind in fields.items():
        value = values[name]
        is_number_wanted = kind == (int, float)
        if not isinstance(value, kind) or (is_number_wanted and isinstance(value, bool)):
            raise import_error(f"{name} of a {what} is {type(value).__name__}")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise import_error(f"{name} of a {what} is no valid Unicode") from error
    return dict(values)


def to_markdown(conversation: Conversation) -> str:
    """The chat in view, for readers; comments mark where messages begin."""
    parts = [f"# {conversation.title or 'Chat'}\n"]
    if conversation.system_prompt:
        parts.append(section("system", conversation.system_prompt))
    parts += [section(message.role, message.text) for message in conversation.path]
    return "\n".join(parts)


def section(role: str, text: str) -> str:
    """One message with its marker. A line of the text that looks like a marker gets a backslash."""
    safe = LOOKS_LIKE_MARKER.sub(r"<!-- \\\1eagle-chat", text)
    return f"<!-- eagle-chat {role} -->\n## {HEADINGS[role]}\n\n{safe}\n"


def from_markdown(text: str) -> Conversation:
    """Read what :func:`to_markdown` wrote.

    Raises: HistoryError when the file has no marked messages.
    """
    head, *rest = MARKER.split(text.replace("\r\n", "\n"))
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    if not pairs:
        raise import_error("it has no line like <!-- eagle-chat user -->")
    system_prompt = ""
    messages: list[Message] = []
    for number, (name, body) in enumerate(pairs, start=1):
        body = body.removeprefix(f"\n## {HEADINGS[name]}\n\n")
        body = body.removesuffix("\n" if number == len(pairs) else "\n\n")
        content = ESCAPED_MARKER.sub(r"<!-- \1eagle-chat", body)
        if name == "system":
            system_prompt = content
            continue
        role: Role = "user" if name == "user" else "assistant"
        parent = messages[-1].id if messages else None
        messages.append(Message(str(len(messages)), parent, role, content))
    title = head.strip().removeprefix("#").strip()
    first = messages[0].text if messages else ""
    return Conversation(
        "",
        title or title_of(first),
        tuple(messages),
        active=messages[-1].id if messages else None,
        system_prompt=system_prompt,
    )


def import_error(reason: str) -> HistoryError:
    """The error for a file that cannot be imported."""
    return HistoryError(
        f"this file is no chat that can be imported: {reason}",
        hint="choose a .json or .md file that this app exported",
    )


__all__ = ["from_json", "from_markdown", "to_json", "to_markdown"]
