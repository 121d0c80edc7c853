"""Sockets: the connected caller, how a socket is closed and with which code; each slice defines its messages.

Invariants. Nothing is sent before the caller is authenticated. A socket without access is closed with a code that gives
the reason, after its handshake, since a refused handshake cannot carry a code. Sockets opened by pages of other sites
are refused earlier (`entrance.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect

from highwater.api.core.auth import authenticated
from highwater.api.core.errors import (
    ForbiddenError,
    NotFoundError,
    ProblemError,
    TooManyRequestsError,
    UnauthorizedError,
)
from highwater.api.core.guard import Caller, caller_on_socket
from highwater.api.core.proxies import address_of
from highwater.api.core.services import Services
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.telemetry import get_log

# Browsers cannot set a header field in the handshake; they can name a subprotocol, which is then selected.
SUBPROTOCOL = "highwater.bearer."
GOING_AWAY, INTERNAL_ERROR, TRY_AGAIN_LATER = 1001, 1011, 1013
MALFORMED, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND = 4400, 4401, 4403, 4404
AUTH_SECONDS_MAX = 5.0
# A session may end while its socket is open; so the right to be connected is checked again after this long.
RECHECK_SECONDS = 5.0
# A client that has stopped reading gets at most this long for the closing handshake.
CLOSE_SECONDS_MAX = 5.0
# With INTERNAL_ERROR: a listener that receives nothing more must be closed after any error.
FAILED = "failed; resume after the last id"
# The reason of a close frame has at most 123 bytes (RFC 6455, section 5.5.1).
_REASON_CHARACTERS_MAX = 120

_log = get_log("sockets")


class EndingError(HighwaterError):
    """The server is stopping. Connect again."""


class MalformedError(ProblemError):
    """The handshake or the first message is malformed. Correct it."""


def code_of(error: HighwaterError) -> int:
    """Return the close code for an error."""
    if isinstance(error, UnauthorizedError):
        return UNAUTHENTICATED
    if isinstance(error, ForbiddenError):
        return FORBIDDEN
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, EndingError):
        return GOING_AWAY
    return TRY_AGAIN_LATER if isinstance(error, (UnavailableError, TooManyRequestsError)) else MALFORMED


async def close_with_reason(websocket: WebSocket, code: int, reason: str) -> None:
    """Close a socket; the handshake is finished first, since a refused one cannot carry a code."""
    with contextlib.suppress(TimeoutError, RuntimeError):
        if websocket.application_state.name == "CONNECTING":
            await websocket.accept(subprotocol_of(websocket))
        reason = reason.encode("ascii", "replace").decode()[:_REASON_CHARACTERS_MAX]
        await asyncio.wait_for(websocket.close(code, reason), CLOSE_SECONDS_MAX)


def subprotocol_of(websocket: WebSocket) -> str | None:
    """Return the subprotocol by which a browser sends its key; it is echoed, as browsers require."""
    return next((name for name in websocket.scope["subprotocols"] if name.startswith(SUBPROTOCOL)), None)


class Closable(Protocol):
    """A listener that must be closed when its socket loses access."""

    def close(self, code: int, reason: str) -> None:
        """Close the socket; only the first call counts."""


class Socket:
    """One socket: its caller and its incoming messages. A slice adds the outgoing ones."""

    def __init__(self, websocket: WebSocket, services: Services) -> None:
        self._websocket = websocket
        self._services = services
        self._authorization: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def _admitted(self) -> Caller:
        """Return the caller; refuse one without access."""
        websocket, authenticator = self._websocket, self._services.authenticator
        authorization = self._authorization = await self._given_authorization()
        principal = await authenticated(authenticator, authorization, address_of(websocket.scope))
        called = caller_on_socket(self._services, websocket.scope["endpoint"], principal)
        await self._services.rate_limiter.admit(called.declaration, principal, websocket.scope)
        return called

    async def _given_authorization(self) -> str | None:
        """Return the caller's key or session, of its header field, its subprotocol, or its first message."""
        websocket = self._websocket
        named = subprotocol_of(websocket)
        authorization = websocket.headers.get("authorization")
        if authorization is None and named is not None:
            return f"Bearer {named.removeprefix(SUBPROTOCOL)}"
        if authorization is None and not self._services.authenticator.is_open:
            await websocket.accept()
            return await self._first_token()
        return authorization

    async def _open(self, called: Caller) -> None:
        """Finish the handshake, if its first message did not; clients that close afterwards get the reason."""
        called.require_checked()
        if self._websocket.application_state.name == "CONNECTING":
            await self._websocket.accept(subprotocol_of(self._websocket))

    async def _first_token(self) -> str:
        try:
            text = await asyncio.wait_for(self._received(), AUTH_SECONDS_MAX)
        except TimeoutError:
            raise UnauthorizedError("the socket was not authenticated") from None
        message = parsed(text)
        token = message.get("token") if message is not None and message.get("type") == "auth" else None
        if not isinstance(token, str):
            raise UnauthorizedError('the first message is not {"type": "auth", "token": ...}')
        return f"Bearer {token}"

    async def _received(self) -> str | bytes:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | bytes = message.get("text") or message.get("bytes") or ""
        return text

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task while the socket is open."""
        task = asyncio.create_task(work, name="socket")
        self._tasks.append(task)
        return task

    async def _attended(
        self,
        listener: Closable,
        works: Sequence[Coroutine[Any, Any, None]],
        *,
        may_end: bool,
        end: asyncio.Future[Any] | None = None,
    ) -> None:
        """Run all of `works` until one of them ends, or `end` is done; one that fails closes the listener.

        `may_end`: the caller may lose access, which is checked at intervals.
        """
        ends: list[asyncio.Future[Any]] = [self._task(work) for work in works]
        if may_end:
            ends.append(self._task(self._recheck(listener)))
        if end is not None:
            ends.append(end)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self._tasks:
                task.cancel()
            outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect):
                _log.error("a socket failed", error=repr(outcome), exc_info=outcome)
                listener.close(INTERNAL_ERROR, FAILED)

    async def _recheck(self, subscriber: Closable) -> None:
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                await self._services.authenticator.principal(self._authorization)
            except UnauthorizedError as error:
                subscriber.close(UNAUTHENTICATED, str(error))
            except UnavailableError:
                continue  # the caller is checked again


def parsed(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in a message; None if it is not one."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return message if isinstance(message, dict) else None
