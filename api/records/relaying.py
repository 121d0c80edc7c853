"""Streams the output of a search's process as an answer; the process ends when the client disconnects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from starlette.types import Receive, Scope, Send

from highwater.api.core.streamed import StreamedAnswer
from highwater.connectors.replay.searches import RunningSearch


class Relayed(StreamedAnswer):
    """A running search as an answer; created by `relayed`."""

    def __init__(
        self, search: RunningSearch, running: AsyncExitStack, media_type: str, headers: Mapping[str, str], first: bytes
    ) -> None:
        super().__init__(_sent(first, search), headers=headers, media_type=media_type)
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the search ends afterwards, also when nothing of it was read."""
        async with self._running:
            await super().__call__(scope, receive, send)


async def relayed(
    search: AbstractAsyncContextManager[RunningSearch],
    media_type: str,
    headers: Mapping[str, str],
    *,
    has_first_line: bool,
) -> Relayed:
    """Begin a search; the answer is its output, with its first line only if that belongs to it.

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
