"""How many rebuild processes start at once, and what follows when the machine fails a rebuild.

Invariant: a busy machine gets less to do at a time, and one user's failed start costs the others seconds: what the
machine failed is given back, and requested again behind everybody else.
"""

from __future__ import annotations

from dataclasses import dataclass

from highwater.streams.retry import RetryPolicy

# A start takes 2 s on an idle machine. At five times as long the cores are shared with as many others.
SLOW_START_SECONDS = 10.0
# Attempts of one request while the machine fails them, and how long they may hold up the requests behind it: a killed
# process is replaced at once, one that was silent for half a minute is not tried again before the others had their turn.
MACHINE = RetryPolicy(first_ms=500, most_ms=1_000, attempts_max=3)
TURN_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StartPace:
    """How many processes may start at once: half as many after a slow start, one more after a quick one."""

    most: int
    at_once: int

    def after(self, seconds: float | None) -> StartPace:
        """Return the pace after a start that took this long; None: the process did not start."""
        if seconds is None or seconds > SLOW_START_SECONDS:
            return StartPace(self.most, max(1, self.at_once // 2))
        return StartPace(self.most, min(self.most, self.at_once + 1))


def wait_ms_after_machine(attempt: int, seconds: float) -> int | None:
    """Return the wait before the next attempt of a request that the machine failed; None: others have their turn first.

    Args:
        attempt: how many have failed, from 1.
        seconds: how long they took together.
    """
    return MACHINE.wait_ms(attempt) if seconds < TURN_SECONDS_MAX else None
