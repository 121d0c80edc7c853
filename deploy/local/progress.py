"""Messages for people while they wait for a service: that it is awaited, that it is late, when it is ready.

Invariant: lateness ends nothing. A live service is awaited, and ready ones stay. `now` is a monotonic time in seconds
and an argument.
"""

from __future__ import annotations

FIRST_SECONDS = 10.0  # a service that is ready before that needs no line of its own
# Then twice as long each time, up to this: enough for a person who watches, and the log stays short.
INTERVAL_SECONDS_MAX = 60.0


class Wait:
    """The wait for one service."""

    def __init__(self, name: str, began: float, late_seconds: float | None) -> None:
        """`late_seconds` is after how long it is called late; None: never."""
        self._name = name
        self._began = began
        self._late_seconds = late_seconds
        self._told_at = began
        self._interval_seconds = FIRST_SECONDS

    def seconds(self, now: float) -> float:
        """Return how long it has lasted."""
        return now - self._began

    def lines(self, now: float, reason: str) -> list[str]:
        """Return the messages due now; usually none."""
        seconds = self.seconds(now)
        if self._late_seconds is not None and seconds >= self._late_seconds:
            late = f"{self._name} is late: not ready after {self._late_seconds:.0f} s ({reason})"
            self._late_seconds, self._told_at = None, now
            return [
                f"{late}. Ready services keep running, and this one gets more time; `highwater down` stops everything"
            ]
        if now - self._told_at < self._interval_seconds:
            return []
        self._told_at = now
        self._interval_seconds = min(2 * self._interval_seconds, INTERVAL_SECONDS_MAX)
        return [f"waiting for {self._name} ({seconds:.0f} s): {reason}"]
