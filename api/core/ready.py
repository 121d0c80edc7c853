"""Answers that are ready: what a connection writes itself, before any ASGI (`protocol.py`), and where it gets them.

Invariants. Whether and what is answered is decided by the functions that decide it for a request that goes through ASGI. Whatever
takes more than one question to Redis is no ready answer. The bytes are those that uvicorn would write for the same status,
fields and body. What is decided once of a request depends on its bytes, its connection and the settings alone: a connection that
sends the same bytes again keeps it. Whatever may change meanwhile (keys, pages, leases, the trace) is decided for each answer.

An answer that one question to Redis decides is a `Later`: all that is asked in one turn of the event loop travels together, and
no task runs for a request. What was done for it and must not be done twice, such as counting it, is noted in the scope with which
it is left to ASGI.
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
    """The status and fields of an answer; their bytes are kept until the server's own fields change (`Date`, each second)."""

    __slots__ = ("_encoded", "_own", "pairs", "status")

    def __init__(self, status: HTTPStatus, pairs: Pairs) -> None:
        """The names are in lower case."""
        self.status = status
        self.pairs = pairs
        self._own: Pairs | None = None
        self._encoded = b""

    def encoded(self, own: Pairs) -> bytes:
        """All that comes before the body, behind the server's `own` fields.

        Raises:
            ValueError: a value is none that may be sent.
        """
        if own is not self._own:
            pairs = (*own, *self.pairs)
            if any(HEADER_VALUE_RE.search(value) for _, value in pairs):
                raise ValueError("a header of the response has a control character")
            lines = [b"%b: %b\r\n" % pair for pair in pairs]
            self._encoded = b"".join([STATUS_LINE[self.status], *lines, b"\r\n"])
            self._own = own
        return self._encoded


class Ready(Protocol):
    """An answer."""

    fields: Fields
    body: bytes

    def ended(self) -> None:
        """It was written: count it."""


class Later(ABC, Generic[AskedT]):
    """An answer that one question to Redis decides; it is used once."""

    __slots__ = ("_asked", "_principal", "_started", "noted")

    def __init__(self, asked: AskedT, principal: Principal, started: float) -> None:
        """`asked` by `principal`, and when, on the monotonic clock in seconds."""
        self._asked = asked
        self._principal = principal
        self._started = started
        # For the scope of the request, where it is left to ASGI.
        self.noted: dict[str, Any] = {}

    @abstractmethod
    def ask(self) -> asyncio.Future[Any]:
        """Ask; what comes is given to `answer`."""

    @abstractmethod
    def answer(self, told: asyncio.Future[Any]) -> Ready | None:
        """The answer, once `told` is done; None leaves it to ASGI, with what is noted."""


class Asked(Protocol):
    """What a request asks for, as far as its bytes, its connection and the settings tell."""

    def ready(self) -> Ready | Later[Any] | None:
        """The answer now; None leaves it to ASGI, and nothing was counted."""


class ShortWay(Protocol):
    """What knows some answers without waiting, or with one question to Redis."""

    def is_known(self, target: bytes) -> bool:
        """Whether a request with this target may have a ready answer: what any other request costs."""

    def asked(self, scope: Scope) -> Asked | None:
        """What a request without a body asks for; None where it has no ready answer."""


class ReadyAnswers(ShortWay, Protocol):
    """All short ways, and what is the same for all."""

    def ready(self, asked: Asked) -> Ready | Later[Any] | None:
        """As `Asked.ready`."""
