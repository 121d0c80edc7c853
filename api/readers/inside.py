"""Calls the API for readers' pages and actions, inside this process and with the reader's own key.

Invariant: a reader sees and may do only what the API permits the same key; every limit of the API applies here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from highwater.api.core.access import refusal
from highwater.api.core.auth import ANONYMOUS, Role
from highwater.api.core.guard import require_declared
from highwater.api.core.languages import negotiate_language
from highwater.api.core.proxies import address_of
from highwater.api.dashboard.sign_in import Visitor
from highwater.streams.messages import Messages, catalogue

# A reader's choice of a language: a parameter of an address, and the cookie that remembers it.
LANGUAGE, LANGUAGE_COOKIE = "lang", "highwater_language"


class Answer(NamedTuple):
    """A response of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Return the JSON of the response; an empty object if it has none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}

    @property
    def detail(self) -> str:
        """Return the message of an error."""
        found = self.document
        told = found.get("detail") or found.get("title") if isinstance(found, dict) else None
        return str(told or f"The service answered {self.status}.")


@dataclass(frozen=True)
class Visit:
    """One request of one reader."""

    application: ASGIApp
    request: Request
    visitor: Visitor
    named: Mapping[str, str] = field(default_factory=dict)
    named_user: str | None = None

    @property
    def user(self) -> str | None:
        """Return the user of the page: the one the reader is bound to, else the one in the address; None: none yet."""
        return self.visitor.principal.user_id or self.named_user or self.request.query_params.get("user") or None

    @property
    def chosen_language(self) -> str | None:
        """Return the language that the address names; None: none, or one without messages."""
        named = self.request.query_params.get(LANGUAGE)
        return named if named in catalogue().languages else None

    @cached_property
    def messages(self) -> Messages:
        """Return the messages in the reader's language: the one in the address, else the remembered one, else by
        `Accept-Language`.
        """
        languages = catalogue().languages
        remembered = self.request.cookies.get(LANGUAGE_COOKIE)
        chosen = self.chosen_language or (remembered if remembered in languages else None)
        fields = self.request.headers.getlist("accept-language")
        return catalogue().messages(chosen or negotiate_language(", ".join(fields), languages))

    @property
    def is_bound(self) -> bool:
        """Return whether the reader's key names the user."""
        return self.visitor.principal.user_id is not None

    @property
    def is_anonymous(self) -> bool:
        """Return whether the reader has sent no key to a page that requires none."""
        return self.visitor.principal is ANONYMOUS

    @property
    def is_operator(self) -> bool:
        """Return whether the reader's key is not bound to a user, or belongs to an admin."""
        principal = self.visitor.principal
        return principal.role is Role.ADMIN or not principal.is_bound

    def may(self, endpoint: Any) -> bool:
        """Return whether an operation of the API admits this reader, as far as that is known without its resource."""
        return refusal(require_declared(endpoint, "a form"), self.visitor.principal) is None

    def of_user(self, user: str | None) -> Visit:
        """Return the same visit with the user that a form names."""
        return replace(self, named_user=user or None)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        content: bytes = b"",
        kind: str = "application/json",
    ) -> Answer:
        """Send one request to the API as this reader; `path` is encoded and may have a query; `body` is sent as JSON."""
        sent = dict(headers or {})
        if self.visitor.authorization is not None:
            sent["Authorization"] = self.visitor.authorization
        if body is not None:
            content = orjson.dumps(body)
        if content:
            sent |= {"Content-Type": kind, "Content-Length": str(len(content))}
        scope = _scope(method, path, sent, address_of(self.request.scope))
        return await _answer(self.application, scope, content)


def _scope(method: str, path: str, headers: Mapping[str, str], address: str) -> dict[str, Any]:
    raw_path, _, query = path.partition("?")
    fields = {"Host": "localhost", **headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()],
        "client": (address, 0),
        "server": ("localhost", 80),
    }


async def _answer(application: ASGIApp, scope: Scope, content: bytes) -> Answer:
    """Process one request without a connection: an HTTP client would be loaded by every process of the API only for this."""
    is_sent = False
    status, headers, body = 500, dict[str, str](), bytearray()
    ended = asyncio.Event()

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await ended.wait()
            return {"type": "http.disconnect"}
        is_sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                ended.set()

    await application(scope, receive, send)
    return Answer(status, headers, bytes(body))
