"""Runs a comparison in a thread of its own, and says how far it is; handlers look at it now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context

from eagle_core.compare import AS_LOADED, OneModel, Prompt, Race, Setup, Stage, Standing, run_races
from eagle_core.errors import Cancelled, EagleError
from eagle_core.events import Event
from eagle_core.progress import ProgressReader
from eagle_core.relay import ModelRelay, OpenModel
from eagle_core.ui import render
from eagle_core.ui.backend import SessionSlot, races_of

logger = logging.getLogger(__name__)

WAIT_S = 0.1
LENT = "A comparison is using the model in another precision; it comes back when that is done"


class Runner:
    """Runs races on the slot's session; its attributes may be read at any time.

    Args:
        open_model: opens the model in other precisions; None: all set-ups use what is loaded.
        in_use: whether an answer is being written in some tab.
    """

    def __init__(
        self,
        slot: SessionSlot,
        prompts: Sequence[Prompt],
        setups: Sequence[Setup],
        open_model: OpenModel | None = None,
        in_use: Callable[[], bool] = lambda: False,
    ) -> None:
        self.cancel = threading.Event()
        self.races: tuple[Race, ...] = ()
        self.error: EagleError | None = None
        self.standing: Standing | None = None
        self.loading = ""
        self._reader = ProgressReader()
        self._slot, self._open_model, self._in_use = slot, open_model, in_use
        self._prompts, self._setups = prompts, setups
        # A shared GPU is asked for in the name of the visitor whose request this is.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="race", daemon=True
        )

    def start(self) -> None:
        """Start."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether all is over, or stopped, or failed."""
        return not self._thread.is_alive()

    def status(self) -> str:
        """What is going on, as a line of the page."""
        standing = self.standing
        if self.loading:
            return render.status_line("prefill", self.loading, "")
        if standing is None:
            return render.status_line("live", "Warming up", "")
        parts = [standing.setup.name, f"{len(standing.transcript.tokens)} tokens"]
        if len(self._prompts) > 1:
            parts.insert(0, f"prompt {standing.n_prompt + 1} of {len(self._prompts)}")
        rate = standing.transcript.now_tok_s
        figures = [f"{render.number(rate)} tok/s"] if rate else []
        if standing.left_s is not None:
            figures.append(f"{standing.n_done} of {standing.n_answers} answers")
            figures.append(f"about {render.duration(standing.left_s)} left")
        return render.status_line("live", f"Measuring: {', '.join(parts)}", " · ".join(figures))

    def _run(self) -> None:
        stage: Stage | None = None
        try:
            stage = self._stage()
            asked = (self._prompts, self._setups, self.cancel, self._on_progress)
            found = (
                races_of(stage.session, *asked)
                if isinstance(stage, OneModel)
                else run_races(stage, *asked)
            )
            for race in found:
                self.races = (*self.races, race)
        except Cancelled:
            logger.info("a comparison was stopped")
        except EagleError as error:
            self.error = error
        except Exception:  # the page must say that it failed
            logger.exception("a comparison failed")
            self.error = EagleError(
                "the comparison failed", hint="try again; the log has the details"
            )
        finally:
            if isinstance(stage, ModelRelay):
                self._close(stage)

    def _close(self, stage: ModelRelay) -> None:
        """Bring back what was loaded; that this failed is said, whatever came of the races."""
        stage.close()
        opening = self._slot.opening
        if self._slot.session is None and opening.has_failed:
            self.error = EagleError(opening.message, hint=opening.hint)

    def _stage(self) -> Stage:
        """Raises: EagleError when the model went away meanwhile."""
        session, config = self._slot.session, self._slot.config
        if session is None:
            raise EagleError("no model is loaded", hint="wait until it is, and start again")
        if all(setup.precision == AS_LOADED for setup in self._setups):
            return OneModel(session)
        if self._open_model is None or config is None or not self._slot.can_lend:
            raise EagleError(
                "the model cannot be loaded in another precision here",
                hint="choose the precision as loaded for all set-ups",
            )
        return ModelRelay(
            session, config, self._open_model, lambda: self._slot.lend(LENT, self._wait),
            self._slot.take_back, self._on_event,
        )  # fmt: skip

    def _wait(self) -> None:
        """Until no answer is being written in any tab. Raises: Cancelled."""
        while self._in_use():
            self.loading = "Waiting for the answer in progress to end"
            if self.cancel.is_set():
                raise Cancelled("the comparison was stopped", hint="start it again")
            time.sleep(WAIT_S)

    def _on_progress(self, standing: Standing) -> None:
        self.standing, self.loading = standing, ""

    def _on_event(self, event: Event) -> None:
        shown = self._reader.read(event)
        if shown is not None:
            self.loading = " \N{MIDDLE DOT} ".join(filter(None, (shown.message, shown.figures)))


__all__ = ["Runner"]
