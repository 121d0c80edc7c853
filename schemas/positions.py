"""A log position: `topic/partition/offset`, the name that replay, state version, ETag and freshness share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from highwater.schemas.errors import InvalidEventError

# Topic names as Kafka allows them (letters, digits, `.`, `_`, `-`; at most 249); offsets fit 63 bits.
_POSITION = re.compile(r"([a-zA-Z0-9._-]{1,249})/(\d{1,6})/(\d{1,18})")


class Position(NamedTuple):
    """The position of one event in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Cause(NamedTuple):
    """The event behind a row or a part of one: the broker's time (ms since 1970), which orders topics, and its position."""

    arrived_ms: int
    position: str

    @property
    def order(self) -> tuple[int, int, str]:
        """Return the sort key of causes: events sent together have one broker's time, and within a partition 10 follows 9."""
        return self.arrived_ms, len(self.position), self.position


def parse_position(text: str) -> Position:
    """Parse `topic/partition/offset`.

    Raises:
        InvalidEventError: the text has another form.
    """
    match = _POSITION.fullmatch(text.strip())
    if match is None:
        raise InvalidEventError("malformed_position", f"{text[:100]!r} is not topic/partition/offset")
    return Position(match[1], int(match[2]), int(match[3]))


def highest_positions(text: str) -> dict[tuple[str, int], int]:
    """Parse a comma-separated list of positions (`X-Min-Position`): the highest offset per (topic, partition) counts."""
    return _highest(parse_position(part) for part in text.split(",") if part.strip())


def _highest(positions: Iterable[Position]) -> dict[tuple[str, int], int]:
    highest: dict[tuple[str, int], int] = {}
    for topic, partition, offset in positions:
        highest[topic, partition] = max(offset, highest.get((topic, partition), -1))
    return highest
