"""How long the oldest unread record of a partition has waited, from samples of where the log ended and when.

Kafka answers "which offset is the last" cheaply and "when did this one arrive" only by reading it. So the ends are sampled: the
offset that is read next was there at the first sample whose end lies above it. Pure; times in ms since 1970, by one clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Samples of a partition: an hour at one each 5 s. Beyond that every other one goes, so an old backlog is told more coarsely.
SAMPLES_MAX = 720


class Mark(NamedTuple):
    """Where a partition ended at a moment."""

    at_ms: int
    high: int


class Lag(NamedTuple):
    """How far a reader is behind: records, and the wait of the oldest of them in seconds (0 without any)."""

    events: int
    seconds: float


class Marks:
    """The samples of one partition, oldest first; those below what was read are of no more use."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def note(self, mark: Mark, following: int) -> None:
        """Add a sample; `following` is the offset read next."""
        kept = [one for one in self._marks if one.high > following]
        if not kept or mark.high > kept[-1].high:
            kept.append(mark)
        self._marks = kept if len(kept) <= SAMPLES_MAX else [*kept[:-1:2], kept[-1]]

    def lag(self, following: int, now_ms: int, in_hand_ms: int | None = None) -> Lag:
        """How far behind a reader is that reads `following` next; `in_hand_ms` is the arrival of a record it is at work on."""
        if not self._marks or self._marks[-1].high <= following:
            return Lag(0, 0.0)
        since_ms = next(mark.at_ms for mark in self._marks if mark.high > following)
        if in_hand_ms is not None:
            since_ms = min(since_ms, in_hand_ms)
        return Lag(self._marks[-1].high - following, max(0.0, (now_ms - since_ms) / 1000))


def by_topic(lags: Mapping[tuple[str, int], Lag]) -> dict[str, Lag]:
    """Of each topic the events of all partitions, and the longest wait."""
    found: dict[str, Lag] = {}
    for (topic, _), lag in lags.items():
        before = found.get(topic, Lag(0, 0.0))
        found[topic] = Lag(before.events + lag.events, max(before.seconds, lag.seconds))
    return found
