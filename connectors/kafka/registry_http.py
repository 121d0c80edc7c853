"""A client of the schema registry's HTTP interface with Python's standard library.

confluent-kafka's client brings an OAuth library, cryptography and a second HTTP library: 20 MB and a fifth of a role's
start-up processor time, in every process, for a handful of plain requests.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

from highwater.schemas.errors import AccessRefusedError, UnavailableError
from highwater.streams.access import (
    REGISTRY_CREDENTIALS,
    REGISTRY_REFUSED,
    RegistryAccess,
    registry_untrusted,
    tls_refusal,
)
from highwater.streams.retry import RetryPolicy

NOT_FOUND, CONFLICT = 404, 409
_ERRORS_FROM = 300  # redirects among them: an address that redirects is a wrong one
# The registry answers in milliseconds; a caller waits this long for the next bytes of one that hangs, and this long for the
# whole of an answer that trickles.
REQUEST_SECONDS, ANSWER_SECONDS_MAX = 5, 20
# A schema has up to 64 KiB; the names of 100,000 subjects take 3 MB.
ANSWER_BYTES_MAX = 16 << 20
# A registry that starts or ends may close an accepted connection. All our requests may be repeated.
_HANGS_UP = RetryPolicy(first_ms=250, most_ms=250, attempts_max=4)
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryRefusedError(UnavailableError):
    """The schema registry refuses a request. `status` is HTTP's; the registry's own log has more."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(f"the schema registry refuses: {told}")
        self.status = status
        self.told = told


class _Answer(NamedTuple):
    status: int
    reason: str
    body: bytes


class RegistryConnection:
    """A connection that is kept from request to request: a role asks for every schema when it starts. One thread uses it.

    Without this, most of the cost of a request is a new connection, and over TLS a new handshake and the list of
    authorities.
    """

    def __init__(self, access: RegistryAccess) -> None:
        """Nothing is sent before the first request."""
        parts = urlsplit(access.url)
        self._root = parts.path.rstrip("/")
        context = access.context()
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError as error:  # of an address that no setting has checked
            raise UnavailableError(f"the schema registry does not answer: {error}") from error
        self._connection = (
            HTTPConnection(host, port, timeout=REQUEST_SECONDS)
            if context is None
            else HTTPSConnection(host, port, timeout=REQUEST_SECONDS, context=context)
        )
        self._headers = _headers(access)

    def __enter__(self) -> Self:
        """Connect with the first request."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._connection.close()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the registry's JSON answer. Blocks.

        Raises:
            AccessRefusedError: one side does not trust the other.
            RegistryRefusedError: it answers with an error status.
            UnavailableError: it does not answer.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._answered(method, f"{self._root}/{path}", data)
            if answer.status < _ERRORS_FROM:
                return json.loads(answer.body)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self._connection.close()
            refusal = tls_refusal(error)
            if refusal is not None:
                raise AccessRefusedError(registry_untrusted(refusal)) from error
            told = str(error) or type(error).__name__
            raise UnavailableError(f"the schema registry does not answer: {told}") from error
        raise _refusal(answer)

    def find(self, method: str, path: str, body: object = None) -> Any | None:
        """Return the registry's JSON answer, None if what is requested does not exist; errors as of `ask`."""
        try:
            return self.ask(method, path, body)
        except RegistryRefusedError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def versions_of(self, subject: str) -> list[Mapping[str, Any]]:
        """Return every version of a subject, the oldest first; none if it was never registered; errors as of `ask`."""
        path = f"subjects/{quote(subject, safe='')}/versions"
        numbers = self.find("GET", path) or []
        return [self.ask("GET", f"{path}/{number}") for number in sorted(map(int, numbers))]

    def _answered(self, method: str, path: str, data: bytes | None) -> _Answer:
        late = threading.Event()
        timer = threading.Timer(ANSWER_SECONDS_MAX, self._cut, [late])
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchanged(method, path, data, late)
        except (OSError, HTTPException):
            if not late.is_set():
                raise
        finally:
            timer.cancel()
        if late.is_set():
            raise TimeoutError(f"no complete answer within {ANSWER_SECONDS_MAX} s")
        return answer

    def _cut(self, late: threading.Event) -> None:
        """End what is being received: a time limit of a socket begins again with each byte."""
        late.set()
        connected = self._connection.sock
        if connected is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _exchanged(self, method: str, path: str, data: bytes | None, late: threading.Event) -> _Answer:
        attempt = 0
        while True:
            is_kept = self._connection.sock is not None
            try:
                self._connection.request(method, path, data, self._headers)
                with self._connection.getresponse() as answer:
                    body = answer.read(ANSWER_BYTES_MAX + 1)
                    if len(body) > ANSWER_BYTES_MAX:
                        raise HTTPException(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
                    return _Answer(answer.status, answer.reason, body)
            except TimeoutError:
                self._connection.close()
                # Once seen: Apicurio logged its answer, and no byte of it arrived on a kept connection. A new one gets
                # the same time, and no third.
                if not is_kept:
                    raise
            except (RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._connection.close()
                if is_kept and not late.is_set():  # it was closed after the last answer
                    continue
                if late.is_set():
                    raise
                attempt += 1
                wait_ms = _HANGS_UP.wait_ms(attempt)
                if wait_ms is None:
                    raise
                time.sleep(wait_ms / 1000)


def ask(access: RegistryAccess, method: str, path: str, body: object = None) -> Any:
    """Return the registry's JSON answer to one request (`RegistryConnection.ask`)."""
    with RegistryConnection(access) as connection:
        return connection.ask(method, path, body)


def _headers(access: RegistryAccess) -> Mapping[str, str]:
    headers = {"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE}
    if access.credentials is not None:
        secret = ":".join(access.credentials).encode()
        headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
    return headers


def _refusal(answer: _Answer) -> UnavailableError:
    if answer.status in REGISTRY_REFUSED:  # without a message of the registry's own
        return AccessRefusedError(
            f"the schema registry refuses: {answer.status} {answer.reason}; {REGISTRY_CREDENTIALS}"
        )
    try:
        told = str(json.loads(answer.body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        told = f"{answer.status} {answer.reason}"
    return RegistryRefusedError(answer.status, told)
