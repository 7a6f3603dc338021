"""Kept conversations: the tree, versions, search, crashes, damaged files, export and import."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_core.errors import HistoryError, StaleConversation
from eagle_core.events import Span
from eagle_core.folders import data_folder
from eagle_core.history import (
    Conversation,
    Message,
    Preset,
    SqliteHistory,
    from_json,
    from_markdown,
    open_history,
    runs_of,
    spans_of,
    to_json,
    to_markdown,
)
from eagle_core.history import schema as schema_module
from eagle_core.history.records import title_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "history.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteHistory]:
    history = SqliteHistory(path)
    yield history
    history.close()


def chat(store: SqliteHistory, *texts: str) -> Conversation:
    """A conversation of user and assistant in turn."""
    conversation = store.create()
    for index, text in enumerate(texts):
        role = "assistant" if index % 2 else "user"
        conversation = store.append(conversation, conversation.active, role, text)
    return conversation


def texts(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation.path]


def test_a_conversation_survives_a_restart(path: Path) -> None:
    store = SqliteHistory(path)
    conversation = chat(store, "What is a tree?", "A plant.")
    store.describe(conversation.id, system_prompt="Be brief.", tags=("nature",), is_pinned=True)
    store.close()
    again = SqliteHistory(path)
    (summary,) = again.search()
    assert summary.title == "What is a tree?"
    assert summary.is_pinned
    loaded = again.load(summary.id)
    assert texts(loaded) == ["What is a tree?", "A plant."]
    assert (loaded.system_prompt, loaded.tags) == ("Be brief.", ("nature",))
    again.close()


def test_the_files_are_the_users_own(store: SqliteHistory, path: Path) -> None:
    if os.name != "posix":
        pytest.skip("permissions are POSIX's")
    chat(store, "secret")
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
    assert len(files) == 3
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert path.parent.stat().st_mode & 0o077 == 0


def test_siblings_are_versions(store: SqliteHistory) -> None:
    conversation = chat(store, "q", "first", "more", "reply")
    question, first = conversation.path[:2]
    conversation = store.append(conversation, question.id, "assistant", "second")
    assert texts(conversation) == ["q", "second"]
    second = conversation.path[1]
    assert [message.text for message in conversation.versions(second)] == ["first", "second"]
    back = store.select(conversation, conversation.newest_leaf(first.id))
    assert texts(back) == ["q", "first", "more", "reply"]
    edited = store.append(back, None, "user", "other question")
    assert texts(edited) == ["other question"]
    assert len(edited.versions(edited.path[0])) == 2
    assert edited.title == "q"


def test_remove_takes_what_answers_it_and_shows_a_sibling(store: SqliteHistory) -> None:
    conversation = chat(store, "q", "first", "more")
    question, first = conversation.path[:2]
    conversation = store.append(conversation, question.id, "assistant", "second")
    second = conversation.path[1]
    left = store.remove(conversation, second.id)
    assert texts(left) == ["q", "first", "more"]
    left = store.remove(left, first.id)
    assert texts(left) == ["q"]
    assert [message.text for message in left.messages] == ["q"]
    left = store.remove(left, question.id)
    assert left.messages == ()
    assert left.active is None
    assert store.search("more") == []


def test_removing_elsewhere_leaves_the_view(store: SqliteHistory) -> None:
    conversation = chat(store, "q", "first")
    first = conversation.path[1]
    conversation = store.append(conversation, conversation.path[0].id, "assistant", "second")
    assert texts(store.remove(conversation, first.id)) == ["q", "second"]


def test_a_branch_is_a_copy(store: SqliteHistory) -> None:
    conversation = chat(store, "q", "a", "more", "reply")
    branch = store.branch(conversation, conversation.path[1].id)
    assert texts(branch) == ["q", "a"]
    assert branch.title == "q (branch)"
    assert not {m.id for m in branch.messages} & {m.id for m in conversation.messages}
    store.append(branch, branch.active, "user", "elsewhere")
    assert texts(store.load(conversation.id)) == ["q", "a", "more", "reply"]


def test_a_stale_tab_cannot_overwrite(store: SqliteHistory) -> None:
    seen_by_both = chat(store, "q", "a")
    newer = store.append(seen_by_both, seen_by_both.active, "user", "from one tab")
    attempts: list[Any] = [
        lambda: store.append(seen_by_both, seen_by_both.active, "user", "from the other"),
        lambda: store.remove(seen_by_both, seen_by_both.path[0].id),
        lambda: store.select(seen_by_both, seen_by_both.path[0].id),
        lambda: store.reopen(seen_by_both, seen_by_both.path[1].id),
    ]
    for attempt in attempts:
        with pytest.raises(StaleConversation, match="another tab") as error:
            attempt()
        assert error.value.hint
    assert store.load(newer.id) == newer


def test_a_deleted_conversation_says_so(store: SqliteHistory) -> None:
    conversation = chat(store, "q")
    store.delete(conversation.id)
    store.delete(conversation.id)
    for attempt in (
        lambda: store.load(conversation.id),
        lambda: store.append(conversation, None, "user", "x"),
        lambda: store.describe(conversation.id, title="x"),
    ):
        with pytest.raises(HistoryError, match="not in the history"):
            attempt()


def test_an_answer_is_filled_by_its_writer_until_it_is_finished(store: SqliteHistory) -> None:
    conversation = chat(store, "q")
    conversation = store.append(conversation, conversation.active, "assistant", "", False)
    answer = conversation.path[-1]
    store.fill(replace(answer, text="Hel", runs="t3"))
    assert not store.load(conversation.id).path[-1].is_finished
    figures = {"tau": 2.5, "seed": 0, "finish_reason": "eos"}
    store.fill(replace(answer, text="Hello", runs="t3,d2", figures=figures, is_finished=True))
    kept = store.load(conversation.id).path[-1]
    assert (kept.text, kept.runs, kept.figures) == ("Hello", "t3,d2", figures)
    assert store.search("ello")
    with pytest.raises(HistoryError, match="no place"):
        store.fill(replace(answer, text="late"))
    reopened = store.reopen(store.load(conversation.id), answer.id)
    assert not reopened.path[-1].is_finished
    store.fill(replace(answer, text="Hello again", is_finished=True))
    assert texts(store.load(conversation.id))[-1] == "Hello again"


@pytest.mark.parametrize("has_index", [True, False])
def test_search(path: Path, monkeypatch: pytest.MonkeyPatch, has_index: bool) -> None:
    if not has_index:
        monkeypatch.setattr(schema_module, "INDEX", "CREATE VIRTUAL TABLE words USING fts9 (text);")
    store = SqliteHistory(path)
    assert store._has_index == has_index
    old = chat(store, "Lighthouse keepers", 'He said "100%" in the STORM_y night, 中文 too')
    new = chat(store, "Recipes", "bread and butter")
    store.describe(new.id, tags=("cooking",), title="Food")
    assert [found.id for found in store.search()] == [new.id, old.id]
    store.describe(old.id, is_pinned=True)
    assert [found.id for found in store.search()] == [old.id, new.id]
    for query in ("storm", "NIGHT said", '"100%"', "中文", "00%", "storm_y", "keepers", "he 中"):
        assert [found.id for found in store.search(query)] == [old.id], query
    for query in ("food", "cook", "butter", "Bread AND"):
        assert [found.id for found in store.search(query)] == [new.id], query
    assert store.search("stormxy") == []
    assert store.search("butter storm") == []
    (hit,) = store.search("storm")
    assert "STORM_y night" in hit.snippet
    assert hit.message == old.path[1].id
    store.close()


def test_an_index_that_was_not_kept_up_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteHistory(path).close()
    with monkeypatch.context() as patch:
        patch.setattr(schema_module, "INDEX", "CREATE VIRTUAL TABLE words2 USING fts9 (text);")
        without = SqliteHistory(path)
        chat(without, "written without an index")
        without.close()
    store = SqliteHistory(path)
    assert store._has_index
    assert len(store.search("without index")) == 1
    store.close()


def test_private_chats_are_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EAGLE_DATA", str(tmp_path / "data"))
    store = SqliteHistory(None)
    chat(store, "secret", "answer")
    assert len(store.search("secret")) == 1
    store.close()
    assert list(tmp_path.rglob("*")) == []


def test_presets(store: SqliteHistory) -> None:
    store.save_preset(Preset("Pirate", "Talk like a pirate."))
    store.save_preset(Preset("Pirate", "Arr.", {"temperature": 0.7}))
    store.save_preset(Preset("Brief", "Be brief."))
    assert [preset.name for preset in store.presets()] == ["Brief", "Pirate"]
    assert store.presets()[1] == Preset("Pirate", "Arr.", {"temperature": 0.7})
    store.delete_preset("Pirate")
    assert len(store.presets()) == 1


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from eagle_core.history import SqliteHistory
store = SqliteHistory(Path(sys.argv[1]))
conversation = store.create(title="crash")
print(conversation.id, flush=True)
number = 0
while True:
    conversation = store.append(conversation, conversation.active, "user", f"question {number}")
    conversation = store.append(conversation, conversation.active, "assistant", "", False)
    store.fill(replace(conversation.path[-1], text=f"answer {number} " * 50))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("delay_s", [0.03, 0.11])
def test_a_killed_writer_loses_nothing_that_it_reported(path: Path, delay_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert process.stdout is not None
    conversation_id = process.stdout.readline().strip()
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    reported = [line for line in process.stdout.read().split("\n") if line]
    process.wait()
    process.stdout.close()
    store = SqliteHistory(path)
    assert store.notice == ""
    kept = store.load(conversation_id)
    for number in map(int, reported):
        assert f"question {number}" in texts(kept)
        assert f"answer {number} " * 50 in texts(kept)
    assert len(kept.path) <= 2 * len(reported) + 2
    conversation = store.append(kept, kept.active, "user", "after the crash")
    assert texts(conversation)[-1] == "after the crash"
    store.close()


@pytest.mark.parametrize("damage", ["not a database", "torn"])
def test_a_damaged_file_is_set_aside(path: Path, damage: str) -> None:
    store = SqliteHistory(path)
    for number in range(30):
        chat(store, f"question {number} " * 40, "answer " * 100)
    store.close()
    whole = path.read_bytes()
    if damage == "torn":
        content = whole[: len(whole) // 2] + b"\x55" * 3000 + whole[len(whole) // 2 + 3000 :]
    else:
        content = b"this was never a database" * 300
    path.write_bytes(content)
    again = SqliteHistory(path)
    assert "could not be read" in again.notice
    (aside,) = path.parent.glob("history.unreadable-*.sqlite3")
    assert str(aside) in again.notice
    assert aside.read_bytes() == content
    assert again.search() == []
    chat(again, "a new start")
    again.close()
    assert SqliteHistory(path).notice == ""


def test_a_newer_file_is_left_alone(path: Path) -> None:
    SqliteHistory(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="newer version") as error:
        SqliteHistory(path)
    assert "update" in error.value.hint
    assert path.read_bytes() == before


def test_a_migration_keeps_a_copy_and_happens_wholly(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteHistory(path)
    conversation = chat(store, "q", "a")
    store.close()
    monkeypatch.setattr(
        schema_module, "MIGRATIONS",
        [*schema_module.MIGRATIONS, "ALTER TABLE conversations ADD COLUMN color TEXT; SELECT broken"],
    )  # fmt: skip
    with pytest.raises(HistoryError):
        SqliteHistory(path)
    schema_module.MIGRATIONS[-1] = "ALTER TABLE conversations ADD COLUMN color TEXT"
    migrated = SqliteHistory(path)
    assert migrated.load(conversation.id).path == conversation.path
    migrated.close()
    copy = sqlite3.connect(f"{path}.v1")
    assert copy.execute("SELECT count(*) FROM messages").fetchone() == (2,)
    assert copy.execute("PRAGMA user_version").fetchone() == (1,)
    copy.close()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(HistoryError, match="cannot be opened") as error:
        SqliteHistory(tmp_path / "data" / "history.sqlite3")
    assert "EAGLE_DATA" in error.value.hint


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_DATA", str(tmp_path / "mine"))
    history = open_history()
    assert history.path == tmp_path / "mine" / "history.sqlite3"
    history.close()
    monkeypatch.delenv("EAGLE_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "eagle-chat"
    monkeypatch.delenv("XDG_DATA_HOME")
    for platform, folder in (
        ("linux", ".local/share/eagle-chat"),
        ("darwin", "Library/Application Support/eagle-chat"),
        ("win32", "AppData/Roaming/eagle-chat"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv("APPDATA", raising=False)
        assert data_folder() == Path.home() / folder


def test_runs_are_spans() -> None:
    spans = (Span("draft", 4), Span("target", 12))
    assert runs_of(spans) == "d4,t12"
    assert spans_of("d4,t12") == spans
    assert spans_of("") == ()


def test_titles_are_short() -> None:
    assert title_of("  one\n two ") == "one two"
    assert title_of("\n") == "New chat"
    assert title_of("word " * 40).endswith("…")
    assert len(title_of("x" * 500)) <= 61


def test_json_keeps_everything(store: SqliteHistory) -> None:
    conversation = chat(store, "q", "first")
    conversation = store.append(conversation, conversation.path[0].id, "assistant", "second")
    store.describe(conversation.id, tags=("a",), is_pinned=True, system_prompt="S")
    conversation = store.load(conversation.id)
    (read,) = from_json(to_json([conversation]))
    assert replace(read, id=conversation.id, version=conversation.version) == conversation
    added = store.add(read)
    assert texts(added) == ["q", "second"]
    assert len(added.messages) == 3
    assert added.created_s == conversation.created_s


def test_markdown_keeps_the_chat_in_view(store: SqliteHistory) -> None:
    conversation = chat(store, "q\n\n## You\n", "<!-- eagle-chat user -->\n<!-- \\eagle-chat x")
    conversation = replace(conversation, system_prompt="Be\nbrief")
    text = to_markdown(conversation)
    assert "## Assistant" in text
    read = from_markdown(text)
    assert texts(read) == texts(conversation)
    assert (read.system_prompt, read.title) == ("Be\nbrief", conversation.title)
    assert [message.role for message in read.path] == ["user", "assistant"]


def broken_documents() -> list[str]:
    message = {"id": "1", "parent": None, "role": "user", "text": "x", "runs": "", "figures": {},
               "is_finished": True, "created_s": 0}  # fmt: skip
    chat_ = {"title": "", "active": "1", "system_prompt": "", "is_pinned": False, "tags": [],
             "created_s": 0, "updated_s": 0, "messages": [message]}  # fmt: skip
    whole = {"format": "eagle-chat", "version": 1, "conversations": [chat_]}
    broken: list[dict[str, Any]] = [
        {}, {**whole, "format": "x"}, {**whole, "version": 2}, {**whole, "conversations": {}},
        *({**whole, "conversations": [{**chat_, **change}]} for change in (
            {"title": 1}, {"extra": 1}, {"active": "2"}, {"tags": [1]}, {"created_s": True},
            {"messages": [{**message, "parent": "0"}]}, {"messages": [message, message]},
            {"messages": [{**message, "role": "system"}]}, {"messages": [{**message, "runs": "x"}]},
            {"messages": ["x"]}, {"messages": [{**message, "text": "\ud800"}]},
        )),
    ]  # fmt: skip
    assert from_json(json.dumps(whole))[0].path[0].text == "x"
    return ["", "[1]", "[" * 20000, *map(json.dumps, broken)]


@pytest.mark.parametrize("text", broken_documents(), ids=lambda text: text[:30])
def test_a_wrong_file_is_refused(text: str) -> None:
    with pytest.raises(HistoryError, match="no chat that can be imported") as error:
        from_json(text)
    assert error.value.hint
    with pytest.raises(HistoryError):
        from_markdown(text)


def test_no_message_is_a_conversation_of_its_own() -> None:
    assert Conversation("1", "t").path == ()
    message = Message("1", None, "user", "x")
    assert Conversation("1", "t", (message,)).path == ()
