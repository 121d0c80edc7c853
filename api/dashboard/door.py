"""Who looks at the dashboard: a key or session is asked for once, and a cookie stands for it.

Laws. The cookie holds a random token and never the key; the key stays in this process. Each read of a page is made with that
key, so what it may see is decided by the API alone. Without API keys configured nobody is asked. Wrong keys are counted as those
of the API are.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from highwater.api.core.auth import authenticated
from highwater.api.core.errors import TooManyRequestsError, UnauthorizedError
from highwater.api.core.policies import style_policy
from highwater.api.core.proxies import address_of
from highwater.schemas.errors import UnavailableError

if TYPE_CHECKING:
    from highwater.api.core.auth import Authenticator, Principal

COOKIE = "highwater_dashboard"
# Browsers that are signed in, about 200 bytes each; the one that signed in first is asked again.
VISITORS_MAX = 1_000
# A working day; a browser that was left open is asked again the next morning.
SECONDS_MAX = 12 * 3_600
# A key and the page to go on to; more is no sign-in form.
FORM_BYTES_MAX = 8_192
_SEE_OTHER = 303


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks; `authorization` is what each read of the API is sent with, None where the API is open."""

    principal: Principal
    authorization: str | None


class Door:
    """Signs browsers in and out; an ASGI application for `/login` and `/logout`."""

    def __init__(self, authenticator: Callable[[], Authenticator]) -> None:
        self._authenticator = authenticator
        self._keys: OrderedDict[str, str] = OrderedDict()

    async def visitor(self, request: Request) -> Visitor | None:
        """Who sent a request; None: nobody who is known.

        Raises:
            UnavailableError: a session stands behind the cookie, and Redis is away.
        """
        authorization = self._keys.get(request.cookies.get(COOKIE, ""))
        try:
            return Visitor(await self._authenticator().principal(authorization), authorization)
        except UnauthorizedError:
            return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Show the form, take a key, or forget it."""
        request = Request(scope, receive)
        await (await self._answer(request))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.url.path == "/logout":
            return self._sign_out(request)
        wanted = request.query_params.get("next", "/")
        if request.method != "POST":
            return _form(wanted)
        body = await request.body()
        if len(body) > FORM_BYTES_MAX:
            return _form(wanted, "this is no sign-in form", status=413)
        sent = parse_qs(body.decode("utf-8", "replace"))
        authorization = f"Bearer {sent.get('key', [''])[0].strip()}"
        refused = await self._refused(authorization, address_of(request.scope), wanted)
        if refused is not None:
            return refused
        answer = RedirectResponse(_own_path(wanted), _SEE_OTHER)
        answer.set_cookie(
            COOKIE,
            self._remember(authorization),
            max_age=SECONDS_MAX,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def _refused(self, authorization: str, address: str, wanted: str) -> Response | None:
        """The form again, with what is wrong; None: the key is good."""
        try:
            await authenticated(self._authenticator(), authorization, address)
        except UnauthorizedError:
            return _form(wanted, "This key or session is not valid.", status=401)
        except TooManyRequestsError as error:
            told = f"Too many wrong keys were sent from here. Try again in {error.headers['Retry-After']} seconds."
            return _form(wanted, told, status=429, headers=error.headers)
        except UnavailableError as error:
            return _form(wanted, f"Sessions cannot be read now: {error}", status=503)
        return None

    def _remember(self, authorization: str) -> str:
        token = secrets.token_urlsafe(32)
        self._keys[token] = authorization
        if len(self._keys) > VISITORS_MAX:
            self._keys.popitem(last=False)
        return token

    def _sign_out(self, request: Request) -> Response:
        self._keys.pop(request.cookies.get(COOKIE, ""), None)
        answer = RedirectResponse("/login", _SEE_OTHER)
        answer.delete_cookie(COOKIE)
        return answer


def _own_path(wanted: str) -> str:
    """Where to go on to: a path of ours, whatever a link said."""
    parts = urlsplit(wanted)
    is_ours = not parts.scheme and not parts.netloc and wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if is_ours else "/"


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:0;padding:1rem}
form{width:min(24rem,100%);display:grid;gap:.75rem} h1{font-size:1.5rem;margin:0} p{margin:0;opacity:.8}
input,button{font:inherit;padding:.6rem .75rem;border-radius:.5rem;border:1px solid #8888}
button{background:#0b6bcb;color:#fff;border-color:#0b6bcb;cursor:pointer}
:focus-visible{outline:3px solid #4ea1ff;outline-offset:2px} .wrong{color:#d33;opacity:1}
"""
_POLICY = style_policy(_STYLE)
_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Sign in · Highwater</title>
<style>{style}</style></head>
<body><form method="post" action="/login?next={next}"><h1>Highwater</h1>
<p>The dashboard shows what your API key or session may see.</p>{message}
<label for="key">API key or session</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button></form></body></html>
"""


def _form(wanted: str, message: str = "", *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    told = f'<p class="wrong" role="alert">{escape(message)}</p>' if message else ""
    text = _FORM.format(next=quote(_own_path(wanted), safe=""), message=told, style=_STYLE)
    fields = {"Cache-Control": "no-store", "Content-Security-Policy": _POLICY, **(headers or {})}
    return HTMLResponse(text, status, headers=fields)
