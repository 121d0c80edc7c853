"""The short ways to a 304, what almost every read of a feed is: on the connection itself, and without what FastAPI does else.

Invariant: they answer only what the usual way would answer, to a caller that was admitted, with the same headers and counted in
the same metrics; in doubt they step aside. All ask Redis for the same heads and judge them by the same functions, so that what
is known here is never older than on the usual way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import Request, Response
from starlette.types import Scope as StarletteScope

from highwater.api.core.access import Access, Owner, Scope, Whose, owner_refusal, refusal
from highwater.api.core.auth import Principal, Role
from highwater.api.core.conditional import CACHE_PRIVATE, condition, is_match, not_modified, version_headers
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.policies import PLAIN, with_policies
from highwater.api.core.ready import Fields, Later
from highwater.api.core.ready_reads import plain_fields, principal_of
from highwater.api.core.services import Services
from highwater.api.feeds.services import FeedServices
from highwater.connectors.feeds.documents import good_feed
from highwater.connectors.redis.link import Head
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_id
from highwater.streams.clock import monotonic_seconds
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import CONDITIONAL_GETS, HTTP_SECONDS


def _good_clusters(heads: Sequence[Head | None], now_ms: int) -> Head | None:
    head = heads[0]
    return head if head is not None and head.is_trusted(now_ms) else None


class _Kind(NamedTuple):
    """A page of a user whose head Redis may know."""

    name: str
    template: str
    resources: Sequence[str]
    good: Callable[[Sequence[Head | None], int], Head | None]

    def heads_of(self, user: str) -> list[str]:
        """What is asked for."""
        return [f"{resource}:{user}" for resource in self.resources]


_KINDS = {
    kind.template: kind
    for kind in (
        _Kind("feed", "/api/users/{user}/feed", ("feed", "clusters"), good_feed),
        _Kind("clusters", "/api/users/{user}/clusters", ("clusters",), _good_clusters),
    )
}
_BY_NAME = {kind.name.encode(): kind for kind in _KINDS.values()}
# Of what needs no decoding; other spellings go the usual way.
_TARGET = re.compile(rb"/api/users/([A-Za-z0-9._~!$&'()*+,;=:@-]+)/(feed|clusters)")
# Of both pages, and of the route that they stand beside.
ACCESS = Access(Role.VIEWER, Scope.FEEDS, Whose.USER, limit=RateLimit.NONE, cost=0)
# Versions whose fields are kept, about 2 KiB each.
_FIELDS_MAX = 4_096


async def quick_304(request: Request, kind: _Kind) -> Response | None:
    """A 304, when Redis alone can tell; None when the usual way has to."""
    wanted = condition(request)
    if wanted is None or request.scope["query_string"] or "x-min-position" in request.headers:
        return None
    state = request.app.state
    heads = await state.feeds.cache.heads(kind.heads_of(request.path_params["user"]))
    head = kind.good(heads, state.services.clock())
    return not_modified(kind.name, head) if head is not None and is_match(wanted, head.etag) else None


class ShortFeeds:
    """Knows the reads of feeds and clusters that a connection may answer itself."""

    def __init__(self, core: Services, feeds: FeedServices) -> None:
        self.core = core
        self.feeds = feeds
        self._fields: dict[tuple[str, str, int], Fields] = {}

    def is_known(self, target: bytes) -> bool:
        """Whether a target is the page of a user."""
        return target.startswith(b"/api/users/") and _TARGET.fullmatch(target) is not None

    def asked(self, scope: StarletteScope) -> Asked | None:
        """What a request asks for; None where it is no such page, names no version, or in doubt."""
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
        return Asked(self, kind, user, wanted.decode("latin-1"), headers, scope)

    def fields(self, head: Head) -> Fields:
        """The fields of a 304; of a version always the same."""
        key = (head.etag, head.caused_by, head.version)
        found = self._fields.get(key)
        if found is None:
            given = version_headers(head, CACHE_PRIVATE).items()
            pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given]
            if len(self._fields) >= _FIELDS_MAX:
                self._fields.clear()
            found = self._fields[key] = Fields(HTTPStatus.NOT_MODIFIED, with_policies(pairs, PLAIN))
        return found


class Asked(NamedTuple):
    """A read of a user's page by who has a version of it."""

    cut: ShortFeeds
    kind: _Kind
    user: str
    wanted: str
    headers: Mapping[bytes, bytes]
    scope: StarletteScope

    def ready(self) -> Later[Any] | None:
        """The answer as soon as Redis has told the heads; None where the caller may not see it, or takes more to know."""
        started = monotonic_seconds()
        principal = principal_of(self.cut.core.authenticator, self.scope, self.headers)
        if principal is None or refusal(ACCESS, principal) or owner_refusal(ACCESS, principal, Owner(self.user)):
            return None
        return _Heads(self, principal, started)


class _Heads(Later[Asked]):
    """What Redis tells of a page."""

    __slots__ = ()

    def ask(self) -> asyncio.Future[list[Head | None]]:
        """Read the heads."""
        asked = self._asked
        return asked.cut.feeds.cache.ask_heads(asked.kind.heads_of(asked.user))

    def answer(self, told: asyncio.Future[list[Head | None]]) -> _Unchanged | None:
        """A 304, when the heads alone can tell."""
        asked, cut = self._asked, self._asked.cut
        head = asked.kind.good(told.result(), cut.core.clock())
        if head is None or not is_match(asked.wanted, head.etag):
            return None
        return _Unchanged(cut.fields(head), asked, self._principal, self._started)


class _Unchanged:
    """A 304."""

    __slots__ = ("_asked", "_principal", "_started", "body", "fields")

    def __init__(self, fields: Fields, asked: Asked, principal: Principal, started: float) -> None:
        self.fields = fields
        self.body = b""
        self._asked = asked
        self._principal = principal
        self._started = started

    def ended(self) -> None:
        """It was sent: count it as the usual way does."""
        asked = self._asked
        method = asked.scope["method"]
        if method == "GET":
            asked.cut.core.activity.note(self._principal)
        CONDITIONAL_GETS.labels(asked.kind.name, "not_modified").inc()
        seconds = monotonic_seconds() - self._started
        HTTP_SECONDS.labels(asked.kind.template, method, int(HTTPStatus.NOT_MODIFIED)).observe(seconds)


class QuickRoute(GuardedRoute):
    """A route that tries the short way first, where there is one."""

    def admitted_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of this route, once the caller was admitted."""
        usual = super().admitted_handler()
        if self.path_format not in _KINDS:
            return usual
        kind = _KINDS[self.path_format]

        async def handler(request: Request) -> Response:
            return await quick_304(request, kind) or await usual(request)

        return handler
