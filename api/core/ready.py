"""Ready answers: those that a connection writes itself, before any ASGI (`protocol.py`), and where they come from.

Invariants. The same functions decide a ready answer and one through ASGI. An answer that needs more than one query to
Redis is not a ready answer. The bytes equal those that uvicorn would write for the same status, fields and body. A
decision that depends only on the bytes of a request, its connection and the settings is made once: a connection that
sends the same bytes again reuses it. Everything that may change (keys, pages, leases, the trace) is decided for each
answer.

An answer that needs one query to Redis is a `DeferredAnswer`: all queries of one turn of the event loop are sent together, and
no task runs per request. What must not be done twice, such as counting, is noted in the scope when the request is left
to ASGI.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE

from highwater.api.core.auth import Principal

Pairs: TypeAlias = Sequence[tuple[bytes, bytes]]
AskedT = TypeVar("AskedT")


class Fields:
    """The status and fields of an answer; their bytes are cached until the server's own fields change (`Date`, each
    second).
    """

    __slots__ = ("_encoded", "_own", "pairs", "status")

    def __init__(self, status: HTTPStatus, pairs: Pairs) -> None:
        """The names are in lower case."""
        self.status = status
        self.pairs = pairs
        self._own: Pairs | None = None
        self._encoded = b""

    def encoded(self, own: Pairs) -> bytes:
        """Return everything before the body, after the server's `own` fields.

        Raises:
            ValueError: a value cannot be sent.
        """
        if own is not self._own:
            pairs = (*own, *self.pairs)
            if any(HEADER_VALUE_RE.search(value) for _, value in pairs):
                raise ValueError("a header of the response has a control character")
            lines = [b"%b: %b\r\n" % pair for pair in pairs]
            self._encoded = b"".join([STATUS_LINE[self.status], *lines, b"\r\n"])
            self._own = own
        return self._encoded


class QuickAnswer(Protocol):
    """An answer."""

    fields: Fields
    body: bytes

    def ended(self) -> None:
        """Count it after it was written."""


class DeferredAnswer(ABC, Generic[AskedT]):
    """An answer that needs one query to Redis; it is used once."""

    __slots__ = ("_asked", "_principal", "_started", "noted")

    def __init__(self, request: AskedT, principal: Principal, started: float) -> None:
        """`request` by `principal` at `started`, on the monotonic clock in seconds."""
        self._asked = request
        self._principal = principal
        self._started = started
        # Copied to the scope of the request when it is left to ASGI.
        self.noted: dict[str, Any] = {}

    @abstractmethod
    def ask(self) -> asyncio.Future[Any]:
        """Send the query; its result is passed to `answer`."""

    @abstractmethod
    def answer(self, reply: asyncio.Future[Any]) -> QuickAnswer | None:
        """Return the answer once `reply` is done; None leaves the request to ASGI, with what was noted."""


class QuickRequest(Protocol):
    """What a request asks for, as far as its bytes, its connection and the settings decide."""

    def ready(self) -> QuickAnswer | DeferredAnswer[Any] | None:
        """Return the answer now; None leaves the request to ASGI, and nothing was counted."""


class ShortWay(Protocol):
    """Provides some answers without waiting, or with one query to Redis."""

    def is_known(self, target: bytes) -> bool:
        """Return whether a request with this target may have a ready answer: the only cost for all other requests."""

    def asked(self, scope: Scope) -> QuickRequest | None:
        """Return what a request without a body asks for; None if it has no ready answer."""


class ReadyAnswers(ShortWay, Protocol):
    """All shortcuts, and their common parts."""

    def ready(self, request: QuickRequest) -> QuickAnswer | DeferredAnswer[Any] | None:
        """Return the same as `QuickRequest.ready`."""
