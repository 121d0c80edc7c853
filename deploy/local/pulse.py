"""Whether a live role has hung: its readiness is polled, and it is given up after many silences in a row.

Invariants. Any answer is a sign of life, also "not ready": a role that waits for the database is well. A role that has
not answered yet is starting, however long that takes. The decision is pure; `Listener` polls in a thread, so that a
silent role delays nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

SILENCE_SECONDS = 5.0  # timeout of an answer; the endpoint answers from memory, in milliseconds
# A minute without one answer: a loop that computes, swaps or waits for a disk still turns sometimes.
SILENCES_MAX = 12


@dataclass(frozen=True, slots=True)
class Pulse:
    """The answers of a role so far."""

    has_answered: bool = False
    silences: int = 0

    def after(self, *, is_answer: bool) -> Pulse:
        """Return the state after one more poll."""
        if is_answer:
            return Pulse(has_answered=True)
        return Pulse(self.has_answered, self.silences + 1 if self.has_answered else 0)

    def is_lost(self, silences_max: int = SILENCES_MAX) -> bool:
        """Return whether the role is to be restarted."""
        return self.silences >= silences_max


class Listener:
    """Polls one role, one request at a time."""

    def __init__(
        self,
        is_answering: Callable[[float], bool],
        *,
        interval_seconds: float = SILENCE_SECONDS,
        silences_max: int = SILENCES_MAX,
    ) -> None:
        """`is_answering` waits up to the given seconds for any answer."""
        self._is_answering = is_answering
        self._interval_seconds = interval_seconds
        self._silences_max = silences_max
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Reset the state: another process listens there."""
        self._pulse = Pulse()
        self._next_at = now
        self._heard: list[bool] | None = None

    def why_lost(self, now: float) -> str | None:
        """Poll if due, and return why the role is to be restarted; None while it is well. Never waits."""
        if self._heard:
            self._pulse = self._pulse.after(is_answer=self._heard[0])
            self._heard = None
        if self._heard is None and now >= self._next_at:
            self._next_at = now + self._interval_seconds
            heard: list[bool] = []
            self._heard = heard
            # A daemon: a missing answer must not delay the end of the supervisor.
            threading.Thread(target=self._ask, args=(heard,), name="pulse", daemon=True).start()
        if self._pulse.is_lost(self._silences_max):
            seconds = self._silences_max * self._interval_seconds
            return f"its readiness did not answer for {seconds:.0f} s"
        return None

    def _ask(self, heard: list[bool]) -> None:
        heard.append(self._is_answering(self._interval_seconds))
