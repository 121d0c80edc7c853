"""The product's clock: the only module that reads the time.

The clock file holds an offset in seconds and is read again each second, so that a rehearsal or a test can move the time
of every process while it runs. Waits are measured on the monotonic clock, which is never moved.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

Clock = Callable[[], int]

_REREAD_SECONDS = 1.0


class ProductClock:
    """Milliseconds since 1970-01-01 UTC, moved by the offset in a file."""

    def __init__(self, offset_file: Path | None = None) -> None:
        self._file = offset_file
        self._offset_ms = 0
        self._read_at = float("-inf")

    def __call__(self) -> int:
        """Return the current time, in milliseconds since 1970."""
        if self._file is not None and time.monotonic() - self._read_at >= _REREAD_SECONDS:
            self._read_at = time.monotonic()
            self._offset_ms = self._read_offset(self._file)
        return time.time_ns() // 1_000_000 + self._offset_ms

    @property
    def offset_ms(self) -> int:
        """Return the offset in the last answer."""
        return self._offset_ms

    def _read_offset(self, path: Path) -> int:
        """Return the offset in the file; a missing file is 0, an unreadable one keeps the last (it is being written)."""
        try:
            return int(float(path.read_text(encoding="ascii").strip() or "0") * 1000)
        except FileNotFoundError:
            return 0
        except (ValueError, OverflowError):
            return self._offset_ms


def offset_ms_of(clock: Clock) -> int:
    """Return the part of a clock's last answer that is the offset in the file; 0 for another kind of clock."""
    return clock.offset_ms if isinstance(clock, ProductClock) else 0


def to_datetime(ms: int) -> datetime:
    """Return a UTC datetime of milliseconds since 1970, exact."""
    return datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)


def to_ms(moment: datetime) -> int:
    """Return the milliseconds since 1970 of an aware datetime, exact."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def to_ns(moment: datetime) -> int:
    """Return the nanoseconds since 1970 of an aware datetime, exact to its microsecond."""
    return to_ms(moment) * 1_000_000 + moment.microsecond % 1_000 * 1_000


def to_ms_or_none(moment: datetime | None) -> int | None:
    """Return the same, or None for None."""
    return None if moment is None else to_ms(moment)


def fresh_id() -> str:
    """Return a random id, for shells; the core takes ids as arguments."""
    return uuid.uuid4().hex


def fresh_number() -> int:
    """Return a random number that fits PostgreSQL's int, above 0."""
    return uuid.uuid4().int % (2**31 - 1) + 1


def monotonic_seconds() -> float:
    """Return seconds for measuring durations and waits; not a time of day."""
    return time.monotonic()


def lease_seconds() -> float:
    """Return seconds for leases: like `monotonic_seconds`, but also counting while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_ns() -> int:
    """Return nanoseconds since 1970 by the machine's clock, never moved: for spans of traces, which are compared over
    processes.
    """
    return time.time_ns()
