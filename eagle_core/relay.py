"""A model in one precision after another, for a race: the old one is let go before the next is loaded.

Says before loading whether it fits into the memory that is free then. Knows no page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle_core import models, templates
from eagle_core.catalog import PRECISIONS, CatalogEntry, Precision
from eagle_core.compare import AS_LOADED, RaceSession
from eagle_core.config import LoadConfig
from eagle_core.errors import EagleError, OutOfMemory
from eagle_core.events import Event, LoadProgress
from eagle_core.fit import Fit, Machine
from eagle_core.machine import give_back_memory, this_machine
from eagle_core.overview import in_precision, precisions_for, with_freed

if TYPE_CHECKING:
    from eagle_core.session import SessionInfo

OnEvent = Callable[[Event], None]


class RaceModel(RaceSession, Protocol):
    """A session that can be closed."""

    def close(self) -> None:
        """Free the model."""
        ...


OpenModel = Callable[[LoadConfig, OnEvent], RaceModel]


@dataclass(frozen=True, slots=True)
class Option:
    """A precision that a race may use; ``fit`` is None where it is not known."""

    precision: Precision
    fit: Fit | None


def options(
    config: LoadConfig, info: SessionInfo, look: Callable[[str], Machine] | None = None
) -> tuple[Option, ...]:
    """The other precisions of what is loaded that this machine has room for, once that is let go.

    Args: look: finds out about the machine; None: this process does.
    Raises: EagleError when what is loaded is no longer there.
    """
    if config.device == "split":
        return ()
    machine = with_freed((look or this_machine)(config.device), info.weight_bytes)
    entry = models.resolve(config.base, config.head)
    found = [
        Option(precision, fit_of(entry, precision, machine))
        for precision in precisions_for(entry, machine)
        if precision != precision_of(info)
    ]
    return tuple(one for one in found if one.fit is None or one.fit.verdict != "too-large")


def precision_of(info: SessionInfo) -> str:
    """What is loaded, by the name that a user chooses it by."""
    if info.quantization == "int8-bnb":
        return "int8"
    return info.precision


def fit_of(entry: CatalogEntry, precision: Precision, machine: Machine) -> Fit | None:
    """Whether a pair that is here fits in a precision; None where its size is not known."""
    try:
        measured = models.measure(entry, offline=True)
        return models.fit(entry, measured, machine, precisions=(precision,))
    except EagleError:
        return None


class ModelRelay:
    """A race's stage over several precisions.

    Args:
        session: what is loaded; nobody else may hold it while a race runs.
        config: how it was loaded.
        open_model: opens the others.
        let_go: frees what is loaded, once nobody else uses it; may raise Cancelled.
        bring_back: opens it again.
        on_event: hears what is being loaded.
    """

    def __init__(
        self,
        session: RaceSession,
        config: LoadConfig,
        open_model: OpenModel,
        let_go: Callable[[], None],
        bring_back: Callable[[], None],
        on_event: OnEvent,
    ) -> None:
        self._loaded: RaceSession | None = session
        self._other: RaceModel | None = None
        self._precision = AS_LOADED
        self._info = session.info
        self._config, self._open_model = config, open_model
        self._let_go, self._bring_back, self._on_event = let_go, bring_back, on_event

    def take(self, precision: str) -> RaceSession:
        """The model in a precision; the one before is gone.

        Raises: OutOfMemory when it does not fit; Cancelled; what loading raises.
        """
        if precision == self._precision:
            held = self._loaded if precision == AS_LOADED else self._other
            assert held is not None, "a model that was let go is not taken again"
            return held
        assert precision != AS_LOADED, "what is loaded comes first"
        self._free()
        self._precision = precision
        known = next(one for one in PRECISIONS if one == precision)
        self._on_event(LoadProgress(f"opening the model in {precision}"))
        check_room(self._config, known)
        config = in_precision(self._config, known, this_machine(self._config.device).device)
        if self._config.chat_template is None and self._info.chat_template in templates.names():
            config = dataclasses.replace(config, chat_template=self._info.chat_template)
        self._other = self._open_model(config, self._on_event)
        return self._other

    def close(self) -> None:
        """Let the last model go; what was loaded before the race is opened again."""
        if self._precision == AS_LOADED:
            return
        self._free()
        self._on_event(LoadProgress("opening the model that was in use again"))
        self._bring_back()

    def _free(self) -> None:
        if self._precision == AS_LOADED:
            self._loaded = None
            self._let_go()
        elif self._other is not None:
            self._other.close()
            self._other = None
        give_back_memory()


def check_room(config: LoadConfig, precision: Precision) -> None:
    """Raises: OutOfMemory when what is free now does not hold the model in this precision."""
    entry = models.resolve(config.base, config.head)
    fit = fit_of(entry, precision, this_machine(config.device))
    if fit is not None and fit.verdict == "too-large":
        raise OutOfMemory(
            f"in {precision} the model does not fit: it {fit.reason}",
            hint="choose another precision for this set-up, or close other programs",
        )


__all__ = ["ModelRelay", "OpenModel", "Option", "RaceModel", "options", "precision_of"]
