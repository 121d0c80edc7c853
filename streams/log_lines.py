"""Processes log lines before they are written: repeated ones are limited, and those of libraries are one line each.

Invariant: an omitted line is counted, and the next one of its kind reports how many there were.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

import structlog

from highwater.streams.clock import monotonic_seconds
from highwater.streams.printable import printable_lines

# Lines of one kind per minute: enough to see what happens and how often, and a day of a failing loop is below 10 MB.
LINES_MAX = 30
PERIOD_SECONDS = 60.0
# Kinds that are counted at once; the least recent is forgotten, and its lines start again.
_KINDS_MAX = 1_000
_NUMBERS = re.compile(r"\d+")

EventDict = MutableMapping[str, Any]


class RepeatLimit:
    """Counts lines by kind."""

    def __init__(self) -> None:
        self._kinds: dict[object, tuple[float, int]] = {}  # begin of the period, lines in it
        self._lock = threading.Lock()

    def left_out(self, kind: object, now_seconds: float) -> int | None:
        """Return None if this line is to be omitted, else how many of its kind were omitted before it."""
        with self._lock:
            began, lines = self._kinds.pop(kind, (now_seconds, 0))
            before = 0
            if now_seconds - began >= PERIOD_SECONDS:
                before = max(0, lines - LINES_MAX)
                began, lines = now_seconds, 0
            self._kinds[kind] = began, lines + 1
            if len(self._kinds) > _KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            return before if lines < LINES_MAX else None


class LimitOwn:
    """A processor of our own lines: a kind is an owner's event."""

    def __init__(self, limit: RepeatLimit) -> None:
        self._limit = limit

    def __call__(self, _logger: Any, level: str, event: EventDict) -> EventDict:
        """Pass it on, or drop it."""
        before = self._limit.left_out((event.get("owner"), level, event.get("event")), monotonic_seconds())
        if before is None:
            raise structlog.DropEvent
        return _with(event, before)


class LimitLibraries(logging.Filter):
    """A filter of the lines of libraries: a kind is a message without its numbers."""

    def __init__(self, limit: RepeatLimit) -> None:
        super().__init__()
        self._limit = limit

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass it on, or drop it."""
        kind = record.name, record.levelno, _NUMBERS.sub("#", record.getMessage())
        before = self._limit.left_out(kind, monotonic_seconds())
        record.left_out = before or 0
        return before is not None


def of_library(_logger: Any, _level: str, event: EventDict) -> EventDict:
    """Return a library's line with its name, on one line; a warning's exception without its stack trace, which does not
    help our readers.
    """
    record: logging.LogRecord = event["_record"]
    event["owner"] = record.name
    event["event"] = " ".join(str(event["event"]).split())
    if record.exc_info and record.exc_info[1] is not None and record.levelno < logging.ERROR:
        event.pop("exc_info", None)
        event["error"] = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves(record.exc_info[1]))
    return _with(event, getattr(record, "left_out", 0))


def escaped(_logger: Any, _level: str, event: EventDict) -> EventDict:
    """Return a line for a terminal: its texts may have come from outside. A line in JSON needs no escapes but its own."""
    for name, value in event.items():
        event[name] = printable_lines(value) if isinstance(value, str) else value
    return event


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, or the single one."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def _with(event: EventDict, left_out: int) -> EventDict:
    if left_out:
        event["left_out_before"] = left_out
    return event
