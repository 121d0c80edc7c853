"""Requests in traces: `traceparent` comes from the caller, and the first answer that shows a write ends its trace.

Invariant: without a collector only the names of a request's headers are read; its context is passed on with the events
that it publishes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from highwater.connectors.kafka.producer import AcceptedRecord
from highwater.schemas.carried import NOTES, TRACEPARENT, TRACESTATE, Carried
from highwater.schemas.envelope import Headers
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import parse_position
from highwater.streams.clock import wall_ns
from highwater.streams.tracing import (
    TRACER,
    AttributeValue,
    Kind,
    Span,
    TraceContext,
    begin_trace,
    current,
    parse_traceparent,
)

# Answers that were reported, by position and path: each is reported once.
_SERVED_MAX = 10_000
_TRACEPARENT_FIELD = b"traceparent"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class TraceRequests:
    """ASGI: handles the context of each request, its span, and the span of the first answer that shows a traced write."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._served: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parent = _context_of(scope)
        is_read = scope["method"] in _SAFE
        watching = self._watching(scope, send) if TRACER.is_on and is_read else send
        context = _begun(is_read=is_read) if parent is None else _below(parent)
        if context is None:
            await self._app(scope, receive, watching)
            return
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await watching(message)

        start_ns, token = wall_ns(), current.set(context)
        try:
            await self._app(scope, receive, noted)
        finally:
            current.reset(token)
            if parent is None or context.span_id != parent.span_id:
                route = getattr(scope.get("route"), "path_format", "")
                attributes = {
                    "http.request.method": scope["method"],
                    "http.route": route,
                    "http.response.status_code": status,
                }
                parent_id = None if parent is None else parent.span_id
                name = f"{scope['method']} {route}".strip()
                is_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR
                TRACER.record(
                    Span(context, parent_id, name, Kind.SERVER, start_ns, wall_ns(), attributes, is_error=is_error)
                )

    def _watching(self, scope: Scope, send: Send) -> Send:
        """Note which write the answer shows."""
        start_ns = wall_ns()

        async def watched(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start" and message["status"] < HTTPStatus.BAD_REQUEST:
                for name, value in message["headers"]:
                    if name.lower() == b"x-caused-by" and value:
                        self._note_served(scope, value.decode("latin-1"), start_ns)

        return watched

    def _note_served(self, scope: Scope, caused_by: str, start_ns: int) -> None:
        try:
            position = parse_position(caused_by)
        except InvalidEventError:
            return
        found, path = NOTES.of(position), scope["path"]
        parent = None if found is None or found.traceparent is None else parse_traceparent(found.traceparent)
        if parent is None or (caused_by, path) in self._served:
            return
        self._served[caused_by, path] = None
        if len(self._served) > _SERVED_MAX:
            self._served.popitem(last=False)
        attributes = {"url.path": path, "highwater.caused_by": caused_by}
        span = Span(parent.child(), parent.span_id, "serve", Kind.INTERNAL, start_ns, wall_ns(), attributes)
        TRACER.record(span)


def has_context(scope: Scope) -> bool:
    """Return whether a request is traced: its caller sends a context, or it is a write, or requests are traced."""
    return any(name == _TRACEPARENT_FIELD for name, _ in scope["headers"])


def _begun(*, is_read: bool) -> TraceContext | None:
    """Start a new trace for one in N writes; the others carry none."""
    if is_read or not TRACER.is_on or not TRACER.ratio:
        return None
    root = begin_trace(TRACER.ratio)
    return root if root.is_sampled else None


def _below(parent: TraceContext) -> TraceContext:
    return parent.child() if TRACER.is_on and parent.is_sampled else parent


def _context_of(scope: Scope) -> TraceContext | None:
    """Return the caller's context; a repeated field is ignored, as the specification requires."""
    parents = [value for name, value in scope["headers"] if name == _TRACEPARENT_FIELD]
    if len(parents) != 1:
        return None
    states = [value.decode("latin-1") for name, value in scope["headers"] if name == b"tracestate"]
    return parse_traceparent(parents[0].decode("latin-1"), ",".join(states))


class Publishing:
    """The events that one request publishes to a topic: their headers and the span."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._parent = current.get()
        self._context = None if self._parent is None else _below(self._parent)
        self._start_ns = wall_ns()

    @property
    def headers(self) -> Headers:
        """Return the trace headers of each record, beside those of every event."""
        if self._context is None:
            return []
        state = self._context.tracestate
        told = [(TRACEPARENT, self._context.traceparent.encode())]
        return [*told, (TRACESTATE, state.encode())] if state else told

    def ended(self, accepted: Sequence[AcceptedRecord], count: int) -> None:
        """End the span: the broker has accepted these records, and answers that show them belong to the trace."""
        if self._context is None or self._parent is None:
            return
        for position in accepted:
            NOTES.note(position, Carried(position.arrived_ms, self._context.traceparent, self._context.tracestate))
        if self._context.span_id != self._parent.span_id:
            attributes: dict[str, AttributeValue] = {
                "messaging.system": "kafka",
                "messaging.operation.type": "send",
                "messaging.destination.name": self._topic,
                "messaging.batch.message_count": count,
            }
            is_error = len(accepted) < count
            name = f"publish {self._topic}"
            TRACER.record(
                Span(
                    self._context,
                    self._parent.span_id,
                    name,
                    Kind.PRODUCER,
                    self._start_ns,
                    wall_ns(),
                    attributes,
                    is_error,
                )
            )
