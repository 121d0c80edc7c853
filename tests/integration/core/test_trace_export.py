"""Spans to a real collector: accepted, refused, or without a collector; the traced work never waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from highwater.connectors import tracing
from highwater.connectors.tracing import Exporter, start_tracing
from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import read_settings
from highwater.streams.telemetry import SPANS
from highwater.streams.tracing import Kind, Span, TraceContext, Tracer
from tests.collector import Collector
from tests.integration.api_server import wait_until
from tests.integration.connecting import free_port

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def span(number: int) -> Span:
    """A span of the trace."""
    context = TraceContext(TRACE, f"{number:016x}", is_sampled=True, tracestate="v=1")
    return Span(
        context,
        "f" * 16,
        f"span {number}",
        Kind.CONSUMER,
        number * 10**9,
        number * 10**9 + 5,
        {"n": number, "is": True},
    )


def counted(outcome: str) -> float:
    """Spans so far with an outcome."""
    return float(SPANS.labels(outcome)._value.get())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Batches of two, without the pauses."""
    monkeypatch.setattr(tracing, "BATCH_MAX", 2)
    monkeypatch.setattr(tracing, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(tracing, "AGAIN_SECONDS", 0.01)
    return


def test_a_collector_takes_spans_as_they_are():
    """Ids, parents, times and attributes, in several requests."""
    tracer, before = Tracer(), counted("exported")
    with Collector() as collector:
        exporter = Exporter(collector.url + "/", "test", {}, tracer)
        exporter.start()
        for number in range(1, 6):
            tracer.record(span(number))
        wait_until(lambda: counted("exported") - before == 5, "all are exported")
        exporter.close()
        seen = collector.of(TRACE)
    assert [one.name for one in seen] == [f"span {number}" for number in range(1, 6)]
    assert {(one.service, one.parent_id, one.end_ns - one.start_ns) for one in seen} == {
        ("highwater-test", "f" * 16, 5)
    }
    assert seen[2].attributes == {"n": "3", "is": True}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_collector_that_takes_nothing_costs_the_spans_alone(is_there: bool):
    """They are counted as failed after the attempts, and those that come later are exported once it takes them."""
    tracer, failed, exported = Tracer(), counted("failed"), counted("exported")
    with Collector() as collector:
        collector.status = 503
        url = collector.url if is_there else f"http://127.0.0.1:{free_port()}"
        exporter = Exporter(url, "test", {}, tracer)
        exporter.start()
        tracer.record(span(1))
        wait_until(lambda: counted("failed") - failed == 1, "it has failed")
        if is_there:
            collector.status = 200
            tracer.record(span(2))
            wait_until(lambda: counted("exported") - exported == 1, "the next is exported")
        exporter.close()


def test_an_endless_answer_holds_no_span():
    """The status counts; what else a collector sends is not read, however much it is."""
    tracer, before = Tracer(), counted("exported")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection, suppress(OSError):  # the exporter ends it
                    connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    while True:
                        connection.sendall(b" " * 65_536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        exporter = Exporter(f"http://127.0.0.1:{server.getsockname()[1]}", "test", {}, tracer)
        exporter.start()
        for number in (1, 2):
            tracer.record(span(number))
            wait_until(lambda number=number: counted("exported") - before == number, "it is exported")
        exporter.close()
        thread.join(10)


def test_what_waits_is_sent_at_the_end():
    """A role that ends sends its last spans."""
    tracer = Tracer()
    with Collector() as collector:
        exporter = Exporter(collector.url, "test", {}, tracer)
        exporter.start()
        tracer.record(span(1))
        exporter.close()
        assert [one.name for one in collector.of(TRACE)] == ["span 1"]


def test_headers_that_cannot_be_read_are_named():
    """At the start, in one line; without an endpoint nothing is started."""
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": "secret"}
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_HEADERS"):
        start_tracing(read_settings(named), "test")
    assert start_tracing(read_settings({}), "test") is None
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_ENDPOINT='collector:4318' cannot be read"):
        read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})
