"""How fast something goes and how long it will take, from a few counts with their times. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0  # a connection's speed changes: only the last seconds count


class Rate:
    """Units per second over the last seconds.

    Example: add(0, 0.0), add(50, 5.0): 10 per second, and 5 seconds left of a total of 100.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, done: int, time_s: float) -> None:
        """So many units are through at this time."""
        self._counts.append((time_s, done))
        while len(self._counts) > 2 and self._counts[1][0] <= time_s - self._window_s:
            self._counts.popleft()

    @property
    def per_s(self) -> float | None:
        """Units per second; None until there are two counts at different times."""
        if len(self._counts) < 2:
            return None
        (first_s, first), (last_s, last) = self._counts[0], self._counts[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def remaining_s(self, total: int | None) -> float | None:
        """Seconds until ``total``; None while that cannot be told."""
        rate = self.per_s
        if not rate or total is None:
            return None
        return max(total - self._counts[-1][1], 0) / rate


def as_text(rate: Rate, total: int | None) -> str:
    """Speed and time left of bytes, for people: "5.2 MB/s, 1 min 20 s left"; empty while unknown."""
    per_s, left_s = rate.per_s, rate.remaining_s(total)
    if not per_s:
        return ""
    speed = f"{per_s / 1e6:.1f} MB/s"
    return speed if left_s is None else f"{speed}, {_duration(left_s)} left"


def time_left(rate: Rate, total: int | None) -> str:
    """Time left, for people: "1 min 20 s left"; empty while unknown, and at the end."""
    left_s = rate.remaining_s(total)
    return f"{_duration(left_s)} left" if left_s else ""


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


__all__ = ["Rate", "as_text", "time_left"]
