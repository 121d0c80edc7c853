"""What an event passes on to its effects: when its chain began, and its trace.

A consumer notes both for each record it reads; everything it then publishes names that record as its cause, and takes
them from there (`envelope.make_headers`). Notes are in memory, by position, and limited: an effect follows its cause
within a batch or two. A later effect, or one of a process that did not read the cause, begins a new chain; only
measurements depend on this.

Headers: `ce_origintime` is the broker's time of the chain's first event; `ce_traceparent` and `ce_tracestate` are those
of the CloudEvents extension for distributed tracing (W3C Trace Context).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import NamedTuple

ORIGIN_TIME, TRACEPARENT, TRACESTATE = "ce_origintime", "ce_traceparent", "ce_tracestate"
# Four full batches of the largest consumer, some 6 MB.
POSITIONS_MAX = 20_000
# The key of a note; several consumers of a process read one record, each in its own span.
reader: ContextVar[str] = ContextVar("reader", default="")


class Carried(NamedTuple):
    """What a cause passes on: the broker's time of the chain's first event in ms since 1970, and the trace, if any."""

    origin_ms: int
    traceparent: str | None = None
    tracestate: str | None = None


class Notes:
    """The notes about causes, the latest `limit` of them; used from several threads."""

    def __init__(self, limit: int = POSITIONS_MAX) -> None:
        self._limit = limit
        self._notes: OrderedDict[tuple[str, int, int], tuple[str, Carried]] = OrderedDict()
        self._of_readers: OrderedDict[tuple[str, tuple[str, int, int]], Carried] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, position: tuple[str, int, int], carried: Carried) -> None:
        """Note what a position passes on; a trace also for the present reader alone."""
        place = (position[0], position[1], position[2])
        with self._lock:
            self._notes[place] = reader.get(), carried
            self._notes.move_to_end(place)
            if len(self._notes) > self._limit:
                self._notes.popitem(last=False)
            if carried.traceparent is not None:
                self._of_readers[reader.get(), place] = carried
                if len(self._of_readers) > self._limit:
                    self._of_readers.popitem(last=False)

    def note_origins(self, places: Sequence[tuple[str, int, int]], origins_ms: Sequence[int]) -> None:
        """Note positions that begin a new chain, with the broker's time of each in ms since 1970."""
        by = reader.get()
        # A broker stamps whole batches of a producer.
        noted = {origin_ms: (by, Carried(origin_ms)) for origin_ms in set(origins_ms)}
        with self._lock:
            notes, move_to_end = self._notes, self._notes.move_to_end
            for place, origin_ms in zip(places, origins_ms, strict=True):
                notes[place] = noted[origin_ms]
                move_to_end(place)
            while len(self._notes) > self._limit:
                self._notes.popitem(last=False)

    def of(self, position: tuple[str, int, int]) -> Carried | None:
        """Return what a position passes on: as the present reader noted it, else as any reader of this process did."""
        place = (position[0], position[1], position[2])
        with self._lock:
            own = self._of_readers.get((reader.get(), place))
            if own is not None:
                return own
            found = self._notes.get(place)
        return None if found is None else found[1]


NOTES = Notes()


def carried_headers(cause: tuple[str, int, int]) -> list[tuple[str, bytes]]:
    """Return the headers that an effect takes from its cause."""
    found = NOTES.of(cause)
    if found is None:
        return []
    headers = [(ORIGIN_TIME, str(found.origin_ms).encode())]
    if found.traceparent is not None:
        headers.append((TRACEPARENT, found.traceparent.encode()))
        if found.tracestate:
            headers.append((TRACESTATE, found.tracestate.encode()))
    return headers


def origin_ms_of(headers: Iterable[tuple[str, bytes | None]] | None, arrived_ms: int) -> int:
    """Return when the chain of a record began: by its header, else its arrival. A time after its arrival is ignored."""
    for name, value in headers or ():
        if name == ORIGIN_TIME and value is not None and value.isdigit() and len(value) <= 15:  # below the year 33658
            return min(int(value), arrived_ms)
    return arrived_ms
