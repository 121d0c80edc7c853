"""Streams the output of a search's process as an answer; the process ends when the client disconnects, also before the
search has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

import orjson
from starlette.types import Receive, Scope, Send

from highwater.api.core.errors import problem_of
from highwater.api.core.streamed import StreamedAnswer, until_gone
from highwater.connectors.replay.searches import RunningSearch, SearchLostError
from highwater.schemas.errors import HighwaterError
from highwater.schemas.exact_json import write_json

T = TypeVar("T")


class Relayed(StreamedAnswer):
    """The output of a search as an answer, or the problem because of which it cannot begin. The first line is sent only
    if the answer is lines of events.
    """

    def __init__(
        self,
        search: AbstractAsyncContextManager[RunningSearch],
        media_type: str,
        headers: Mapping[str, str],
        *,
        has_first_line: bool,
    ) -> None:
        super().__init__((), headers=headers, media_type=media_type)
        self._search = search
        self._has_first_line = has_first_line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin the search and send its output; the search ends afterwards, also when nothing of it was read."""
        async with AsyncExitStack() as running:
            try:
                search = await _unless_gone(running.enter_async_context(self._search), receive)
            except HighwaterError as error:
                await problem_of(error)(scope, receive, send)
                return
            if search is not None:
                self.body_iterator = _sent(search, has_first_line=self._has_first_line)
                await super().__call__(scope, receive, send)


async def _unless_gone(beginning: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Return the result, or None if the client disconnects before there is one."""
    begun, gone = asyncio.ensure_future(beginning), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((begun, gone), return_when=asyncio.FIRST_COMPLETED)
        return begun.result() if begun.done() else None
    finally:
        begun.cancel()
        gone.cancel()
        await asyncio.gather(begun, gone, return_exceptions=True)


async def _sent(search: RunningSearch, *, has_first_line: bool) -> AsyncIterator[bytes]:
    if not has_first_line:
        async for chunk in search.chunks():
            yield chunk
        return
    yield (last := search.first_line)
    try:
        async for last in search.chunks():
            yield last
    except SearchLostError as error:
        if not last.endswith(b"\n"):  # an event is cut off, so the answer is, too
            raise
        yield write_json({"event": "failed", "detail": str(error)}, orjson.OPT_APPEND_NEWLINE)
