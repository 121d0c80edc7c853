"""How long the oldest unread record of a partition has waited, from samples of the log's end and their times.

Kafka answers "which offset is the last" cheaply and "when did this one arrive" only by reading it. So the ends are
sampled: the next offset existed at the first sample whose end lies above it. Pure; times in ms since 1970, by one
clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Samples of a partition: an hour at one per 5 s. Beyond that every other one is dropped, so the age of an old backlog
# is coarser.
SAMPLES_MAX = 720


class Mark(NamedTuple):
    """The end of a partition at a time."""

    at_ms: int
    high: int


class Lag(NamedTuple):
    """The lag of a reader: records, and the age of the oldest of them in seconds (0 without any)."""

    events: int
    seconds: float


class Marks:
    """The samples of one partition, oldest first; those below the read offset are dropped."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def note(self, mark: Mark, following: int) -> None:
        """Add a sample; `following` is the next offset."""
        kept = [one for one in self._marks if one.high > following]
        if not kept or mark.high > kept[-1].high:
            kept.append(mark)
        self._marks = kept if len(kept) <= SAMPLES_MAX else [*kept[:-1:2], kept[-1]]

    def lag(self, following: int, now_ms: int, in_hand_ms: int | None = None) -> Lag:
        """Return the lag of a reader whose next offset is `following`; `in_hand_ms` is the arrival of a record it is
        processing.
        """
        if not self._marks or self._marks[-1].high <= following:
            return Lag(0, 0.0)
        since_ms = next(mark.at_ms for mark in self._marks if mark.high > following)
        if in_hand_ms is not None:
            since_ms = min(since_ms, in_hand_ms)
        return Lag(self._marks[-1].high - following, max(0.0, (now_ms - since_ms) / 1000))


def by_topic(lags: Mapping[tuple[str, int], Lag]) -> dict[str, Lag]:
    """Return for each topic the events of all partitions, and the longest wait."""
    found: dict[str, Lag] = {}
    for (topic, _), lag in lags.items():
        before = found.get(topic, Lag(0, 0.0))
        found[topic] = Lag(before.events + lag.events, max(before.seconds, lag.seconds))
    return found
