"""Known pairs as a person chooses among them: does it fit, is it here, how much is it; and how it is loaded.

Judged by the catalogue's numbers: nothing is asked of a network. Knows no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from eagle_core import catalog, models
from eagle_core.catalog import CatalogEntry, Precision
from eagle_core.config import LoadConfig
from eagle_core.errors import EagleError
from eagle_core.fit import Fit, Machine, fit_entry, recommend
from eagle_core.precision import WORKING, DeviceKind, spelled


@dataclass(frozen=True, slots=True)
class Row:
    """A pair on this machine.

    ``fit`` is None where it is not known; ``download_bytes`` is about what is to be fetched, 0 for nothing;
    ``disk_bytes`` what deleting it would free, ``note`` what else there is to say.
    """

    entry: CatalogEntry
    fit: Fit | None
    is_here: bool
    disk_bytes: int
    download_bytes: int | None
    is_proposed: bool = False
    note: str = ""

    @property
    def has_parts(self) -> bool:
        """Whether a download was begun and not finished."""
        return not self.is_here and self.disk_bytes > 0


@dataclass(frozen=True, slots=True)
class InUse:
    """The pair that answers now, and the precision that a user chooses it by."""

    entry: CatalogEntry
    precision: str

    def is_pair(self, entry: CatalogEntry) -> bool:
        """Whether a pair is this one, whatever it is called."""
        return (entry.source, entry.head) == (self.entry.source, self.entry.head)

    def needs_files_of(self, entry: CatalogEntry) -> bool:
        """Whether deleting a pair would take files of this one."""
        return models.shares_files(entry, self.entry)


def catalogue(machine: Machine) -> tuple[Row, ...]:
    """All known pairs: what is proposed, what is here, then the others, each by size; too large ones last."""
    proposed = recommend(machine).name
    rows = [
        row_of(entry, fit_entry(entry, machine), is_proposed=entry.name == proposed)
        for entry in catalog.known_models()
    ]
    return tuple(sorted(rows, key=_place))


def _place(row: Row) -> tuple[bool, bool, bool, int]:
    is_too_large = row.fit is not None and row.fit.verdict == "too-large"
    return not row.is_proposed, not row.is_here, is_too_large, row.entry.n_parameters or 0


def row_of(
    entry: CatalogEntry,
    fit: Fit | None,
    *,
    download_bytes: int | None = None,
    is_proposed: bool = False,
    note: str = "",
) -> Row:
    """A pair as it lies on this machine. Args: download_bytes: all of it, if its files were asked."""
    parts = models.parts_of(entry)
    is_here = models.is_here(entry)
    on_disk = sum(part.n_bytes for part in parts if part.is_fetched)
    total = download_bytes if download_bytes is not None else models.about_bytes(entry)
    rest = 0 if is_here else total
    return Row(entry, fit, is_here, on_disk, rest, is_proposed, note)


def look_up(name: str, head: str | None, machine: Machine) -> Row:
    """A known or any other pair, judged by its files, which are asked for their headers.

    Raises: ModelNotFound and the errors of a download.
    """
    entry = models.resolve(name, head)
    try:
        measured = models.measure(entry)
    except EagleError as error:
        if error.code != "bad-config":
            raise
        return row_of(
            entry, None, note=str(error)
        )  # a .gguf, or quantized: loads, but is not judged
    fit = models.fit(entry, measured, machine)
    note = f"By the catalogue's numbers: {measured.note}." if measured.note else ""
    return row_of(entry, fit, download_bytes=measured.download_bytes, note=note)


def precisions_for(entry: CatalogEntry, machine: Machine) -> tuple[Precision, ...]:
    """The precisions in which a pair can be loaded here, the finest first."""
    working = [one for one in WORKING[machine.device] if one not in machine.lacks]
    if machine.device == "cuda":  # or the processor's, if only that holds it
        working += [one for one in WORKING["cpu"] if one not in working]
    return tuple(one for one in catalog.PRECISIONS if one in working and one in entry.precisions)


def load_config(
    name: str,
    head: str | None,
    precision: str,
    machine: Machine,
    fit: Fit | None = None,
    other: LoadConfig | None = None,
) -> LoadConfig:
    """How a pair is loaded in a precision that was chosen ("auto" or one of the catalogue's).

    Args:
        fit: where it was found to fit; the processor, if only that holds it.
        other: settings that stay: context length, offline, reproducible, CUDA graphs.
    """
    device = "auto"
    if fit is not None and fit.device != machine.device and precision == fit.precision:
        device = fit.device
    changes = {"base": name, "head": head, "device": device, "chat_template": None}
    config = dataclasses.replace(other or LoadConfig(), **changes)  # type: ignore[arg-type]
    return in_precision(config, precision, "cpu" if device == "cpu" else machine.device)


def in_precision(config: LoadConfig, precision: str, device: DeviceKind) -> LoadConfig:
    """The same model in a precision of the catalogue's, or in what is found best ("auto")."""
    dtype, quantization = "auto", "auto"
    chosen = next((one for one in catalog.PRECISIONS if one == precision), None)
    if chosen is not None:
        meant = spelled(chosen, device)
        dtype = meant.dtype if meant.quantization == "none" else "auto"
        quantization = meant.quantization
    changes = {"dtype": dtype, "quantization": quantization}
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def fits_beside(entry: CatalogEntry, precision: str, machine: Machine) -> bool:
    """Whether a pair that is here can be loaded while the one in use stays in memory."""
    chosen = tuple(one for one in catalog.PRECISIONS if one == precision) or None
    try:
        measured = models.measure(entry, offline=True)
        return models.fit(entry, measured, machine, precisions=chosen).verdict == "fits"
    except EagleError:  # nothing is known of its size
        return False


def with_freed(machine: Machine, n_bytes: int) -> Machine:
    """The machine once a loaded model of so many bytes is let go."""
    free_ram = machine.free_ram_bytes + (n_bytes if machine.device != "cuda" else 0)
    return dataclasses.replace(
        machine,
        free_bytes=machine.free_bytes + n_bytes,
        free_ram_bytes=free_ram,
        all_bytes=machine.all_bytes and machine.all_bytes + n_bytes,
    )


def disk_bytes(rows: Sequence[Row]) -> int:
    """What all of them take on the disk."""
    return sum(row.disk_bytes for row in rows)


__all__ = [
    "InUse",
    "Row",
    "catalogue",
    "disk_bytes",
    "fits_beside",
    "in_precision",
    "load_config",
    "look_up",
    "precisions_for",
    "row_of",
    "with_freed",
]
