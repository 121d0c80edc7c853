"""The WebSocket by which pages of administrators hear of new versions; pages of readers poll.

Invariants. It is for the browser that signed in, by the cookie of its pages. What it sends names pages that the visitor
may read; their content is read like that of any page. It closes with the reason as its code, also when the key or
session ends.
"""

from __future__ import annotations

import contextlib

import orjson
from starlette.websockets import WebSocket

from highwater.api.core.access import Access, Scope, declared, refusal
from highwater.api.core.auth import Role
from highwater.api.core.resources import may_read_key
from highwater.api.core.services import Services
from highwater.api.core.sockets import Socket, close_with_reason
from highwater.api.dashboard.sign_in import SignIn
from highwater.api.pages.pushes import Listener, Pushes
from highwater.api.pages.services import PageServices
from highwater.api.readers.inside import Visit
from highwater.streams.identity.rate_limits import RateLimit

PATH = "/read/changes"
PUSHES = Access(Role.ADMIN, Scope.LEAGUE, limit=RateLimit.CALLER, cost=1, also=Role.ASSISTANT)


def socket_for(visit: Visit) -> str:
    """Return the socket of a visitor's page of a league; empty: it polls alone."""
    return "" if refusal(PUSHES, visit.visitor.principal) is not None else PATH


@declared(PUSHES)
async def serve(websocket: WebSocket, sign_in: SignIn) -> None:
    """Serve the socket of one page."""
    services: Services = websocket.app.state.services
    pages: PageServices = websocket.app.state.pages
    socket = PageSocket(websocket, services, sign_in, pages.pushes)
    await pages.pushes.audience.serve(websocket, socket.run)


class PageSocket(Socket):
    """The socket of one open page."""

    def __init__(self, websocket: WebSocket, services: Services, sign_in: SignIn, pushes: Pushes) -> None:
        super().__init__(websocket, services)
        self._sign_in = sign_in
        self._pushes = pushes

    async def _given_authorization(self) -> str | None:
        return self._sign_in.authorization(self._websocket)

    async def run(self) -> None:
        """Authenticate, then push until one side closes it.

        Raises:
            ProblemError: access is refused.
            UnavailableError: a service that a socket needs is unavailable.
        """
        called, services = await self._admitted(), self._services
        principal = called.principal

        def may_read(key: str) -> bool:
            return may_read_key(principal, key, services.passports)

        with self._pushes.audience.places.taken(principal), self._pushes.listening(may_read) as listener:
            await self._pushes.started(listener)
            await self._open(called)
            await self._attended(listener, [self._tell(listener), self._hear()], may_end=principal.may_end)
        if listener.closed is not None:
            await close_with_reason(self._websocket, *listener.closed)

    async def _tell(self, listener: Listener) -> None:
        async with contextlib.aclosing(listener.patches()) as patches:
            async for patch in patches:
                await self._websocket.send_text(orjson.dumps(patch).decode())

    async def _hear(self) -> None:
        """Notice that the page is gone; it has nothing to send."""
        while True:
            await self._received()
