"""A search over a topic: reads segment by segment in the requested order, and reports its progress.

Invariant: it ends with a cursor of what was not read; nothing is reported as absent that was not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from highwater.connectors.replay.consumer import open_reader
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.cursors import Cursor, InvalidCursorError, Search, parse_places
from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.lanes import FoundRecord, Lane, Lanes
from highwater.connectors.replay.reading import Batch, read_batches
from highwater.connectors.replay.running import Chooser
from highwater.connectors.replay.selection import InvalidSelectionError, NoSuchTopicError, Ranges
from highwater.connectors.replay.shares import Share
from highwater.connectors.replay.spans import fetch_ranges, fetch_spans
from highwater.connectors.replay.text import documents
from highwater.schemas.exact_json import write_json
from highwater.streams.clock import monotonic_seconds

# The first segment is small, so that recent records come at once; each later one reads twice as much of a partition, up
# to a round of this many offsets over all partitions, after which progress is reported.
SEGMENT_OFFSETS_MIN = 1_000
ROUND_OFFSETS_MAX = 400_000
# What a partition holds for a page besides the number of records: a page of records of a megabyte each is not held
# eight times.
HELD_BYTES_MAX = 2 << 20
# Often enough for a moving progress line; more often only costs.
PROGRESS_SECONDS = 0.25
# A search that was not stopped ends here, with a cursor to continue: nobody waits for a page any longer.
SEARCH_SECONDS_MAX = 60.0
# A segment that is being read then has this long to end; a condition that is slow on purpose may take hours for one. It is
# read again when the search continues.
SEGMENT_SECONDS_MORE = 15.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a page ends: after this many records, or at a time of the monotonic clock."""

    records: int
    until_seconds: float
    segment_offsets: int = SEGMENT_OFFSETS_MIN


def begin_search(client: Mapping[str, str], search: Search, cursor: str | None, now_ms: int) -> tuple[Cursor, int]:
    """Return the offsets to read, and how many of a cursor's offsets were deleted since it was created.

    Raises:
        InvalidSelectionError: the topic has no such position.
        NoSuchTopicError: there is no such topic of another application.
        InvalidCursorError: the cursor does not belong to this search.
        UnavailableError: the broker does not answer.
    """
    name = search.topic.name
    bounds, left = parse_places(search, cursor, now_ms)
    ranges = fetch_ranges(client, name)
    if not ranges:
        if not search.topic.is_catalogued:
            raise NoSuchTopicError(f"there is no topic {name!r} on the broker")
        raise InvalidSelectionError(f"{name} is not on the broker; run `highwater init`")
    if left is not None:
        return _clamped(left, ranges)
    if search.partition is not None and search.partition not in ranges:
        raise InvalidSelectionError(f"{name} has no partition {search.partition}; it has 0 to {len(ranges) - 1}")
    spans = fetch_spans(client, name, ranges, *bounds)
    meant = {
        partition: Share(span.low, span.high)
        for partition, span in spans.items()
        if search.partition in (None, partition) and span.low < span.high
    }
    return Cursor(meant, sum(span.high - span.low for span in meant.values())), 0


def _clamped(cursor: Cursor, ranges: Ranges) -> tuple[Cursor, int]:
    """Return the part of a cursor's offsets that the log still holds, and the number of deleted ones.

    Raises:
        InvalidCursorError: the log ends before them, so it was recreated.
    """
    spans = {}
    for partition, span in cursor.spans.items():
        held = ranges.get(partition)
        if held is None or span.high > held.high:
            raise InvalidCursorError("the topic ends before the cursor's offsets; begin the search without it")
        low = max(span.low, held.low)
        if low < span.high:
            spans[partition] = Share(low, span.high)
    kept = Cursor(spans, cursor.total, cursor.found)
    return kept, cursor.unread - kept.unread


def chooser_of(search: Search, decoder: Decoder, counts: Counts) -> Chooser:
    """Return the filter of a search.

    Raises:
        WhereError: the condition is not one over a record of this topic.
    """
    key = None if search.key is None else search.key.encode("utf-8", "surrogateescape")
    return Chooser(search.topic.name, decoder, counts, key=key, condition=search.condition, words=search.words)


class Searching:
    """One page of a search, as events: `progress` and `record`, and finally `end`."""

    def __init__(
        self,
        client: Mapping[str, str],
        search: Search,
        chooser: Chooser,
        counts: Counts,
        cursor: Cursor,
        limits: Limits,
    ) -> None:
        """`counts` are those of the chooser."""
        self._client = client
        self._search = search
        self._chooser = chooser
        self._counts = counts
        self._cursor = cursor
        self._limits = limits
        self._lanes = Lanes(cursor.spans, is_newest_first=search.is_newest_first)
        self._given = 0
        self._told_at = monotonic_seconds()

    def events(self) -> Iterator[bytes]:
        """Yield the lines of the response, each as soon as it is found.

        Raises:
            UnavailableError: the broker became unavailable.
            WhereError: the condition returned something other than true or false.
        """
        offsets, reason = self._limits.segment_offsets, "page"
        while self._given < self._limits.records:
            found = self._lanes.next()
            if found is not None:
                self._given += 1
                yield found.line
                continue
            lanes = self._lanes.to_read()
            if not lanes:
                break
            if monotonic_seconds() >= self._limits.until_seconds:
                reason = "time"
                break
            if not (yield from self._read(lanes, min(offsets, max(1, ROUND_OFFSETS_MAX // len(lanes))))):
                reason = "time"
                break
            offsets *= 2
        rests = self._lanes.rests()
        left_open = (
            0 if rests else sum(held.open for held in fetch_ranges(self._client, self._search.topic.name).values())
        )
        yield self._end(Cursor(rests, self._cursor.total, self._found), reason if rests else "all", left_open)

    @property
    def _found(self) -> int:
        return self._cursor.found + self._given

    def _read(self, lanes: list[Lane], offsets: int) -> Generator[bytes, None, bool]:
        """Read a segment of each lane; yield lines of progress, each with a cursor that continues after the returned records.

        Returns whether it was read to its end; nothing of it counts if it took too long.
        """
        segments = {lane.partition: lane.segment(offsets) for lane in lanes}
        pages = {lane.partition: _Page(self._limits.records, is_last=self._search.is_newest_first) for lane in lanes}
        before = self._counts.read
        yield self._progress(self._lanes.unread)
        # A separate reader for each segment: data that librdkafka prefetched for the last one is not useful for this
        # one.
        with closing(open_reader(self._client)) as reader:
            for batch in read_batches(reader, self._search.topic.name, segments):
                for partition, ms in _edges(batch, is_first=self._search.is_newest_first):
                    pages[partition].note(ms)
                kept = self._chooser.decoded(batch)
                for partition, page in pages.items():
                    page.add(kept, np.flatnonzero(kept.batch.partitions == partition).tolist())
                if monotonic_seconds() >= self._limits.until_seconds + SEGMENT_SECONDS_MORE:
                    return False
                if monotonic_seconds() - self._told_at >= PROGRESS_SECONDS:
                    yield self._progress(self._lanes.unread - (self._counts.read - before))
        for partition, page in pages.items():
            self._lanes[partition].take(segments[partition], list(page.found), page.edge_ms, is_whole=page.is_whole)
        return True

    def _progress(self, unread: int) -> bytes:
        self._told_at = monotonic_seconds()
        total = self._cursor.total
        scanned = min(total, max(0, total - unread))
        cursor = Cursor(self._lanes.rests(), total, self._found).text(self._search)
        told = {"event": "progress", "scanned": scanned, "total": total, "found": self._found, "cursor": cursor}
        return line_of(told)

    def _end(self, cursor: Cursor, reason: str, left_open: int) -> bytes:
        return line_of(
            {
                "event": "end",
                "reason": reason,
                "scanned": cursor.total - cursor.unread,
                "total": cursor.total,
                "found": cursor.found,
                "read": self._counts.read,
                "without_answer": self._counts.unanswered,
                "first_failure": self._counts.first_failure,
                # Offsets of open transactions, which can be read when they end.
                "open": left_open,
                "cursor": cursor.text(self._search) if cursor.spans else None,
            }
        )


class _Page:
    """The result of one segment for a page: its first or last found records, and the time at its far edge."""

    def __init__(self, records_max: int, *, is_last: bool) -> None:
        self._records_max = records_max
        self._is_last = is_last
        self._size = 0
        self.found: deque[FoundRecord] = deque()
        self.is_whole = True
        self.edge_ms: int | None = None

    def note(self, ms: int) -> None:
        """Note the time of a batch's furthest record in the direction of reading; batches come in the order of offsets."""
        if self.edge_ms is None or not self._is_last:
            self.edge_ms = ms

    def add(self, kept: Decoded, places: list[int]) -> None:
        """Hold the records at these indexes that can still be on the page."""
        room = self._records_max if self._is_last else self._records_max - len(self.found)
        chosen = places[-room:] if self._is_last else places[:room] if self.is_whole else []
        if len(chosen) < len(places):
            self.is_whole = False
        if not chosen:
            return
        some = kept.only(chosen)
        for place, document in enumerate(documents(some)):
            line = line_of({"event": "record", **document})
            batch = some.batch
            place_of = int(batch.partitions[place]), int(batch.offsets[place]), int(batch.times_ms[place])
            self._hold(FoundRecord(*place_of, line))
            if not self.is_whole and not self._is_last:
                return

    def _hold(self, one: FoundRecord) -> None:
        self.found.append(one)
        self._size += len(one.line)
        while len(self.found) > 1 and (len(self.found) > self._records_max or self._size > HELD_BYTES_MAX):
            dropped = self.found.popleft() if self._is_last else self.found.pop()
            self._size -= len(dropped.line)
            self.is_whole = False


def _edges(batch: Batch, *, is_first: bool) -> Iterator[tuple[int, int]]:
    """Yield each partition of a batch with the time of its first or last record."""
    for partition in np.unique(batch.partitions).tolist():
        times = batch.times_ms[batch.partitions == partition]
        yield partition, int(times[0] if is_first else times[-1])


def line_of(document: Mapping[str, Any]) -> bytes:
    """Return a line of the answer."""
    return write_json(document, orjson.OPT_APPEND_NEWLINE)
