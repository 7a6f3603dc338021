"""A package index on this machine with one wheel, that can be slow, break off, or know no ranges."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHUNK_BYTES = 4096


class WheelIndex:
    """Serves ``wheel`` until the block is left.

    ``knows_ranges``: whether a part may be asked for; ``break_after``: a connection is cut after so many
    bytes, once for each number; ``pause_s``: between pieces; ``sha256``: what the index claims.
    Seen: ``ranges`` has the Range of each request for the file, ``n_sent`` all bytes of it that were sent.
    """

    def __init__(self, wheel: Path) -> None:
        self.name, self.data = wheel.name, wheel.read_bytes()
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self.knows_ranges = True
        self.break_after: list[int] = []
        self.pause_s = 0.0
        self.ranges: list[str | None] = []
        self.n_sent = 0

    def __enter__(self) -> WheelIndex:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """For PIP_INDEX_URL."""
        return f"http://127.0.0.1:{self._server.server_port}/simple"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """The page of the package, or the file."""
        if not request.path.endswith(".whl"):
            page = f'<a href="/files/{self.name}#sha256={self.sha256}">{self.name}</a>'.encode()
            request.send_response(200)
            request.send_header("Content-Type", "text/html")
            request.send_header("Content-Length", str(len(page)))
            request.end_headers()
            request.wfile.write(page)
            return
        asked = request.headers.get("Range")
        self.ranges.append(asked)
        found = re.fullmatch(r"bytes=(\d+)-", asked or "")
        start = int(found[1]) if found and self.knows_ranges else 0
        request.send_response(206 if found and self.knows_ranges else 200)
        request.send_header("Content-Length", str(len(self.data) - start))
        request.end_headers()
        self._send(request, start)

    def _send(self, request: BaseHTTPRequestHandler, start: int) -> None:
        end = len(self.data)
        if self.break_after:
            end = min(end, start + self.break_after.pop(0))
        for place in range(start, end, CHUNK_BYTES):
            piece = self.data[place : min(place + CHUNK_BYTES, end)]
            try:
                request.wfile.write(piece)
            except OSError:  # the one who asked is gone
                return
            self.n_sent += len(piece)
            time.sleep(self.pause_s)
        request.close_connection = True


__all__ = ["WheelIndex"]
