"""The health port of a role: /healthz, /readyz and /metrics over plain HTTP/1.1, answered from the role's own loop.

Invariant: ready means able to work now; everything that is not ready is named. The server needs no framework: three
fixed answers, one request per connection, limited input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import orjson
from prometheus_client import CONTENT_TYPE_LATEST

from highwater.streams.metric_roles import exposition

# A probe's request is a few hundred bytes and sent at once; a longer or slower one is not a probe.
_REQUEST_BYTES_MAX = 8192
_REQUEST_SECONDS_MAX = 5.0

Readiness = Callable[[], Mapping[str, str]]


def _nothing() -> Mapping[str, str]:
    return {}


async def serve_health(host: str, port: int, readiness: Readiness, degraded: Readiness = _nothing) -> asyncio.Server:
    """Listen; the caller closes the server.

    Args:
        host: the address to listen on.
        port: the port to listen on.
        readiness: what is not ready: name -> reason.
        degraded: what works in part: name -> what does not, and the command that corrects it. It does not make the role
            unready.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, readiness, degraded))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a probe that disconnected or was never one
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES_MAX)


def _response(head: bytes, readiness: Readiness, degraded: Readiness) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
    status, content_type, body = _route(path, readiness, degraded)
    if method not in {b"GET", b"HEAD"}:
        status, content_type, body = "405 Method Not Allowed", "text/plain", b"GET only\n"
    lines = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode() + (b"" if method == b"HEAD" else body)


def _route(path: bytes, readiness: Readiness, degraded: Readiness) -> tuple[str, str, bytes]:
    if path == b"/healthz":
        return "200 OK", "application/json", orjson.dumps({"alive": True})
    if path == b"/readyz":
        unready = dict(readiness())
        status = "503 Service Unavailable" if unready else "200 OK"
        document = {"ready": not unready, "unready": unready, "degraded": dict(degraded())}
        return status, "application/json", orjson.dumps(document)
    if path == b"/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, exposition()
    return "404 Not Found", "text/plain", b"/healthz, /readyz or /metrics\n"
