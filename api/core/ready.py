"""Answers that are ready: what a connection writes itself, before any ASGI (`protocol.py`), and where it gets them.

Invariants. Whether and what is answered is decided by the functions that decide it for a request that goes through ASGI. Whatever
has to be awaited is no ready answer. The bytes are those that uvicorn would write for the same status, fields and body. What is
decided once of a request depends on its bytes, its connection and the settings alone: a connection that sends the same bytes
again keeps it. Whatever may change meanwhile (keys, pages, leases, the trace) is decided for each answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol, TypeAlias, TypeVar

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE

Pairs: TypeAlias = Sequence[tuple[bytes, bytes]]


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
                raise ValueError("a field of an answer has a control character")
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


Asked = TypeVar("Asked")


class ReadyAnswers(Protocol[Asked]):
    """What knows some answers without waiting."""

    def is_known(self, target: bytes) -> bool:
        """Whether a request with this target may have a ready answer: what any other request costs."""

    def asked(self, scope: Scope) -> Asked | None:
        """What a request without a body asks for; None where it has no ready answer."""

    def ready(self, asked: Asked) -> Ready | None:
        """The answer now; None leaves it to ASGI, and nothing was counted."""
