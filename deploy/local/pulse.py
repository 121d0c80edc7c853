"""Whether a role that lives has hung: its readiness is asked again and again, and it is given up after many silences in a row.

Invariants. Any answer is a pulse, also one that says "not ready": a role that waits for the database is well. A role that has
not answered yet is starting, however long that takes. The decision is pure; `Listener` asks in a thread, so that a silent role
holds nobody up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

SILENCE_SECONDS = 5.0  # what an answer may take; the endpoint answers from memory, in milliseconds
# A minute without one answer: a loop that computes, swaps or waits for a disk turns once in a while.
SILENCES_MAX = 12


@dataclass(frozen=True, slots=True)
class Pulse:
    """What was heard of a role so far."""

    has_answered: bool = False
    silences: int = 0

    def after(self, *, is_answer: bool) -> Pulse:
        """What is known after one more question."""
        if is_answer:
            return Pulse(has_answered=True)
        return Pulse(self.has_answered, self.silences + 1 if self.has_answered else 0)

    def is_lost(self, silences_max: int = SILENCES_MAX) -> bool:
        """Whether the role is to be ended and started again."""
        return self.silences >= silences_max


class Listener:
    """Asks one role, one question at a time."""

    def __init__(
        self,
        is_answering: Callable[[float], bool],
        *,
        interval_seconds: float = SILENCE_SECONDS,
        silences_max: int = SILENCES_MAX,
    ) -> None:
        """`is_answering` waits up to the seconds it is given for any answer."""
        self._is_answering = is_answering
        self._interval_seconds = interval_seconds
        self._silences_max = silences_max
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Forget what was heard: another process listens there."""
        self._pulse = Pulse()
        self._next_at = now
        self._heard: list[bool] | None = None

    def why_lost(self, now: float) -> str | None:
        """Ask when it is time, and say why the role is to be ended; None while it is well. Never waits."""
        if self._heard:
            self._pulse = self._pulse.after(is_answer=self._heard[0])
            self._heard = None
        if self._heard is None and now >= self._next_at:
            self._next_at = now + self._interval_seconds
            heard: list[bool] = []
            self._heard = heard
            # A daemon: an answer that does not come must not hold up the end of the supervisor.
            threading.Thread(target=self._ask, args=(heard,), name="pulse", daemon=True).start()
        if self._pulse.is_lost(self._silences_max):
            seconds = self._silences_max * self._interval_seconds
            return f"its readiness did not answer for {seconds:.0f} s"
        return None

    def _ask(self, heard: list[bool]) -> None:
        heard.append(self._is_answering(self._interval_seconds))
