"""The circuit breaker of each partition: with too many bad records a partition stops, and only that one.

Invariant: records in one partition never affect the decision on another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]  # topic, partition

# Half of the last thousand events means a broken producer or release, not occasional bad input; below a hundred dead
# letters the share means nothing (a test file of ten bad lines must not stop a partition).
WINDOW_EVENTS = 1_000
DEAD_MIN = 100
DEAD_RATIO_MAX = 0.5


class Counts(NamedTuple):
    """The events of one partition, and the number of bad ones."""

    events: int
    dead: int


class Window:
    """Counts the events of one partition over a sliding window of batches."""

    def __init__(self) -> None:
        self._batches: deque[Counts] = deque()
        self._total = 0
        self._dead = 0

    def judge(self, batch: Counts) -> Counts | None:
        """Return the counts that stop the partition, including this batch; None = its bad records may be dead-lettered.

        Nothing is recorded, so a batch that is repeated while a service is unavailable counts once.
        """
        total, dead = self._total + batch.events, self._dead + batch.dead
        if batch.dead and dead >= DEAD_MIN and dead > DEAD_RATIO_MAX * total:
            return Counts(total, dead)
        return None

    def record(self, batch: Counts) -> None:
        """Add a stored batch."""
        self._batches.append(batch)
        self._total += batch.events
        self._dead += batch.dead
        while self._total - self._batches[0].events >= WINDOW_EVENTS:
            gone = self._batches.popleft()
            self._total -= gone.events
            self._dead -= gone.dead


class RatioBreaker:
    """The windows of all partitions of one consumer."""

    def __init__(self) -> None:
        self._windows: dict[Place, Window] = {}

    def tripped(self, batch: Mapping[Place, Counts]) -> dict[Place, Counts]:
        """Return the partitions of a batch that must stop, with their counts; nothing is recorded."""
        found = {place: self._windows.get(place, Window()).judge(counts) for place, counts in batch.items()}
        return {place: counts for place, counts in found.items() if counts is not None}

    def record(self, batch: Mapping[Place, Counts]) -> None:
        """Add a stored batch."""
        for place, counts in batch.items():
            self._windows.setdefault(place, Window()).record(counts)

    def forget(self, place: Place) -> None:
        """Begin a new window, after an operator has handled the partition."""
        self._windows.pop(place, None)
