"""The shortcuts to a 304, the answer to almost every read of a feed: on the connection itself, without FastAPI.

Invariant: they give only answers that the normal route would give, to an admitted caller, with the same headers and
counted in the same metrics; in doubt they leave the request. All of them read the same heads from Redis and judge them
by the same functions, so that they are never staler than the normal route.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import Request, Response
from starlette.types import Scope as StarletteScope

from highwater.api.core.access import Access, OwnedBy, Owner, Scope, owner_refusal, refusal
from highwater.api.core.auth import Principal, Role
from highwater.api.core.conditional import CACHE_PRIVATE, condition, is_match, not_modified, version_headers
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.policies import PLAIN, with_policies
from highwater.api.core.ready import DeferredAnswer, Fields
from highwater.api.core.ready_reads import plain_fields, principal_of
from highwater.api.core.services import Services
from highwater.api.feeds.services import FeedServices
from highwater.connectors.feeds.documents import good_feed
from highwater.connectors.redis.resource_cache import Head
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_id
from highwater.streams.clock import monotonic_seconds
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import CONDITIONAL_GETS, HTTP_SECONDS


def _good_clusters(heads: Sequence[Head | None], now_ms: int) -> Head | None:
    head = heads[0]
    return head if head is not None and head.is_trusted(now_ms) else None


class _Kind(NamedTuple):
    """A page of a user whose head Redis may hold."""

    name: str
    template: str
    resources: Sequence[str]
    good: Callable[[Sequence[Head | None], int], Head | None]

    def heads_of(self, user: str) -> list[str]:
        """Return the Redis keys to read."""
        return [f"{resource}:{user}" for resource in self.resources]


_KINDS = {
    kind.template: kind
    for kind in (
        _Kind("feed", "/api/users/{user}/feed", ("feed", "clusters"), good_feed),
        _Kind("clusters", "/api/users/{user}/clusters", ("clusters",), _good_clusters),
    )
}
_BY_NAME = {kind.name.encode(): kind for kind in _KINDS.values()}
# Targets that need no decoding; other spellings take the normal route.
_TARGET = re.compile(rb"/api/users/([A-Za-z0-9._~!$&'()*+,;=:@-]+)/(feed|clusters)")
# For both pages, and for the route beside them.
ACCESS = Access(Role.VIEWER, Scope.FEEDS, OwnedBy.USER, limit=RateLimit.NONE, cost=0)
# Versions whose fields are cached, about 2 KiB each.
_FIELDS_MAX = 4_096


async def quick_304(request: Request, kind: _Kind) -> Response | None:
    """Return a 304 if Redis alone can decide; None if the normal route has to."""
    wanted = condition(request)
    if wanted is None or request.scope["query_string"] or "x-min-position" in request.headers:
        return None
    state = request.app.state
    heads = await state.feeds.cache.heads(kind.heads_of(request.path_params["user"]))
    head = kind.good(heads, state.services.clock())
    return not_modified(kind.name, head) if head is not None and is_match(wanted, head.etag) else None


class ShortFeeds:
    """Recognizes the reads of feeds and clusters that a connection may answer itself."""

    def __init__(self, core: Services, feeds: FeedServices) -> None:
        self.core = core
        self.feeds = feeds
        self._fields: dict[tuple[str, str, int], Fields] = {}

    def is_known(self, target: bytes) -> bool:
        """Return whether a target is the page of a user."""
        return target.startswith(b"/api/users/") and _TARGET.fullmatch(target) is not None

    def asked(self, scope: StarletteScope) -> FeedsRequest | None:
        """Return what a request asks for; None if it is another page, names no version, or is in doubt."""
        match = _TARGET.fullmatch(scope["raw_path"])
        headers = plain_fields(scope)
        wanted = None if headers is None else headers.get(b"if-none-match")
        if match is None or headers is None or wanted is None:
            return None
        user, kind = match[1].decode("ascii"), _BY_NAME[match[2]]
        try:
            check_id("user", user)
        except InvalidEventError:
            return None
        return FeedsRequest(self, kind, user, wanted.decode("latin-1"), headers, scope)

    def fields(self, head: Head) -> Fields:
        """Return the fields of a 304; always the same for a version."""
        key = (head.etag, head.caused_by, head.version)
        found = self._fields.get(key)
        if found is None:
            given = version_headers(head, CACHE_PRIVATE).items()
            pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given]
            if len(self._fields) >= _FIELDS_MAX:
                self._fields.clear()
            found = self._fields[key] = Fields(HTTPStatus.NOT_MODIFIED, with_policies(pairs, PLAIN))
        return found


class FeedsRequest(NamedTuple):
    """A read of a user's page by a client that has a version of it."""

    cut: ShortFeeds
    kind: _Kind
    user: str
    wanted: str
    headers: Mapping[bytes, bytes]
    scope: StarletteScope

    def ready(self) -> DeferredAnswer[Any] | None:
        """Return the answer as soon as Redis returns the heads; None if the caller has no access, or more data is needed."""
        started = monotonic_seconds()
        principal = principal_of(self.cut.core.authenticator, self.scope, self.headers)
        if principal is None or refusal(ACCESS, principal) or owner_refusal(ACCESS, principal, Owner(self.user)):
            return None
        return _Heads(self, principal, started)


class _Heads(DeferredAnswer[FeedsRequest]):
    """The heads of a page in Redis."""

    __slots__ = ()

    def ask(self) -> asyncio.Future[list[Head | None]]:
        """Read the heads."""
        asked = self._asked
        return asked.cut.feeds.cache.ask_heads(asked.kind.heads_of(asked.user))

    def answer(self, reply: asyncio.Future[list[Head | None]]) -> _Unchanged | None:
        """Return a 304 if the heads alone can decide."""
        asked, cut = self._asked, self._asked.cut
        head = asked.kind.good(reply.result(), cut.core.clock())
        if head is None or not is_match(asked.wanted, head.etag):
            return None
        return _Unchanged(cut.fields(head), asked, self._principal, self._started)


class _Unchanged:
    """A 304."""

    __slots__ = ("_asked", "_principal", "_started", "body", "fields")

    def __init__(self, fields: Fields, request: FeedsRequest, principal: Principal, started: float) -> None:
        self.fields = fields
        self.body = b""
        self._asked = request
        self._principal = principal
        self._started = started

    def ended(self) -> None:
        """Count it as the normal route does."""
        asked = self._asked
        method = asked.scope["method"]
        if method == "GET":
            asked.cut.core.activity.note(self._principal)
        CONDITIONAL_GETS.labels(asked.kind.name, "not_modified").inc()
        seconds = monotonic_seconds() - self._started
        HTTP_SECONDS.labels(asked.kind.template, method, int(HTTPStatus.NOT_MODIFIED)).observe(seconds)


class QuickRoute(GuardedRoute):
    """A route that tries the shortcut first, if there is one."""

    def admitted_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of this route for an admitted caller."""
        usual = super().admitted_handler()
        if self.path_format not in _KINDS:
            return usual
        kind = _KINDS[self.path_format]

        async def handler(request: Request) -> Response:
            return await quick_304(request, kind) or await usual(request)

        return handler
