"""What two processes of this app say to each other: calls, and their replies, pickled over pipes.

Every call is answered by any number of items and by one end. Nobody else can write into the pipes: they
belong to the two processes alone.
"""

from __future__ import annotations

import pickle
import struct
import threading
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from eagle_core.errors import EagleError
from eagle_core.session_info import SessionInfo

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Call:
    """What the session shall do; ``number`` is found again in each reply."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """The call with this number shall end."""

    number: int


@dataclass(frozen=True, slots=True)
class Item:
    """Part of a call's answer. ``spelled``: tokens that are new here, as they are shown."""

    number: int
    value: Any
    spelled: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """A call's end, and what the session says of itself then."""

    number: int
    value: Any
    info: SessionInfo | None


@dataclass(frozen=True, slots=True)
class Refused:
    """A call's end that is an error."""

    number: int
    error: EagleError


Reply = Item | Done | Refused


class Channel:
    """One end of a pair of pipes. Any thread may send; one receives."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer = reader, writer
        self._lock = threading.Lock()

    def send(self, message: Call | Stop | Reply) -> None:
        """Send a message. Raises: OSError or ValueError when the other side is gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._writer.write(_LENGTH.pack(len(data)) + data)
            self._writer.flush()

    def receive(self) -> Any:
        """The next message. Raises: EOFError when the other side is gone."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))  # noqa: S301 - the pipe is this app's own

    def _exactly(self, n_bytes: int) -> bytes:
        data = self._reader.read(n_bytes)
        if len(data) < n_bytes:
            raise EOFError
        return data

    def close_writer(self) -> None:
        """Say nothing any more: the other side sees the end."""
        try:
            self._writer.close()
        except OSError:  # the other side was gone, and something was left to be said
            return


__all__ = ["Call", "Channel", "Done", "Item", "Refused", "Reply", "Stop"]
