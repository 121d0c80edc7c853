"""Sockets: who is on one, how it is sent away and with which code; what it tells is its slice's.

Laws. Nobody is told anything before it is known who it is. A socket that may not be here is closed with a code that says why,
after its handshake, since one that is refused could say none. One that a page of another site opens does not come so far
(`entrance.py`).
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
from highwater.api.core.guard import Asker, asker_on_socket
from highwater.api.core.proxies import address_of
from highwater.api.core.services import Services
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.telemetry import get_log

# Browsers cannot set a field of the handshake; they can name a subprotocol, which is then the one that is spoken.
SUBPROTOCOL = "highwater.bearer."
GOING_AWAY, INTERNAL_ERROR, TRY_AGAIN_LATER = 1001, 1011, 1013
MALFORMED, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND = 4400, 4401, 4403, 4404
AUTH_SECONDS_MAX = 5.0
# A session may be ended while its socket is open; a key may not.
RECHECK_SECONDS = 60.0
# A reader that has stopped reading is not waited for longer than this to take its closing.
CLOSE_SECONDS_MAX = 5.0
# With INTERNAL_ERROR: whatever it was, a listener that is told nothing more must not stay.
FAILED = "failed; resume after the last id"
# A closing's reason has at most 123 bytes (RFC 6455, section 5.5.1).
_REASON_CHARACTERS_MAX = 120

_log = get_log("sockets")


class EndingError(HighwaterError):
    """The server is stopping. Connect again."""


class MalformedError(ProblemError):
    """The handshake or the first message is malformed. Correct it."""


def code_of(error: HighwaterError) -> int:
    """The code that a socket is closed with because of an error."""
    if isinstance(error, UnauthorizedError):
        return UNAUTHENTICATED
    if isinstance(error, ForbiddenError):
        return FORBIDDEN
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, EndingError):
        return GOING_AWAY
    return TRY_AGAIN_LATER if isinstance(error, (UnavailableError, TooManyRequestsError)) else MALFORMED


async def send_away(websocket: WebSocket, code: int, reason: str) -> None:
    """Close; a handshake is finished first, since one that is refused could say no code."""
    with contextlib.suppress(TimeoutError, RuntimeError):
        if websocket.application_state.name == "CONNECTING":
            await websocket.accept(subprotocol_of(websocket))
        reason = reason.encode("ascii", "replace").decode()[:_REASON_CHARACTERS_MAX]
        await asyncio.wait_for(websocket.close(code, reason), CLOSE_SECONDS_MAX)


def subprotocol_of(websocket: WebSocket) -> str | None:
    """The subprotocol by which a browser names its key; it is echoed, as browsers want it."""
    return next((name for name in websocket.scope["subprotocols"] if name.startswith(SUBPROTOCOL)), None)


class Closable(Protocol):
    """What is to be ended when its socket may not be here any more."""

    def close(self, code: int, reason: str) -> None:
        """Have the socket closed; the first word counts."""


class Socket:
    """One socket: who is on it, and what it hears. A slice adds what it tells."""

    def __init__(self, websocket: WebSocket, services: Services) -> None:
        self._websocket = websocket
        self._services = services
        self._authorization: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def _admitted(self) -> Asker:
        """Whoever it is, by its field, by its subprotocol, or by its first message; refused where it may not be here."""
        websocket, authenticator = self._websocket, self._services.authenticator
        named = subprotocol_of(websocket)
        authorization = websocket.headers.get("authorization")
        if authorization is None and named is not None:
            authorization = f"Bearer {named.removeprefix(SUBPROTOCOL)}"
        if authorization is None and not authenticator.is_open:
            await websocket.accept()
            authorization = await self._first_token()
        self._authorization = authorization
        principal = await authenticated(authenticator, authorization, address_of(websocket.scope))
        called = asker_on_socket(self._services, websocket.scope["endpoint"], principal)
        await self._services.rate_limiter.admit(called.declaration, principal, websocket.scope)
        return called

    async def _open(self, called: Asker) -> None:
        """Finish the handshake, if its first message did not; what ends after it is told."""
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
        """Do something as long as the socket is attended to."""
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
        """Do all of `works` until one of them ends, or `end` is done; one that fails closes the listener.

        `may_end`: who is on the socket may lose the right to be there, which is checked at times.
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
                continue  # it is asked again


def parsed(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object in a message; None: it is none."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return message if isinstance(message, dict) else None
