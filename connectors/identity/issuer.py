"""An OpenID provider over HTTP: its metadata, its keys, and a code exchanged for a token (OpenID Connect Discovery
1.0).

Invariants. Every answer is limited in bytes and seconds, and no redirect is followed. Metadata counts only if it names
the configured issuer. An address is HTTPS, or HTTP on loopback. Keys are fetched in one request at a time, and an
unknown key id causes at most one in `RETRY_SECONDS`. While the provider is unavailable, known keys remain valid until
`KEYS_SECONDS_MAX`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey

from highwater.connectors.bounded import BoundedTransport, bounded_transport, is_loopback
from highwater.schemas.errors import ConfigurationError, HighwaterError, UnavailableError
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

METADATA_PATH = "/.well-known/openid-configuration"
# Metadata and key sets of large providers are below 20 kB.
ANSWER_BYTES_MAX = 256 * 1024
ANSWER_SECONDS_MAX = 5.0
# Providers publish two to ten keys; each costs a comparison per token.
KEYS_MAX = 64
# A key that the provider withdrew is refused after this long at the latest, while the provider answers.
REFRESH_SECONDS = 600.0
# Tokens with invented key ids cause at most one request to the provider in this time, for any number of tokens.
RETRY_SECONDS = 30.0
# While the provider is unavailable withdrawn keys cannot be detected: its old keys are trusted for at most a day.
KEYS_SECONDS_MAX = 24 * 3_600.0
# RFC 7518, section 3.3: a key of 2,048 bits or more; its modulus has at least this many characters of base64url.
_MODULUS_CHARACTERS_MIN = 341

PublicKey = RSAKey | ECKey | OKPKey

# What the libraries raise without an answer, for a late one, and for members of another type, size or depth than the standards
# have.
_UNUSABLE = (
    *(httpx2.HTTPError, httpx2.InvalidURL, TimeoutError),
    *(ValueError, TypeError, AttributeError, OverflowError, RecursionError),
)

_log = get_log("identity")


class IssuerUnavailableError(UnavailableError):
    """The OpenID provider does not answer correctly. Check HIGHWATER_OIDC_ISSUER and the provider; the request is repeated."""


class CodeRefusedError(HighwaterError):
    """The OpenID provider does not exchange this code for a token. Sign in again."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """How the dashboard identifies itself at the provider; `secret` None is a public client."""

    client_id: str
    secret: str | None


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider's metadata that we use; `methods` are the ways a client may authenticate at `token_endpoint`."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IssuerKeys:
    """The provider's signing keys; for each its id, or None if the provider gave none."""

    keys: tuple[tuple[str | None, PublicKey], ...] = ()

    def has(self, kid: str | None) -> bool:
        """Return whether a token with this key id can be tried; one without an id can whenever there are keys."""
        return any(kid is None or name == kid for name, _ in self.keys)


class Fetch(Enum):
    """Whether keys are fetched before a token is judged, concurrently, or not at all."""

    NO = auto()
    BESIDE = auto()
    FIRST = auto()
    REFUSED = auto()


def decide_fetch(*, has_key: bool, fetched: float | None, tried: float | None, now: float) -> Fetch:
    """Decide whether to fetch keys for a token; times are monotonic seconds, None for never.

    REFUSED: there is no usable key, and the last request to the provider was too recent.
    """
    is_usable = has_key and fetched is not None and now - fetched < KEYS_SECONDS_MAX
    may_ask = tried is None or now - tried >= RETRY_SECONDS
    if is_usable:
        assert fetched is not None
        return Fetch.BESIDE if may_ask and now - fetched >= REFRESH_SECONDS else Fetch.NO
    return Fetch.FIRST if may_ask else Fetch.REFUSED


def check_address(name: str, url: str) -> None:
    """Check that an address of the provider is HTTPS, or HTTP on loopback, and names a host and no user.

    Raises:
        ConfigurationError: it is invalid.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_here = is_loopback(host)
        is_good = bool(host) and parts.username is None and not parts.fragment
    except ValueError:
        is_good = is_here = False
    if not is_good or not (parts.scheme == "https" or (parts.scheme == "http" and is_here)):
        raise ConfigurationError(f"{name}={url} is not an https:// address (http:// is accepted for loopback only)")


def read_provider(document: Any, issuer: str) -> Provider:
    """Parse the metadata in a document.

    Raises:
        IssuerUnavailableError: it is another issuer's, or lacks an address.
    """
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise IssuerUnavailableError(f"the metadata at {issuer}{METADATA_PATH} does not name this issuer")
    found: dict[str, str] = {}
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        address = document.get(name)
        if not isinstance(address, str):
            raise IssuerUnavailableError(f"the metadata of {issuer} has no {name}")
        try:
            check_address(name, address)
        except ConfigurationError as error:
            raise IssuerUnavailableError(f"the metadata of {issuer}: {error}") from error
        # The client's secret is sent there: only a provider on this machine may name an address of this machine.
        if urlsplit(address).scheme == "http" and urlsplit(issuer).scheme != "http":
            raise IssuerUnavailableError(f"the metadata of {issuer}: {name}={address} is not an https:// address")
        found[name] = address
    named = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    methods = tuple(str(one) for one in named) if isinstance(named, list) else ()
    return Provider(found["authorization_endpoint"], found["token_endpoint"], found["jwks_uri"], methods)


def read_keys(document: Any) -> IssuerKeys:
    """Parse the public signing keys of a key set; symmetric, weak, private-use and unknown ones are left out (RFC 7517,
    section 5).

    Raises:
        IssuerUnavailableError: it is not a key set.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise IssuerUnavailableError("the provider's key set has no keys")
    keys = []
    for entry in listed[:KEYS_MAX]:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or not _is_strong(entry):
            continue
        try:
            key = JWKRegistry.import_key({name: value for name, value in entry.items() if isinstance(name, str)})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            _log.warning("a key of the OpenID provider is not usable", kid=str(entry.get("kid")), reason=str(error))
            continue
        if isinstance(key, (RSAKey, ECKey, OKPKey)):
            keys.append((entry.get("kid"), key))
    return IssuerKeys(tuple(keys))


def _is_strong(entry: dict[str, Any]) -> bool:
    """Return whether it is asymmetric and, for RSA, long enough."""
    kind = entry.get("kty")
    return kind in ("EC", "OKP") or (kind == "RSA" and len(str(entry.get("n", ""))) >= _MODULUS_CHARACTERS_MIN)


class Issuer:
    """One OpenID provider."""

    def __init__(
        self,
        issuer: str,
        transport: httpx2.AsyncBaseTransport | None = None,
        monotonic: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """`transport` and `monotonic` replace HTTP and the clock in tests.

        Raises:
            ConfigurationError: the address is invalid.
        """
        check_address("HIGHWATER_OIDC_ISSUER", issuer)
        self.issuer = issuer
        self._transport = transport
        self._monotonic = monotonic
        self._provider: Provider | None = None
        self._keys = IssuerKeys()
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._reason = "it was not asked yet"

    async def keys(self, kid: str | None) -> IssuerKeys:
        """Return the keys, fetched first if this key id is unknown and the provider may be asked.

        Raises:
            IssuerUnavailableError: there are no keys.
        """
        await self._fetch_as_needed(has_key=self._keys.has(kid))
        now = self._monotonic()
        if self._fetched is None or now - self._fetched >= KEYS_SECONDS_MAX:
            raise IssuerUnavailableError(f"the keys of {self.issuer} are unavailable: {self._reason}")
        return self._keys

    async def provider(self) -> Provider:
        """Return the metadata.

        Raises:
            IssuerUnavailableError: the provider never answered.
        """
        await self._fetch_as_needed(has_key=self._provider is not None)
        if self._provider is None:
            raise IssuerUnavailableError(f"{self.issuer} does not answer: {self._reason}")
        return self._provider

    def oauth_client(self, credentials: ClientCredentials, provider: Provider, redirect_url: str) -> AsyncOAuth2Client:
        """Return a client of the authorization code flow with PKCE (RFC 7636); the caller closes it."""
        method = "none" if credentials.secret is None else "client_secret_basic"
        if credentials.secret is not None and method not in provider.methods:
            method = "client_secret_post"
        return AsyncOAuth2Client(
            credentials.client_id,
            credentials.secret,
            token_endpoint_auth_method=method,
            redirect_uri=redirect_url,
            code_challenge_method="S256",
            transport=self._bounded(),
            timeout=ANSWER_SECONDS_MAX,
        )

    async def exchange(self, credentials: ClientCredentials, redirect_url: str, code: str, verifier: str) -> str:
        """Exchange a code for the ID token.

        Raises:
            CodeRefusedError: the provider refuses.
            IssuerUnavailableError: it does not answer.
        """
        provider = await self.provider()
        async with self.oauth_client(credentials, provider, redirect_url) as client:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    token = await client.fetch_token(
                        provider.token_endpoint,
                        code=code,
                        code_verifier=verifier,
                        redirect_uri=redirect_url,
                        grant_type="authorization_code",
                    )
            except AuthlibBaseError as error:
                raise CodeRefusedError(f"{self.issuer} refuses the code: {error.error}") from error
            except _UNUSABLE as error:
                raise IssuerUnavailableError(f"{self.issuer}: {str(error) or type(error).__name__}") from error
        found = token.get("id_token")
        if not isinstance(found, str):
            raise CodeRefusedError(f"{self.issuer} gave no ID token; request the scope openid")
        return found

    async def close(self) -> None:
        """Cancel a fetch that is in progress."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    async def _fetch_as_needed(self, *, has_key: bool) -> None:
        decision = decide_fetch(has_key=has_key, fetched=self._fetched, tried=self._tried, now=self._monotonic())
        is_fetching = self._fetching is not None and not self._fetching.done()
        if decision in (Fetch.FIRST, Fetch.BESIDE) and not is_fetching:
            self._tried = self._monotonic()
            self._fetching = asyncio.create_task(self._fetch(), name="oidc-keys")
            is_fetching = True
        if is_fetching and decision in (Fetch.FIRST, Fetch.REFUSED):
            assert self._fetching is not None
            await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        """Fetch metadata and keys; a failure is stored as the reason, since the waiting caller decides what it means."""
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS_MAX),
                httpx2.AsyncClient(transport=self._bounded(), timeout=ANSWER_SECONDS_MAX) as client,
            ):
                provider = read_provider(
                    await _document(client, f"{self.issuer.rstrip('/')}{METADATA_PATH}"), self.issuer
                )
                keys = read_keys(await _document(client, provider.jwks_uri))
        except (*_UNUSABLE, IssuerUnavailableError) as error:
            self._reason = str(error) or f"no answer within {ANSWER_SECONDS_MAX} s"
            _log.warning("the OpenID provider does not answer", issuer=self.issuer, reason=self._reason)
            return
        self._provider, self._keys, self._fetched = provider, keys, self._monotonic()

    def _bounded(self) -> BoundedTransport:
        if self._transport is None:
            return bounded_transport(self.issuer, seconds_max=ANSWER_SECONDS_MAX, bytes_max=ANSWER_BYTES_MAX)
        return BoundedTransport(self._transport, seconds_max=ANSWER_SECONDS_MAX, bytes_max=ANSWER_BYTES_MAX)


async def _document(client: httpx2.AsyncClient, url: str) -> Any:
    answer = await client.get(url, headers={"Accept": "application/json"})
    if answer.status_code != httpx2.codes.OK:
        raise IssuerUnavailableError(f"{url} answers {answer.status_code}")
    return orjson.loads(answer.content)
