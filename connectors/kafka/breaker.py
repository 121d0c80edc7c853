"""The ratio breaker of each partition: past a share of bad records a partition is stopped, and only that one.

Invariant: what a producer writes to one partition never changes the verdict on another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]  # topic, partition

# Half of the last thousand events is no longer bad input but a broken producer or a broken release; below a hundred
# dead letters the share means nothing (a test file of ten bad lines must not stop a partition).
WINDOW_EVENTS = 1_000
DEAD_MIN = 100
DEAD_RATIO_MAX = 0.5


class Counts(NamedTuple):
    """Events of one partition, and how many of them are bad."""

    events: int
    dead: int


class Window:
    """Counts the events of one partition over a sliding window of batches."""

    def __init__(self) -> None:
        self._batches: deque[Counts] = deque()
        self._total = 0
        self._dead = 0

    def judge(self, batch: Counts) -> Counts | None:
        """The counts that stop the partition, this batch included; None = its bad records may be dead-lettered.

        Nothing is recorded, so a batch that is repeated while a service is unavailable counts once.
        """
        total, dead = self._total + batch.events, self._dead + batch.dead
        if batch.dead and dead >= DEAD_MIN and dead > DEAD_RATIO_MAX * total:
            return Counts(total, dead)
        return None

    def record(self, batch: Counts) -> None:
        """Add a batch that was stored."""
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
        """The partitions of a batch that must stop, with the counts that say so; nothing is recorded."""
        found = {place: self._windows.get(place, Window()).judge(counts) for place, counts in batch.items()}
        return {place: counts for place, counts in found.items() if counts is not None}

    def record(self, batch: Mapping[Place, Counts]) -> None:
        """Add a batch that was stored."""
        for place, counts in batch.items():
            self._windows.setdefault(place, Window()).record(counts)

    def forget(self, place: Place) -> None:
        """Begin a new window, after an operator has handled the partition."""
        self._windows.pop(place, None)
