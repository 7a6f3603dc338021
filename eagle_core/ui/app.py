"""Builds the app's pages and launches them on this machine."""

from __future__ import annotations

import logging
import os
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from starlette.routing import BaseRoute

from eagle_core.config import LoadConfig
from eagle_core.errors import ConfigError, HistoryError
from eagle_core.history import HistoryStore, SqliteHistory, open_history
from eagle_core.ports import free_port
from eagle_core.ui import page
from eagle_core.ui.access import Credentials
from eagle_core.ui.backend import ChatSession, OnEvent, OpenSession, SessionSlot
from eagle_core.ui.chat_page import MAX_OPEN_REQUESTS, build_chat
from eagle_core.ui.compare import build_compare
from eagle_core.ui.model_actions import ModelsHandlers
from eagle_core.ui.model_in_use import OpenModel
from eagle_core.ui.models_page import build_models
from eagle_core.ui.pace import QuietBlocks
from eagle_core.ui.rooms import Rooms
from eagle_core.ui.shared import Limits
from eagle_core.worker import open_in_worker

logger = logging.getLogger(__name__)

DEFAULT_PORT = 7860
PORT_TRIES = 5
TITLE = "EAGLE chat"


def open_model(config: LoadConfig, on_event: OnEvent) -> ChatSession:
    """A session on what ``config`` names, in a process of its own. Raises as :meth:`Session.open` does."""
    return open_in_worker(config, on_event)


def build_app(session: ChatSession, history: HistoryStore | None = None) -> gr.Blocks:
    """The pages on an open session, which the caller closes; :func:`launch` adds their look and script."""
    return build_page(SessionSlot(session), Rooms(stores(page.LOOPBACK[0], history)), open_model)


@dataclass(frozen=True, slots=True)
class Running:
    """A served app; :meth:`close` ends answers and server and lets go of the model."""

    app: gr.Blocks
    slot: SessionSlot
    rooms: Rooms

    @property
    def url(self) -> str:
        """The page's address."""
        return str(self.app.local_url)

    def close(self) -> None:
        """Stop every answer, free the model, close the server. Twice does no harm."""
        self.rooms.stop_all()
        self.slot.close()
        self.app.close(verbose=False)


def launch(
    session: ChatSession | OpenSession,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    prevent_thread_lock: bool = False,
    on_ready: Callable[[str], object] | None = None,
    history: HistoryStore | None = None,
    open_model: OpenModel = open_model,
    settings: LoadConfig | None = None,
    auth: Credentials | None = None,
) -> gr.Blocks:
    """Serve the page until interrupted, or return at once with ``prevent_thread_lock``.

    Args: as :func:`serve` takes them, and
        open_browser: show the page in the user's browser.
        on_ready: called with the page's address.

    Returns: the running app (``local_url``, ``close()``).
    """
    running = serve(session, host, port, history, open_model, settings, auth)
    if open_browser:
        webbrowser.open(running.url)
    if on_ready is not None:
        on_ready(running.url)
    if prevent_thread_lock:
        return running.app
    try:
        running.app.block_thread()
    finally:
        running.close()
    return running.app


def serve(
    session: ChatSession | OpenSession,
    host: str = "127.0.0.1",
    port: int | None = None,
    history: HistoryStore | None = None,
    open_model: OpenModel = open_model,
    settings: LoadConfig | None = None,
    auth: Credentials | None = None,
    routes: Sequence[BaseRoute] = (),
    limits: Limits | None = None,
) -> Running:
    """Serve the page in threads of its own.

    Args:
        session: an open session, or a function that opens one and reports events; then the page is there at
            once and shows the progress. An opened session is closed when serving ends.
        host: interface to listen on. Only requests that name this machine are answered.
        port: wanted port; a free one is taken if it is busy. None: 7860 or a free one.
        history: where chats are kept; None: the user's own history, or each tab's own memory when ``host`` is
            open to other machines.
        open_model: opens the models that are chosen on the page.
        settings: how the first one is loaded; what is no property of that model holds for the others.
        auth: user and password that every request must bring; None: no login.
        routes: more addresses to answer.
        limits: what strangers may ask for on a Space, None on a machine of one's own. With limits the chats
            are kept in each visitor's browser.

    Raises: ConfigError when nothing can listen on ``host``.
    """
    slot = SessionSlot(None if callable(session) else session)
    rooms = Rooms(stores(host, history))
    if limits is not None:
        rooms = Rooms(lambda: SqliteHistory(None), keeps_in_browser=True)
    free_port(host, port or DEFAULT_PORT)  # a wrong host is said before a model is loaded
    if callable(session):
        slot.config = settings or LoadConfig()
        slot.open_in_background(session)
    app = build_page(slot, rooms, open_model, settings, host in page.LOOPBACK, limits)
    keep_proxies_off_loopback()
    try:
        listen(
            app,
            host,
            port or DEFAULT_PORT,
            middleware=page.middleware(host, auth) if limits is None else page.space_middleware(),
            routes=[rooms.paces.route(), *routes],
        )
    except BaseException:
        slot.close()
        raise
    return Running(app, slot, rooms)


def listen(app: gr.Blocks, host: str, port: int, **app_kwargs: Any) -> None:
    """Start the server on ``port`` or, if that is taken, on one that the system picks.

    Between finding a free port and listening on it another program may take it: then the next one is tried.
    Raises: ConfigError.
    """
    for _ in range(PORT_TRIES):
        free = free_port(host, port)
        try:
            app.launch(
                server_name=host,
                server_port=free,
                inbrowser=False,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                ssr_mode=False,
                footer_links=[],
                run_history=False,
                pwa=False,
                mcp_server=False,
                enable_monitoring=False,
                app_kwargs=app_kwargs,
                theme=page.theme(),
                head=page.head(),
            )
        except OSError:
            logger.info("port %d was taken meanwhile", free)
            continue
        return
    raise ConfigError(
        f"no port of {host} stays free",
        hint="try again, or choose another port with --port",
    )


def keep_proxies_off_loopback() -> None:
    """Gradio asks its own page over HTTP when it starts; a proxy in the environment must not answer."""
    for name in ("no_proxy", "NO_PROXY"):
        entries = [entry for entry in os.environ.get(name, "").split(",") if entry]
        os.environ[name] = ",".join(dict.fromkeys([*entries, "127.0.0.1", "localhost"]))


def build_page(
    slot: SessionSlot,
    rooms: Rooms,
    open_model: OpenModel,
    settings: LoadConfig | None = None,
    can_change: bool = True,
    limits: Limits | None = None,
) -> gr.Blocks:
    """The app's pages.

    Args:
        can_change: whether who sees them may change what is loaded.
        limits: what strangers may ask for, told on the page.
    """
    app = QuietBlocks(title=TITLE, analytics_enabled=False, fill_height=True)
    models = ModelsHandlers(
        slot, lambda: rooms.is_busy or races.is_busy, open_model, settings, can_change
    )
    with app:
        build_chat(slot, rooms, app, models, limits)
    with app.route("Compare", "/compare", show_in_navbar=False):
        races = build_compare(slot, app, open_model if can_change else None, lambda: rooms.is_busy)
    with app.route("Models", "/models", show_in_navbar=False):
        build_models(models, app)
    most = limits.max_waiting if limits is not None else None
    app.queue(default_concurrency_limit=MAX_OPEN_REQUESTS, max_size=most)
    return app


def stores(host: str, history: HistoryStore | None) -> Callable[[], HistoryStore]:
    """Where the chats of a new tab are kept.

    On this machine alone all tabs share the user's own history. Strangers who share the app over a network
    must not read each other's chats, so there each tab has a memory of its own, which ends with it.
    """
    if history is not None:
        return lambda: history
    if host not in page.LOOPBACK:
        return lambda: SqliteHistory(None)
    try:
        kept = open_history()
    except HistoryError as error:
        logger.error("chats are not kept this time: %s", error.code)
        kept = SqliteHistory(None)
        kept.notice = f"Chats are not kept this time: {error}"
    return lambda: kept


__all__ = ["Running", "build_app", "launch", "serve"]
