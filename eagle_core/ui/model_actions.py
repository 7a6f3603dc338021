"""What the Models page does: fetching, deleting, loading, a template, a token.

One thing is done at a time, for all tabs; a page that comes later sees how far it is. What fits, how fast a
download is and how a pair is loaded is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import gradio as gr

from eagle_core import catalog, hub, models
from eagle_core.config import LoadConfig
from eagle_core.errors import BadToken, EagleError, GatedRepo
from eagle_core.fit import Fit, Machine
from eagle_core.overview import Row, catalogue, load_config, look_up
from eagle_core.progress import size_text
from eagle_core.ui.backend import OnEvent, SessionSlot
from eagle_core.ui.fetching import need_network, pull
from eagle_core.ui.frames import error_notice
from eagle_core.ui.model_cards import card_html, loaded_html, rows_html, token_html, work_html
from eagle_core.ui.model_in_use import ModelInUse, OpenModel
from eagle_core.ui.precision_choice import AUTO, precision_choice
from eagle_core.ui.render import notice_html
from eagle_core.work import Work

NOTHING = ""
BUSY = "Something is being fetched or loaded; wait for it or cancel it."
ELSEWHERE = (
    "The app is open to other machines: models are changed where it runs, with `eagle-chat models`."
)


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One update of the page; what is None stays. Fields are in the order of the outputs."""

    notice: Any = None
    work: Any = None
    proposed: Any = None
    rows: Any = None
    card: Any = None
    loaded: Any = None
    name: Any = None
    head: Any = None
    precision: Any = None
    templates: Any = None
    token: Any = None
    token_state: Any = None
    timer: Any = None

    def updates(self) -> list[Any]:
        """Values for the outputs."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return [gr.skip() if value is None else value for value in values]


class ModelsHandlers:
    """The page's handlers.

    Args:
        in_use: whether somebody is using the session right now.
        open_model: opens a pair; the same function opens the old one again when a new one fails.
        settings: the start's settings; context length, offline and reproducible hold for later models, too.
        can_change: False where strangers may see the page; then it only shows.
    """

    def __init__(
        self,
        slot: SessionSlot,
        in_use: Callable[[], bool],
        open_model: OpenModel,
        settings: LoadConfig | None = None,
        can_change: bool = True,
    ) -> None:
        self.slot, self.work = slot, Work()
        self.model = ModelInUse(slot, in_use, open_model)
        self.settings, self.can_change = settings or LoadConfig(), can_change

    def show(self) -> list[Any]:
        """The whole page."""
        notice = NOTHING if self.can_change else notice_html("info", ELSEWHERE)
        try:
            proposed, rows = self._rows()
        except EagleError as error:  # the user's own pairs cannot be read
            proposed, rows, notice = NOTHING, NOTHING, error_notice(error)
        state = self.work.state
        return dataclasses.replace(
            self._loaded(),
            notice=notice,
            work=work_html(state),
            proposed=proposed,
            rows=rows,
            token_state=token_html(),
            timer=gr.update(active=state.is_running or self.slot.is_opening),
        ).updates()

    def tick(self) -> list[Any]:
        """How far the work is; at its end what came of it, and the rows anew."""
        state = self.work.state
        if state.is_running:
            return View(work=work_html(state)).updates()
        if self.slot.is_opening:
            return View().updates()
        notice = NOTHING
        if state.error is not None:
            notice = explained(state.error)
        elif state.done:
            notice = notice_html("info", state.done)
        proposed, rows = self._rows()
        return dataclasses.replace(
            self._loaded(),
            notice=notice,
            work=work_html(state),
            proposed=proposed,
            rows=rows,
            card=NOTHING,
            timer=gr.update(active=False),
        ).updates()

    def act(self, event: gr.EventData) -> list[Any]:
        """What a button of a card says."""
        data = event._data or {}
        name, head = str(data.get("name") or ""), str(data.get("head") or "") or None
        match data.get("do"):
            case "fetch":
                return self.fetch(name, head)
            case "load":
                return self.load(name, head)
            case "check":
                return self.check(name, head)
            case "choose":
                return self.choose(name, head)
            case "delete":
                return self.delete(name, head)
            case "cancel":
                self.work.cancel()
                return View(work=work_html(self.work.state)).updates()
            case _:
                return View().updates()

    def choose(self, name: str, head: str | None = None) -> list[Any]:
        """Put a pair into the form, with the precisions that it can be loaded in."""
        try:
            machine = self.model.machine()
            if head is None and catalog.lookup(name) is not None:
                entry = catalog.find(name)
                row = next(row for row in catalogue(machine) if row.entry.name == entry.name)
            else:
                row = look_up(name, head, machine)
        except EagleError as error:
            return View(notice=explained(error)).updates()
        form = self._precisions(row, machine)
        return View(notice=NOTHING, name=name, head=head or NOTHING, precision=form).updates()

    def check(self, name: str, head: str | None) -> list[Any]:
        """Look any pair up: is it there, does it fit, in which precision."""
        if refused := self._refusal(name):
            return refused
        try:
            machine = self.model.machine()
            row = look_up(name.strip(), own(head), machine)
        except EagleError as error:
            return View(notice=explained(error), card=NOTHING).updates()
        card = card_html(row, own(head), self.model.now(), self.can_change)
        return View(notice=NOTHING, card=card, precision=self._precisions(row, machine)).updates()

    def fetch(self, name: str, head: str | None) -> list[Any]:
        """Start to download a pair, or go on with it."""
        if refused := self._refusal(name):
            return refused

        def run(on_event: OnEvent, cancel: threading.Event) -> str:
            pull(LoadConfig(base=name.strip(), head=own(head)), on_event, cancel)
            return f"{name} is on this machine now."

        return self._start(f"Fetching {name}", run)

    def load(self, name: str, head: str | None, precision: str | None = None) -> list[Any]:
        """Fetch what is missing of a pair, then use it in place of the one in use.

        Args: precision: None: the recommended one; "auto": what loading finds best.
        """
        if refused := self._refusal(name):
            return refused
        if self.slot.is_opening:
            said = notice_html("info", f"{self.slot.opening.message}.")
            return View(notice=said).updates()
        try:
            machine = self.model.machine()
            entry = models.resolve(name.strip(), own(head))
            fit = known_fit(entry, machine)
        except EagleError as error:
            return View(notice=explained(error)).updates()
        chosen = precision or (fit.precision if fit is not None else AUTO)
        now = self.model.now()
        if now is not None and now.is_pair(entry) and chosen == now.precision:
            said = f"{name} is in use, in {chosen}."
            return View(
                notice=notice_html("info", said, "Choose another precision to load it anew.")
            ).updates()
        config = load_config(name.strip(), own(head), chosen, machine, fit, self.settings)

        def run(on_event: OnEvent, cancel: threading.Event) -> str:
            if not models.is_here(entry):
                need_network(config)
                pull(config, on_event, cancel)
            self.model.replace(config, entry, chosen, on_event, cancel)
            session = self.slot.session
            info = session.info if session is not None else None
            return f"{name} is in use, in {info.precision}." if info is not None else ""

        return self._start(f"Loading {name}", run)

    def delete(self, name: str, head: str | None = None) -> list[Any]:
        """Take what was fetched of a pair off this machine; not of the one in use."""
        if refused := self._refusal(name):
            return refused
        if self.work.state.is_running:
            return View(notice=notice_html("info", BUSY)).updates()
        try:
            entry, now = models.resolve(name, own(head)), self.model.now()
            if self.slot.is_opening or (now is not None and now.needs_files_of(entry)):
                hint = "Load another model first."
                return View(notice=notice_html("info", f"{name} is in use.", hint)).updates()
            removed = models.remove(entry)
        except EagleError as error:
            return View(notice=error_notice(error)).updates()
        text = f"{size_text(removed.n_bytes)} of {name} were deleted."
        if not removed.names:
            text = f"Nothing of {name} was deleted."
        kept = f"Another pair here uses {', '.join(removed.kept)}." if removed.kept else ""
        proposed, rows = self._rows()
        return View(
            notice=notice_html("info", text, kept), proposed=proposed, rows=rows, card=""
        ).updates()

    def use_template(self, name: str) -> list[Any]:
        """Chat by a built-in template with the model in use."""
        session = self.slot.session
        if refused := self._refusal(name, "Choose a template first."):
            return refused
        if session is None:
            return View(notice=notice_html("info", f"{self.slot.opening.message}.")).updates()
        try:
            session.use_template(name)
        except EagleError as error:
            return View(notice=error_notice(error)).updates()
        notice = notice_html("info", f"Chats are written in the manner of {name} now.")
        return dataclasses.replace(self._loaded(), notice=notice).updates()

    def save_token(self, text: str) -> list[Any]:
        """Check a token and keep it; the box is emptied in any case."""
        if refused := self._refusal(text, "Enter a token first."):
            return refused
        try:
            account = hub.save_token(text)
        except EagleError as error:
            return View(notice=error_notice(error), token="").updates()
        notice = notice_html("info", f"The token of {account} is kept.")
        return View(notice=notice, token="", token_state=token_html()).updates()

    def forget_token(self) -> list[Any]:
        """Remove the kept token."""
        if refused := self._refusal("token"):
            return refused
        try:
            was_there = hub.forget_token()
        except EagleError as error:
            return View(notice=error_notice(error)).updates()
        text = "The token was removed." if was_there else "No token was kept."
        return View(notice=notice_html("info", text), token_state=token_html()).updates()

    def _refusal(self, name: str, message: str = "Name a model first.") -> list[Any] | None:
        if not self.can_change:
            return View(notice=notice_html("info", ELSEWHERE)).updates()
        if not (name or "").strip():
            return View(notice=notice_html("info", message)).updates()
        return None

    def _start(self, title: str, run: Callable[[OnEvent, threading.Event], str]) -> list[Any]:
        if not self.work.start(title, run):
            return View(notice=notice_html("info", BUSY)).updates()
        timer = gr.update(active=True)
        return View(notice=NOTHING, work=work_html(self.work.state), timer=timer).updates()

    def _precisions(self, row: Row, machine: Machine) -> Any:
        now = self.model.now()
        used = now.precision if now is not None and now.is_pair(row.entry) else None
        return precision_choice(row, machine, used)

    def _rows(self) -> tuple[str, str]:
        return rows_html(catalogue(self.model.machine()), self.model.now(), self.can_change)

    def _loaded(self) -> View:
        """What is in use, and whether it needs a template."""
        session = self.slot.session
        if session is None:
            opening = self.slot.opening
            level = "error" if opening.has_failed else "info"
            said = notice_html(level, f"{opening.message.rstrip('.')}.", opening.hint)
            return View(loaded=said, templates=hidden())
        has_none = self.can_change and session.info.chat_template is None
        return View(loaded=loaded_html(session.info), templates=gr.update(visible=has_none))


def known_fit(entry: catalog.CatalogEntry, machine: Machine) -> Fit | None:
    """How a pair fits by the catalogue or by what is here; None where that is unknown."""
    try:
        return models.fit(entry, models.measure(entry, offline=True), machine)
    except EagleError:
        return None


def own(head: str | None) -> str | None:
    """A head as typed; None for an empty box."""
    return (head or "").strip() or None


def hidden() -> Any:
    """An update that hides a part of the page."""
    return gr.update(visible=False)


def explained(error: EagleError) -> str:
    """An error with its next step; for what needs a token, the place to enter it."""
    found = error_notice(error)
    if isinstance(error, (GatedRepo, BadToken)):
        found += notice_html(
            "info", "A token can also be entered on this page, under Access token."
        )
    return found


__all__ = ["ModelsHandlers"]
