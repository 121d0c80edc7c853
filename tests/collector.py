"""A collector of traces, as a real HTTP server that takes OTLP as JSON."""

from __future__ import annotations

import collections
import http.server
import json
import threading
from dataclasses import dataclass
from typing import Any, Self

# Data that a session of tests may send and that no test checks.
_SPANS_MAX = 50_000


@dataclass(frozen=True)
class Seen:
    """A span as it was published."""

    service: str
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class Collector:
    """Listens on a free port and keeps the spans that come."""

    def __init__(self) -> None:
        spans = self._spans = collections.deque[Seen](maxlen=_SPANS_MAX)
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if collector.status == 200 and self.path == "/v1/traces":
                    spans.extend(_seen(body))
                self.send_response(collector.status if self.path == "/v1/traces" else 404)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.status = 200
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, trace_id: str) -> list[Seen]:
        """The spans of a trace, as they began."""
        return sorted((span for span in list(self._spans) if span.trace_id == trace_id), key=lambda span: span.start_ns)


def _seen(body: dict[str, Any]) -> list[Seen]:
    found = []
    for resource in body["resourceSpans"]:
        service = _values(resource["resource"]["attributes"])["service.name"]
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                times = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                ids = span["traceId"], span["spanId"], span.get("parentSpanId")
                found += [Seen(service, *ids, span["name"], *times, _values(span["attributes"]))]
    return found


def _values(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in attributes}
