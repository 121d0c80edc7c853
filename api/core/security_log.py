"""Every refused and every privileged action, on the append-only topic `security.action-recorded`.

Invariants. A privileged action is recorded before its effect, in Kafka or, while Kafka is unavailable, in PostgreSQL's
outbox; without both it is refused with 503. Its outcome follows with the same request id. Refusals never delay an
answer, and their number per minute is limited (`streams/identity/refusals.py`). No record holds a key, a session, the
token of a link, a query string or a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from highwater.api.core.auth import PRINCIPAL, Principal
from highwater.api.core.errors import path_without_tokens
from highwater.api.core.proxies import address_of
from highwater.schemas.errors import HighwaterError
from highwater.schemas.security import ActionRecorded
from highwater.streams.clock import Clock, fresh_id
from highwater.streams.identity.actions import action_record
from highwater.streams.identity.refusals import MINUTE_MS, Refusals
from highwater.streams.telemetry import SECURITY_ACTIONS, get_log

REFUSED_STATUSES = frozenset({401, 403, 421, 429})
# The close codes of a socket for the same reasons (api/core/sockets.py); it is accepted first, so there is no status.
REFUSED_CODES = frozenset({4401, 4403})
# Reading changes nothing, so reading what only an admin may read is not a privileged action.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ERROR_STATUS = 400
_RESOURCE_CHARACTERS_MAX = 300
# In the scope of a request: its id, and the action that was recorded before its effect.
_REQUEST_ID, _PERMITTED = "highwater.request_id", "highwater.permitted"
_HEADER = b"x-request-id"
_SOURCE = "api"

Record = Callable[[ActionRecorded], Awaitable[None]]
_log = get_log("security")


class SecurityLog:
    """Records the actions of one process."""

    def __init__(self, record: Record, clock: Clock) -> None:
        self._record = record
        self._clock = clock
        self._refusals = Refusals()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing_minute: asyncio.Task[None] | None = None

    async def permit(self, scope: Scope, principal: Principal) -> None:
        """Record that a privileged action is about to happen; once per request, and only if it may change something.

        Raises:
            UnavailableError: neither Kafka nor PostgreSQL accepts the record, so the action must not happen.
        """
        if _PERMITTED in scope or scope.get("method", "GET") in _SAFE_METHODS:
            return
        event = self._event(scope, "permitted", principal)
        await self._record(event)
        SECURITY_ACTIONS.labels("permitted").inc()
        scope[_PERMITTED] = event

    @asynccontextmanager
    async def recording(self, principal: Principal, action: str, resource: str) -> AsyncIterator[None]:
        """Record a privileged action that is not a request: before its effect, and its outcome after it.

        Raises:
            UnavailableError: as `permit`.
        """
        event = action_record(
            action, "permitted", request_id=fresh_id(), source=_SOURCE, now_ms=self._clock(), resource=resource
        )
        event = _by(principal, event)
        await self._record(event)
        SECURITY_ACTIONS.labels("permitted").inc()
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._later({**event, "outcome": outcome, "recorded_at": self._clock()})

    def ended(self, scope: Scope, status: int) -> None:
        """Record the outcome of a request: a refusal, or the end of a privileged action."""
        permitted: ActionRecorded | None = scope.get(_PERMITTED)
        is_refused = status in REFUSED_STATUSES or status in REFUSED_CODES
        if permitted is not None:
            outcome = "refused" if is_refused else "failed" if status >= _ERROR_STATUS else "done"
            self._later({**permitted, "outcome": outcome, "status": status, "recorded_at": self._clock()})
        elif is_refused:
            self._refused(scope, status)

    def _refused(self, scope: Scope, status: int) -> None:
        now_ms = self._clock()
        if self._refusals.is_over(now_ms):
            self._summarize()
        if self._refusals.admit(address_of(scope), now_ms):
            self._later({**self._event(scope, "refused", scope.get(PRINCIPAL)), "status": status})
        elif self._closing_minute is None:
            self._closing_minute = asyncio.create_task(self._close_minute(), name="refusals")

    async def _close_minute(self) -> None:
        await asyncio.sleep((MINUTE_MS - self._clock() % MINUTE_MS) / 1000)
        self._closing_minute = None
        self._summarize()

    def _summarize(self) -> None:
        for one in self._refusals.close():
            now_ms = self._clock()
            self._later(
                action_record(
                    "any",
                    "suppressed",
                    request_id=fresh_id(),
                    source=_SOURCE,
                    now_ms=now_ms,
                    address=one.address,
                    count=one.count,
                )
            )

    def _later(self, event: ActionRecorded) -> None:
        task = asyncio.create_task(self._try(event), name="security-log")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, event: ActionRecorded) -> None:
        try:
            await self._record(event)
            SECURITY_ACTIONS.labels(event["outcome"]).inc()
        except HighwaterError as error:
            SECURITY_ACTIONS.labels("lost").inc()
            _log.error("an action was not recorded", reason=str(error), **event)

    async def close(self) -> None:
        """Record the counted refusals and wait for records in progress."""
        if self._closing_minute is not None:
            self._closing_minute.cancel()
        self._summarize()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _event(self, scope: Scope, outcome: str, principal: Principal | None) -> ActionRecorded:
        path = path_without_tokens(unquote(scope["path"]))
        template = getattr(scope.get("route"), "path_format", "(none)")
        event = action_record(
            f"{scope.get('method', 'WS')} {template}",
            outcome,
            request_id=request_id_of(scope),
            source=_SOURCE,
            now_ms=self._clock(),
            resource=path[:_RESOURCE_CHARACTERS_MAX],
            address=address_of(scope) or None,
        )
        return event if principal is None else _by(principal, event)


def _by(principal: Principal, event: ActionRecorded) -> ActionRecorded:
    return {
        **event,
        "role": principal.role.label,
        "user_id": principal.user_id,
        "organization_id": principal.organization_id,
        "key_id": principal.key_id,
    }


def request_id_of(scope: Scope) -> str:
    """Return the id of a request; the same each time."""
    found: str = scope.setdefault(_REQUEST_ID, "") or fresh_id()
    scope[_REQUEST_ID] = found
    return found


class RecordActions:
    """ASGI: records how each request ended, and adds the request id to the answers that are recorded."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                if status in REFUSED_STATUSES or _PERMITTED in scope:
                    named = (_HEADER, request_id_of(scope).encode())
                    message = {**message, "headers": [*message.get("headers", ()), named]}
            elif message["type"] == "websocket.close":
                status = message.get("code", status)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            services = getattr(scope["app"].state, "services", None)  # none before the application has started
            if services is not None:
                services.security.ended(scope, status)
