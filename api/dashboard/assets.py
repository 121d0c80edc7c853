"""The files of the console's library, cached in memory in the form in which they are sent: compressed once per process
instead of once per browser.

Invariants. Only files that the library marks as immutable are cached, and only for a GET without a condition or a
range; the cache is bounded. Everything else is answered by the library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import brotli
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from highwater.api.core.encodings import Encoding, negotiate

PATH = "/_nicegui/"
# A page has twenty files; the largest, the library's components, has half a megabyte.
FILES_MAX = 200
FILE_BYTES_MAX = 2_000_000
# Level nine takes 60 ms for the largest file and saves a fifth of what gzip leaves; eleven takes a second for two
# percent more.
_QUALITY = 9
_TEXTS = ("text/", "application/javascript", "application/json", "image/svg")
# Headers of a browser that has the file or a part of it.
_CONDITIONS = ("if-none-match", "if-modified-since", "range")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file with its fields, in the available encodings."""

    headers: Mapping[str, str]
    bodies: Mapping[Encoding, bytes]


class Assets:
    """An ASGI application in front of the library's."""

    def __init__(self, library: ASGIApp) -> None:
        self._library = library
        self._kept: dict[str, Asset] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from memory, or let the library answer and cache the result."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(PATH):
            await self._library(scope, receive, send)
            return
        headers = Headers(scope=scope)
        name = f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
        if any(condition in headers for condition in _CONDITIONS):
            await self._library(scope, receive, send)
            return
        asset = self._kept.get(name) or await self._read(name, scope, receive)
        encoding = None if asset is None else negotiate(headers.get("accept-encoding"), tuple(asset.bodies))
        if asset is None or encoding is None:
            await self._library(scope, receive, send)
            return
        sent = dict(asset.headers)
        if encoding != "identity":
            sent["content-encoding"] = encoding
        await Response(asset.bodies[encoding], headers=sent)(scope, receive, send)

    async def _read(self, name: str, scope: Scope, receive: Receive) -> Asset | None:
        """Return a file from the library; None: it must not be cached."""
        plain = [field for field in scope["headers"] if field[0] != b"accept-encoding"]
        started: Message = {}
        body = bytearray()

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            elif len(body) <= FILE_BYTES_MAX:
                body.extend(message.get("body", b""))

        await self._library({**scope, "headers": plain, "extensions": {}}, receive, keep)
        headers = MutableHeaders(raw=list(started["headers"]))
        is_for_ever = started["status"] == 200 and "immutable" in headers.get("cache-control", "")
        if not is_for_ever or len(body) > FILE_BYTES_MAX or "content-encoding" in headers:
            return None
        del headers["content-length"]
        headers["vary"] = "Accept-Encoding"
        asset = await asyncio.to_thread(_asset, dict(headers.items()), bytes(body))
        if len(self._kept) < FILES_MAX:
            self._kept[name] = asset
        return asset


def _asset(headers: Mapping[str, str], body: bytes) -> Asset:
    if not headers.get("content-type", "").startswith(_TEXTS):
        return Asset(headers, {"identity": body})
    return Asset(headers, {"br": brotli.compress(body, quality=_QUALITY), "identity": body})
