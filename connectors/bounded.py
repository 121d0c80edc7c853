"""The HTTP client of everything that asks a service: models, alerts, issues, Google, OpenID.

Invariant: nothing that a service sends holds a caller longer than its time, fills its memory, or moves the request to
another address. Redirects are not followed; a compressed answer, which may be a thousand times as long as what was
counted, is refused; the time is that of the whole exchange, since a client's own limits begin again with each byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from highwater.streams.access import trust_for


class UnusableAnswerError(httpx2.TransportError):
    """An answer that is not read to its end: it is too long, or compressed."""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Requests whose whole exchange has a time limit, and whose answers have a size limit."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, seconds_max: float, bytes_max: int) -> None:
        self._inner = inner
        self._seconds_max = seconds_max
        self._bytes_max = bytes_max

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            UnusableAnswerError: the answer is compressed; reading it: it is too long.
            httpx2.ReadTimeout: there is no complete answer in time.
        """
        request.headers["Accept-Encoding"] = "identity"
        deadline = asyncio.get_running_loop().time() + self._seconds_max
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._inner.handle_async_request(request)
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no answer within {self._seconds_max:g} s", request=request) from None
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            await answer.aclose()
            raise UnusableAnswerError("the answer is compressed, although it was not requested", request=request)
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        answer.stream = _BoundedBody(answer.stream, deadline, self._seconds_max, self._bytes_max)
        return answer

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer, up to its limits."""

    def __init__(self, body: httpx2.AsyncByteStream, deadline: float, seconds_max: float, bytes_max: int) -> None:
        self._body = body
        self._deadline = deadline
        self._seconds_max = seconds_max
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts, arrived = aiter(self._body), 0
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    part = await anext(parts, None)
            except TimeoutError:
                raise httpx2.ReadTimeout(f"no answer within {self._seconds_max:g} s") from None
            if part is None:
                return
            arrived += len(part)
            if arrived > self._bytes_max:
                raise UnusableAnswerError(f"the answer is longer than {self._bytes_max} bytes")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


def bounded_transport(address: str, *, seconds_max: float, bytes_max: int) -> BoundedTransport:
    """Return the transport to a service at an address, through the proxy of the environment if there is one."""
    inner = httpx2.AsyncHTTPTransport(verify=trust_for(address), proxy=_proxy_for(address))
    return BoundedTransport(inner, seconds_max=seconds_max, bytes_max=bytes_max)


def bounded_client(
    address: str,
    *,
    seconds_max: float,
    bytes_max: int,
    headers: Mapping[str, str] | None = None,
    idle_seconds_max: float | None = None,
) -> httpx2.AsyncClient:
    """Return a client of a service at an address; with `idle_seconds_max` it waits no longer for the next bytes."""
    return httpx2.AsyncClient(
        transport=bounded_transport(address, seconds_max=seconds_max, bytes_max=bytes_max),
        timeout=idle_seconds_max or seconds_max,
        follow_redirects=False,
        headers=headers or {},
    )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, which no proxy reaches."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _proxy_for(address: str) -> str | None:
    parts = urlsplit(address)
    host, proxies = parts.hostname or "", getproxies()
    if not proxies or is_loopback(host) or proxy_bypass(host):
        return None
    found = proxies.get(parts.scheme) or proxies.get("all")
    return None if found is None else str(found)
