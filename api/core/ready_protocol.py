"""A connection that writes ready answers itself (`ready.py`): at once, or as soon as the queried data arrives.

Invariants. Answers leave in the order of their requests: a ready one is written or queried only after all earlier ones,
and later requests wait for it. A request is answered once, by the connection or through ASGI, and what was noted on it
goes with it. The memory of a connection is limited.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from highwater.api.core.ready import DeferredAnswer, QuickAnswer, QuickRequest, ReadyAnswers
from highwater.streams.telemetry import get_log

# Requests in one piece that are answered at once; further ones run as tasks, in turn with other connections.
AT_ONCE_MAX = 16
_READS = (b"GET", b"HEAD")
# Requests kept per connection to recognize them: a page polls a few addresses; a browser's request has 1 KiB with its
# cookies.
_AGAIN_MAX, _AGAIN_BYTES_MAX = 4, 2_048
# Of a request with a body, or one that waits for permission to send it.
_OF_BODIES = frozenset({b"content-length", b"transfer-encoding", b"expect"})
# Bytes that may arrive while an answer is queried, before reading pauses: a pipelining client sends a few requests.
_HELD_BYTES_MAX = 16_384

_log = get_log("api")


class ReadyHttp(HttpToolsProtocol, ABC):
    """One connection; a subclass implements `receive` for requests without a ready answer."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ready: ReadyAnswers | None = None
        # Set by the subclass: whether it was or will be refused, and the state of the parser.
        self._is_refused = False
        self._refused_status: HTTPStatus | None = None  # decided inside the parser, which has to return first
        self._in_message = False
        self._is_answered_at_once = False  # the request that arrives
        self._at_once_left = AT_ONCE_MAX  # of this piece
        self._asked: QuickRequest | None = None  # by the request that arrives
        # Requests that came alone and had a ready answer, and what they requested.
        self._again: dict[bytes, QuickRequest] = {}
        self._later: DeferredAnswer[Any] | None = None  # the answer to the arriving request, until it is queried
        self._noted: dict[str, Any] | None = None  # of the arriving request, which was checked before
        self._held: bytearray | None = None  # bytes that arrived while the answer to a repeated request is queried
        self._messages = 0  # begun in this piece
        self._idle_from = 0.0  # when the last one was
        self._is_stopping = False

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Give the parser what it may have."""

    # -- at once ---------------------------------------------------------------------------------------------------------------

    def _is_at_rest(self, timer: asyncio.TimerHandle | None, data: bytes) -> bool:
        """Return whether every request is answered, some of them at once; then the connection waits for the next one,
        as uvicorn does.

        Args:
            timer: the running timer, which continues: none is started per answer.
            data: the bytes of the requests.
        """
        is_answered = self.cycle is None or self.cycle.response_complete
        if not is_answered or self._is_refused or self._refused_status is not None:
            return False
        self._idle_from = self.loop.time()
        if timer is None or self._in_message:
            self._wait_for_next(self.timeout_keep_alive)
        else:
            self.timeout_keep_alive_task = timer
        if not self._in_message and self._at_once_left == AT_ONCE_MAX - 1 and self._asked is not None:
            self._keep(data, self._asked)
        return not self._in_message

    def _keep_alone(self, data: bytes) -> None:
        """Remember a request that came alone in these bytes and may have a ready answer."""
        if self._asked is not None and self._messages == 1:
            self._keep(data, self._asked)

    def _keep(self, data: bytes, request: QuickRequest) -> None:
        """Remember a request by all its bytes."""
        if 0 < len(data) <= _AGAIN_BYTES_MAX:
            if len(self._again) >= _AGAIN_MAX:
                self._again.clear()
            self._again[data] = request

    def _may_answer_at_once(self) -> bool:
        """Return whether the request is next, the client reads, and nothing follows the fields or ends the connection."""
        return (
            self._at_once_left > 0
            and (self.cycle is None or self.cycle.response_complete)
            and not (self.flow.write_paused or self.transport.is_closing() or self._refused_status is not None)
            and self.parser.get_method() in _READS
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and all(name not in _OF_BODIES for name, _ in self.headers)
        )

    def _answer_at_once(self, answers: ReadyAnswers, scope: Any = None) -> bool:
        """Answer the request of this scope at once if possible; without a scope, the request of `_asked`. Return
        whether it did.

        If not, there may be a `_later` to query.
        """
        self._later = None
        try:
            if scope is not None:
                self._asked = answers.asked(scope)
            answer = None if self._asked is None else answers.ready(self._asked)
            if isinstance(answer, DeferredAnswer):
                self._later = answer
                return False
            encoded = b"" if answer is None else answer.fields.encoded(self.server_state.default_headers)
        except Exception:  # noqa: BLE001 - it is met again where it can be answered
            # Inside the parser it would become a 400; ASGI meets the same fault and answers 500.
            _log.exception("no_ready_answer", target=self.url.decode("latin-1"))
            answer = None
        if answer is None:
            return False
        self._at_once_left -= 1
        self.server_state.total_requests += 1
        self.transport.write(encoded + answer.body if answer.body else encoded)
        answer.ended()
        return True

    def _answer_again(self, data: bytes) -> bool:
        """Return whether the bytes equal a remembered request, which is or will be answered without the parser."""
        asked = self._again.get(data) if len(data) <= _AGAIN_BYTES_MAX else None
        is_idle = self.timeout_keep_alive_task is not None and not self._in_message
        if asked is None or not is_idle or self.flow.write_paused or self.ready is None:
            return False
        self._asked, self._at_once_left = asked, 1
        if self._answer_at_once(self.ready):
            self._is_answered_at_once = True
            self._idle_from = self.loop.time()
            return True
        later, self._later = self._later, None
        if later is not None:
            told = later.ask()
            self._held = bytearray()
            told.add_done_callback(partial(self._end_again, later, data))
        return later is not None

    # -- answers to requests --------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start to answer a request: by a query if that may be enough, else through ASGI."""
        later, self._later = self._later, None
        if later is None:
            super()._start_asgi_task(cycle, app)
        else:
            later.ask().add_done_callback(partial(self._end_asked, later, cycle, app))

    def _end_asked(
        self, later: DeferredAnswer[Any], cycle: RequestResponseCycle, app: Any, reply: asyncio.Future[Any]
    ) -> None:
        """The query is done: write the answer, or leave the request to ASGI."""
        if not self._write_told(later, reply):
            cycle.scope.update(later.noted)  # type: ignore[typeddict-item]
            super()._start_asgi_task(cycle, app)
            return
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _end_again(self, later: DeferredAnswer[Any], data: bytes, reply: asyncio.Future[Any]) -> None:
        """Do the same for a request that was not parsed; then process the bytes that arrived meanwhile."""
        held, self._held = self._held or bytearray(), None
        is_answered = self._write_told(later, reply)
        if self.transport.is_closing():
            return
        if is_answered:
            self.server_state.total_requests += 1
            self._is_answered_at_once = True
            self._idle_from = self.loop.time()
        else:
            self._noted = later.noted
            self.receive(data)
        if len(held) > _HELD_BYTES_MAX:
            self.flow.resume_reading()
        if self._is_stopping:
            super().shutdown()
        elif held:
            self.data_received(bytes(held))

    def _write_told(self, later: DeferredAnswer[Any], reply: asyncio.Future[Any]) -> bool:
        """Write the answer, unless the client has disconnected; return whether there is one."""
        answer: QuickAnswer | None = None
        try:
            answer = None if reply.cancelled() else later.answer(reply)
            encoded = b"" if answer is None else answer.fields.encoded(self.server_state.default_headers)
        except Exception:  # noqa: BLE001 - it is met again where it can be answered
            _log.exception("no_ready_answer")
            answer = None
        if answer is None:
            return False
        if not self.transport.is_closing():
            self.transport.write(encoded + answer.body if answer.body else encoded)
        answer.ended()
        return True

    def _hold(self, data: bytes) -> bool:
        """Keep the bytes that arrive while an answer is queried."""
        assert self._held is not None
        self._held += data
        if len(self._held) > _HELD_BYTES_MAX:
            self.flow.pause_reading()
        return True

    @property
    def is_asking(self) -> bool:
        """Return whether an answer is being queried or written."""
        return self._held is not None or (self.cycle is not None and not self.cycle.response_complete)

    def _wait_for_next(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Ignore the timer if a request was answered at once after it was started; such requests start no timer."""
        left_seconds = self._idle_from + self.timeout_keep_alive - self.loop.time()
        if self._held is not None:
            self._wait_for_next(self.timeout_keep_alive)  # it is being answered
        elif left_seconds > 0 and self._is_answered_at_once and not self.transport.is_closing():
            self._wait_for_next(left_seconds)
        else:
            super().timeout_keep_alive_handler()
