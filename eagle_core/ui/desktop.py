"""The app in a window of its own: the same pages, served on this machine, shown by the system's web view.

The port is always the same if it is free, because what a page keeps in its web view (light or dark, say)
belongs to its address. Whether a window is open already is :mod:`eagle_core.instance`'s business.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from eagle_core.config import LoadConfig
from eagle_core.instance import FORWARD_PATH, KEY_HEADER, Instance, folder, write_down
from eagle_core.toolkit import load_toolkit
from eagle_core.ui.app import TITLE, serve
from eagle_core.ui.backend import OpenSession

logger = logging.getLogger(__name__)

PORT = 27860  # away from 7860 and its neighbours, where `serve` and other apps of the kind are
SIZE, SMALLEST = (1200, 820), (420, 480)


class Window:
    """The one window. What other threads ask of it waits until it is there."""

    def __init__(self, webview: Any, url: str) -> None:
        self._webview = webview
        self._is_minimized = False
        webview.settings["ALLOW_DOWNLOADS"] = True
        repair_dialogs()
        self.native = webview.create_window(
            TITLE, url, width=SIZE[0], height=SIZE[1], min_size=SMALLEST, text_select=True, zoomable=True
        )  # fmt: skip
        self.native.events.minimized += self._minimized
        self.native.events.restored += self._restored

    def show(self, then: Callable[[Any], None] | None = None) -> None:
        """Draw it until the user closes it. Call it from the main thread."""
        storage = folder() / "storage"
        self._webview.start(
            then, (self.native,) if then is not None else None,
            private_mode=False, storage_path=str(storage),
        )  # fmt: skip

    def bring_forward(self) -> None:
        """Bring it to the front, from any thread."""
        is_gtk = self._webview.renderer == "gtkwebkit2"  # there this is what presents a window
        if self._is_minimized or is_gtk:
            self.native.restore()
        self.native.show()

    def _minimized(self) -> None:
        self._is_minimized = True

    def _restored(self) -> None:
        self._is_minimized = False


def repair_dialogs() -> None:
    """Let files be saved with GTK where the user has no download folder; pywebview 6.2 fails there."""
    gtk: Any = sys.modules.get("webview.platforms.gtk")
    if gtk is None:
        return
    original = gtk.BrowserView.create_file_dialog

    def with_folder(view: Any, kind: Any, folder: str | None, *rest: Any) -> Any:
        return original(view, kind, folder or str(Path.home()), *rest)

    gtk.BrowserView.create_file_dialog = with_folder


def run_window(
    open_session: OpenSession,
    settings: LoadConfig | None = None,
    say: Callable[[str], object] = logger.info,
    then: Callable[[Any], None] | None = None,
) -> None:
    """Open the app's window and return when it is closed, with the model freed and the server gone.

    Args:
        open_session: opens the model while the window is there already.
        settings: how it is loaded; see :func:`eagle_core.ui.app.serve`.
        say: gets sentences for the user.
        then: called with the toolkit's window, in a thread of its own.

    Raises: ConfigError when there is nothing to draw a window with; nothing was loaded then.
    """
    webview = load_toolkit()
    windows: list[Window] = []
    key = secrets.token_urlsafe(32)
    running = serve(
        open_session, port=PORT, settings=settings, routes=[forward_route(windows, key)]
    )
    try:
        if not running.url.rstrip("/").endswith(f":{PORT}"):
            say(f"Port {PORT} is taken: what the pages keep, such as light or dark, is not found.")
        windows.append(Window(webview, running.url))
        write_down(Instance(running.url, key, os.getpid()))
        windows[0].show(then)
    finally:
        running.close()


def forward_route(windows: list[Window], key: str) -> Route:
    """Where a second start asks the window to come forward. The key is in a file of the user's."""

    async def forward(request: Request) -> Response:
        given = request.headers.get(KEY_HEADER, "").encode()
        if not secrets.compare_digest(given, key.encode()):
            return Response(status_code=404)
        for window in windows:
            threading.Thread(target=window.bring_forward, name="forward", daemon=True).start()
        return Response(status_code=204)

    return Route(FORWARD_PATH, forward, methods=["POST"])


__all__ = ["PORT", "Window", "forward_route", "run_window"]
