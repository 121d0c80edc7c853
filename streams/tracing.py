"""Traces: the W3C Trace Context of requests and records, and the spans of this process until they are exported.

Invariants. A context from outside is accepted only if it is well-formed (https://www.w3.org/TR/trace-context/), else
ignored. Spans never delay work: they wait in a queue of `SPANS_MAX`, and one that finds it full is dropped and counted.
Without a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`) no span is created; contexts are passed on anyway.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from enum import IntEnum
from typing import NamedTuple

from highwater.schemas.carried import NOTES, TRACEPARENT, TRACESTATE, Carried, origin_ms_of, reader
from highwater.streams.clock import fresh_id
from highwater.streams.telemetry import SPANS

# Spans that wait for export: a second of 4,000 traced hops, some 4 MB.
SPANS_MAX = 4_096
# The minimum that the specification requires every party to carry.
TRACESTATE_CHARACTERS_MAX = 512

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(r"[\x20-\x7e]*")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED = 1

AttributeValue = str | int | bool


class Kind(IntEnum):
    """The kind of a span, by OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    PRODUCER = 4
    CONSUMER = 5


class TraceContext(NamedTuple):
    """A place in a trace: 32 and 16 hexadecimal digits, whether spans are wanted, and other vendors' state, unread."""

    trace_id: str
    span_id: str
    is_sampled: bool
    tracestate: str | None = None

    @property
    def traceparent(self) -> str:
        """Return it as the header has it."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"

    def child(self) -> TraceContext:
        """Return a new place below this one."""
        return self._replace(span_id=fresh_span_id())


def fresh_span_id() -> str:
    """16 random hexadecimal digits."""
    return fresh_id()[:16]


def begin_trace(ratio: float) -> TraceContext:
    """Return the root of a new trace; `ratio` of them are sampled, by their ids (OpenTelemetry's TraceIdRatioBased)."""
    trace_id = fresh_id()
    return TraceContext(trace_id, fresh_span_id(), int(trace_id[-14:], 16) < ratio * 2**56)


def parse_traceparent(text: str, tracestate: str | None = None) -> TraceContext | None:
    """Parse the context in `traceparent`; None if it is malformed. Of a later version the fields of version 00 are read."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    is_kept = tracestate and len(tracestate) <= TRACESTATE_CHARACTERS_MAX and _TRACESTATE.fullmatch(tracestate)
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), tracestate if is_kept else None)


def context_of(headers: Iterable[tuple[str, bytes | None]] | None) -> TraceContext | None:
    """Return the context of a record: our own header, else that of a producer which writes `traceparent` itself."""
    found = {name: value for name, value in headers or () if value is not None and name in _HEADERS}
    for parent, state in ((TRACEPARENT, TRACESTATE), ("traceparent", "tracestate")):
        if parent in found:
            return parse_traceparent(found[parent].decode("latin-1"), found.get(state, b"").decode("latin-1"))
    return None


_HEADERS = frozenset({TRACEPARENT, TRACESTATE, "traceparent", "tracestate"})


class Span(NamedTuple):
    """One piece of work in a trace; times in ns since 1970."""

    context: TraceContext
    parent_id: str | None
    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    is_error: bool = False


class Tracer:
    """The spans of a process that wait for export. Off until a collector is configured."""

    def __init__(self, limit: int = SPANS_MAX) -> None:
        self._limit = limit
        self._spans: deque[Span] = deque()
        self._lock = threading.Lock()
        self.is_on = False
        self.ratio = 0.0
        self.waiting = threading.Event()

    def record(self, span: Span) -> None:
        """Queue a span that has ended, if its trace is sampled and a collector is configured."""
        if not self.is_on or not span.context.is_sampled:
            return
        with self._lock:
            is_full = len(self._spans) >= self._limit
            if not is_full:
                self._spans.append(span)
        if is_full:
            SPANS.labels("dropped").inc()
        self.waiting.set()

    def take(self, count: int) -> list[Span]:
        """Remove and return up to `count` of them, oldest first."""
        with self._lock:
            taken = [self._spans.popleft() for _ in range(min(count, len(self._spans)))]
            if not self._spans:
                self.waiting.clear()
        return taken


TRACER = Tracer()
# The place of the current request.
current: ContextVar[TraceContext | None] = ContextVar("trace", default=None)


class Hop(NamedTuple):
    """A record that is being processed under a trace: its origin, and the place that its effects inherit."""

    parent: TraceContext
    context: TraceContext
    topic: str
    partition: int
    offset: int


def begin_hop(
    group: str, position: tuple[str, int, int], headers: Iterable[tuple[str, bytes | None]] | None, arrived_ms: int
) -> tuple[int, Hop | None]:
    """Note what a record passes on to its effects; return when its chain began, and the hop if it belongs to a trace.

    `arrived_ms` is the broker's time of the record.
    """
    headers = list(headers or ())
    origin_ms = origin_ms_of(headers, arrived_ms)
    parent = context_of(headers)
    if reader.get() != group:
        reader.set(group)
    if parent is None:
        NOTES.note(position, Carried(origin_ms))
        return origin_ms, None
    context = parent.child() if TRACER.is_on and parent.is_sampled else parent
    NOTES.note(position, Carried(origin_ms, context.traceparent, context.tracestate))
    return origin_ms, Hop(parent, context, *position)


def begin_hops(group: str, places: Sequence[tuple[str, int, int]], arrived_ms: Sequence[int]) -> None:
    """Do `begin_hop` for records without headers: each begins a chain at its position, and belongs to no trace."""
    if reader.get() != group:
        reader.set(group)
    NOTES.note_origins(places, arrived_ms)


def end_hop(hop: Hop, group: str, start_ns: int, end_ns: int, *, is_error: bool = False) -> None:
    """Record the span of a processed event; does nothing if tracing is off."""
    if hop.context.span_id == hop.parent.span_id:
        return  # no collector
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": group,
        "messaging.destination.name": hop.topic,
        "messaging.destination.partition.id": str(hop.partition),
        "messaging.kafka.offset": hop.offset,
    }
    TRACER.record(
        Span(
            hop.context,
            hop.parent.span_id,
            f"process {hop.topic}",
            Kind.CONSUMER,
            start_ns,
            end_ns,
            attributes,
            is_error,
        )
    )
