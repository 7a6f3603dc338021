"""Streams that pages read by a connection of their own, or bit by bit."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eagle_core.ui import streams
from eagle_core.ui.streams import N_HELD, STREAM_PATH, Streams


class Feed:
    """What a tab's stream says: pieces, then None; ``b"fail"`` breaks it."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.n_started, self.is_left = 0, False

    async def say(self, *pieces: bytes | None) -> None:
        for piece in pieces:
            self.pieces.put_nowait(piece)
        await until(self.pieces.empty)
        await asyncio.sleep(0.01)


class Source:
    """An app with a stream for each tab."""

    def __init__(self) -> None:
        self.feeds: defaultdict[str, Feed] = defaultdict(Feed)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        feed = self.feeds[scope["query_string"].decode().partition("&")[0]]
        feed.n_started += 1
        assert (await receive())["type"] == "http.request"
        if b"broken" in scope["query_string"]:
            raise RuntimeError("broken")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        watch = asyncio.create_task(self._watch(receive, feed))
        while (piece := await feed.pieces.get()) is not None:
            if piece == b"fail":
                raise RuntimeError("the source broke")
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        watch.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _watch(self, receive: Any, feed: Feed) -> None:
        assert (await receive())["type"] == "http.disconnect"
        feed.is_left = True
        feed.pieces.put_nowait(None)


class Reader:
    """One connection of a page."""

    def __init__(self, app: Streams, query: str, method: str = "GET", path: str = STREAM_PATH):
        self.body, self.head, self.is_complete = b"", dict[str, Any](), False
        self._is_asked, self._gone = False, asyncio.Event()
        scope = {
            "type": "http", "path": path, "method": method, "query_string": query.encode(),
            "client": ("127.0.0.1", 1), "headers": [],
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    @property
    def how(self) -> Any:
        return dict(self.head["headers"]).get(b"eagle-stream")

    async def close(self) -> None:
        self._gone.set()
        await self.task

    async def _receive(self) -> Any:
        if self._is_asked:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        self._is_asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.head = message
        else:
            self.body += message.get("body", b"")
            self.is_complete = not message.get("more_body", False)


async def until(is_true: Callable[[], Any]) -> None:
    end_s = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.001)


def on_source(visit: Callable[[Source, Streams], Awaitable[None]]) -> None:
    async def run() -> None:
        source = Source()
        await visit(source, Streams(source))

    asyncio.run(run())


async def hold(app: Streams, tab: str) -> Reader:
    reader = Reader(app, f"session_hash={tab}&stream={tab}&from=0")
    await until(lambda: reader.head)
    return reader


async def fill(app: Streams) -> list[Reader]:
    """As many connections as tabs may hold."""
    return [await hold(app, f"other{i}") for i in range(N_HELD)]


async def part(app: Streams, place: int, method: str = "GET") -> Reader:
    reader = Reader(app, f"session_hash=t&stream=t&from={place}", method)
    await reader.task
    return reader


def test_a_held_stream_is_the_apps_own() -> None:
    async def visit(source: Source, app: Streams) -> None:
        feed, reader = source.feeds["session_hash=t"], await hold(app, "t")
        await feed.say(b"one")
        assert (reader.body, reader.is_complete) == (b"one", False)
        await feed.say(b"two", None)
        await reader.task
        assert (reader.body, reader.is_complete) == (b"onetwo", True)
        assert (reader.head["status"], reader.how) == (200, b"whole")
        assert dict(reader.head["headers"])[b"a"] == b"b"
        assert not feed.is_left

    on_source(visit)


def test_what_is_not_the_scripts_passes_through() -> None:
    async def visit(source: Source, app: Streams) -> None:
        for path, query in ((STREAM_PATH, "session_hash=t"), ("/", "session_hash=t&stream=t")):
            reader = Reader(app, query, path=path)
            await until(lambda reader=reader: reader.head)
            assert reader.how is None
            await source.feeds["session_hash=t"].say(b"one", None)
            await reader.task
            assert reader.body == b"one"

    on_source(visit)


def test_too_many_streams_are_read_bit_by_bit() -> None:
    async def visit(source: Source, app: Streams) -> None:
        others, feed, n_got = await fill(app), source.feeds["session_hash=t"], 0
        first = await part(app, 0)
        assert (first.body, first.how, first.is_complete) == (b"", b"part", True)
        for piece in (b"one", b"two", b"three"):
            await feed.say(piece)
            answer = await part(app, n_got)
            assert (answer.body, answer.how) == (piece, b"part")
            n_got += len(piece)
        assert feed.n_started == 1, "one stream, however often it is asked for"
        await feed.say(b"end", None)
        last = await part(app, n_got)
        assert (last.body, last.how) == (b"end", b"whole")
        assert (await part(app, n_got)).head["status"] == 404
        assert not feed.is_left
        assert not any(reader.is_complete for reader in others)

    on_source(visit)


def test_a_free_connection_is_taken() -> None:
    async def visit(source: Source, app: Streams) -> None:
        others, feed = await fill(app), source.feeds["session_hash=t"]
        await feed.say()
        assert (await part(app, 0)).how == b"part"
        await feed.say(b"one")
        await others[0].close()
        reader = Reader(app, "session_hash=t&stream=t&from=0")
        await until(lambda: reader.body == b"one")
        assert reader.how == b"whole"
        await feed.say(b"two", None)
        await reader.task
        assert reader.body == b"onetwo"

    on_source(visit)


def test_a_page_that_is_gone_leaves_its_stream() -> None:
    async def visit(source: Source, app: Streams) -> None:
        others = await fill(app)
        await part(app, 0)
        feed = source.feeds["session_hash=t"]
        assert (await part(app, 0, "POST")).head["status"] == 204
        await until(lambda: feed.is_left)
        await others[0].close()
        await until(lambda: source.feeds["session_hash=other0"].is_left)
        assert not source.feeds["session_hash=other1"].is_left
        assert (await hold(app, "next")).how == b"whole", "its connection is free"

    on_source(visit)


def test_a_page_that_asks_no_more_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visit(source: Source, app: Streams) -> None:
        await fill(app)
        for _ in range(8):  # longer than the patience, but never silent for so long
            await part(app, 0)
            await asyncio.sleep(0.1)
        feed = source.feeds["session_hash=t"]
        assert not feed.is_left
        await until(lambda: feed.is_left)
        assert (await part(app, 1)).head["status"] == 404

    monkeypatch.setattr(streams, "PATIENCE_S", 0.5)
    on_source(visit)


def test_a_stream_that_fails_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def visit(source: Source, app: Streams) -> None:
        reader = await hold(app, "t")
        for piece in (b"one", b"fail"):
            source.feeds["session_hash=t"].pieces.put_nowait(piece)
        await reader.task
        assert (reader.body, reader.is_complete) == (b"one", True)
        broken = await hold(app, "broken")
        await broken.task
        assert broken.head["status"] == 500

    on_source(visit)
    assert "a stream of updates failed" in caplog.text
