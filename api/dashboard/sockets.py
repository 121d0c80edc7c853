"""The sockets of browsers: which socket belongs to a page.

Invariant: a page listens only to the browser that it was sent to. The id of a page is in the address of its socket, and
so in the logs of intermediaries: it gives a reader of these no access. A browser is identified by its sign-in cookie.
If the API is open there is none, and the id, which no other site can read, keeps other sites out. What a stranger may open
is a connection, which the limits of connections count, and ends with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from nicegui import Client, core
from socketio.exceptions import ConnectionRefusedError as SocketRefusedError
from starlette.requests import cookie_parser

from highwater.api.dashboard.sign_in import COOKIE
from highwater.streams.telemetry import get_log

Environment: TypeAlias = Mapping[str, Any]

# The messages of a browser for a page once its socket belongs to it.
_MESSAGES = ("event", "javascript_response", "ack", "log")
_NAMESPACE = "/"
# For a browser that signed in as another user meanwhile: the library's script then reloads the page.
_LOAD_ANEW = "Implicit handshake failed"

_log = get_log("dashboard")


def is_of_browser(page_cookie: str | None, environment: Environment) -> bool:
    """Return whether a socket was opened by the browser with a page's sign-in cookie (None: the page was open to all)."""
    return page_cookie == cookie_parser(environment.get("HTTP_COOKIE", "")).get(COOKIE)


def guard() -> None:
    """Check the invariant before the library's own handlers of its sockets."""
    server: Any = core.sio
    # Not by single requests, the other way of the library: it keeps 13 kB for each one that begins so, and forgets thousands of
    # them more slowly than a stranger can send them.
    server.eio.transports = ["websocket"]
    handlers: dict[str, Callable[..., Any]] = dict(server.handlers[_NAMESPACE])

    async def connect(sid: str, environment: Environment, auth: Any = None) -> None:
        wanted = parse_qs(environment.get("QUERY_STRING", "")).get("client_id", [""])[0]
        if not _may_have(wanted, environment):
            _log.info("a socket of another browser is refused")
            raise SocketRefusedError(_LOAD_ANEW)
        await handlers["connect"](sid, environment, auth)

    async def handshake(sid: str, message: Any) -> bool:
        # A page's id is a text; others are no key of the library's table.
        page_id = message.get("client_id") if isinstance(message, dict) else None
        if not isinstance(page_id, str) or not _may_have(page_id, server.get_environ(sid)):
            return False
        return bool(await handlers["handshake"](sid, message))

    server.on("connect", connect)
    server.on("handshake", handshake)
    for name in _MESSAGES:
        server.on(name, _of_own_page(server, handlers[name]))


def _may_have(page_id: str, environment: Environment) -> bool:
    page = Client.instances.get(page_id)
    # For a page that is gone, the library sends an error, and the browser reloads it.
    return page is None or is_of_browser(page.request.cookies.get(COOKIE), environment)


def _of_own_page(server: Any, handle: Callable[..., Any]) -> Callable[..., Any]:
    async def handled(sid: str, message: Any) -> None:
        # Its handshake put the socket into a room that is named after its page.
        if not isinstance(message, dict) or message.get("client_id") not in server.rooms(sid):
            _log.info("a message for another page is refused")
            return
        result = handle(sid, message)
        if inspect.isawaitable(result):
            await result

    return handled
