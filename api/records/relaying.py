"""Owns answers that a search's process makes: what it says is sent on as it comes, and it ends when the client leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from highwater.connectors.replay.searches import RunningSearch


class Relayed(StreamingResponse):
    """A search that has begun, as an answer; made by `relayed`."""

    def __init__(
        self, search: RunningSearch, running: AsyncExitStack, media_type: str, headers: Mapping[str, str], first: bytes
    ) -> None:
        super().__init__(_sent(first, search), headers=headers, media_type=media_type)
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the search ends with that, also when nothing of it was read."""
        async with self._running:
            await super().__call__(scope, receive, send)


async def relayed(
    search: AbstractAsyncContextManager[RunningSearch],
    media_type: str,
    headers: Mapping[str, str],
    *,
    has_first_line: bool,
) -> Relayed:
    """Begin a search; the answer is what it says, its first line only where that belongs to it.

    Raises:
        HighwaterError: the search cannot begin.
    """
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(search)
        return Relayed(found, stack.pop_all(), media_type, headers, found.first_line if has_first_line else b"")


async def _sent(first: bytes, search: RunningSearch) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in search.chunks():
        yield chunk
