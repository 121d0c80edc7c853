"""The shortcut to a page, before any routing: from memory, and a 304 also with one query to Redis.

Answers from memory are written by the connection itself (`PageRequest.ready`, for `api/core/protocol.py`): at once if no
limit counts the request, else when Redis has counted it, in one query for all requests of the same turn. The rest is
answered within ASGI (`answer`), by the same steps.

Invariant: it gives only answers that the normal route would give, with the same headers and access checks, counted in
the same metrics; in doubt it leaves the request. A live page is counted per address first, and not again when it then
takes the normal route. Private pages always take that, since they have an owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

from starlette.routing import compile_path
from starlette.types import Scope, Send

from highwater.api.core.access import Access, refusal
from highwater.api.core.activity import ActivityNotes
from highwater.api.core.auth import Authenticator, Principal
from highwater.api.core.conditional import JSON, is_match
from highwater.api.core.encodings import Encoding, negotiate
from highwater.api.core.errors import TooManyRequestsError, UnprocessableError
from highwater.api.core.paths import canonical_path
from highwater.api.core.policies import PLAIN, with_policies
from highwater.api.core.rate_limits import COUNTED, RateLimiter
from highwater.api.core.ready import DeferredAnswer, Fields
from highwater.api.core.ready_reads import METHODS, plain_fields, principal_of
from highwater.api.pages.documents import document_headers
from highwater.api.pages.services import PageServices
from highwater.api.pages.sources import Source
from highwater.connectors.pages.copies import IDENTITY
from highwater.connectors.pages.reads import Served
from highwater.streams.clock import monotonic_seconds
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.telemetry import CONDITIONAL_GETS, DOCUMENT_READS, HTTP_SECONDS

# Paths whose resource is remembered, about 2 KiB each: more than there are copies of documents in memory, in two
# spellings.
PATHS_MAX = 1_024
_JSON = (b"content-type", JSON.encode())

Headers: TypeAlias = list[tuple[bytes, bytes]]


class Page(NamedTuple):
    """A path and what it shows; `about` is its subject if the path has no parameter for it, `access` the declaration of
    its route.
    """

    path: str
    source: Callable[[str], Source]
    about: str
    access: Access


class _Known:
    """A path whose page was found, and its last headers."""

    __slots__ = (
        "_answers",
        "_key",
        "_pairs",
        "_reads",
        "_seconds",
        "_sent",
        "_served",
        "access",
        "source",
        "tag",
        "unchanged",
    )

    def __init__(self, source: Source, template: str, access: Access) -> None:
        self.source = source
        self.access = access
        self.tag = b""
        self.unchanged = Fields(HTTPStatus.NOT_MODIFIED, ())
        self._pairs: Headers = []
        self._sent: dict[Encoding, tuple[int, Fields]] = {}  # by the length of the body
        self._served: Served | None = None  # the latest one
        self._key: tuple[Any, ...] = ()
        self._reads = [DOCUMENT_READS.labels(name, "memory") for name in source.reads]
        self._answers = {
            HTTPStatus.OK: CONDITIONAL_GETS.labels(source.name, "sent"),
            HTTPStatus.NOT_MODIFIED: CONDITIONAL_GETS.labels(source.name, "not_modified"),
        }
        self._seconds = {
            (method, status): HTTP_SECONDS.labels(template, method, int(status))
            for method in METHODS
            for status in self._answers
        }

    def refresh(self, served: Served, authenticator: Authenticator) -> None:
        """Build the headers again if they have changed: at most once a second and version."""
        if served is self._served:
            return
        self._served = served
        head = served.head
        key = (head.version, head.etag, served.age_seconds, served.stale_left_seconds, served.options)
        if key == self._key:
            return
        nobody = authenticator.without_key(may_be_public=self.access.may_be_public)
        headers = document_headers(served, is_shared=nobody is not None)
        given = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._pairs = with_policies(given, PLAIN)
        self.tag = dict(self._pairs)[b"etag"]
        self.unchanged = Fields(HTTPStatus.NOT_MODIFIED, self._pairs)
        self._sent.clear()
        self._key = key

    def sent(self, encoding: Encoding, length: int) -> Fields:
        """Return the fields of an answer with a body of this length; call `refresh` first."""
        found = self._sent.get(encoding)
        if found is not None and found[0] == length:
            return found[1]
        pairs = [*self._pairs, (b"content-length", b"%d" % length), _JSON]
        if encoding != IDENTITY:
            pairs.append((b"content-encoding", encoding.encode()))
        fields = Fields(HTTPStatus.OK, pairs)
        self._sent[encoding] = (length, fields)
        return fields

    def is_held(self, wanted: bytes | None, served: Served) -> bool:
        """Return whether an `If-None-Match` names the version; call `refresh` first."""
        if wanted is None:
            return False
        return wanted == self.tag or is_match(wanted.decode("latin-1"), served.head.etag)

    def count(self, method: str, status: HTTPStatus, seconds: float, *, is_read: bool) -> None:
        """Count an answer as the normal route does."""
        for reads in self._reads if is_read else ():
            reads.inc()
        self._answers[status].inc()
        self._seconds[method, status].observe(seconds)


class PageRequest(NamedTuple):
    """A request for a page."""

    cut: ShortCut
    known: _Known
    method: str
    headers: Mapping[bytes, bytes]
    scope: Scope

    def ready(self) -> _Answer | DeferredAnswer[Any] | None:
        """Return the answer if memory has it, or as soon as the call is counted; None: nothing was counted."""
        started = monotonic_seconds()
        principal = self.cut.admitted(self)
        if principal is None:
            return None
        if self.known.access.limit is RateLimit.NONE:
            return self.cut.from_memory(self, principal, started)
        return _Counted(self, principal, started)


class _To(NamedTuple):
    """The recipient of an answer."""

    asked: PageRequest
    principal: Principal
    activity: ActivityNotes
    started: float
    is_read: bool  # from memory, and not counted as a read yet


class _Answer:
    """The answer to send."""

    __slots__ = ("_to", "body", "fields")

    def __init__(self, fields: Fields, body: bytes, to: _To) -> None:
        self.fields = fields
        self.body = b"" if to.asked.method == "HEAD" else body
        self._to = to

    def ended(self) -> None:
        """Count it as the normal route does."""
        to = self._to
        known, method = to.asked.known, to.asked.method
        if method == "GET":
            to.activity.note(to.principal)
        known.count(method, self.fields.status, monotonic_seconds() - to.started, is_read=to.is_read)


class _Counted(DeferredAnswer[PageRequest]):
    """A page in memory whose reads are counted by address."""

    __slots__ = ()

    def ask(self) -> asyncio.Future[int]:
        """Count the call."""
        return self._asked.cut.limiter.ask_address(self._asked.known.access, self._asked.scope)

    def answer(self, reply: asyncio.Future[int]) -> _Answer | None:
        """Return the page if the call is admitted; the normal route refuses the others, without counting them again."""
        asked = self._asked
        retry_after_ms = self.noted[COUNTED] = asked.cut.limiter.judge_address(asked.scope, reply)
        return None if retry_after_ms else asked.cut.from_memory(asked, self._principal, self._started)


def _encoding(known: _Known, headers: Mapping[bytes, bytes]) -> Encoding | None:
    accept = headers.get(b"accept-encoding")
    return negotiate(None if accept is None else accept.decode("latin-1"), known.source.encodings)


class ShortCut:
    """Answers requests without the normal route where possible."""

    def __init__(self, pages: Iterable[Page], services: PageServices) -> None:
        self._pages = [(*compile_path(page.path), page) for page in pages]
        self._services = services
        self._known: dict[bytes, _Known] = {}

    def is_known(self, target: bytes) -> bool:
        """Return whether a target is the path of a page that was answered before."""
        return target in self._known

    def asked(self, scope: Scope) -> PageRequest | None:
        """Return what a request asks for; None if it is not a page, or in doubt. Depends only on the request and the settings."""
        headers = plain_fields(scope)
        if headers is None:
            return None
        raw_path = scope.get("raw_path") or b""
        known = self._known.get(raw_path) or self._of_path(raw_path)
        return None if known is None else PageRequest(self, known, scope["method"], headers, scope)

    @property
    def limiter(self) -> RateLimiter:
        """Return the limiter that counts reads of live pages."""
        return self._services.core.rate_limiter

    async def answer(self, scope: Scope, send: Send) -> bool:
        """Answer the request if possible; return whether it did. If not, nothing was sent."""
        started = monotonic_seconds()
        asked = self.asked(scope)
        principal = None if asked is None else self.admitted(asked)
        if asked is None or principal is None:
            return False
        try:
            await self.limiter.admit(asked.known.access, principal, scope)
        except TooManyRequestsError:
            return False  # the normal route refuses it, without counting it again
        answer = self.from_memory(asked, principal, started) or await self._unchanged(asked, principal, started)
        if answer is None:
            return False
        self._remember(scope["raw_path"], asked.known)
        fields = answer.fields
        await send({"type": "http.response.start", "status": int(fields.status), "headers": fields.pairs})
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})
        answer.ended()
        return True

    def admitted(self, request: PageRequest) -> Principal | None:
        """Return the caller if it is known from memory and may see the page."""
        access, authenticator = request.known.access, self._services.core.authenticator
        principal = principal_of(authenticator, request.scope, request.headers, may_be_public=access.may_be_public)
        return principal if principal is not None and refusal(access, principal) is None else None

    def from_memory(self, request: PageRequest, principal: Principal, started: float) -> _Answer | None:
        """Return the page, if it is in memory and fresh."""
        known, core = request.known, self._services.core
        encoding = _encoding(known, request.headers)
        found = None if encoding is None else known.source.look()
        if found is None or encoding is None:
            return None
        served, of = found
        known.refresh(served, core.authenticator)
        to = _To(request, principal, core.activity, started, is_read=True)
        if known.is_held(request.headers.get(b"if-none-match"), served):
            return _Answer(known.unchanged, b"", to)
        body = known.source.body(of, encoding)
        return None if body is None else _Answer(known.sent(encoding, len(body)), body, to)

    async def _unchanged(self, request: PageRequest, principal: Principal, started: float) -> _Answer | None:
        """Return a 304 if memory cannot decide and Redis can; not for a page, since its body may be elsewhere."""
        known, core = request.known, self._services.core
        wanted = request.headers.get(b"if-none-match")
        if wanted is None or _encoding(known, request.headers) is None:
            return None
        served = await known.source.near()
        if served is None:
            return None
        known.refresh(served, core.authenticator)
        to = _To(request, principal, core.activity, started, is_read=False)
        return _Answer(known.unchanged, b"", to) if known.is_held(wanted, served) else None

    def _of_path(self, raw_path: bytes) -> _Known | None:
        """Return the page that a router would find: the first whose pattern matches the normalized path."""
        try:
            path = canonical_path(raw_path)
        except UnprocessableError:
            return None
        for regex, template, convertors, page in self._pages:
            match = regex.match(path)
            if match is None:
                continue
            named = [convertors[name].convert(value) for name, value in match.groupdict().items()]
            source = page.source(named[0] if named else page.about)
            # Only the normal route sends the headers of other limits.
            is_ours = not source.is_private and page.access.limit in (RateLimit.NONE, RateLimit.ADDRESS)
            return _Known(source, template, page.access) if is_ours else None
        return None

    def _remember(self, raw_path: bytes, known: _Known) -> None:
        """Remember answered paths only, so that requests for unknown paths cannot evict them."""
        if raw_path not in self._known:
            if len(self._known) >= PATHS_MAX:
                self._known.clear()
            self._known[raw_path] = known
