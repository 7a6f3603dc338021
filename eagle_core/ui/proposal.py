"""On the chat page, while the small default model answers: the best pair for this machine, one click away."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from eagle_core import models
from eagle_core.catalog import default_entry
from eagle_core.config import DEFAULT_BASE
from eagle_core.errors import EagleError
from eagle_core.fit import fit_entry, recommend
from eagle_core.progress import size_text
from eagle_core.ui.frames import error_notice
from eagle_core.ui.model_actions import ModelsHandlers
from eagle_core.ui.model_cards import work_html
from eagle_core.ui.models_page import POLL_S, PRIVATE
from eagle_core.ui.render import notice_html

NOTHING = ""
# "Not now" is remembered by the browser, for the pair that was proposed.
ON_PROPOSAL = """
const KEY = 'eagle-chat-not-now';
const hide = () => {
  const card = element.querySelector('[data-proposed]');
  if (card && localStorage.getItem(KEY) === card.dataset.proposed) card.hidden = true;
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-do]');
  if (!button) return;
  if (button.dataset.do === 'later') {
    localStorage.setItem(KEY, button.dataset.name);
    hide();
  } else trigger('act', {do: button.dataset.do, name: button.dataset.name});
});
watch('value', () => requestAnimationFrame(hide));
hide();
"""


class ProposalHandlers:
    """The proposal's handlers; fetching and loading are the Models page's own work, and shown there, too."""

    def __init__(self, page: ModelsHandlers) -> None:
        self._page = page

    def show(self) -> list[Any]:
        """The proposal; while something is fetched or loaded, how far that is."""
        if self._page.work.state.is_running:
            return self._progress()
        return [self._proposal(), gr.update(active=False)]

    def act(self, event: gr.EventData) -> list[Any]:
        """What a button says."""
        data = event._data or {}
        if data.get("do") == "cancel":
            self._page.work.cancel()
        elif data.get("do") == "load":
            self._page.load(str(data.get("name") or ""), None)
        return self.tick()

    def tick(self) -> list[Any]:
        """How far the work is, and at its end what came of it."""
        state = self._page.work.state
        if state.is_running:
            return self._progress()
        if state.error is not None:
            return [error_notice(state.error) + self._proposal(), gr.update(active=False)]
        text = notice_html("info", state.done) if state.done else self._proposal()
        return [text, gr.update(active=False)]

    def _progress(self) -> list[Any]:
        return [work_html(self._page.work.state), gr.update(active=True)]

    def _proposal(self) -> str:
        """The best pair for this machine, or nothing: only the default model is replaced unasked."""
        session = self._page.slot.session
        in_use = session.info.base if session is not None else self._page.settings.base
        if in_use != DEFAULT_BASE or not self._page.can_change:
            return NOTHING
        try:
            machine = self._page.model.machine()
            entry = recommend(machine)
            fit = fit_entry(entry, machine)
        except EagleError:  # the user's own pairs cannot be read: the Models page says so
            return NOTHING
        if entry.name == DEFAULT_BASE or fit is None or models.is_here(entry):
            return NOTHING
        n_bytes = models.about_bytes(entry)
        fetched = f", about {size_text(n_bytes)} to fetch" if n_bytes else ""
        name, title = escape(entry.name), escape(entry.title)
        return (
            f'<div class="notice proposal" role="note" data-proposed="{name}">'
            f"<span><b>{title}</b> with its draft head fits this machine: in {fit.precision}"
            f"{fetched}. Until then {escape(default_entry().title)} answers.</span>"
            f'<button type="button" data-do="load" data-name="{name}" '
            f'aria-label="Fetch and load {title}">Fetch and load</button>'
            f'<a href="models">All models</a>'
            f'<button type="button" data-do="later" data-name="{name}">Not now</button></div>'
        )


def build_proposal(handlers: ProposalHandlers, app: gr.Blocks) -> None:
    """Lay out the proposal inside the current column and wire its events."""
    card = gr.HTML(NOTHING, js_on_load=ON_PROPOSAL, elem_id="proposal", apply_default_css=False)
    timer = gr.Timer(POLL_S, active=False)
    quick: dict[str, Any] = {"outputs": [card, timer], "queue": False, **PRIVATE}
    card.act(handlers.act, None, trigger_mode="multiple", **quick)
    timer.tick(handlers.tick, None, **quick)
    app.load(handlers.show, None, **quick)


__all__ = ["ProposalHandlers", "build_proposal"]
