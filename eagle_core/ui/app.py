"""Builds the chat page and launches it on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import gradio as gr

from eagle_core.certificate.records import last_certificate
from eagle_core.errors import ConfigError
from eagle_core.ui import page, render
from eagle_core.ui.backend import ChatSession, OpenSession, SessionSlot
from eagle_core.ui.controls import build_controls
from eagle_core.ui.handlers import EXAMPLES, Handlers
from eagle_core.ui.rooms import Rooms

DEFAULT_PORT = 7860
# The engine takes one request at a time; those that wait run their handlers, which show their place.
MAX_OPEN_REQUESTS = 32
OPENING_POLL_S = 0.4
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
TITLE = "EAGLE chat"
EMPTY = (
    "### Ask something\n"
    "Answers come from a model on this machine. Words on a blue ground were guessed ahead "
    "and confirmed by the model."
)
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
ON_CHANNEL = """
const show = () => window.eagleChat && window.eagleChat.update(props.value);
watch('value', show);
show();
"""


def build_app(session: ChatSession) -> gr.Blocks:
    """The chat page on an open session, which the caller closes; :func:`launch` adds its look and script."""
    return build_page(SessionSlot(session), Rooms())


def launch(
    session: ChatSession | OpenSession,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    prevent_thread_lock: bool = False,
    on_ready: Callable[[str], object] | None = None,
) -> gr.Blocks:
    """Serve the page until interrupted, or return at once with ``prevent_thread_lock``.

    Args:
        session: an open session, or a function that opens one and reports events; then the page is there at
            once and shows the progress. An opened session is closed when serving ends.
        host: interface to listen on. Only requests that name this machine are answered.
        port: wanted port; a free one is taken if it is busy. None: 7860 or a free one.
        on_ready: called with the page's address.

    Returns: the running app (``local_url``, ``close()``).
    """
    slot, rooms = SessionSlot(), Rooms()
    if callable(session):
        slot.open_in_background(session)
    else:
        slot.session = session
    free = free_port(host, port or DEFAULT_PORT)
    app = build_page(slot, rooms)
    keep_proxies_off_loopback()
    app.launch(
        server_name=host,
        server_port=free,
        inbrowser=open_browser,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        ssr_mode=False,
        footer_links=[],
        run_history=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        app_kwargs={"middleware": page.middleware(host)},
        theme=page.theme(),
        head=page.head(),
    )
    if on_ready is not None:
        on_ready(str(app.local_url))
    if prevent_thread_lock:
        return app
    try:
        app.block_thread()
    finally:
        rooms.stop_all()
        slot.close()
    return app


def free_port(host: str, wanted: int) -> int:
    """``wanted`` if it is free on ``host``, else one that the system picks.

    Raises: ConfigError when this machine has no such interface.
    """
    problem: OSError | None = None
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                problem = error
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(
        f"cannot listen on {host}",
        expected="an IPv4 address or name of this machine",
        got=str(problem),
        hint="leave --host out to serve this machine only",
    )


def keep_proxies_off_loopback() -> None:
    """Gradio asks its own page over HTTP when it starts; a proxy in the environment must not answer."""
    for name in ("no_proxy", "NO_PROXY"):
        entries = [entry for entry in os.environ.get(name, "").split(",") if entry]
        os.environ[name] = ",".join(dict.fromkeys([*entries, "127.0.0.1", "localhost"]))


def build_page(slot: SessionSlot, rooms: Rooms) -> gr.Blocks:
    """Lay out the page and wire its events."""
    handlers = Handlers(slot, rooms)
    app = gr.Blocks(title=TITLE, analytics_enabled=False, fill_height=True)
    with app:
        with gr.Sidebar(open=True, width=320, elem_id="sidebar"):
            new_chat = gr.Button("New chat", elem_id="new-chat", variant="secondary")
            controls = build_controls()
            gr.Markdown("Settings apply to the next message.", elem_classes="muted")
        session = slot.session
        with gr.Column(elem_id="main"):
            header = gr.HTML(opening_header(session), elem_id="header")
            gr.HTML(
                html_template=view_switch(), js_on_load="window.eagleChat.bindViews(element)",
                elem_id="views",
            )  # fmt: skip
            chat = chat_component()
            gr.HTML(html_template='<div class="tokens"></div>', js_on_load="", elem_id="tokens")
            status = gr.HTML(render.status_html(None) if session else "", elem_id="status")
            notice = gr.HTML("" if session else render.opening_html(slot.opening), elem_id="notice")
            box = message_box(is_ready=session is not None)
            with gr.Accordion("Details", open=False, elem_id="details"):
                details = gr.HTML(render.details_html(None))
            channel = gr.HTML(
                render.empty_channel(0), html_template='<i class="channel" hidden></i>',
                js_on_load=ON_CHANNEL, elem_id="channel",
            )  # fmt: skip
        timer = gr.Timer(OPENING_POLL_S, active=True)
        outputs = [chat, channel, status, details, notice, box]
        wire(handlers, chat, box, new_chat, controls, outputs)
        opening = [header, notice, status, box, timer]
        app.load(handlers.poll_opening, None, opening, queue=False, **PRIVATE)
        timer.tick(handlers.poll_opening, None, opening, queue=False, **PRIVATE)
        app.unload(handlers.leave)
    app.queue(default_concurrency_limit=MAX_OPEN_REQUESTS)
    return app


def opening_header(session: ChatSession | None) -> str:
    """The title line; with what is loaded and verified once a session is open."""
    if session is None:
        return render.header_html(None)
    info = session.info
    return render.header_html(info, last_certificate(info.base, info.head, info.dtype))


def wire(
    handlers: Handlers, chat: Any, box: Any, new_chat: Any, controls: list[Any], outputs: list[Any]
) -> None:
    """Connect the page's events to the handlers."""
    long: dict[str, Any] = {
        "outputs": outputs, "concurrency_limit": MAX_OPEN_REQUESTS, "concurrency_id": "answers",
        "trigger_mode": "multiple", **PRIVATE,
    }  # fmt: skip
    box.submit(handlers.send, inputs=[box, *controls], **long)
    chat.retry(handlers.retry, inputs=controls, **long)
    chat.edit(handlers.edit, inputs=controls, **long)
    box.stop(handlers.stop, queue=False, **PRIVATE)
    new_chat.click(handlers.new_chat, None, outputs, queue=False, **PRIVATE)
    chat.clear(handlers.new_chat, None, outputs, queue=False, **PRIVATE)
    chat.example_select(pick_example, None, box, queue=False, **PRIVATE).then(
        handlers.send, inputs=[box, *controls], **long
    )


def pick_example(picked: gr.SelectData) -> str:
    """The text of the example that was clicked."""
    return str(picked.value["text"])


def chat_component() -> gr.Chatbot:
    """The conversation."""
    return gr.Chatbot(
        elem_id="chat",
        label="Conversation",
        show_label=False,
        buttons=["copy"],
        editable="user",
        sanitize_html=True,
        allow_tags=False,
        line_breaks=True,
        latex_delimiters=LATEX,
        layout="bubble",
        feedback_options=None,
        group_consecutive_messages=False,
        placeholder=EMPTY,
        examples=[{"text": text} for text in EXAMPLES],
        height="auto",
        scale=1,
    )


def message_box(is_ready: bool) -> gr.Textbox:
    """Where the user types."""
    return gr.Textbox(
        placeholder="Message the model" if is_ready else "Loading the model",
        label="Message",
        show_label=False,
        container=False,
        lines=1,
        max_lines=8,
        autofocus=True,
        interactive=is_ready,
        submit_btn=True,
        elem_id="box",
    )


def view_switch() -> str:
    """Chat or Tokens, the legend and the color switch."""
    return (
        '<div class="views">'
        '<div class="segmented" role="group" aria-label="View">'
        '<button type="button" data-view="chat" aria-pressed="true">Chat</button>'
        '<button type="button" data-view="tokens" aria-pressed="false">Tokens</button></div>'
        '<div class="legend" aria-label="Legend">'
        '<span class="key"><i class="swatch drafted"></i>drafted <b data-count="d">0</b></span>'
        '<span class="key"><i class="swatch"></i>model <b data-count="t">0</b></span></div>'
        '<label class="switch"><input type="checkbox" data-colors checked> Color drafted words</label>'
        '<span class="plain-note" hidden></span>'
        '<span class="say" role="status" aria-live="polite"></span></div>'
    )


__all__ = ["build_app", "free_port", "launch"]
