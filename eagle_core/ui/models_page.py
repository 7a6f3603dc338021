"""The Models page: its layout, and which event calls which handler."""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle_core import templates
from eagle_core.ui.model_actions import ModelsHandlers
from eagle_core.ui.precision_choice import AUTO, INFO

POLL_S = 0.5
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
ON_TOP = "window.eaglePage.bar(element);"
# A button says what to do and with which pair; deleting is asked about first.
ON_BUTTONS = """
document.body.dataset.page = 'models';
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-do]');
  if (!button || (button.dataset.ask && !window.confirm(button.dataset.ask))) return;
  if (['choose', 'check'].includes(button.dataset.do))
    document.getElementById('model-name')?.scrollIntoView({block: 'center'});
  trigger('act', {do: button.dataset.do, name: button.dataset.name, head: button.dataset.head});
});
"""


def build_models(handlers: ModelsHandlers, app: gr.Blocks) -> None:
    """Lay out the page inside the current route and wire its events."""
    plain: dict[str, Any] = {"apply_default_css": False}
    with gr.Column(elem_id="models"):
        gr.HTML(html_template=top(), js_on_load=ON_TOP, **plain)
        loaded = gr.HTML("", elem_id="models-loaded", **plain)
        with gr.Column(elem_id="models-now"):
            notice = gr.HTML("", elem_id="models-notice", **plain)
            work = gr.HTML("", js_on_load=ON_BUTTONS, elem_id="models-work", **plain)
        with gr.Row(visible=False, elem_id="models-template", elem_classes="go") as chooser:
            template = gr.Dropdown(
                list(templates.names()), value=None, elem_id="template-name", label="Chat template",
                info="The model in use brings none: choose how chats are written for it.",
            )  # fmt: skip
            use = gr.Button("Use template", elem_id="template-use")
        proposed = gr.HTML("", js_on_load=ON_BUTTONS, elem_id="models-proposed", **plain)
        name, head, precision, buttons = build_form()
        card = gr.HTML("", js_on_load=ON_BUTTONS, elem_id="models-card", **plain)
        rows = gr.HTML("", js_on_load=ON_BUTTONS, elem_id="models-rows", **plain)
        token, token_state, token_buttons = build_token()
        timer = gr.Timer(POLL_S, active=False)
    outputs = [
        notice, work, proposed, rows, card, loaded, name, head, precision, chooser, token, token_state,
        timer,
    ]  # fmt: skip
    quick: dict[str, Any] = {"outputs": outputs, "queue": False, **PRIVATE}
    for part in (work, proposed, rows, card):
        part.act(handlers.act, None, trigger_mode="multiple", **quick)
    check, fetch, load = buttons
    check.click(handlers.check, [name, head], **quick)
    fetch.click(handlers.fetch, [name, head], **quick)
    load.click(handlers.load, [name, head, precision], **quick)
    use.click(handlers.use_template, template, **quick)
    save, forget = token_buttons
    save.click(handlers.save_token, token, **quick)
    forget.click(handlers.forget_token, None, **quick)
    timer.tick(handlers.tick, None, **quick)
    app.load(handlers.show, None, **quick)


def build_form() -> tuple[Any, Any, Any, list[Any]]:
    """Any pair: name, head, precision and what to do with it."""
    gr.HTML("<h2>Any other pair, or another precision</h2>", apply_default_css=False)
    with gr.Row():
        name = gr.Textbox(
            label="Model", info="A known name, a Hub id, a folder or a .gguf file.",
            elem_id="model-name", max_lines=1,
        )  # fmt: skip
        head = gr.Textbox(
            label="Head", info="A Hub id or a folder; empty: the known one, or none.",
            elem_id="model-head", max_lines=1,
        )  # fmt: skip
        precision = gr.Dropdown(
            [("Automatic", AUTO)], value=AUTO, label="Precision", elem_id="model-precision",
            info=INFO,
        )  # fmt: skip
    with gr.Row(elem_classes="go"):
        check = gr.Button("Check", elem_id="model-check")
        fetch = gr.Button("Fetch", elem_id="model-fetch")
        load = gr.Button("Load", variant="primary", elem_id="model-load")
    return name, head, precision, [check, fetch, load]


def build_token() -> tuple[Any, Any, list[Any]]:
    """Where a token is entered; it is never shown again."""
    gr.HTML("<h2>Access token</h2>", apply_default_css=False)
    state = gr.HTML("", elem_id="token-state", apply_default_css=False)
    token = gr.Textbox(
        label="Token", type="password", max_lines=1, elem_id="token",
        info="For gated models: accept the licence on the model's page on the Hub, make a token there that "
        "may read, and enter it. It is kept in a file that only you can read.",
    )  # fmt: skip
    with gr.Row(elem_classes="go"):
        save = gr.Button("Save token", elem_id="token-save")
        forget = gr.Button("Forget token", elem_id="token-forget")
    return token, state, [save, forget]


def top() -> str:
    """The title, and the way to the other pages."""
    return (
        '<div class="page-top"><h1>EAGLE chat</h1><nav class="segmented" aria-label="Pages">'
        '<a href="./">Chat</a><a href="compare">Compare</a>'
        '<a href="models" aria-current="page">Models</a></nav>'
        '<div class="bar"><button type="button" data-theme aria-label="Light or dark" '
        'title="Light or dark"></button></div></div>'
    )


__all__ = ["build_models"]
