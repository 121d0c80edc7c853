"""Owns the order in which a search gives what it finds in several partitions, and what must be read to know it.

Invariant: a record is given only when no unread one goes before it: by time of arrival, then partition, and within a partition by
offset. What was read and not given counts as unread, so a search may stop anywhere and go on from `rest`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from highwater.connectors.replay.shares import Share, Span


class Found(NamedTuple):
    """A record that was found; `line` is it as JSON."""

    partition: int
    offset: int
    arrived_ms: int
    line: bytes


class Lane:
    """One partition: its unread span, and the records found that wait."""

    def __init__(self, partition: int, span: Span, *, is_newest_first: bool) -> None:
        self.partition = partition
        self._low, self._high = span.low, span.high
        self._is_newest_first = is_newest_first
        self.held: deque[Found] = deque()
        # The time that reading has come to; None: nothing was read yet, so anything may come.
        self.reached_ms: int | None = None

    @property
    def is_read(self) -> bool:
        """Whether nothing is unread."""
        return self._low >= self._high

    @property
    def rest(self) -> Share:
        """What was not given: the unread offsets, and those from the first that waits."""
        if not self.held:
            return Share(self._low, self._high)
        first = self.held[0].offset
        return Share(self._low, first + 1) if self._is_newest_first else Share(first, self._high)

    def segment(self, offsets: int) -> Share:
        """Return the next span of up to this many offsets."""
        if self._is_newest_first:
            return Share(max(self._low, self._high - offsets), self._high)
        return Share(self._low, min(self._high, self._low + offsets))

    def take(self, segment: Share, found: Sequence[Found], reached_ms: int | None, *, is_whole: bool) -> None:
        """What a segment gave, in the order of offsets; `reached_ms` is its last time in the order of reading, if it has any.

        Where it is not whole, what was found is the first of it in the order of reading, and what comes after stays unread.
        """
        self.held.extend(found[::-1] if self._is_newest_first else found)
        end = segment.low if self._is_newest_first else segment.high
        if not is_whole:
            last = self.held[-1]
            reached_ms = last.arrived_ms
            end = last.offset if self._is_newest_first else last.offset + 1
        if self._is_newest_first:
            self._high = end
        else:
            self._low = end
        self.reached_ms = self.reached_ms if reached_ms is None else reached_ms


class Lanes:
    """All partitions of a search."""

    def __init__(self, spans: Mapping[int, Span], *, is_newest_first: bool) -> None:
        self._sign = -1 if is_newest_first else 1
        self._lanes = {
            partition: Lane(partition, span, is_newest_first=is_newest_first) for partition, span in spans.items()
        }

    def __getitem__(self, partition: int) -> Lane:
        return self._lanes[partition]

    def next(self) -> Found | None:
        """Return the next record in order; None if more must be read first, or if there is none."""
        best = self._best()
        if best is None or self._before(best):
            return None
        return best.held.popleft()

    def to_read(self) -> list[Lane]:
        """The partitions of which more must be read before anything can be given."""
        return self._before(self._best())

    @property
    def unread(self) -> int:
        """Offsets that were not read, those of records that wait among them."""
        return sum(span.high - span.low for span in self.rests().values())

    def rests(self) -> dict[int, Share]:
        """What is left, by partition; empty when everything was given."""
        rests = {partition: lane.rest for partition, lane in self._lanes.items()}
        return {partition: rest for partition, rest in rests.items() if rest.low < rest.high}

    def _rank(self, arrived_ms: int, partition: int) -> tuple[int, int]:
        return self._sign * arrived_ms, self._sign * partition

    def _best(self) -> Lane | None:
        heads = [lane for lane in self._lanes.values() if lane.held]
        return min(heads, key=lambda lane: self._rank(lane.held[0].arrived_ms, lane.partition), default=None)

    def _before(self, best: Lane | None) -> list[Lane]:
        """The partitions whose unread records might go before the best that waits."""
        unknown = [lane for lane in self._lanes.values() if not lane.is_read and not lane.held]
        if best is None:
            return unknown
        rank = self._rank(best.held[0].arrived_ms, best.partition)
        return [
            lane for lane in unknown if lane.reached_ms is None or self._rank(lane.reached_ms, lane.partition) < rank
        ]
