"""W3C Trace Context as it is read and carried on, and the bounded queue of spans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from highwater.schemas.carried import NOTES, Carried, Notes, reader
from highwater.schemas.envelope import make_headers
from highwater.schemas.positions import Position
from highwater.streams.telemetry import SPANS
from highwater.streams.tracing import (
    TRACER,
    Kind,
    Span,
    TraceContext,
    Tracer,
    begin_hop,
    begin_trace,
    context_of,
    parse_traceparent,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """With a collector."""
    TRACER.is_on = True
    yield
    TRACER.is_on = False
    TRACER.take(10_000)
    reader.set("")


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [(PARENT, True), (PARENT[:-2] + "00", False), (PARENT[:-2] + "03", True), (f"01-{TRACE}-{SPAN}-01-more", True)],
)
def test_a_context_is_read(text: str, is_sampled: bool):
    """Flags beside `sampled` and what a later version adds are passed over."""
    assert parse_traceparent(text, "a=1") == TraceContext(TRACE, SPAN, is_sampled, "a=1")


@pytest.mark.parametrize(
    "text",
    ["", "00", PARENT.upper(), PARENT + "-more", "ff" + PARENT[2:], f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
     PARENT[:-1], PARENT.replace("-", "_"), "x" * 100_000],
)  # fmt: skip
def test_a_malformed_context_is_none(text: str):
    """As if there were none."""
    assert parse_traceparent(text) is None


@pytest.mark.parametrize("state", ["x" * 513, "a=\x01", "a=é", ""])
def test_a_tracestate_that_cannot_be_carried_is_left_out(state: str):
    """The context stands without it."""
    assert parse_traceparent(PARENT, state) == TraceContext(TRACE, SPAN, is_sampled=True)


def test_our_header_counts_before_a_producers_own():
    """`ce_traceparent`, else `traceparent`; undecodable bytes are no context."""
    other = PARENT.replace(SPAN, "1" * 16)
    own = [("traceparent", other.encode()), ("ce_traceparent", PARENT.encode())]
    assert context_of(own) == parse_traceparent(PARENT)
    assert context_of(own[:1]) == parse_traceparent(other)
    assert context_of([("traceparent", b"\xff")]) is None
    assert context_of(None) is None


def test_an_effect_carries_on_what_its_cause_belongs_to():
    """Its headers name the hop as parent, the vendor's state, and when the chain began; each reader its own hop."""
    cause = Position("league.match-scheduled", 3, 7)
    headers = [("ce_traceparent", PARENT.encode()), ("ce_tracestate", b"v=1"), ("ce_origintime", b"1000")]
    origin_ms, first = begin_hop("fixtures", cause, headers, 5_000)
    assert first is not None
    assert (origin_ms, first.parent.span_id, first.context.trace_id) == (1_000, SPAN, TRACE)
    _, second = begin_hop("ratings", cause, headers, 5_000)
    assert second is not None
    for group, hop in (("fixtures", first), ("ratings", second)):
        reader.set(group)
        made = dict(make_headers(event_id="", event_type="t", source="/x", now_ms=0, caused_by=cause))
        assert made["ce_traceparent"].decode() == hop.context.traceparent
        assert (made["ce_tracestate"], made["ce_origintime"]) == (b"v=1", b"1000")


@pytest.mark.parametrize("value", [b"9999", b"-1", b"soon", b"9" * 40, None])
def test_a_time_that_cannot_be_is_none(value: bytes | None):
    """The chain of a record begins at its arrival at the latest."""
    origin_ms, _ = begin_hop("g", ("t", 0, 0), [("ce_origintime", value)], 5_000)
    assert origin_ms == 5_000


def test_without_a_collector_the_context_is_carried_on_as_it_came():
    """There is no span of the product in between."""
    TRACER.is_on = False
    cause = Position("t", 0, 1)
    begin_hop("g", cause, [("traceparent", PARENT.encode())], 1)
    assert NOTES.of(cause) == Carried(1, PARENT)


def test_what_is_noted_is_bounded():
    """The least recent is forgotten."""
    notes = Notes(limit=3)
    for offset in range(5):
        notes.note(("t", 0, offset), Carried(offset, PARENT))
    assert [notes.of(("t", 0, offset)) is not None for offset in range(5)] == [False, False, True, True, True]


def test_spans_beyond_the_queue_are_dropped_and_counted():
    """Nothing waits, and the count says how many."""
    tracer = Tracer(limit=2)
    tracer.is_on = True
    dropped = SPANS.labels("dropped")._value.get()
    for sampled in (True, True, True, False):
        context = TraceContext(TRACE, SPAN, sampled)
        tracer.record(Span(context, None, "x", Kind.INTERNAL, 1, 2, {}))
    assert SPANS.labels("dropped")._value.get() - dropped == 1
    assert (len(tracer.take(10)), tracer.take(10)) == (2, [])


def test_of_fresh_traces_the_share_is_sampled():
    """None, all, or about a half."""
    assert not any(begin_trace(0.0).is_sampled for _ in range(50))
    assert all(begin_trace(1.0).is_sampled for _ in range(50))
    assert 300 < sum(begin_trace(0.5).is_sampled for _ in range(1_000)) < 700
