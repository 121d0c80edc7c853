"""The shortest way to a page of a league: from memory, before any routing, as a 304 when the client has it.

Law: it answers only what the usual way would answer, with the same headers and the same checks of who asks, counted in the same
metrics; in doubt it steps aside. Live pages go the usual way, since they are counted per address, and private ones, since they
belong to somebody.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

from starlette.routing import compile_path
from starlette.types import Scope, Send

from api.conditional import JSON, is_match
from api.documents import document_headers
from api.encodings import Encoding, negotiate
from api.errors import UnprocessableError
from api.paths import canonical_path
from api.services import Services
from connectors.materializers.document_reads import Served
from connectors.stores.copies import IDENTITY
from streams.clock import monotonic_seconds
from streams.league.resources import KINDS, Resource, resource
from streams.telemetry import CONDITIONAL_GETS, DOCUMENT_READS, HTTP_SECONDS

# Paths whose resource is remembered, about 2 KiB each: more than there are copies of documents in memory, spelled in two ways.
PATHS_MAX = 1_024
_METHODS = ("GET", "HEAD")
# What a read waits for is not known here.
_ASIDE = (b"x-min-position", b"x-max-wait-ms")
_JSON = (b"content-type", JSON.encode())

Headers: TypeAlias = list[tuple[bytes, bytes]]


class Page(NamedTuple):
    """A path that answers with one document; `about` is what it is about where the path does not say."""

    path: str
    kind: str
    about: str = ""


class _Known:
    """A path whose document was found, and its headers as they were last given."""

    __slots__ = ("_answers", "_key", "_reads", "_seconds", "found", "pairs", "tag")

    def __init__(self, found: Resource, template: str) -> None:
        self.found = found
        self.tag = b""
        self.pairs: Headers = []
        self._key: tuple[Any, ...] = ()
        name = found.kind.name
        self._reads = DOCUMENT_READS.labels(name, "memory")
        self._answers = {
            HTTPStatus.OK: CONDITIONAL_GETS.labels(name, "sent"),
            HTTPStatus.NOT_MODIFIED: CONDITIONAL_GETS.labels(name, "not_modified"),
        }
        self._seconds = {
            (method, status): HTTP_SECONDS.labels(template, method, int(status))
            for method in _METHODS
            for status in self._answers
        }

    def refresh(self, served: Served, *, is_open: bool) -> None:
        """Make the headers anew when they say something else: at most once a second and version."""
        head = served.head
        key = (head.version, head.etag, served.age_seconds, served.stale_left_seconds, served.options)
        if key == self._key:
            return
        headers = document_headers(served, is_shared=is_open)
        self.pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self.tag = dict(self.pairs)[b"etag"]
        self._key = key

    def count(self, method: str, status: HTTPStatus, seconds: float) -> None:
        """Count an answer as the usual way does."""
        self._reads.inc()
        self._answers[status].inc()
        self._seconds[method, status].observe(seconds)


class _Answer(NamedTuple):
    """What is sent."""

    known: _Known
    status: HTTPStatus
    headers: Headers
    body: bytes


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
        answer = self._find(scope)
        if answer is None:
            return False
        await send({"type": "http.response.start", "status": int(answer.status), "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})
        answer.known.count(scope["method"], answer.status, monotonic_seconds() - started)
        return True

    def _find(self, scope: Scope) -> _Answer | None:
        """The page, when it is in memory, good, and the client may read it."""
        headers = dict(scope["headers"])
        # A field that came twice is left to who knows which of the two counts.
        if len(headers) != len(scope["headers"]) or any(name in headers for name in _ASIDE):
            return None
        raw_path = scope.get("raw_path") or b""
        known = self._known.get(raw_path) or self._of_path(raw_path)
        if known is None:
            return None
        authorization, accept = headers.get(b"authorization"), headers.get(b"accept-encoding")
        services = self._services
        principal = services.authenticator.quick(None if authorization is None else authorization.decode("latin-1"))
        encoding = negotiate(None if accept is None else accept.decode("latin-1"))
        if principal is None or encoding is None:
            return None
        served = services.documents.quick(known.found)
        if served is None:
            return None
        known.refresh(served, is_open=services.authenticator.is_open)
        answer = self._answer_of(known, served, headers.get(b"if-none-match"), encoding)
        if answer is not None:
            self._remember(raw_path, known)
            if scope["method"] == "GET":
                services.activity.note(principal)
        return answer

    def _answer_of(self, known: _Known, served: Served, wanted: bytes | None, encoding: Encoding) -> _Answer | None:
        if wanted is not None and (wanted == known.tag or is_match(wanted.decode("latin-1"), served.head.etag)):
            return _Answer(known, HTTPStatus.NOT_MODIFIED, known.pairs, b"")
        body = self._services.documents.body(known.found, served.head, encoding)
        if body is None:
            return None
        headers = [*known.pairs, (b"content-length", b"%d" % len(body)), _JSON]
        if encoding != IDENTITY:
            headers.append((b"content-encoding", encoding.encode()))
        return _Answer(known, HTTPStatus.OK, headers, body)

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
