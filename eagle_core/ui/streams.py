"""Gradio's streams of updates, so that many tabs that wait for answers leave connections for others.

A browser opens six connections to one server for all its tabs, and a tab holds one from its question to the
end of the answer. Here a few tabs do; the others ask now and then what has come. Gradio sees none of this:
its stream goes on whichever way its page reads it. ``assets/streams.js`` is the page's side.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import QueryParams
from starlette.responses import Response

from eagle_core.ui.access import App, Receive, Scope, Send

logger = logging.getLogger(__name__)

STREAM_PATH = "/gradio_api/queue/data"
N_HELD = 3  # connections that a browser's tabs may hold at a time
# A page that asks now and then is gone when it does not for so long; browsers wake hidden ones once a minute.
PATIENCE_S = 150.0
# Tells the page whether an answer has the rest of the stream, or a part of it.
HEADER, WHOLE, PART = b"eagle-stream", b"whole", b"part"
FAILED: dict[str, Any] = {"type": "http.response.start", "status": 500, "headers": []}


class Stream:
    """One of Gradio's streams, in a task of its own; what it says is kept until the page has it."""

    def __init__(self, app: App, scope: Scope) -> None:
        self.head: MutableMapping[str, Any] = {}
        self.is_over = False
        self._body, self._n_taken = bytearray(), 0
        self._is_left, self._news = asyncio.Event(), asyncio.Event()
        self._is_asked = False
        self._task = asyncio.create_task(self._run(app, scope))

    @property
    def is_left(self) -> bool:
        """Whether the page is gone."""
        return self._is_left.is_set()

    def leave(self) -> None:
        """The page is gone: Gradio is told that its connection ended."""
        self._is_left.set()
        self._news.set()

    async def wait(self) -> None:
        """Until there is more, or the end."""
        await self._news.wait()
        self._news.clear()

    def after(self, place: int) -> bytes:
        """What has come after ``place``, in bytes from the start; what came before it is not kept."""
        del self._body[: max(place - self._n_taken, 0)]
        self._n_taken = max(place, self._n_taken)
        return bytes(self._body)

    async def _run(self, app: App, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception:  # its last message says so to the page; what is left is to end it
            logger.exception("a stream of updates failed")
        finally:
            self.is_over, self.head = True, self.head or FAILED
            self._news.set()

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._is_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.head = message
        else:
            self._body += message.get("body", b"")
        self._news.set()


class Streams:
    """ASGI middleware that answers the app's own script; everything else passes through it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._streams: dict[str, Stream] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}
        self._n_held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a stream to a page that names it, from where the page is; POST: the page is gone."""
        query = QueryParams(scope.get("query_string", b""))
        key = query.get("stream", "")
        if scope["type"] != "http" or scope["path"] != STREAM_PATH or not key:
            await self.app(scope, receive, send)
            return
        if scope["method"] == "POST":
            self._drop(key)
            await Response(status_code=204)(scope, receive, send)
            return
        place = int(query["from"]) if query.get("from", "").isdecimal() else 0
        if key not in self._streams and not place:
            self._streams[key] = Stream(self.app, scope)
        stream = self._streams.get(key)
        if stream is None:
            await Response("This stream has ended.", status_code=404)(scope, receive, send)
            return
        if key in self._ends:
            self._ends.pop(key).cancel()
        while not stream.head:
            await stream.wait()
        browser = (scope.get("client") or ("",))[0]
        if self._n_held[browser] >= N_HELD:
            await self._say(key, stream, place, send)
            return
        self._n_held[browser] += 1
        try:
            await self._follow(stream, place, receive, send)
        finally:
            self._n_held[browser] -= 1
            self._drop(key)

    async def _say(self, key: str, stream: Stream, place: int, send: Send) -> None:
        """What has come; the page asks again if that is not all."""
        is_over, body = stream.is_over, stream.after(place)
        if is_over:
            self._drop(key)
        else:
            loop = asyncio.get_running_loop()
            self._ends[key] = loop.call_later(PATIENCE_S, self._drop, key)
        await send(headed(stream.head, WHOLE if is_over else PART))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _follow(self, stream: Stream, place: int, receive: Receive, send: Send) -> None:
        """All that comes, until the stream ends or the page is gone."""
        watch = asyncio.create_task(leave_with(receive, stream))
        try:
            await send(headed(stream.head, WHOLE))
            while not stream.is_left:
                is_over, body = stream.is_over, stream.after(place)
                place += len(body)
                await send({"type": "http.response.body", "body": body, "more_body": not is_over})
                if is_over:
                    return
                await stream.wait()
        finally:
            watch.cancel()

    def _drop(self, key: str) -> None:
        if key in self._ends:
            self._ends.pop(key).cancel()
        if key in self._streams:
            self._streams.pop(key).leave()


async def leave_with(receive: Receive, stream: Stream) -> None:
    """Leave the stream when its reader's connection ends."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.leave()


def headed(head: MutableMapping[str, Any], how: bytes) -> MutableMapping[str, Any]:
    """The start of an answer that says how much of the stream it has."""
    return {**head, "headers": [*head.get("headers", []), (HEADER, how)]}


__all__ = ["Stream", "Streams"]
