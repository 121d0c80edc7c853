"""The short way to a 304: what almost every read of a feed is, without what FastAPI does for the others.

Law: it answers only when the usual way would answer the same, to a caller that was admitted; in doubt it steps aside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from highwater.api.core.conditional import condition, is_match, not_modified
from highwater.api.core.guard import GuardedRoute
from highwater.api.feeds.services import FeedServices
from highwater.connectors.redis.link import Head
from highwater.streams.clock import Clock


async def _feed(feeds: FeedServices, _clock: Clock, user: str) -> Head | None:
    return await feeds.builder.cached_head(user)


async def _clusters(feeds: FeedServices, clock: Clock, user: str) -> Head | None:
    cached = (await feeds.cache.heads([f"clusters:{user}"]))[0]
    return cached if cached is not None and cached.is_trusted(clock()) else None


_KINDS: dict[str, tuple[str, Callable[[FeedServices, Clock, str], Awaitable[Head | None]]]] = {
    "/api/users/{user}/feed": ("feed", _feed),
    "/api/users/{user}/clusters": ("clusters", _clusters),
}


async def quick_304(
    request: Request, kind: str, cached: Callable[[FeedServices, Clock, str], Awaitable[Head | None]]
) -> Response | None:
    """A 304, when Redis alone can tell; None when the usual way has to."""
    wanted = condition(request)
    if wanted is None or request.scope["query_string"] or "x-min-position" in request.headers:
        return None
    state = request.app.state
    head = await cached(state.feeds, state.services.clock, request.path_params["user"])
    return not_modified(kind, head) if head is not None and is_match(wanted, head.etag) else None


class QuickRoute(GuardedRoute):
    """A route that tries the short way first, where there is one."""

    def admitted_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of this route, once the caller was admitted."""
        usual = super().admitted_handler()
        if self.path_format not in _KINDS:
            return usual
        kind, cached = _KINDS[self.path_format]

        async def handler(request: Request) -> Response:
            return await quick_304(request, kind, cached) or await usual(request)

        return handler
