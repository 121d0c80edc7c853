"""Exports spans to an OpenTelemetry collector by OTLP over HTTP as JSON (https://opentelemetry.io/docs/specs/otlp/),
from a thread.

Invariant: a slow or unavailable collector costs spans, which are counted (`highwater_spans`), and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import orjson

from highwater.schemas.errors import ConfigurationError
from highwater.streams.settings import Settings
from highwater.streams.telemetry import SPANS, get_log
from highwater.streams.tracing import TRACER, AttributeValue, Span, Tracer

if TYPE_CHECKING:
    import httpx2

# Spans per request, and how long a first one waits for others: OpenTelemetry's batch size, and a fifth of its delay.
BATCH_MAX = 512
DELAY_SECONDS = 1.0
REQUEST_SECONDS = 10.0
# Attempts in total, and the pause between them; then the batch is counted as failed, since more spans are waiting.
ATTEMPTS = 2
AGAIN_SECONDS = 1.0
# Spans that wait when a role ends are sent within this.
CLOSE_SECONDS = 3.0
_PATH = "/v1/traces"
_VERSION = version("highwater")

_log = get_log("tracing")


class Exporter:
    """Sends the spans of a tracer to a collector until it is closed."""

    def __init__(self, endpoint: str, role: str, headers: Mapping[str, str], tracer: Tracer = TRACER) -> None:
        self._url = endpoint.rstrip("/") + _PATH
        self._resource = {"service.name": f"highwater-{role}", "service.version": _VERSION}
        self._tracer = tracer
        self._headers = {**headers, "content-type": "application/json"}
        self._ending = threading.Event()
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)

    def start(self) -> None:
        """Start collecting and sending."""
        self._tracer.is_on = True
        self._thread.start()

    def close(self) -> None:
        """Send what is waiting, within a limited time, and stop."""
        self._tracer.is_on = False
        self._ending.set()
        self._tracer.waiting.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        import httpx2  # noqa: PLC0415 - only who exports spans needs it

        with httpx2.Client(timeout=REQUEST_SECONDS, trust_env=False) as http:
            while not self._ending.is_set():
                self._tracer.waiting.wait()
                self._ending.wait(DELAY_SECONDS)
                self._send_waiting(http)
            self._send_waiting(http)

    def _send_waiting(self, http: httpx2.Client) -> None:
        while spans := self._tracer.take(BATCH_MAX):
            self._send(http, spans)

    def _send(self, http: httpx2.Client, spans: Sequence[Span]) -> None:
        import httpx2  # noqa: PLC0415 - as above

        body = orjson.dumps(document(self._resource, spans))
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt and self._ending.wait(AGAIN_SECONDS):
                break
            try:
                # The body of the answer is not read: nothing bounds it.
                with http.stream("POST", self._url, content=body, headers=self._headers) as streamed:
                    answer = streamed
            except httpx2.HTTPError as error:
                problem = f"{self._url} does not answer: {str(error) or type(error).__name__}"
                continue
            if answer.is_success:
                SPANS.labels("exported").inc(len(spans))
                self._problem = None
                return
            problem = f"{self._url} answered {answer.status_code}"
        SPANS.labels("failed").inc(len(spans))
        if problem != self._problem:
            _log.warning("spans_not_exported", reason=problem, spans=len(spans))
        self._problem = problem


def document(resource: Mapping[str, AttributeValue], spans: Sequence[Span]) -> dict[str, Any]:
    """Return an ExportTraceServiceRequest in OTLP's JSON: ids in hexadecimal, times as decimal strings of ns since 1970."""
    scope = {"name": "highwater", "version": _VERSION}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    told: dict[str, Any] = {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(max(span.start_ns, span.end_ns)),
        "attributes": _attributes(span.attributes),
        "status": {"code": 2} if span.is_error else {},
    }
    if span.parent_id is not None:
        told["parentSpanId"] = span.parent_id
    if span.context.tracestate:
        told["traceState"] = span.context.tracestate
    return told


def _attributes(values: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def start_tracing(settings: Settings, role: str) -> Exporter | None:
    """Export the spans of this process; None if no collector is set.

    Raises:
        ConfigurationError: OTEL_EXPORTER_OTLP_HEADERS cannot be read.
    """
    if settings.otlp_endpoint is None:
        return None
    TRACER.ratio = settings.trace_ratio
    exporter = Exporter(settings.otlp_endpoint, role, parse_headers(settings.otlp_headers))
    exporter.start()
    return exporter


def parse_headers(text: str | None) -> dict[str, str]:
    """Parse the headers of a setting.

    Raises:
        ConfigurationError: they have another form.
    """
    found = {}
    for part in (text or "").split(","):
        name, separator, value = part.partition("=")
        if part.strip() and not separator:
            raise ConfigurationError("OTEL_EXPORTER_OTLP_HEADERS is not name=value[,name=value…]")
        if name.strip():
            found[name.strip()] = value.strip()
    return found
