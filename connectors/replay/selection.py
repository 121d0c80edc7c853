"""Selects records of a topic: from and to, each an offset, a position, a time or an age.

Invariant: both ends are offsets, fixed before the first record is read. `from` is included, `to` is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from highwater.connectors.kafka.admin import LogRange
from highwater.schemas.envelope import ms_from_iso
from highwater.schemas.errors import HighwaterError

FORMS = "an offset (1200), PARTITION/OFFSET, a time (2026-01-31T12:00Z), an age (90m, -7d), earliest or latest"

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGE = re.compile(r"-?(?:\d{1,9}(?:ms|[smhdw]))+", re.ASCII)
_AGE_PART = re.compile(r"(\d{1,9})(ms|[smhdw])")
_OFFSET = re.compile(r"\d{1,18}", re.ASCII)
_PLACE = re.compile(r"(?:(?P<topic>[a-zA-Z0-9._-]{1,249})/)?(?P<partition>\d{1,6})/(?P<offset>\d{1,18})", re.ASCII)


Ranges = Mapping[int, LogRange]
OffsetsAt = Callable[[int], Mapping[int, int]]


class InvalidSelectionError(HighwaterError):
    """The requested place is not in the topic, or is not a place or time. Correct `--from` or `--to`."""


class NoSuchTopicError(InvalidSelectionError):
    """The broker has no such topic. Check the name; `highwater topics` lists them."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset in one partition, or in every one."""

    offset: int
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that arrived then or later."""

    ms: int


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The first existing record, or one past the last."""

    is_latest: bool


Bound = AtOffset | AtTime | AtEnd


def parse_bound(text: str, *, topic: str, now_ms: int) -> Bound:
    """Parse the text of `--from` or `--to`. An age may have a minus: both `1h` and `-1h` are an hour ago.

    Raises:
        InvalidSelectionError: it has none of the forms, or is a position of another topic.
    """
    text = text.strip()
    if text in ("earliest", "latest"):
        return AtEnd(text == "latest")
    if _OFFSET.fullmatch(text):
        return AtOffset(int(text))
    place = _PLACE.fullmatch(text)
    if place is not None:
        if place["topic"] not in (None, topic):
            raise InvalidSelectionError(f"{text} is a position of {place['topic']}, not of {topic}")
        return AtOffset(int(place["offset"]), int(place["partition"]))
    if _AGE.fullmatch(text):
        age_ms = sum(int(number) * _UNIT_MS[unit] for number, unit in _AGE_PART.findall(text))
        return AtTime(max(0, now_ms - age_ms))
    try:
        return AtTime(max(0, ms_from_iso(text)))
    except ValueError as error:
        raise InvalidSelectionError(f"{text[:100]!r} is not one of: {FORMS}") from error


def select(begin: Bound | None, end: Bound | None, ranges: Ranges, offsets_at: OffsetsAt, *, topic: str) -> Ranges:
    """Return the offsets of each partition to be read; `ranges` is what the partitions hold.

    `offsets_at` returns, for a time in ms, the offset of the first record then or later in each partition.

    Raises:
        InvalidSelectionError: an offset is not in the topic, and the message gives the valid range; or the end is
            before the
            beginning, so that an empty result is not mistaken for the contents of the log.
    """
    if _is_reversed(begin, end):
        raise InvalidSelectionError("the end is before the beginning; swap them")
    lows = _offsets(begin or AtEnd(is_latest=False), ranges, offsets_at, topic)
    highs = _offsets(end or AtEnd(is_latest=True), ranges, offsets_at, topic)
    return {
        partition: LogRange(lows[partition], max(lows[partition], highs[partition]))
        for partition in lows.keys() & highs
    }


def _is_reversed(begin: Bound | None, end: Bound | None) -> bool:
    match begin, end:
        case AtTime(first), AtTime(last):
            return last < first
        case AtOffset(first, partition), AtOffset(last, other):
            return last < first and partition == other
        case _:
            return begin == AtEnd(is_latest=True) and end == AtEnd(is_latest=False)


def _offsets(bound: Bound, ranges: Ranges, offsets_at: OffsetsAt, topic: str) -> dict[int, int]:
    if isinstance(bound, AtEnd):
        return {partition: held.high if bound.is_latest else held.low for partition, held in ranges.items()}
    if isinstance(bound, AtTime):
        found = offsets_at(bound.ms)
        return {partition: _clamped(found[partition], held) for partition, held in ranges.items()}
    meant = ranges if bound.partition is None else {p: held for p, held in ranges.items() if p == bound.partition}
    if not meant:
        raise InvalidSelectionError(f"{topic} has no partition {bound.partition}: {_held(ranges)}")
    # One past the last is the end of a partition, where its next record will be.
    if not any(held.low <= bound.offset <= held.high for held in meant.values()):
        raise InvalidSelectionError(f"offset {bound.offset} is not in {topic}: {_held(meant)}")
    return {partition: _clamped(bound.offset, held) for partition, held in meant.items()}


def _clamped(offset: int, span: LogRange) -> int:
    return min(max(offset, span.low), span.high)


def _held(ranges: Ranges) -> str:
    return ", ".join(
        f"partition {partition} holds {held.low} to {held.high - 1}"
        if held.low < held.high
        else f"partition {partition} is empty"
        for partition, held in sorted(ranges.items())
    )
