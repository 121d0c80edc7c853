"""The WebSocket on which users receive the outcomes of their queries, and cancel them (R1.30).

Invariants. Nothing is sent before the caller is authenticated, and then only about that one user. A command that cannot
be followed gets an answer and leaves the socket open; a socket is closed only if it has no access, cannot resume or
reads too slowly, with a code that gives the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.websockets import WebSocket

from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.auth import Role
from highwater.api.core.errors import ProblemError
from highwater.api.core.guard import Caller
from highwater.api.core.resources import RUN
from highwater.api.core.services import Services
from highwater.api.core.sockets import (
    FAILED,
    INTERNAL_ERROR,
    MALFORMED,
    MalformedError,
    Socket,
    close_with_reason,
    parsed,
)
from highwater.api.core.uuids import canonical_uuid
from highwater.api.queries.deltas import DeltaHub
from highwater.api.queries.routes import CANCEL_RUN, named_user, publish_cancel
from highwater.api.queries.services import QueryServices
from highwater.api.queries.stream import TOPIC, QueryHub, ResumeError, Subscriber, partition_of
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.positions import parse_position
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import get_log

_log = get_log("sockets")
router = APIRouter(tags=["queries"])


@router.websocket("/api/ws")
@access(Role.VIEWER, Scope.QUERIES, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def query_socket(websocket: WebSocket) -> None:
    """Send the outcomes of one user's queries, from now on or from `?after=`; with `?deltas=true` also answers while
    they are written.
    """
    services: Services = websocket.app.state.services
    queries: QueryServices = websocket.app.state.queries
    socket = QuerySocket(websocket, services, queries.sockets, queries.deltas)
    await queries.sockets.audience.serve(websocket, socket.run)


class QuerySocket(Socket):
    """One socket of a user, from the handshake to its end."""

    def __init__(self, websocket: WebSocket, services: Services, hub: QueryHub, deltas: DeltaHub) -> None:
        super().__init__(websocket, services)
        self._hub = hub
        self._deltas = deltas
        self._past: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Authenticate, then push and handle commands until one side closes it.

        Raises:
            ProblemError: access is refused, or the request is invalid.
            UnavailableError: a service that a socket needs is unavailable.
        """
        websocket = self._websocket
        called = await self._admitted()
        user_id = named_user(called, websocket.query_params.get("user_id"))
        self._services.activity.note(called.principal)
        after = _resume_offset(websocket.query_params.get("after"), user_id)
        has_deltas = _is_true("deltas", websocket.query_params.get("deltas"))
        with self._hub.audience.places.taken(called.principal):
            subscriber = await self._hub.join(user_id, is_live=after is None)
            try:
                await self._open(called)
                if after is not None:
                    self._catch_up(subscriber, after)
                async with self._deltas.listening(subscriber) if has_deltas else contextlib.nullcontext():
                    await self._attend(subscriber, called)
            finally:
                self._hub.leave(subscriber)

    # -- after authentication -----------------------------------------------------------------------------------------

    async def _attend(self, subscriber: Subscriber, called: Caller) -> None:
        """Push and handle commands until the client leaves, or the socket is to be closed."""
        works = [self._push(subscriber), self._obey(subscriber, called)]
        await self._attended(subscriber, works, may_end=called.principal.may_end, end=subscriber.closed)
        if subscriber.closed.done():
            await close_with_reason(self._websocket, *subscriber.closed.result())

    async def _push(self, subscriber: Subscriber) -> None:
        while True:
            await self._websocket.send_text(await subscriber.waiting.get())

    async def _obey(self, subscriber: Subscriber, called: Caller) -> None:
        is_first = True
        while True:
            text = await self._received()
            reply = await self._reply(subscriber, called, text, is_first=is_first)
            is_first = False
            if reply is not None:
                await subscriber.waiting.put(orjson.dumps(reply).decode())

    async def _reply(
        self, subscriber: Subscriber, called: Caller, text: str | bytes, *, is_first: bool
    ) -> dict[str, Any] | None:
        """Return the answer to a command; None if it has none."""
        message = parsed(text)
        kind = None if message is None else message.get("type")
        if message is None:
            return _error("not a JSON object")
        if kind == "ping":
            return {"type": "pong", "id": self._hub.place_of(subscriber)}
        if kind == "cancel":
            return await self._cancel(subscriber, called, message.get("request_id"))
        if kind == "resume":
            return self._resume(subscriber, message.get("after"), is_first=is_first)
        return _error("type is none of cancel, ping and, first of all, resume")

    async def _cancel(self, subscriber: Subscriber, called: Caller, request_id: Any) -> dict[str, Any]:
        try:
            run_id = canonical_uuid("request_id", request_id if isinstance(request_id, str) else "")
            found = await called.under(CANCEL_RUN).found(RUN, run_id)
            if found.user_id != subscriber.user_id:
                raise RUN.missing(run_id)
            positions = await publish_cancel(self._services, found)
        except (ProblemError, InvalidEventError, UnavailableError) as error:
            return _error(str(error), request_id=request_id if isinstance(request_id, str) else None)
        return {"type": "cancelling", "request_id": run_id, "positions": positions}

    def _resume(self, subscriber: Subscriber, after: Any, *, is_first: bool) -> dict[str, Any] | None:
        if not is_first or self._past is not None:
            return _error("resume is the first message or none")
        try:
            offset = _resume_offset(after if isinstance(after, str) else "", subscriber.user_id)
        except MalformedError as error:
            subscriber.close(MALFORMED, str(error))
            return None
        assert offset is not None
        self._catch_up(subscriber, offset)
        return None

    def _catch_up(self, subscriber: Subscriber, after: int) -> None:
        subscriber.is_live = False
        self._past = self._task(self._caught_up(subscriber, after))

    async def _caught_up(self, subscriber: Subscriber, after: int) -> None:
        try:
            await self._hub.catch_up(subscriber, after)
        except ResumeError as error:
            subscriber.close(MALFORMED, str(error))
        except Exception as error:  # noqa: BLE001 - after any error this socket gets nothing more and must not stay open
            _log.error("a socket could not catch up", error=repr(error), exc_info=True)
            subscriber.close(INTERNAL_ERROR, FAILED)


def _resume_offset(after: str | None, user_id: str) -> int | None:
    """Return the offset after which a socket is served; None: from now on.

    Raises:
        MalformedError: it is not an id that this user received.
    """
    if after is None:
        return None
    try:
        position = parse_position(after)
    except InvalidEventError as error:
        raise MalformedError("after is not an id that this server issued") from error
    if position.topic != TOPIC or position.partition != partition_of(user_id):
        raise MalformedError("after is not an id that this user received")
    return position.offset


def _is_true(name: str, text: str | None) -> bool:
    """Parse a boolean. Raises MalformedError for any other text."""
    if text not in (None, "true", "false"):
        raise MalformedError(f"{name} is neither true nor false")
    return text == "true"


def _error(detail: str, **members: Any) -> dict[str, Any]:
    return {"type": "error", "detail": detail} | {name: value for name, value in members.items() if value is not None}
