"""The chat page: its layout, and which event calls which handler."""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle_core.ui import presets, render
from eagle_core.ui.actions import Actions
from eagle_core.ui.backend import ChatSession, SessionSlot
from eagle_core.ui.controls import Panel, build_controls
from eagle_core.ui.handlers import EXAMPLES, Handlers, header_of
from eagle_core.ui.model_actions import ModelsHandlers
from eagle_core.ui.proposal import ProposalHandlers, build_proposal
from eagle_core.ui.rooms import Rooms
from eagle_core.ui.shared import Limits

# The engine takes one request at a time; those that wait run their handlers, which show their place.
MAX_OPEN_REQUESTS = 32
OPENING_POLL_S = 0.4
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]
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
# The page's script tells the server what to do through these three events; their data says what.
ON_COMPOSER = """
window.eaglePage.composer(element, () => props.value, (then) => watch('value', then), {
  act: (data) => trigger('act', data),
  answer: (data) => trigger('answer', data),
  restore: (data) => trigger('restore', data),
});
"""
SETTINGS_CHANGED = "() => { window.eaglePage.settingsChanged(); }"
ON_BAR = "window.eaglePage.bar(element);"
ON_CHATS = "window.eaglePage.chats(element, () => props.value, (then) => watch('value', then));"


def build_chat(
    slot: SessionSlot,
    rooms: Rooms,
    app: gr.Blocks,
    models: ModelsHandlers,
    limits: Limits | None = None,
) -> None:
    """Lay out the page inside the current blocks and wire its events; ``limits`` are told if there are."""
    handlers = Handlers(slot, rooms)
    actions = Actions(handlers)
    session = slot.session
    library = gr.HTML(
        {}, html_template='<div class="chats"></div>', js_on_load=ON_CHATS, apply_default_css=False,
        elem_id="chats",
    )  # fmt: skip
    with gr.Column(elem_id="settings"):
        panel_top("settings", "Settings", "They apply to the next message.")
        panel = build_controls()
    with gr.Column(elem_id="details"):
        panel_top("details", "Details", "Figures of the latest answer.")
        details = gr.HTML(render.details_html(None))
    with gr.Column(elem_id="main"):
        header = top(session)
        gr.HTML(
            html_template=view_switch(), js_on_load="window.eagleChat.bindViews(element)",
            elem_id="views",
        )  # fmt: skip
        if limits is not None:
            gr.Markdown(limits.words, elem_id="limits", elem_classes="muted")
        chat = chat_component()
        gr.HTML(html_template='<div class="tokens"></div>', js_on_load="", elem_id="tokens")
        build_proposal(ProposalHandlers(models), app)
        status = gr.HTML(render.status_html(None) if session else "", elem_id="status")
        notice = gr.HTML("" if session else render.opening_html(slot.opening), elem_id="notice")
        box = message_box(is_ready=session is not None)
        composer = gr.HTML(
            {}, html_template='<div class="composer"></div>', js_on_load=ON_COMPOSER, apply_default_css=False,
            elem_id="composer",
        )  # fmt: skip
        channel = gr.HTML(
            render.empty_channel(0), html_template='<i class="channel" hidden></i>',
            js_on_load=ON_CHANNEL, elem_id="channel",
        )  # fmt: skip
    timer = gr.Timer(OPENING_POLL_S, active=True)
    outputs = [
        chat, channel, status, details, notice, box, composer, library,
        panel.by_name["system_prompt"], header, timer,
    ]  # fmt: skip
    wire_answers(handlers, chat, box, composer, panel, outputs)
    wire_actions(actions, composer, panel, notice, outputs)
    opening = [header, notice, status, box, panel.reproducible, timer]
    panel.reproducible.input(
        handlers.set_reproducible, panel.reproducible, [header, notice], queue=False, **PRIVATE
    )
    app.load(handlers.poll_opening, None, opening, queue=False, **PRIVATE)
    app.load(actions.list_presets, None, panel.preset, queue=False, **PRIVATE)
    timer.tick(handlers.poll_opening, None, opening, queue=False, **PRIVATE)


def wire_answers(
    handlers: Handlers, chat: Any, box: Any, composer: Any, panel: Panel, outputs: list[Any]
) -> None:
    """Events that make the model write, and Stop."""
    long: dict[str, Any] = {
        "outputs": outputs, "concurrency_limit": MAX_OPEN_REQUESTS, "concurrency_id": "answers",
        "trigger_mode": "multiple", **PRIVATE,
    }  # fmt: skip
    box.submit(handlers.send, inputs=[box, *panel.controls], **long)
    composer.answer(handlers.answer, inputs=panel.controls, **long)
    box.stop(handlers.stop, queue=False, **PRIVATE)
    chat.example_select(pick_example, None, box, queue=False, **PRIVATE).then(
        handlers.send, inputs=[box, *panel.controls], **long
    )


def wire_actions(
    actions: Actions, composer: Any, panel: Panel, notice: Any, outputs: list[Any]
) -> None:
    """Events that are done at once."""
    quick: dict[str, Any] = {"queue": False, "trigger_mode": "multiple", **PRIVATE}
    composer.act(actions.act, panel.controls, outputs, **quick)
    settings = [*panel.controls, panel.preset]
    composer.restore(actions.restore, None, settings, **quick).then(None, js=SETTINGS_CHANGED)
    panel.reset.click(actions.reset, None, settings, **quick).then(None, js=SETTINGS_CHANGED)
    kept = [panel.by_name[name] for name in presets.KEPT_SETTINGS]
    panel.preset.select(
        actions.choose_preset, panel.preset, [panel.by_name["system_prompt"], *kept], **quick
    ).then(None, js=SETTINGS_CHANGED)
    panel.save_preset.click(
        actions.save_preset, [panel.preset, *panel.controls], [panel.preset, notice], **quick
    )
    panel.delete_preset.click(actions.delete_preset, panel.preset, [panel.preset, notice], **quick)


def top(session: ChatSession | None) -> gr.HTML:
    """The line at the top: the list's switch, what is loaded, the other switches. Returns the header."""
    with gr.Row(elem_id="top"):
        gr.HTML(html_template=chats_switch(), js_on_load=ON_BAR, apply_default_css=False)
        header = gr.HTML(header_of(session), elem_id="header")
        gr.HTML(html_template=page_switches(), js_on_load=ON_BAR, apply_default_css=False)
    return header


def panel_top(name: str, title: str, about: str) -> None:
    """The first line of a panel on the right: what it is, and its own way to close it."""
    line = (
        f'<div class="panel-top"><h2>{title}</h2><button type="button" class="tool" '
        f'data-close="{name}" aria-label="Close {title.lower()}" title="Close"></button></div>'
        f'<p class="muted">{about}</p>'
    )
    gr.HTML(html_template=line, js_on_load=ON_BAR, apply_default_css=False)


def pick_example(picked: gr.SelectData) -> str:
    """The text of the example that was clicked."""
    return str(picked.value["text"])


def chat_component() -> gr.Chatbot:
    """The conversation. The page's script scrolls it, and puts the tools under each message."""
    return gr.Chatbot(
        elem_id="chat",
        label="Conversation",
        show_label=False,
        buttons=[],
        autoscroll=False,
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
        placeholder="Message the model"
        if is_ready
        else "Message the model: it answers as soon as it is loaded",
        label="Message",
        show_label=False,
        container=False,
        lines=1,
        max_lines=8,
        autofocus=True,
        interactive=True,
        submit_btn=True,
        elem_id="box",
    )


def chats_switch() -> str:
    """Opens and closes the list of chats."""
    return (
        '<div class="bar"><button type="button" data-drawer="chats" aria-controls="chats" '
        'aria-expanded="false" aria-label="Chats" title="Chats (Ctrl+B)"></button></div>'
    )


def page_switches() -> str:
    """Light and dark, help, and the panels on the right."""
    return (
        '<div class="bar">'
        '<button type="button" data-theme aria-label="Light or dark" title="Light or dark"></button>'
        '<button type="button" data-help aria-label="Keyboard shortcuts" '
        'title="Keyboard shortcuts (?)"></button>'
        '<button type="button" data-drawer="details" aria-controls="details" '
        'aria-expanded="false" aria-label="Details" title="Details of the latest answer"></button>'
        '<button type="button" data-drawer="settings" aria-controls="settings" '
        'aria-expanded="false" aria-label="Settings" title="Settings (Ctrl+,)"></button></div>'
    )


def view_switch() -> str:
    """Chat or Tokens, the legend and the color switch."""
    return (
        '<div class="views">'
        '<div class="segmented" role="group" aria-label="View">'
        '<button type="button" data-view="chat" aria-pressed="true">Chat</button>'
        '<button type="button" data-view="tokens" aria-pressed="false">Tokens</button>'
        '<a href="compare" title="Race two or three set-ups on one prompt">Compare</a>'
        '<a href="models" title="Fetch, choose and delete models">Models</a></div>'
        '<div class="legend" aria-label="Legend">'
        '<span class="key"><i class="swatch drafted"></i>drafted <b data-count="d">0</b></span>'
        '<span class="key"><i class="swatch"></i>model <b data-count="t">0</b></span></div>'
        '<label class="switch"><input type="checkbox" data-colors checked '
        'aria-label="Color drafted words"><span>Color<span class="more"> drafted words</span></span></label>'
        '<span class="plain-note" hidden></span>'
        '<span class="say" role="status" aria-live="polite"></span></div>'
    )


__all__ = ["MAX_OPEN_REQUESTS", "build_chat", "chat_component"]
