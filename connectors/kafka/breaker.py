"""The ratio breaker: poison is dead-lettered up to a share of what was read; past it the consumer stops and says so."""

from __future__ import annotations

from collections import deque

from highwater.schemas.errors import BreakerOpenError

# Half of the last thousand events is no longer bad input but a broken producer or a broken release; below a hundred
# dead letters the share means nothing (a test file of ten bad lines must not stop a consumer).
WINDOW_EVENTS = 1_000
DEAD_MIN = 100
DEAD_RATIO_MAX = 0.5


class RatioBreaker:
    """Counts accepted and dead events over a sliding window."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int]] = deque()
        self._total = 0
        self._dead = 0

    def check(self, events: int, dead: int) -> None:
        """Say whether a batch may be dead-lettered; nothing is recorded.

        Raises:
            BreakerOpenError: too large a share of the window, this batch included, is dead.
        """
        total, all_dead = self._total + events, self._dead + dead
        if dead and all_dead >= DEAD_MIN and all_dead > DEAD_RATIO_MAX * total:
            raise BreakerOpenError(
                f"{all_dead} of the last {total} events could not be processed; the consumer stops rather than "
                "dead-letter the rest. See `highwater dlq list`, mend the cause, restart"
            )

    def record(self, events: int, dead: int) -> None:
        """Add a batch that was stored."""
        self._batches.append((events, dead))
        self._total += events
        self._dead += dead
        while self._total - self._batches[0][0] >= WINDOW_EVENTS:
            gone_events, gone_dead = self._batches.popleft()
            self._total -= gone_events
            self._dead -= gone_dead
