"""HEAD wherever GET is (RFC 9110, section 9.3.2): the same status and fields, and no content.

Invariant: routes need no code for HEAD. The GET runs to produce its fields; a stream, which has no end, is ended once
they are sent.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# In the scope of a HEAD request that its route sees as a GET: true.
IS_HEAD = "highwater.is_head"


class HeadAsGet:
    """ASGI: passes a HEAD on as a GET and sends only the head of the answer.

    It is the innermost middleware, so that the ones that count and record requests see HEAD.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        inside = {**scope, "method": "GET", IS_HEAD: True}
        is_answered = asyncio.Event()

        async def until_answered() -> Message:
            """Return the client's messages; after the head is sent, a disconnect, which ends a stream."""
            received, answered = asyncio.ensure_future(receive()), asyncio.ensure_future(is_answered.wait())
            try:
                await asyncio.wait((received, answered), return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"} if is_answered.is_set() else received.result()
            finally:
                received.cancel()
                answered.cancel()

        async def head_alone(message: Message) -> None:
            if message["type"] != "http.response.start":
                return
            _tell_back(scope, inside)
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            is_answered.set()

        try:
            await self._app(inside, until_answered, head_alone)
        finally:
            _tell_back(scope, inside)


def _tell_back(scope: Scope, inside: Scope) -> None:
    """Copy what routing and admission noted in the scope, for the outer middleware."""
    scope.update({name: value for name, value in inside.items() if name != "method"})
