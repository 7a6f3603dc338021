"""What the page's script asks for besides answers: the list of chats, versions, files, presets.

Each action changes the room and returns one frame. An error becomes a notice; a chat that another tab
changed is shown as it is now.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from eagle_core.errors import ConfigError, EagleError, HistoryError, StaleConversation
from eagle_core.history import Conversation, Message, from_json, from_markdown, to_json, to_markdown
from eagle_core.ui import kept_settings, presets, render
from eagle_core.ui.attachments import MAX_FILES, read_attachment
from eagle_core.ui.controls import NAMES, Settings, default_values, read_settings
from eagle_core.ui.frames import Frame, error_notice, idle_box
from eagle_core.ui.handlers import Handlers, header_of, tab_of
from eagle_core.ui.rooms import Room

logger = logging.getLogger(__name__)

MAX_IMPORT_CHARS = 64_000_000
MAX_TITLE = 200
MAX_TAG = 30


@dataclass(frozen=True, slots=True)
class Ask:
    """What the page's script asks for.

    ``kept`` is what the browser keeps of the panel. Both are None while the panel holds something wrong.
    """

    room: Room
    data: dict[str, Any]
    settings: Settings | None
    kept: dict[str, Any] | None = None


class Actions:
    """The quick events of the page, by name."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self.rooms = handlers.rooms
        self._by_name: dict[str, Callable[[Ask], Frame]] = {
            "start": self.start, "refresh": self.refresh,
            "open": self.open, "new": self.new, "private": self.private,
            "search": self.search, "rename": self.rename, "pin": self.pin, "tags": self.tags,
            "delete": self.delete, "export": self.export, "export-all": self.export_all,
            "import": self.import_file, "version": self.version, "branch": self.branch,
            "delete-message": self.delete_message, "edit-answer": self.edit_answer,
            "attach": self.attach, "detach": self.detach, "measure": self.measure, "look": self.look,
        }  # fmt: skip

    async def act(self, event: gr.EventData, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        """Do what the page's script asks for."""
        room, data = self.rooms.get(tab_of(request)), event._data or {}
        action = self._by_name.get(str(data.get("do")))
        if action is None:
            return Frame(notice=render.notice_html("error", "The page asked for something unknown.",
                                                   "Reload it.")).updates()  # fmt: skip
        try:
            ask = Ask(room, data, read_settings(values), kept_settings.changed(values))
        except ConfigError:
            ask = Ask(room, data, None)
        try:
            frame = await asyncio.to_thread(action, ask)
        except EagleError as error:
            if isinstance(error, StaleConversation) and room.conversation is not None:
                room.show(room.store.load(room.conversation.id))
            frame = self.shown(ask, notice=error_notice(error))
        return frame.updates()

    def shown(self, ask: Ask, **parts: Any) -> Frame:
        """The page as it is now; an answer in progress draws its own chat and message box."""
        try:
            parts.setdefault("library", self.handlers.library(ask.room))
        except HistoryError as error:
            parts.setdefault("notice", error_notice(error))
        return self.handlers.frame(ask.room, ask.settings, **{"notice": "", **parts})

    # ---- what is in view -----------------------------------------------------------------------------

    def start(self, ask: Ask) -> Frame:
        """The page was loaded; ``chat`` is what this tab showed before a reload."""
        notice = (
            render.notice_html("warning", ask.room.saved.notice) if ask.room.saved.notice else None
        )
        if ask.room.copies is not None and not ask.room.saved.search():
            n_wrong = ask.room.copies.restore(ask.room.saved, ask.data.get("kept"))
            if n_wrong:
                chats = "1 chat" if n_wrong == 1 else f"{n_wrong} chats"
                notice = render.notice_html(
                    "warning",
                    f"{chats} of this browser could not be read.",
                    "The others are listed.",
                )
        if ask.data.get("chat") and ask.room.conversation is None:
            try:
                return self.open(ask)
            except HistoryError:  # deleted since
                logger.debug("the chat of a reloaded tab is gone")
        frame = self.shown(ask)
        return Frame(state=frame.state, library=frame.library, notice=notice)

    def open(self, ask: Ask) -> Frame:
        """Bring a kept chat into view; ``message`` is one that must be seen."""
        conversation = ask.room.saved.load(str(ask.data.get("chat")))
        if ask.room.private is not None:
            ask.room.set_private(False)
        message = ask.data.get("message")
        if message and message not in {m.id for m in conversation.path}:
            conversation = ask.room.saved.select(
                conversation, conversation.newest_leaf(str(message))
            )
        ask.room.show(conversation)
        return self._fresh(ask, system_prompt=conversation.system_prompt)

    def refresh(self, ask: Ask) -> Frame:
        """Show what another tab has written meanwhile."""
        shown = ask.room.conversation
        if ask.room.is_busy or shown is None or shown.id != ask.data.get("chat"):
            return Frame()
        ask.room.show(ask.room.store.load(shown.id))
        return self.shown(ask)

    def new(self, ask: Ask) -> Frame:
        """Start a new chat."""
        ask.room.show(None)
        return self._fresh(ask)

    def private(self, ask: Ask) -> Frame:
        """Start a chat that is written nowhere, or go back to chats that are kept."""
        ask.room.set_private(bool(ask.data.get("is_on")))
        return self._fresh(ask)

    def version(self, ask: Ask) -> Frame:
        """Show another version of a message."""
        conversation, message = self._message(ask)
        ask.room.show(ask.room.store.select(conversation, conversation.newest_leaf(message.id)))
        return self._fresh(ask)

    def branch(self, ask: Ask) -> Frame:
        """Go on from a message in a chat of its own."""
        conversation, message = self._message(ask)
        ask.room.show(ask.room.store.branch(conversation, message.id))
        return self._fresh(ask)

    def delete_message(self, ask: Ask) -> Frame:
        """Delete a message with all that answers it; a chat without messages goes, too."""
        conversation, message = self._message(ask)
        left: Conversation | None = ask.room.store.remove(conversation, message.id)
        if left is not None and not left.messages:
            ask.room.store.delete(left.id)
            left = None
        ask.room.show(left)
        return self._fresh(ask)

    def edit_answer(self, ask: Ask) -> Frame:
        """Write another version of an answer by hand."""
        conversation, message = self._message(ask)
        text = str(ask.data.get("text", ""))
        if not text.strip():
            raise ConfigError("an answer needs some text", hint="nothing was changed")
        ask.room.show(ask.room.store.append(conversation, message.parent, "assistant", text))
        return self._fresh(ask)

    # ---- the list --------------------------------------------------------------------------------------

    def search(self, ask: Ask) -> Frame:
        """List the chats that hold the words."""
        ask.room.query = str(ask.data.get("query", ""))[:500]
        return Frame(library=self.handlers.library(ask.room))

    def rename(self, ask: Ask) -> Frame:
        """Give a chat another title."""
        title = " ".join(str(ask.data.get("title", "")).split())[:MAX_TITLE]
        if title:
            ask.room.saved.describe(str(ask.data.get("chat")), title=title)
        return self._listed(ask)

    def pin(self, ask: Ask) -> Frame:
        """Keep a chat at the top, or no longer."""
        ask.room.saved.describe(str(ask.data.get("chat")), is_pinned=bool(ask.data.get("is_on")))
        return self._listed(ask)

    def tags(self, ask: Ask) -> Frame:
        """Set a chat's tags, given with commas between."""
        words = (
            " ".join(tag.split())[:MAX_TAG] for tag in str(ask.data.get("tags", "")).split(",")
        )
        tags = tuple(dict.fromkeys(word for word in words if word))
        ask.room.saved.describe(str(ask.data.get("chat")), tags=tags)
        return self._listed(ask)

    def delete(self, ask: Ask) -> Frame:
        """Delete a chat."""
        chat, shown = str(ask.data.get("chat")), ask.room.conversation
        if ask.room.private is None and shown is not None and shown.id == chat:
            ask.room.show(None)
            ask.room.saved.delete(chat)
            return self._fresh(ask)
        ask.room.saved.delete(chat)
        return Frame(library=self.handlers.library(ask.room), notice="")

    def export(self, ask: Ask) -> Frame:
        """Hand a chat to the browser as a file; without an id the one in view."""
        chat = ask.data.get("chat")
        if chat:
            conversation = ask.room.saved.load(str(chat))
        elif ask.room.conversation is not None:
            conversation = ask.room.conversation
        else:
            raise ConfigError("there is no chat to export", hint="write something first")
        is_markdown = ask.data.get("format") == "md"
        text = to_markdown(conversation) if is_markdown else to_json([conversation])
        name = f"{file_name(conversation.title)}.{'md' if is_markdown else 'json'}"
        return self._download(ask.room, name, text)

    def export_all(self, ask: Ask) -> Frame:
        """Hand all kept chats to the browser as one file."""
        kept = [ask.room.saved.load(summary.id) for summary in ask.room.saved.search()]
        return self._download(ask.room, "chats.json", to_json(kept))

    def import_file(self, ask: Ask) -> Frame:
        """Add the chats of a file to the list and show the first."""
        name, text = str(ask.data.get("name", "")), str(ask.data.get("text", ""))
        if len(text) > MAX_IMPORT_CHARS:
            raise ConfigError("the file is too large to import", hint="export fewer chats at once")
        is_markdown = name.lower().endswith((".md", ".markdown"))
        read = [from_markdown(text)] if is_markdown else from_json(text)
        added = [ask.room.saved.add(conversation) for conversation in read]
        if not added:
            raise HistoryError("this file holds no chat", hint="choose another file")
        if ask.room.private is not None:
            ask.room.set_private(False)
        ask.room.show(added[0])
        chats = "1 chat was" if len(added) == 1 else f"{len(added)} chats were"
        return self._fresh(ask, notice=render.notice_html("info", f"{chats} imported."),
            system_prompt=added[0].system_prompt,
        )  # fmt: skip

    # ---- files and the context ---------------------------------------------------------------------------

    def attach(self, ask: Ask) -> Frame:
        """Attach a text file to the next message."""
        if len(ask.room.attachments) >= MAX_FILES:
            raise ConfigError(f"{MAX_FILES} files are attached already", hint="send them first")
        name, content = str(ask.data.get("name", "")), str(ask.data.get("content", ""))
        file = read_attachment(name, content, int(ask.data.get("n_bytes", 0)))
        ask.room.attachments = [*ask.room.attachments, file]
        return self._stated(ask, notice="")

    def detach(self, ask: Ask) -> Frame:
        """Take an attached file away."""
        index = int(ask.data.get("index", -1))
        ask.room.attachments = [f for place, f in enumerate(ask.room.attachments) if place != index]
        return self._stated(ask)

    def measure(self, ask: Ask) -> Frame:
        """Show the context's use for the settings as they are now, and let the browser keep them."""
        frame = self._stated(ask)
        frame.state["settings"] = ask.kept
        return frame

    def look(self, ask: Ask) -> Frame:
        """The tab came into sight again: meanwhile another page may have changed what is loaded."""
        session = self.handlers.slot.session
        if ask.room.is_busy:  # the answer's own frames say it
            return Frame()
        return self.handlers.absent() if session is None else Frame(header=header_of(session))

    # ---- presets, events of their own components -----------------------------------------------------------

    def choose_preset(self, name: str, request: gr.Request) -> tuple[Any, ...]:
        """The preset's system prompt and settings, for the panel."""
        preset = presets.find_preset(self.rooms.get(tab_of(request)).saved, name or "")
        if preset is None:
            return tuple(gr.skip() for _ in range(1 + len(presets.KEPT_SETTINGS)))
        kept = presets.kept_settings(preset.settings)
        settings = [kept.get(key, gr.skip()) for key in presets.KEPT_SETTINGS]
        return preset.system_prompt, *settings

    def restore(self, event: gr.EventData) -> tuple[Any, ...]:
        """The settings that the browser kept, for the panel and the preset's field.

        The system prompt of a chat that comes back with the page is the chat's own.
        """
        data = event._data or {}
        stored = data.get("settings")
        values = kept_settings.restored(stored if isinstance(stored, dict) else {})
        prompt = gr.skip() if data.get("chat") else values["system_prompt"]
        preset = data.get("preset")
        name = preset[: presets.MAX_NAME] if isinstance(preset, str) and preset else gr.skip()
        return *({**values, "system_prompt": prompt}[key] for key in NAMES), name

    def reset(self) -> tuple[Any, ...]:
        """The defaults, for the panel and the preset's field."""
        return *default_values().values(), presets.NO_PRESET

    def save_preset(self, name: str, request: gr.Request, *values: Any) -> tuple[Any, Any]:
        """Keep the panel's settings under a name."""
        store = self.rooms.get(tab_of(request)).saved
        try:
            settings = read_settings(values)
            preset = presets.preset_from(name or "", settings.system_prompt, settings.generation)
            store.save_preset(preset)
        except EagleError as error:
            return gr.skip(), error_notice(error)
        notice = render.notice_html("info", f"Preset {preset.name} is kept.")
        return gr.update(choices=self.preset_names(store), value=preset.name), notice

    def delete_preset(self, name: str, request: gr.Request) -> tuple[Any, Any]:
        """Delete one of the user's own presets."""
        store = self.rooms.get(tab_of(request)).saved
        if name not in {preset.name for preset in store.presets()}:
            notice = render.notice_html("info", "Only presets of your own can be deleted.")
            return gr.skip(), notice
        store.delete_preset(name)
        return gr.update(choices=self.preset_names(store), value=presets.NO_PRESET), ""

    def list_presets(self, request: gr.Request) -> Any:
        """The presets, for a page that was just loaded."""
        return gr.update(choices=self.preset_names(self.rooms.get(tab_of(request)).saved))

    def preset_names(self, store: Any) -> list[str]:
        """Names for the list of choices."""
        return presets.names_of(presets.all_presets(store))

    # ---- inside --------------------------------------------------------------------------------------------

    def _fresh(self, ask: Ask, **parts: Any) -> Frame:
        """The page after something else came into view."""
        empty = {
            "channel": render.empty_channel(ask.room.chat_id),
            "status": render.status_html(None),
            "details": render.details_html(None),
            "box": idle_box(),
        }
        return self.shown(ask, **{**empty, **parts})

    def _stated(self, ask: Ask, **parts: Any) -> Frame:
        """The state alone: the chat stays as it is drawn."""
        frame = self.handlers.frame(ask.room, ask.settings)
        return Frame(state=frame.state, **parts)

    def _listed(self, ask: Ask) -> Frame:
        """The list after one of its chats changed; the chat in view learns its new name."""
        room = ask.room
        if room.conversation is not None and room.private is None and not room.is_busy:
            current = room.saved.load(room.conversation.id)
            if current.version == room.conversation.version:
                room.conversation = current
        return Frame(library=self.handlers.library(room), notice="")

    def _download(self, room: Room, name: str, text: str) -> Frame:
        library = self.handlers.library(room)
        library["download"] = {"name": name, "text": text}
        return Frame(library=library, notice="")

    def _message(self, ask: Ask) -> tuple[Conversation, Message]:
        """The message that an action is about. Raises: ConfigError while an answer is being written."""
        room = ask.room
        if room.is_busy:
            raise ConfigError("an answer is in progress", hint="stop it first, or wait for it")
        conversation = room.conversation
        wanted = str(ask.data.get("message"))
        found = [m for m in conversation.messages if m.id == wanted] if conversation else []
        if conversation is None or not found:
            raise HistoryError("this message is not there any more", hint="reload the page")
        return conversation, found[0]


def file_name(title: str) -> str:
    """A title as a file name that every system takes."""
    name = re.sub(r"[^\w\- ]+", "", title).strip().replace(" ", "-")[:60]
    return name or "chat"


__all__ = ["Actions", "file_name"]
