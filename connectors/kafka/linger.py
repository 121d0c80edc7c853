"""How long a consumer that has a record lingers for more, as a pure function of how fast they came lately.

Each batch is a transaction, and costs some milliseconds of processor time over all parts whatever it holds. Where records come
one after the other, a consumer that takes each as it comes is busy with transactions; one that always waits delays whoever
comes alone. So it waits where the wait will be worth it: where enough records are to be expected within it.
"""

from __future__ import annotations

import math

# A batch of so many waits no longer: its fixed cost is spread. Whoever is behind has them at hand.
_ENOUGH = 64
# So many records within the wait make it worth it: a batch of five costs little more than one of one.
_WORTH_IT = 5
# The rate is taken over about this time: some waits, and less than a spell of work lasts.
_RATE_SECONDS = 0.25


class Linger:
    """Follows the rate at which records come to one consumer. Times are of a clock that only goes forward, in seconds.

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
