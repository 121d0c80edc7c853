"""The order in which a search returns what it finds in several partitions, and what must be read to know it.

Invariant: a record is returned only when no unread one precedes it: by time of arrival, then partition, and within a
partition by offset. Records that were read but not returned count as unread, so a search may stop anywhere and continue
from `rest`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from highwater.connectors.replay.shares import Share, Span


class FoundRecord(NamedTuple):
    """A found record; `line` is its JSON."""

    partition: int
    offset: int
    arrived_ms: int
    line: bytes


class Lane:
    """One partition: its unread span, and the found records that wait."""

    def __init__(self, partition: int, span: Span, *, is_newest_first: bool) -> None:
        self.partition = partition
        self._low, self._high = span.low, span.high
        self._is_newest_first = is_newest_first
        self.held: deque[FoundRecord] = deque()
        # The time that reading has reached; None: nothing was read yet, so anything may come.
        self.reached_ms: int | None = None

    @property
    def is_read(self) -> bool:
        """Return whether everything was read."""
        return self._low >= self._high

    @property
    def rest(self) -> Share:
        """Return what was not returned: the unread offsets, and those from the first waiting record."""
        if not self.held:
            return Share(self._low, self._high)
        first = self.held[0].offset
        return Share(self._low, first + 1) if self._is_newest_first else Share(first, self._high)

    def segment(self, offsets: int) -> Share:
        """Return the next span of up to this many offsets."""
        if self._is_newest_first:
            return Share(max(self._low, self._high - offsets), self._high)
        return Share(self._low, min(self._high, self._low + offsets))

    def take(self, segment: Share, found: Sequence[FoundRecord], reached_ms: int | None, *, is_whole: bool) -> None:
        """Add the result of a segment, in the order of offsets; `reached_ms` is its last time in the order of reading,
        if any.

        If it is not complete, the found records are the first in the order of reading, and the rest stays unread.
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

    def next(self) -> FoundRecord | None:
        """Return the next record in order; None if more must be read first, or if there is none."""
        best = self._best()
        if best is None or self._before(best):
            return None
        return best.held.popleft()

    def to_read(self) -> list[Lane]:
        """Return the partitions that must be read further before anything can be returned."""
        return self._before(self._best())

    @property
    def unread(self) -> int:
        """Return the number of unread offsets, including those of waiting records."""
        return sum(span.high - span.low for span in self.rests().values())

    def rests(self) -> dict[int, Share]:
        """Return the rest by partition; empty when everything was returned."""
        rests = {partition: lane.rest for partition, lane in self._lanes.items()}
        return {partition: rest for partition, rest in rests.items() if rest.low < rest.high}

    def _rank(self, arrived_ms: int, partition: int) -> tuple[int, int]:
        return self._sign * arrived_ms, self._sign * partition

    def _best(self) -> Lane | None:
        heads = [lane for lane in self._lanes.values() if lane.held]
        return min(heads, key=lambda lane: self._rank(lane.held[0].arrived_ms, lane.partition), default=None)

    def _before(self, best: Lane | None) -> list[Lane]:
        """Return the partitions whose unread records might precede the best waiting one."""
        unknown = [lane for lane in self._lanes.values() if not lane.is_read and not lane.held]
        if best is None:
            return unknown
        rank = self._rank(best.held[0].arrived_ms, best.partition)
        return [
            lane for lane in unknown if lane.reached_ms is None or self._rank(lane.reached_ms, lane.partition) < rank
        ]
