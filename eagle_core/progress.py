"""Events of long work as words for people: what is done, which share of it, how fast, how much longer.

Knows no page and no terminal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from eagle_core.events import DownloadProgress, Event, FileProgress, LoadProgress
from eagle_core.rate import Rate, as_text


@dataclass(frozen=True, slots=True)
class Shown:
    """``share`` is the part that is through, None while unknown; ``pace`` speed and time left, "" as well."""

    message: str
    share: float | None = None
    pace: str = ""

    @property
    def figures(self) -> str:
        """Share and pace in one line: "43% · 5.2 MB/s, 10 s left"; "" while nothing is counted."""
        percent = "" if self.share is None else f"{self.share:.0%}"
        return " · ".join(filter(None, (percent, self.pace)))


class ProgressReader:
    """Reads the events of one piece of work after the other; keeps the rate of what is being counted."""

    def __init__(self) -> None:
        self._rate, self._what = Rate(), ""

    def read(self, event: Event) -> Shown | None:
        """What to say now; None for an event that is not about progress."""
        if isinstance(event, DownloadProgress):
            doing = f"Downloading {event.what}"
        elif isinstance(event, FileProgress):
            doing = f"{_capital(event.doing)} {event.what}"
        elif isinstance(event, LoadProgress):
            return Shown(_capital(event.message))
        else:
            return None
        done, total = event.done_bytes, event.total_bytes
        if doing != self._what:
            self._rate, self._what = Rate(), doing
        self._rate.add(done, time.monotonic())
        message = f"{doing}: {size_text(done)}" + (f" of {size_text(total)}" if total else "")
        return Shown(message, done / total if total else None, as_text(self._rate, total))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def size_text(n_bytes: float) -> str:
    """Bytes for people: 1.2 GB, 98.4 MB."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


__all__ = ["ProgressReader", "Shown", "size_text"]
