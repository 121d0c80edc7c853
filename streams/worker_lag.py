"""The lag of a worker in the partitions it serves, for its gauges.

Invariant: it sends no requests. The client knows the end of the log from its last fetch, and the worker's offset from
its last commit, so the lag is accurate to the few seconds between two commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from highwater.streams.agents import GROUP
from highwater.streams.clock import ProductClock
from highwater.streams.lag import Lag, Mark, Marks, by_topic
from highwater.streams.telemetry import LAG_EVENTS, LAG_SECONDS

# Prometheus scrapes every 15 s by default.
LOOK_SECONDS = 5.0


class WorkerLag:
    """Samples the ends of the partitions of one worker."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], Marks] = {}
        self._told: set[str] = set()
        self._clock = ProductClock()

    def note(self, places: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        """Set the gauges; `places` are the served partitions, each with the next offset and the end of the log."""
        now_ms = self._clock()
        self._marks = {place: self._marks.get(place, Marks()) for place in places}
        lags: dict[tuple[str, int], Lag] = {}
        for place, (following, high) in places.items():
            self._marks[place].note(Mark(now_ms, high), following)
            lags[place] = self._marks[place].lag(following, now_ms)
        found = by_topic(lags)
        for topic, lag in found.items():
            LAG_EVENTS.labels(GROUP, topic).set(lag.events)
            LAG_SECONDS.labels(GROUP, topic).set(lag.seconds)
        for topic in self._told - set(found):  # another worker has them now
            LAG_EVENTS.remove(GROUP, topic)
            LAG_SECONDS.remove(GROUP, topic)
        self._told = set(found)


async def measure_forever(served: Callable[[], Mapping[tuple[str, int], tuple[int, int]]]) -> None:
    """Measure `served` until cancelled (as `WorkerLag.note` takes it)."""
    lags = WorkerLag()
    while True:
        lags.note(served())
        await asyncio.sleep(LOOK_SECONDS)
