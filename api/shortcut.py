"""The shortest way to a 304: a page of a league that the client has, from memory, before any routing.

Law: it answers only what the usual way would answer, with the same headers and the same checks of who asks, counted in the same
metrics; in doubt it steps aside. Live pages go the usual way, since they are counted per address, and private ones, since they
belong to somebody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from starlette.routing import compile_path
from starlette.types import Scope, Send

from api.conditional import is_match
from api.documents import document_headers
from api.encodings import negotiate
from api.errors import UnprocessableError
from api.paths import canonical_path
from api.services import Services
from connectors.materializers.document_reads import Served
from streams.clock import monotonic_seconds
from streams.league.resources import KINDS, Resource, resource
from streams.telemetry import CONDITIONAL_GETS, DOCUMENT_READS, HTTP_SECONDS

# Paths whose resource is remembered, about 2 KiB each: more than there are copies of documents in memory, spelled in two ways.
PATHS_MAX = 1_024
_METHODS = ("GET", "HEAD")
# What a read waits for is not known here.
_ASIDE = (b"x-min-position", b"x-max-wait-ms")
_END = {"type": "http.response.body", "body": b"", "more_body": False}


class Page(NamedTuple):
    """A path that answers with one document; `about` is what it is about where the path does not say."""

    path: str
    kind: str
    about: str = ""


class _Known:
    """A path whose document was found, and the answer as it was last given."""

    __slots__ = ("_key", "counts", "found", "seconds", "start", "tag")

    def __init__(self, found: Resource, template: str) -> None:
        self.found = found
        self.tag = b""
        self.start: dict[str, Any] = {}
        self._key: tuple[Any, ...] = ()
        name = found.kind.name
        self.counts = (CONDITIONAL_GETS.labels(name, "not_modified"), DOCUMENT_READS.labels(name, "memory"))
        self.seconds = {method: HTTP_SECONDS.labels(template, method, 304) for method in _METHODS}

    def refresh(self, served: Served, *, is_open: bool) -> None:
        """Make the headers anew when they say something else: at most once a second and version."""
        head = served.head
        key = (head.version, head.etag, served.age_seconds, served.stale_left_seconds, served.options)
        if key == self._key:
            return
        headers = document_headers(served, is_shared=is_open)
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self.tag = dict(pairs)[b"etag"]
        self.start = {"type": "http.response.start", "status": 304, "headers": pairs}
        self._key = key


class ShortCut:
    """Answers what it can."""

    def __init__(self, pages: Iterable[Page], services: Services) -> None:
        self._pages = [(*compile_path(page.path), page) for page in pages]
        self._services = services
        self._known: dict[bytes, _Known] = {}

    async def answer(self, scope: Scope, send: Send) -> bool:
        """Whether the request was answered; if not, nothing was sent."""
        started = monotonic_seconds()
        if scope["query_string"] or scope["method"] not in _METHODS:
            return False
        known = self._find(scope)
        if known is None:
            return False
        await send(known.start)
        await send(_END)
        for count in known.counts:
            count.inc()
        known.seconds[scope["method"]].observe(monotonic_seconds() - started)
        return True

    def _find(self, scope: Scope) -> _Known | None:
        """The page, when the client has its current version and may read it."""
        headers = dict(scope["headers"])
        wanted = headers.get(b"if-none-match")
        # A field that came twice is left to who knows which of the two counts.
        if wanted is None or len(headers) != len(scope["headers"]) or any(name in headers for name in _ASIDE):
            return None
        raw_path = scope.get("raw_path") or b""
        known = self._known.get(raw_path) or self._of_path(raw_path)
        if known is None:
            return None
        authorization, accept = headers.get(b"authorization"), headers.get(b"accept-encoding")
        services = self._services
        principal = services.authenticator.quick(None if authorization is None else authorization.decode("latin-1"))
        if principal is None or negotiate(None if accept is None else accept.decode("latin-1")) is None:
            return None
        served = services.documents.quick(known.found)
        if served is None:
            return None
        known.refresh(served, is_open=services.authenticator.is_open)
        if wanted != known.tag and not is_match(wanted.decode("latin-1"), served.head.etag):
            return None
        self._remember(raw_path, known)
        if scope["method"] == "GET":
            services.activity.note(principal)
        return known

    def _of_path(self, raw_path: bytes) -> _Known | None:
        """The page that a router would find: the first whose pattern fits the path in its one spelling."""
        try:
            path = canonical_path(raw_path)
        except UnprocessableError:
            return None
        for regex, template, convertors, page in self._pages:
            match = regex.match(path)
            if match is None:
                continue
            kind = KINDS[page.kind]
            if kind.is_live or kind.is_private:
                return None
            about = [convertors[name].convert(value) for name, value in match.groupdict().items()]
            return _Known(resource(page.kind, about[0] if about else page.about), template)
        return None

    def _remember(self, raw_path: bytes, known: _Known) -> None:
        """Only what was answered is remembered, so that nobody pushes it out with paths of nothing."""
        if raw_path not in self._known:
            if len(self._known) >= PATHS_MAX:
                self._known.clear()
            self._known[raw_path] = known
