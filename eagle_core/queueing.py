"""First come, first served: one request at a time holds the engine, the others know their place.

Tickets belong to requests and not to threads, so a generator may be resumed from any thread.
"""

from __future__ import annotations

import threading
from collections import deque


class TicketQueue:
    """A fair lock whose waiters can see how many are ahead of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()

    def enter(self) -> object:
        """Join the queue; returns the ticket, which must be given back with :meth:`leave`."""
        ticket = object()
        with self._changed:
            self._tickets.append(ticket)
        return ticket

    def enter_when_idle(self, timeout_s: float) -> object | None:
        """Join the queue as the only one; None when somebody is in it all the time. Nobody waits behind."""
        ticket = object()
        with self._changed:
            if self._tickets:
                self._changed.wait(timeout_s)
            if self._tickets:
                return None
            self._tickets.append(ticket)
        return ticket

    def ahead(self, ticket: object) -> int:
        """Requests before this one; 0 means that it holds the engine."""
        with self._changed:
            return self._tickets.index(ticket)

    @property
    def n_tickets(self) -> int:
        """Requests that hold the engine or wait for it."""
        with self._changed:
            return len(self._tickets)

    def wait(self, ticket: object, timeout_s: float) -> int:
        """Sleep until the queue changes or the time is over; returns :meth:`ahead`."""
        with self._changed:
            if self._tickets.index(ticket) > 0:
                self._changed.wait(timeout_s)
            return self._tickets.index(ticket)

    def leave(self, ticket: object) -> None:
        """Give a ticket back, whether it was served or not; twice does no harm."""
        with self._changed:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
            self._changed.notify_all()


__all__ = ["TicketQueue"]
