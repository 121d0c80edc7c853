"""How long a consumer with a record waits for more, as a pure function of the recent rate.

Each batch is a transaction, and costs some milliseconds of processor time over all services, however small it is. If a
consumer processed each record of a stream alone, it would be busy with transactions; if it always waited, it would
delay single records. So it waits only if enough records can be expected within the wait.
"""

from __future__ import annotations

import math

# A batch of this size waits no longer: its fixed cost is spread. A consumer that is behind has enough records at hand.
_ENOUGH = 64
# This many records within the wait make it worthwhile: a batch of five costs little more than one of one.
_WORTH_IT = 5
# The rate is averaged over about this time: several waits, and less than a burst of work lasts.
_RATE_SECONDS = 0.25


class Linger:
    """Tracks the rate at which records come to one consumer. Times are of a monotonic clock, in seconds.

    Args:
        seconds: how long the handler lets its events wait (`Handler.linger_seconds`).
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._per_second = 0.0
        self._noted_at = 0.0

    def note(self, count: int, now: float) -> None:
        """Note that a number of records arrived, the last of them now."""
        self._per_second = self._rate(now) + count / _RATE_SECONDS
        self._noted_at = now

    def wait_seconds(self, count: int, now: float) -> float:
        """Return how long to wait for more records, given the number at hand; 0: not at all."""
        return self._seconds if count < _ENOUGH and self._rate(now) * self._seconds >= _WORTH_IT else 0.0

    def _rate(self, now: float) -> float:
        return self._per_second * math.exp((self._noted_at - now) / _RATE_SECONDS)
