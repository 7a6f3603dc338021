"""The database file: its tables, their migrations, and opening it without ever losing one.

A file that SQLite cannot read is set aside under another name, never deleted; a file of a newer version is
left alone. Commits survive a killed process (write-ahead log), and another process waits for its turn.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from eagle_core.errors import HistoryError

logger = logging.getLogger(__name__)

BUSY_S = 10.0
COMPANIONS = ("", "-wal", "-shm", "-journal")

# Entry n brings a file of version n to version n + 1. Entries are never changed, only added.
MIGRATIONS: list[str] = [
    """
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        system_prompt TEXT NOT NULL DEFAULT '',
        is_pinned INTEGER NOT NULL DEFAULT 0,
        tags TEXT NOT NULL DEFAULT '[]',
        active TEXT,
        created_s REAL NOT NULL,
        updated_s REAL NOT NULL,
        version INTEGER NOT NULL DEFAULT 1
    );
    CREATE TABLE messages (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent TEXT REFERENCES messages (id) ON DELETE CASCADE,
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        text TEXT NOT NULL,
        runs TEXT NOT NULL DEFAULT '',
        figures TEXT NOT NULL DEFAULT '{}',
        is_finished INTEGER NOT NULL DEFAULT 1,
        created_s REAL NOT NULL
    );
    CREATE INDEX messages_by_conversation ON messages (conversation);
    CREATE INDEX messages_by_parent ON messages (parent);
    CREATE TABLE presets (
        name TEXT PRIMARY KEY,
        system_prompt TEXT NOT NULL,
        settings TEXT NOT NULL DEFAULT '{}'
    );
    CREATE TABLE marks (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    """,
]

# The index is filled by triggers of the connection, not of the file: a Python whose SQLite has no full-text
# search can still write, and marks the index as stale.
INDEX = """
CREATE VIRTUAL TABLE IF NOT EXISTS words
    USING fts5 (text, content = 'messages', content_rowid = 'number', tokenize = 'trigram');
CREATE TEMP TRIGGER words_insert AFTER INSERT ON main.messages BEGIN
    INSERT INTO words (rowid, text) VALUES (new.number, new.text);
END;
CREATE TEMP TRIGGER words_delete AFTER DELETE ON main.messages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.number, old.text);
END;
CREATE TEMP TRIGGER words_update AFTER UPDATE OF text ON main.messages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.number, old.text);
    INSERT INTO words (rowid, text) VALUES (new.number, new.text);
END;
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open database; ``notice`` says what the user should know about opening it, empty for nothing."""

    connection: sqlite3.Connection
    has_index: bool
    notice: str = ""


def open_database(path: Path | None) -> Opened:
    """Open or create the file, or a database in memory that is never written anywhere for None.

    Raises: HistoryError if the folder cannot be written, the file is in use, or from a newer version.
    """
    if path is None:
        return prepared(connect(":memory:"), None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=BUSY_S):
            return open_file(path)
    except Timeout as error:
        raise HistoryError(
            "another program keeps the chat history busy",
            hint="close the other eagle-chat, then start again",
        ) from error
    except OSError as error:
        raise folder_error(path, error) from error
    except sqlite3.OperationalError as error:
        raise folder_error(path, error) from error


def open_file(path: Path) -> Opened:
    """Open the file; set it aside and start a new one if it cannot be read."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(str(path))
        check(connection)
        return prepared(connection, path)
    except sqlite3.OperationalError:
        if connection is not None:
            connection.close()
        raise
    except sqlite3.DatabaseError as error:
        if connection is not None:
            connection.close()
        aside = set_aside(path)
        logger.error("the chat history could not be read (%s) and was set aside", error)
        opened = prepared(connect(str(path)), path)
        return Opened(
            opened.connection,
            opened.has_index,
            f"The chat history could not be read. It was kept as {aside}, and a new one was begun.",
        )


def connect(name: str) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, under the caller's lock."""
    connection = sqlite3.connect(name, BUSY_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def check(connection: sqlite3.Connection) -> None:
    """Raises: sqlite3.DatabaseError if the file is damaged."""
    (result,) = connection.execute("PRAGMA quick_check (1)").fetchone()
    if result != "ok":
        raise sqlite3.DatabaseError(str(result))


def prepared(connection: sqlite3.Connection, path: Path | None) -> Opened:
    """The connection, set up and migrated."""
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute("PRAGMA temp_store = MEMORY")
    migrate(connection, path)
    return Opened(connection, make_index(connection))


def migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    """Bring the file to the newest version, a copy of it kept beside; all of a migration happens or nothing.

    Raises: HistoryError if the file is newer than this program.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        connection.close()
        raise HistoryError(
            "the chat history was written by a newer version of this app",
            expected=f"version {len(MIGRATIONS)} at most",
            got=f"version {version}",
            hint="update the app, or set EAGLE_DATA to another folder",
        )
    if 0 < version < len(MIGRATIONS) and path is not None:
        with closing(sqlite3.connect(path.with_name(f"{path.name}.v{version}"))) as copy:
            connection.backup(copy)
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(
            f"BEGIN IMMEDIATE; {MIGRATIONS[number]}; PRAGMA user_version = {number + 1}; COMMIT;"
        )


def make_index(connection: sqlite3.Connection) -> bool:
    """Set up full-text search; False where SQLite has none."""
    (n_before,) = connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE name = 'words'"
    ).fetchone()
    try:
        connection.executescript(INDEX)
    except sqlite3.OperationalError:
        connection.execute("INSERT OR REPLACE INTO marks VALUES ('index', 'stale')")
        return False
    stale = connection.execute("SELECT 1 FROM marks WHERE name = 'index'").fetchone()
    if not n_before or stale:
        connection.execute("INSERT INTO words (words) VALUES ('rebuild')")
        connection.execute("DELETE FROM marks WHERE name = 'index'")
    return True


def set_aside(path: Path) -> Path:
    """Rename the file and its companions; returns the new name, which no file had before."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number = 0
    while True:
        aside = path.with_name(
            f"{path.stem}.unreadable-{stamp}{f'-{number}' if number else ''}.sqlite3"
        )
        if not aside.exists():
            break
        number += 1
    for companion in COMPANIONS:
        with suppress(FileNotFoundError):
            os.replace(f"{path}{companion}", f"{aside}{companion}")
    return aside


def folder_error(path: Path, error: Exception) -> HistoryError:
    """The error for a history file that cannot be opened."""
    return HistoryError(
        "the chat history cannot be opened",
        expected="a folder that can be written",
        got=f"{path.parent}: {error}",
        hint="set EAGLE_DATA to a folder of yours",
    )


__all__ = ["MIGRATIONS", "Opened", "open_database", "set_aside"]
