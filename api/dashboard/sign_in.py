"""Sign-in to the dashboard: a key or session is entered once, and a cookie represents it.

Users may sign in at an OpenID provider instead (`openid.py`), which gives them a session.

Invariants. The cookie contains a random token and never the key; the key stays in this process. Each read of a page is
made with that key, so the API alone decides what it may see. Without configured API keys no sign-in is needed. Wrong
keys are counted as those of the API are.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from highwater.api.core.auth import authenticated
from highwater.api.core.errors import TooManyRequestsError, UnauthorizedError
from highwater.api.core.places import caller_name
from highwater.api.core.policies import style_policy
from highwater.api.core.proxies import address_of
from highwater.api.dashboard.openid import CALLBACK_PATH, SIGN_IN_PATH, OpenIdSignIn, SignInRefusedError
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import monotonic_seconds

if TYPE_CHECKING:
    from highwater.api.core.auth import Authenticator, Principal

COOKIE = "highwater_dashboard"
# Signed-in browsers, about 200 bytes each, and those of one user or key; beyond this, its own first one has to sign in
# again, so that a caller signs out nobody else.
VISITORS_MAX, OF_CALLER_MAX = 1_000, 50
# A working day; a browser that was left open has to sign in again the next morning.
SECONDS_MAX = 12 * 3_600
# A key and the next page; a longer body is not a sign-in form.
FORM_BYTES_MAX = 8_192
_SEE_OTHER = 303
# Browsers drop control characters from addresses and treat backslashes as slashes: `/<tab>/host` would lead to another
# host.
_STRIPPED = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, slots=True)
class _Visit:
    """A signed-in browser; `began` is when, in seconds of the monotonic clock."""

    authorization: str
    caller: str
    began: float


@dataclass(frozen=True, slots=True)
class Visitor:
    """The visitor; `authorization` is sent with each read of the API, None if the API is open."""

    principal: Principal
    authorization: str | None


class SignIn:
    """Signs browsers in and out; an ASGI application for `/login`, the paths below it, and `/logout`."""

    def __init__(self, authenticator: Callable[[], Authenticator], openid: OpenIdSignIn | None = None) -> None:
        """`openid` None: no OpenID provider is configured."""
        self._authenticator = authenticator
        self._openid = openid
        self._visits: dict[str, _Visit] = {}  # by cookie, the oldest first
        # Sessions from a sign-in at the OpenID provider, which end when their browser signs out.
        self._made: OrderedDict[str, None] = OrderedDict()

    async def visitor(self, request: Request, *, may_be_public: bool = False) -> Visitor | None:
        """Return the sender of a request for a page that may be public or not; None: unknown.

        Raises:
            UnavailableError: the cookie represents a session, and Redis is unavailable.
        """
        authorization = self.authorization(request)
        try:
            return Visitor(
                await self._authenticator().principal(authorization, may_be_public=may_be_public), authorization
            )
        except UnauthorizedError:
            return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Show the form, accept a key, or forget it."""
        request = Request(scope, receive)
        await (await self._answer(request))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/logout":
            return await self._sign_out(request)
        wanted = request.query_params.get("next", "/")
        if path in (SIGN_IN_PATH, CALLBACK_PATH):
            return await self._by_openid(request, wanted)
        return await self._by_key(request, wanted) if request.method == "POST" else self._form(wanted)

    async def _by_key(self, request: Request, next_path: str) -> Response:
        """Accept the key or session of the form."""
        body = await request.body()
        if len(body) > FORM_BYTES_MAX:
            return self._form(next_path, "this is not a sign-in form", status=413)
        sent = parse_qs(body.decode("utf-8", "replace"))
        authorization = f"Bearer {sent.get('key', [''])[0].strip()}"
        found = await self._judged(authorization, address_of(request.scope), next_path)
        if isinstance(found, Response):
            return found
        answer = RedirectResponse(_own_path(next_path), _SEE_OTHER)
        self._set_cookie(request, answer, authorization, found)
        return answer

    def _set_cookie(self, request: Request, answer: Response, authorization: str, principal: Principal) -> None:
        answer.set_cookie(
            COOKIE,
            self._remember(authorization, principal),
            max_age=SECONDS_MAX,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    async def _by_openid(self, request: Request, next_path: str) -> Response:
        """Redirect a browser to the OpenID provider, or sign it in when it returns."""
        if self._openid is None:
            return self._form(next_path, "No OpenID provider is configured.", status=404)
        try:
            if request.url.path == SIGN_IN_PATH:
                return await self._openid.begin(request, next_path)
            signed_in = await self._openid.complete(request)
            authorization = f"Bearer {signed_in.session_id}"
            principal = await self._authenticator().principal(authorization)
        except (SignInRefusedError, UnauthorizedError) as error:
            return self._openid.forget(self._form("/", f"You are not signed in: {error}", status=401))
        except UnavailableError as error:
            return self._form("/", f"Sign-in is unavailable: {error}", status=503)
        # The cookie is strict, so a redirect from the provider would arrive without it: our own page continues.
        target = escape(_own_path(signed_in.wanted), quote=True)
        answer = HTMLResponse(_SIGNED_IN.format(target=target), headers={"Cache-Control": "no-store"})
        self._set_cookie(request, answer, authorization, principal)
        self._made[signed_in.session_id] = None
        return self._openid.forget(answer)

    def _form(
        self, next_path: str, message: str = "", *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        told = f'<p class="wrong" role="alert">{escape(message)}</p>' if message else ""
        next_path = quote(_own_path(next_path), safe="")
        openid = "" if self._openid is None else _OPENID.format(next=next_path)
        text = _FORM.format(next=next_path, message=told, style=_STYLE, openid=openid)
        fields = {"Cache-Control": "no-store", "Content-Security-Policy": _POLICY, **(headers or {})}
        return HTMLResponse(text, status, headers=fields)

    async def _judged(self, authorization: str, address: str, next_path: str) -> Principal | Response:
        """Return whose key it is; of one that is refused the form again, with the error."""
        try:
            return await authenticated(self._authenticator(), authorization, address)
        except UnauthorizedError:
            return self._form(next_path, "This key or session is not valid.", status=401)
        except TooManyRequestsError as error:
            told = f"Too many wrong keys were sent from here. Try again in {error.headers['Retry-After']} seconds."
            return self._form(next_path, told, status=429, headers=error.headers)
        except UnavailableError as error:
            return self._form(next_path, f"Sessions cannot be read now: {error}", status=503)

    def _remember(self, authorization: str, principal: Principal) -> str:
        token = secrets.token_urlsafe(32)
        caller = caller_name(principal)
        own = [cookie for cookie, visit in self._visits.items() if visit.caller == caller]
        if len(own) >= OF_CALLER_MAX:
            self._forget(own[0])
        elif len(self._visits) >= VISITORS_MAX:
            self._forget(own[0] if own else next(iter(self._visits)))
        self._visits[token] = _Visit(authorization, caller, monotonic_seconds())
        return token

    def authorization(self, connection: HTTPConnection) -> str | None:
        """Return the key or session behind the cookie of a request or socket; None if it is unknown, or too old."""
        return self._authorization(connection.cookies.get(COOKIE, ""))

    def _authorization(self, cookie: str) -> str | None:
        visit = self._visits.get(cookie)
        if visit is not None and monotonic_seconds() - visit.began >= SECONDS_MAX:
            self._forget(cookie)
            return None
        return None if visit is None else visit.authorization

    def _forget(self, cookie: str) -> None:
        self._made.pop(self._visits.pop(cookie).authorization.removeprefix("Bearer "), None)

    async def _sign_out(self, request: Request) -> Response:
        """Forget the key; a session from a sign-in here ends too, one that the user entered does not."""
        visit = self._visits.pop(request.cookies.get(COOKIE, ""), None)
        session_id = "" if visit is None else visit.authorization.removeprefix("Bearer ")
        if self._openid is not None and session_id in self._made:
            del self._made[session_id]
            await self._openid.end(session_id)
        answer = RedirectResponse("/login", _SEE_OTHER)
        answer.delete_cookie(COOKIE)
        return answer


def _own_path(path: str) -> str:
    """Return the next page: always a path of this site."""
    if _STRIPPED.search(path):
        return "/"
    parts = urlsplit(path)
    is_ours = not parts.scheme and not parts.netloc and path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_ours else "/"


_STYLE = """
html{background:Canvas;color:CanvasText}
body{font:16px/1.5 system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:0;padding:1rem}
main{width:min(24rem,100%)} form{display:grid;gap:.75rem} h1{font-size:1.5rem;margin:0} p{margin:0;opacity:.8}
input,button,a{font:inherit;padding:.6rem .75rem;border-radius:.5rem;border:1px solid #8888}
button{background:#0b6bcb;color:#fff;border-color:#0b6bcb;cursor:pointer}
:focus-visible{outline:3px solid #4ea1ff;outline-offset:2px} .wrong{color:light-dark(#b3261e,#ff7b72);opacity:1}
"""
_POLICY = style_policy(_STYLE)
_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Sign in · Highwater</title>
<style>{style}</style></head>
<body><main><form method="post" action="/login?next={next}"><h1>Highwater</h1>
<p>The dashboard shows what your API key or session may see.</p>{message}
<label for="key">API key or session</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button>{openid}</form></main></body></html>
"""
_OPENID = '<a href="/login/openid?next={next}">Sign in with your organization\'s account</a>'
_SIGNED_IN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={target}">
<title>Signed in · Highwater</title></head>
<body><p>You are signed in. <a href="{target}">Continue to the console</a></p></body></html>
"""
