"""Limits the size and time of a connection before and while it is served: uvicorn's protocols under limits.

Invariants. Before a request is complete, both the bytes kept and the time waited are limited; the application limits
what it reads itself. A refused connection gets a reason, is read only until the reason is sent, and ends. A request
that arrives in one piece, as nearly all do, starts no timer and costs one comparison. Ready answers equal those of ASGI
(`ready.py`), are sent in turn, and only while the client reads. Answers leave in the order of their requests, and a
refusal follows the answers to complete earlier requests.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote
from weakref import ref

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from highwater.api.core.connections import Connections
from highwater.api.core.ready import ReadyAnswers
from highwater.api.core.ready_protocol import AT_ONCE_MAX, ReadyHttp
from highwater.api.core.refused_connections import refusal_of
from highwater.api.core.socket_protocol import LimitedSocket
from highwater.api.core.streamed import CUT_OFF
from highwater.streams.telemetry import CONNECTIONS_REFUSED, HTTP_REFUSED, get_log

# Answers end with the connection: for this long, further bytes of the client are read and dropped, so that it sees the
# answer.
_LINGER_SECONDS = 1.0
# After the TLS handshake, which this timeout limits, uvicorn's protocols begin.
TLS_HANDSHAKE_SECONDS = 10.0

_log = get_log("api")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a connection."""

    # All fields of a request with its target; browsers and proxies send at most 8 KiB.
    header_bytes_max: int = 64 * 1024
    # From the connection, or the first byte of a further request, to the end of the fields.
    header_seconds_max: float = 10.0
    # A body must bring this many bytes in each window, or its end: the slowest lines do (64 kbit/s), a client that only holds
    # connections, or megabytes of unfinished bodies, does not.
    body_window_seconds: float = 10.0
    body_bytes_per_second_min: int = 8_000
    # A client that reads nothing of a waiting answer for this long is cut off.
    write_seconds_max: float = 30.0
    # Between two requests; browsers keep a connection for minutes, and a page sends its next request within seconds.
    keep_alive_seconds: int = 5


class LimitedConfig(uvicorn.Config):
    """uvicorn's settings, with the values that its protocols read here."""

    def __init__(
        self,
        app: Any,
        *,
        limits: Limits,
        connections: Connections,
        ready: ReadyAnswers | None = None,
        **named: Any,
    ) -> None:
        super().__init__(app, http=LimitedHttp, ws=LimitedSocket, timeout_keep_alive=limits.keep_alive_seconds, **named)
        self.limits = limits
        self.counted = connections
        self.ready = ready


class Loop(uvloop.Loop):  # type: ignore[misc] # uvloop has no types
    """uvloop, whose servers wait for a TLS handshake as long as for a request, instead of a minute."""

    async def create_server(self, *arguments: Any, **named: Any) -> asyncio.Server:
        """Create a server; uvicorn has no setting for this timeout."""
        if named.get("ssl") is not None:
            named.setdefault("ssl_handshake_timeout", TLS_HANDSHAKE_SECONDS)
        server: asyncio.Server = await super().create_server(*arguments, **named)
        return server


class LimitedHttp(ReadyHttp):
    """One connection that speaks HTTP/1.1."""

    config: LimitedConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = self.config.limits
        # By the setting, not by whether a logger of the process has a handler.
        self.access_log = self.config.access_log
        # uvicorn's own access log is not written.
        self.ready = None if self.access_log or self.root_path else self.config.ready
        self._address: str | None = None  # while it is counted
        self._in_headers = True
        self._refused_last: HTTPStatus | None = None  # written after the answers to complete earlier requests
        self._chunk_bytes = 0
        self._header_bytes = 0  # arrived since the fields began: slightly more than their size
        self._body_bytes = 0  # in this window
        self._has_body = False  # what arrived last
        self._unread_bytes = 0  # arrived since the last byte of a body: framing, trailers
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # -- the connection ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it; then wait for a request."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        owned_by = self.config.counted.admit(address)
        if owned_by is not None:
            CONNECTIONS_REFUSED.labels(owned_by).inc()
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE if owned_by == "all" else HTTPStatus.TOO_MANY_REQUESTS)
            transport.close()  # nothing was read, and connections above the limit are closed at once
            return
        self._address = address
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self._stop_waiting()
        self._stop_waiting_for_reader()
        self._leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; it stays counted, and its new protocol releases it."""
        if self._refused_status is not None:
            return
        self._stop_waiting()
        self._is_refused = True  # this protocol no longer owns it, and no request timer runs
        address, self._address = self._address, None
        super().handle_websocket_upgrade()
        socket = self.transport.get_protocol()
        if isinstance(socket, LimitedSocket) and address is not None:
            socket.counted_as(self.config.counted, address)

    def _leave(self) -> None:
        if self._address is not None:
            self.config.counted.leave(self._address)
            self._address = None

    # -- what arrives ----------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Feed the parser the bytes that the limits allow."""
        if self._is_refused or (self._held is not None and self._hold(data)):
            return
        if self._again and self._answer_again(data):
            return
        self.receive(data)

    def receive(self, data: bytes) -> None:
        """Feed the parser the bytes that the limits allow, without the cache of known requests."""
        was_in_headers, was_in_message = self._in_headers, self._in_message
        self._chunk_bytes, self._has_body = len(data), False
        self._at_once_left, self._messages, self._asked = AT_ONCE_MAX, 0, None
        if was_in_headers:
            self._header_bytes += len(data)
            if was_in_message and self._header_bytes > self._limits.header_bytes_max:
                self._refuse_large(data)
                return
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self._at_once_left < AT_ONCE_MAX and self._is_at_rest(timer, b"" if was_in_message else data):
            return
        if timer is not None:
            timer.cancel()
        if not self._in_message and not self._is_refused and self._refused_status is None:
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete:
                if not was_in_message:
                    self._keep_alone(data)
                return  # the request is complete and is being answered
        self._check(len(data), is_continued=was_in_message and was_in_headers)

    def _check(self, arrived_bytes: int, *, is_continued: bool) -> None:
        """Check the state of the parser; `is_continued`: it was within the same fields before."""
        if self._refused_status is not None:
            self._refuse(self._refused_status)
        elif self._is_refused or self.parser is None:
            return
        elif self._in_headers:
            self._check_headers(is_continued=is_continued)
        elif self._in_message:
            self._check_body(arrived_bytes)

    def _refuse_large(self, data: bytes) -> None:
        """Refuse fields above the limit, unless they end in these bytes and were below it: feed only up to the limit."""
        left = self._limits.header_bytes_max - (self._header_bytes - len(data))
        super().data_received(data[: max(left, 0)])
        if self._in_headers and not self._is_refused:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif not self._is_refused:
            rest = data[max(left, 0) :]
            if rest:
                self.data_received(rest)

    def _check_headers(self, *, is_continued: bool) -> None:
        if not self._in_message:
            # Between two requests uvicorn's own timer runs; empty lines have stopped it.
            is_idle = self.cycle is None or self.cycle.response_complete
            if is_idle and self._timer is None and self.timeout_keep_alive_task is None:
                self._wait_for_headers()
            return
        if self._header_bytes > self._limits.header_bytes_max:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif not is_continued:
            self._wait_for_headers()

    def _check_body(self, arrived: int) -> None:
        self._unread_bytes = 0 if self._has_body else self._unread_bytes + arrived
        if self._unread_bytes > self._limits.header_bytes_max:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.body_window_seconds, self._on_window_end)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_answered_at_once = False
        self._messages += 1
        self._in_headers = self._in_message = True
        self._header_bytes = self._chunk_bytes

    def on_headers_complete(self) -> None:
        """Its fields are complete."""
        if (
            self._header_bytes > self._limits.header_bytes_max
            and self._exact_header_bytes() > self._limits.header_bytes_max
        ):
            self._refused_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return
        self._in_headers = False
        self._header_bytes = self._body_bytes = self._unread_bytes = 0
        if self._timer is not None:
            self._stop_waiting()
        if self._noted is not None:
            self.scope.update(self._noted)  # type: ignore[typeddict-item] # what is done once for a request
            self._noted = None
        elif self.ready is not None and self.ready.is_known(self.url) and self._may_answer_at_once():
            scope: Any = self.scope
            scope["method"] = self.parser.get_method().decode("ascii")
            # The target is known to be a path only, as uvicorn would parse it.
            scope |= {"path": unquote(self.url.decode("ascii")), "raw_path": self.url, "query_string": b""}
            self._is_answered_at_once = self._answer_at_once(self.ready, scope)
        if not self._is_answered_at_once:
            super().on_headers_complete()
            cycle = self.cycle
            if cycle is not None and cycle.scope is self.scope:  # else it becomes a socket
                # Weak: the scope belongs to the cycle, and what refers to itself is freed late.
                cycle.scope[CUT_OFF] = partial(_cut_off, ref(cycle))  # type: ignore[literal-required]

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        if self._refused_status is None:
            self._body_bytes += len(body)
            self._has_body = True
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_message = False
        self._in_headers = True
        self._header_bytes = 0
        if self._timer is not None:
            self._stop_waiting()
        if self._refused_status is None and not self._is_answered_at_once:
            super().on_message_complete()

    def _exact_header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    # -- what does not arrive ----------------------------------------------------------------------------------------------------

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self._limits.header_seconds_max, self._on_late_headers)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late_headers(self) -> None:
        self._timer = None
        self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _on_window_end(self) -> None:
        """Check how much of a body arrived in this window; a client is not at fault while the application does not
        read.
        """
        self._timer = None
        wanted = self._limits.body_bytes_per_second_min * self._limits.body_window_seconds
        if self._body_bytes < wanted and not self.flow.read_paused:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
            return
        self._body_bytes = 0
        self._timer = self.loop.call_later(self._limits.body_window_seconds, self._on_window_end)

    # -- the end -----------------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with a problem, like every other error."""
        self._refuse(HTTPStatus.BAD_REQUEST)

    def shutdown(self) -> None:
        """Stop: a connection with an incomplete or refused request ends now."""
        self._stop_waiting()
        self._is_stopping = True
        if self._held is not None:
            return  # complete requests are answered first
        if self._is_refused and self._refused_last is None:
            self.transport.close()
        else:
            super().shutdown()

    def _refuse(self, status: HTTPStatus) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._stop_waiting()
        self._unset_keepalive_if_required()
        HTTP_REFUSED.labels(int(status)).inc()
        if self._has_earlier():
            self._refused_last = status
        else:
            self._end_refused(status)

    def _has_earlier(self) -> bool:
        """Return whether complete earlier requests wait for their answers before the refused one, which gets no other
        answer.
        """
        is_own = not self._in_headers  # the last cycle belongs to the refused request, whose body continues
        if self.pipeline:
            if is_own:
                self.pipeline.popleft()
            return True
        return not is_own and self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        """A request is answered: the next one is processed, or the refusal behind it."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and self._refused_last is not None and not self.transport.is_closing():
            status, self._refused_last = self._refused_last, None
            self._unset_keepalive_if_required()
            self._end_refused(status)

    def _end_refused(self, status: HTTPStatus) -> None:
        is_answered = self._is_answered()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if is_answered:
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write(refusal_of(status))
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _is_answered(self) -> bool:
        """Return whether no answer can be sent now: one is being sent, or this request, whose body continues, was
        answered.
        """
        cycle = self.cycle
        return cycle is not None and cycle.response_started and not (cycle.response_complete and self._in_headers)

    # -- what is not read --------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client reads more slowly than the application writes."""
        super().pause_writing()
        if self._write_timer is None:
            self._wait_for_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._stop_waiting_for_reader()

    def _wait_for_reader(self, left_bytes: int) -> None:
        self._write_timer = self.loop.call_later(self._limits.write_seconds_max, self._on_still_reader, left_bytes)

    def _on_still_reader(self, left_bytes: int) -> None:
        left_now_bytes = self.transport.get_write_buffer_size()
        if left_now_bytes >= left_bytes:
            self._write_timer = None
            self.transport.abort()
        else:
            self._wait_for_reader(left_now_bytes)

    def _stop_waiting_for_reader(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _cut_off(answering: ref[RequestResponseCycle]) -> None:
    """End an answer with what was sent of it: the client sees that the rest is missing."""
    cycle = answering()
    if cycle is not None:
        cycle.disconnected = True  # so that the server does not report it as incomplete
        cycle.transport.close()
