"""Identifiers in paths: `aio-libs%2Faiokafka` is one segment, however the server decodes the rest.

A server hands over the decoded path, in which an encoded slash cannot be distinguished from a separator. So requests
are routed by the path as it was sent, each segment normalized, and only the converter of an identifier decodes it.
"""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import quote, unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from highwater.api.core.errors import UnprocessableError, problem

_UNRESERVED = "-._~!$&'()*+,;=:@"  # RFC 3986 pchar without the percent-encoded


class IdConvertor(Convertor[str]):
    """A path segment that is an identifier; it is percent-decoded only here."""

    regex: ClassVar[str] = "[^/]+"

    def convert(self, value: str) -> str:
        """Return the identifier in a segment; the middleware has checked that it is UTF-8."""
        return unquote_to_bytes(value).decode("utf-8")

    def to_string(self, value: str) -> str:
        """Return the path segment of an identifier."""
        return quote(value, safe="")


register_url_convertor("id", IdConvertor())


def canonical_path(raw_path: bytes) -> str:
    """Return the path as sent, with one percent-encoding per segment.

    Raises:
        UnprocessableError: a segment is not UTF-8.
    """
    if b"%" not in raw_path:
        return raw_path.decode("latin-1")
    try:
        segments = [unquote_to_bytes(segment).decode("utf-8") for segment in raw_path.split(b"/")]
    except UnicodeDecodeError as error:
        raise UnprocessableError("the path is not UTF-8", field="path") from error
    return "/".join(quote(segment, safe=_UNRESERVED) for segment in segments)


class RouteOnRawPath:
    """ASGI: replaces the decoded path by the one as sent, so that routes see segments."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its path as segments."""
        if scope["type"] in ("http", "websocket") and scope.get("raw_path"):
            try:
                path = canonical_path(scope["raw_path"].split(b"?", 1)[0])
            except UnprocessableError as error:
                await problem(error.status, str(error), members=error.members)(scope, receive, send)
                return
            if path != scope["path"]:
                scope["path"] = path  # in place: outer middleware reads what inner code notes in the scope
        await self._app(scope, receive, send)
