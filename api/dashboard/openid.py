"""Sign-in to the dashboard at an OpenID provider: the authorization code flow with PKCE, state and nonce.

Invariants (RFC 9700; OpenID Connect Core, 3.1). The values that bind the answer to the requesting browser (state,
nonce, code verifier) are in a cookie of that browser for `SIGN_IN_SECONDS_MAX`, so that no table can be flooded and any
process can complete it. A code is exchanged only if the state matches. The provider's tokens never reach the browser: a
session replaces them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from highwater.api.core.oidc import TokenReader
from highwater.api.core.services import Services
from highwater.api.identity.signing_in import open_session
from highwater.connectors.identity.issuer import ClientCredentials, CodeRefusedError
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.streams.telemetry import get_log

SIGN_IN_PATH = "/login/openid"
CALLBACK_PATH = "/login/openid/callback"
COOKIE = "highwater_openid"
# Time to type a password and a second factor at the provider.
SIGN_IN_SECONDS_MAX = 600
# The longest stored path; the address of a page with its filters is shorter.
_WANTED_CHARACTERS_MAX = 1_024
# A provider's error code (RFC 6749, section 4.1.2.1); anything else is not repeated.
_ERROR_WORD = re.compile(r"[a-z_]{1,64}")
_SEE_OTHER = 303

_log = get_log("dashboard")


class SignInRefusedError(HighwaterError):
    """This sign-in cannot be completed. Begin again."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sign-in that a browser began; `wanted` is the next page."""

    state: str
    nonce: str
    verifier: str
    wanted: str

    def cookie(self) -> str:
        """Return its form in the cookie."""
        return "~".join((self.state, self.nonce, self.verifier, quote(self.wanted, safe="")))


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A completed sign-in."""

    session_id: str
    wanted: str


def read_attempt(cookie: str) -> Attempt | None:
    """Return the attempt in a cookie; None without one."""
    parts = cookie.split("~", 3)
    if len(parts) != 4 or not all(parts):
        return None
    return Attempt(parts[0], parts[1], parts[2], unquote(parts[3]))


def code_of(attempt: Attempt | None, state: str, error: str, issuer: str | None, code: str, own_issuer: str) -> str:
    """Return the code in a provider's answer to an attempt.

    Raises:
        SignInRefusedError: the answer belongs to no attempt of this browser, is another provider's (RFC 9207), or
            refuses.
    """
    if attempt is None or not compare_digest(attempt.state.encode(), state.encode()):
        raise SignInRefusedError("this browser did not begin this sign-in, or the sign-in has expired")
    if issuer is not None and issuer != own_issuer:
        raise SignInRefusedError("the response comes from another OpenID provider")
    if error or not code:
        word = error if _ERROR_WORD.fullmatch(error) else "it gave no code"
        raise SignInRefusedError(f"the OpenID provider refuses ({word})")
    return code


class OpenIdSignIn:
    """Redirects browsers to the provider, and creates sessions from its answers."""

    def __init__(self, credentials: ClientCredentials, services: Callable[[], Services]) -> None:
        self._credentials = credentials
        self._services = services

    @property
    def _tokens(self) -> TokenReader:
        tokens = self._services().tokens
        assert tokens is not None  # credentials are read only if a provider is configured
        return tokens

    async def begin(self, request: Request, next_path: str) -> Response:
        """Redirect a browser to the provider.

        Raises:
            IssuerUnavailableError: the provider does not answer.
        """
        provider = await self._tokens.issuer.provider()
        next_path = next_path if len(next_path) <= _WANTED_CHARACTERS_MAX else "/"
        attempt = Attempt(_fresh(), _fresh(), _fresh(), next_path)
        async with self._tokens.issuer.oauth_client(self._credentials, provider, self._redirect_url(request)) as client:
            url, _ = client.create_authorization_url(
                provider.authorization_endpoint,
                state=attempt.state,
                nonce=attempt.nonce,
                code_verifier=attempt.verifier,
                scope=" ".join(self._services().settings.oidc_scopes),
            )
        answer = RedirectResponse(url, _SEE_OTHER, headers={"Cache-Control": "no-store"})
        answer.set_cookie(
            COOKIE,
            attempt.cookie(),
            max_age=SIGN_IN_SECONDS_MAX,
            path=SIGN_IN_PATH,
            httponly=True,
            samesite="lax",  # the provider's redirect comes from another site
            secure=request.url.scheme == "https",
        )
        return answer

    async def complete(self, request: Request) -> SignedIn:
        """Create a session from the provider's answer.

        Raises:
            SignInRefusedError: the answer is not accepted.
            UnauthorizedError: the ID token is not.
            UnavailableError: the provider, PostgreSQL or Redis does not answer.
        """
        sent = request.query_params
        attempt = read_attempt(request.cookies.get(COOKIE, ""))
        code = code_of(
            attempt, sent.get("state", ""), sent.get("error", ""), sent.get("iss"), sent.get("code", ""),
            self._tokens.issuer.issuer,
        )  # fmt: skip
        assert attempt is not None
        try:
            token = await self._tokens.issuer.exchange(
                self._credentials, self._redirect_url(request), code, attempt.verifier
            )
        except CodeRefusedError as error:
            raise SignInRefusedError(str(error)) from error
        principal, email = await self._tokens.signed_in(token, self._credentials.client_id, attempt.nonce)
        ip = request.client.host if request.client is not None else ""
        session_token = await open_session(self._services(), principal, email, ip)
        return SignedIn(session_token, attempt.wanted)

    async def end(self, session_id: str) -> None:
        """End a session that was created here; while Redis is unavailable it expires by itself."""
        sessions = self._services().sessions
        try:
            found = await sessions.peek(session_id)
            if found is not None:
                await sessions.delete(found)
        except UnavailableError as error:
            _log.warning("a session could not be ended at its sign-out; it ends a day later", reason=str(error))

    def forget(self, answer: Response) -> Response:
        """Return the response, with the attempt's cookie deleted."""
        answer.delete_cookie(COOKIE, path=SIGN_IN_PATH)
        return answer

    def _redirect_url(self, request: Request) -> str:
        configured = self._services().settings.oidc_redirect_url
        return configured or f"{request.url.scheme}://{request.url.netloc}{CALLBACK_PATH}"


def _fresh() -> str:
    """Return 256 random bits: not to be guessed; 43 characters, the minimum of a code verifier (RFC 7636, section 4.1)."""
    return secrets.token_urlsafe(32)
