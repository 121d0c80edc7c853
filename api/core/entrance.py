"""The entrance of the application: decisions on a request before any of it is routed or read.

Invariants. Requests of a forbidden site, or with a body of an unaccepted type, never pass it. Every answer has the
security headers. A read that comes through no proxy costs one check of its host: the shortcut to pages lies behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from highwater.api.core.auth import parse_api_keys
from highwater.api.core.bodies import wrong_coding, wrong_type
from highwater.api.core.errors import problem
from highwater.api.core.policies import ENCRYPTED, PLAIN, Fields, with_policies
from highwater.api.core.proxies import address_of, parse_networks, scope_behind_proxies
from highwater.api.core.sites import SAFE_METHODS, Asking, Refusal, Sites, is_loopback_host, parse_origins
from highwater.streams.settings import Settings
from highwater.streams.telemetry import HTTP_REFUSED, get_log

# What pages of other origins may read and send; browsers block the rest.
_EXPOSED = (
    *("ETag", "Age", "Retry-After", "Location", "X-Resource-Version", "X-Caused-By", "X-Pending", "X-Stale"),
    *("RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-Conflicts"),
)
_TAKEN = (
    *("Authorization", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "X-Min-Position", "X-Max-Wait-Ms"),
    *("X-Prewarm-Token", "Repr-Digest", "Content-Digest"),
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
_ENCRYPTED_SCHEMES = ("https", "wss")
_API = "/api/"
# A download of the console; it computes before its first byte.
_DOWNLOAD = "/export"
_READS = frozenset({"GET", "HEAD"})
# RFC 9112, section 3.2: one `Host`, except in HTTP/1.0. Of two, a proxy may have used the other.
_WITHOUT_HOST = "1.0"
_ONE_HOST = Refusal(HTTPStatus.BAD_REQUEST, "a request has one Host field", "Host")
_UNSUPPORTED = HTTPStatus.UNSUPPORTED_MEDIA_TYPE

Quick: TypeAlias = Callable[[Scope, Send], Awaitable[bool]]
_Headers: TypeAlias = list[tuple[bytes, bytes]]
# Called with the scope of a request and the status that it is refused with.
OnRefusal: TypeAlias = Callable[[Scope, int], None]
_log = get_log("api")


class _Judged(NamedTuple):
    """A request as seen through the proxies, and the decision on it."""

    scope: Scope
    fields: Fields
    refusal: Refusal | None
    is_shared: bool

    @property
    def is_quick(self) -> bool:
        """Return whether the shortcut, which answers with the headers of `PLAIN`, may answer it."""
        is_let_in = self.refusal is None and not self.is_shared
        return is_let_in and self.fields is PLAIN and self.scope["type"] == "http"


class Entrance:
    """ASGI: admits a request, or answers it."""

    def __init__(self, app: ASGIApp, quick: Quick, settings: Settings, on_refusal: OnRefusal) -> None:
        """`quick` answers some reads by itself, with the headers of `PLAIN`, and returns whether it did.

        Raises:
            ConfigurationError: a setting cannot be read.
        """
        self._app = app
        self._quick = quick
        self._on_refusal = on_refusal
        self._proxies = parse_networks(settings.trusted_proxies)
        allowed = parse_origins(settings.allowed_origins)
        is_open = not (parse_api_keys(settings.api_keys) or settings.api_keys_file or settings.oidc_issuer)
        self._sites = Sites(is_open=is_open, allowed_origins=allowed)
        self._shared: ASGIApp | None = None
        if allowed:
            self._shared = CORSMiddleware(
                app,
                allow_origins=sorted(allowed),
                allow_methods=_METHODS,
                allow_headers=_TAKEN,
                expose_headers=_EXPOSED,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide on one request or handshake."""
        judged = self._judged(scope)
        if judged.is_quick and await self._quick(judged.scope, send):
            return
        scope, fields, refusal, is_shared = judged
        send = _with_policies(send, fields)
        if refusal is not None:
            await self._refuse(refusal, scope, receive, send)
        elif self._shared is not None and is_shared:
            await self._shared(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def quick_scope(self, scope: Scope) -> Scope | None:
        """Return the scope that `quick` would be called with; None if it would not be called."""
        judged = self._judged(scope)
        return judged.scope if judged.is_quick else None

    def _judged(self, scope: Scope) -> _Judged:
        if self._proxies:
            scope = scope_behind_proxies(scope, self._proxies)
        is_shared = self._shared is not None and scope["type"] == "http" and self._is_shared(scope)
        return _Judged(scope, _policies(scope), self._refusal(scope), is_shared)

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        HTTP_REFUSED.labels(int(refusal.status)).inc()
        _log.debug("a request is refused", status=int(refusal.status), reason=refusal.detail, address=address_of(scope))
        self._on_refusal(scope, int(refusal.status))
        headers = {"Accept-Encoding": "identity"} if refusal.status == _UNSUPPORTED else {}
        members = {} if refusal.field is None else {"field": refusal.field}
        await problem(refusal.status, refusal.detail, headers=headers, members=members)(scope, receive, send)

    def _is_shared(self, scope: Scope) -> bool:
        return any(
            name == b"origin" and value.decode("latin-1") in self._sites.allowed for name, value in scope["headers"]
        )

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers: _Headers = scope["headers"]
        is_socket = scope["type"] == "websocket"
        host_count, is_cross_site = 0, False
        for name, value in headers:
            if name == b"host":
                host_count += 1
                if self._sites.is_open and not _is_loopback(value):
                    return self._sites.misdirected([value.decode("latin-1")])
            elif name == b"sec-fetch-site":
                is_cross_site = value == b"cross-site"
        if host_count != 1 and (host_count or scope.get("http_version") != _WITHOUT_HOST):
            return _ONE_HOST
        if not is_socket and scope["method"] in SAFE_METHODS:
            return self._foreign_read(scope) if is_cross_site and scope["method"] in _READS else None
        fields = _fields(headers)
        if self._signs_in_by_itself(scope, fields):
            hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
            asking = Asking(hosts, fields.get("origin", ""), fields.get("sec-fetch-site", ""), scope["scheme"])
            refusal = self._sites.foreign(asking)
            if refusal is not None:
                return refusal
        return None if is_socket else _body_refusal(scope["path"], fields)

    def _foreign_read(self, scope: Scope) -> Refusal | None:
        """Refuse a read that a page of another site requests in its visitor's name, unless it costs next to nothing."""
        path, fields = scope["path"], _fields(scope["headers"])
        is_answer = path.startswith(_API) or path.endswith(_DOWNLOAD)
        is_link = fields.get("sec-fetch-mode") == "navigate" and fields.get("sec-fetch-dest") == "document"
        if not is_answer and (is_link or not scope.get("query_string")):
            return None
        return self._sites.foreign_read(fields.get("origin", "")) if self._signs_in_by_itself(scope, fields) else None

    def _signs_in_by_itself(self, scope: Scope, fields: dict[str, str]) -> bool:
        """Return whether a browser sends this with the rights of the person in front of it: an open API, or a cookie.

        Beneath `/api/` cookies have no effect, but a page that sends one without a key may not know that.
        """
        if self._sites.is_open or not scope["path"].startswith(_API):
            return True
        names_a_key = "authorization" in fields or bool(scope.get("subprotocols"))
        return "cookie" in fields and not names_a_key


def _body_refusal(path: str, fields: dict[str, str]) -> Refusal | None:
    has_body = fields.get("content-length", "0") != "0" or "transfer-encoding" in fields
    if not has_body:
        return None
    reason = wrong_coding(fields.get("content-encoding", ""))
    if reason is not None:
        return Refusal(_UNSUPPORTED, reason, "Content-Encoding")
    reason = wrong_type(path, fields.get("content-type", ""))
    return None if reason is None else Refusal(_UNSUPPORTED, reason, "Content-Type")


def _fields(headers: _Headers) -> dict[str, str]:
    """Return the fields by name; repeated fields are joined, so that none hides behind another."""
    found: dict[str, str] = {}
    for name, value in headers:
        text = name.decode("latin-1")
        found[text] = f"{found[text]}, {value.decode('latin-1')}" if text in found else value.decode("latin-1")
    return found


@lru_cache(256)
def _is_loopback(host: bytes) -> bool:
    return is_loopback_host(host.decode("latin-1"))


def _policies(scope: Scope) -> Fields:
    if scope["scheme"] not in _ENCRYPTED_SCHEMES:
        return PLAIN
    # A browser applies HSTS to every port of a name, and other programs use the ports of `localhost`.
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return PLAIN if any(is_loopback_host(host) for host in hosts) else ENCRYPTED


def _with_policies(send: Send, fields: Fields) -> Send:
    async def send_with_policies(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            message = {**message, "headers": with_policies(list(message.get("headers", ())), fields)}
        await send(message)

    return send_with_policies
