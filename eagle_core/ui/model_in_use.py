"""The model in use: what it is, the machine as it is without it, and another model in its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from eagle_core import models
from eagle_core.catalog import CatalogEntry
from eagle_core.config import LoadConfig
from eagle_core.errors import Cancelled, EagleError
from eagle_core.events import LoadProgress
from eagle_core.fit import Machine
from eagle_core.machine import this_machine
from eagle_core.overview import InUse, fits_beside, with_freed
from eagle_core.relay import precision_of
from eagle_core.ui.backend import ChatSession, KnowsMachine, OnEvent, SessionSlot

POLL_S = 0.1
OpenModel = Callable[[LoadConfig, OnEvent], ChatSession]


class ModelInUse:
    """What the slot holds.

    Args:
        is_busy: whether somebody is using the session right now.
        open_model: opens a pair; the same function opens the old one again when a new one fails.
    """

    def __init__(
        self, slot: SessionSlot, is_busy: Callable[[], bool], open_model: OpenModel
    ) -> None:
        self.slot = slot
        self._is_busy, self._open_model = is_busy, open_model

    def now(self) -> InUse | None:
        """What answers now; None while nothing does, or when its files are no longer there."""
        session, config = self.slot.session, self.slot.config
        if session is None:
            return None
        info = session.info
        head = config.head if config is not None and config.base == info.base else None
        try:
            return InUse(models.resolve(info.base, head), precision_of(info))
        except EagleError:
            return None

    def machine(self) -> Machine:
        """This machine as it is once the model in use is let go."""
        session = self.slot.session
        freed = session.info.weight_bytes if session is not None else 0
        return with_freed(self._machine_now(), freed)

    def replace(
        self,
        config: LoadConfig,
        entry: CatalogEntry,
        precision: str,
        on_event: OnEvent,
        cancel: threading.Event,
    ) -> None:
        """Put another model in its place once nobody uses it any more.

        Raises: Cancelled while it waits; what opening raises.
        """

        def wait() -> None:
            is_said = False
            while True:
                if cancel.is_set():
                    raise Cancelled("stopped; the model in use stays", hint="load it again")
                if not self._is_busy():
                    return
                if not is_said:
                    is_said = True
                    on_event(LoadProgress("waiting for the answer in progress to end"))
                time.sleep(POLL_S)

        is_beside = fits_beside(entry, precision, self._machine_now())
        self.slot.swap(
            lambda report: self._open_model(config, report), on_event, is_beside, wait, config
        )

    def _machine_now(self) -> Machine:
        session = self.slot.session
        return session.machine() if isinstance(session, KnowsMachine) else this_machine()


__all__ = ["ModelInUse", "OpenModel"]
