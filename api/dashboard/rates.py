"""Throughput: ends of topics over time, and the rates between them.

Invariant: a rate is the number of records appended between two samples, divided by the time between them; it is never
negative, even if a topic was recreated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

# Five minutes of samples every two seconds.
SAMPLES_MAX = 150
# A rate covers ten seconds: long enough to be read, short enough to follow changes.
RATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The sum of the next offsets of each topic at a moment (`at_seconds`, of a monotonic clock)."""

    at_seconds: float
    ends: Mapping[str, int]


class Rates:
    """The samples of the last minutes."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self._samples.append(sample)

    def clear(self) -> None:
        """Forget all samples: after a gap in sampling a rate would be meaningless."""
        self._samples.clear()

    def per_second(self) -> dict[str, float]:
        """Return events per second of each topic, over the last `RATE_SECONDS`; empty before the second sample."""
        if len(self._samples) < 2:
            return {}
        last = self._samples[-1]
        first = next(one for one in self._samples if last.at_seconds - one.at_seconds <= RATE_SECONDS)
        if first is last:  # samples further apart than that: the previous one is used
            first = self._samples[-2]
        return {topic: _rate(first, last, topic) for topic in last.ends}

    def history(self, topic: str, points: int) -> list[float]:
        """Return up to `points` rates of a topic between the latest samples, oldest first."""
        found = list(self._samples)[-points - 1 :]
        return [_rate(before, after, topic) for before, after in pairwise(found)]

    def total_history(self, points: int) -> list[float]:
        """Return the same, for all topics together."""
        found = list(self._samples)[-points - 1 :]
        return [sum(_rate(before, after, topic) for topic in after.ends) for before, after in pairwise(found)]


def _rate(before: Sample, after: Sample, topic: str) -> float:
    seconds = after.at_seconds - before.at_seconds
    if seconds <= 0 or topic not in before.ends or topic not in after.ends:
        return 0.0
    return max(0, after.ends[topic] - before.ends[topic]) / seconds
