"""Which offsets a pushed-down condition can need: by partition, arrival time and offset.

Invariant: no record that the condition may match is left out. Arrow simplifies the condition under a guarantee, such as
`_timestamp <= t`; a span is skipped only if the result is certainly false or null. So a condition may have any form,
and one that Arrow cannot simplify reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from highwater.connectors.replay.selection import Ranges
from highwater.connectors.replay.shares import Share
from highwater.connectors.sql.datasets import ds

# The last moment of the year 9999: broker times come before it.
_MS_MAX = 253_402_300_799_999
_PARQUET = ds.ParquetFileFormat()
_FILES = fs.LocalFileSystem()

OffsetsAt = Callable[[int], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Interval:
    """The first and the last moment, in ms, at which a condition can be true; None: no bound."""

    first_ms: int | None = None
    last_ms: int | None = None


class Condition:
    """A condition over a table's columns."""

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema

    def may_hold(self, guarantee: pc.Expression) -> bool:
        """Return whether the condition can be true for a record that fulfils the guarantee."""
        # A data set of one missing file: Arrow decides whether it would have to be opened, and nothing opens it.
        one = ds.FileSystemDataset.from_paths(
            ["-"], schema=self._schema, format=_PARQUET, filesystem=_FILES, partitions=[guarantee]
        )
        return next(iter(one.get_fragments(self._expression)), None) is not None

    def interval(self) -> Interval | None:
        """Return when the condition can be true; None: never."""
        field = pc.field("_timestamp")
        if not self.may_hold(field >= _moment(0)):
            return None
        first = _first(0, _MS_MAX, lambda ms: self.may_hold(field <= _moment(ms, is_last=True)))
        last = _first(0, _MS_MAX, lambda back: self.may_hold(field >= _moment(_MS_MAX - back)))
        if first is None or last is None:
            return None
        return Interval(first or None, None if last == 0 else _MS_MAX - last)

    def span(self, partition: int, low: int, high: int) -> Share | None:
        """Return those of a partition's offsets for which the condition can be true; None: none of them."""
        here, offset = pc.field("_partition") == pa.scalar(partition, pa.int32()), pc.field("_offset")
        if low >= high or not self.may_hold(here & (offset >= low) & (offset < high)):
            return None
        first = _first(low, high - 1, lambda at: self.may_hold(here & (offset >= low) & (offset <= at)))
        last = _first(
            0, high - 1 - low, lambda back: self.may_hold(here & (offset >= high - 1 - back) & (offset < high))
        )
        if first is None or last is None:
            return None
        return Share(first, high - last)


def prune(condition: Condition, ranges: Ranges, offsets_at: OffsetsAt, *, is_in_order: bool = True) -> dict[int, Share]:
    """Return the offsets of each partition to read; `ranges` are the available offsets.

    `offsets_at` returns, for a time in ms, the offset of the first record at or after it in each partition. Unless the
    broker sets the times (`is_in_order` is false), producers may set any: then an earlier time may follow a later one,
    and only the records before the first one of the interval are skipped.
    """
    interval = condition.interval()
    if interval is None and is_in_order:
        return {}
    lows: Mapping[int, int] = {}
    highs: Mapping[int, int] = {}
    if interval is not None and interval.first_ms is not None:
        lows = offsets_at(interval.first_ms)
    if interval is not None and interval.last_ms is not None and is_in_order:
        highs = offsets_at(interval.last_ms + 1)
    found = {}
    for partition, held in ranges.items():
        low = max(held.low, lows.get(partition, held.low))
        span = condition.span(partition, low, min(held.high, highs.get(partition, held.high)))
        if span is not None:
            found[partition] = span
    return found


def _moment(ms: int, *, is_last: bool = False) -> pa.Scalar:
    """Return the first or the last microsecond of a millisecond."""
    return pa.scalar(ms * 1_000 + (999 if is_last else 0), RECORD_TIME)


RECORD_TIME = pa.timestamp("us", "UTC")


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the least number from low to high that fulfils a monotone condition."""
    if holds(low):
        return low
    if not holds(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
