"""Authenticates callers: API keys, sessions, roles, and the user and organization that a key or session is bound to.

Tokens of people, which an OpenID provider issues, are read in `oidc.py`.

Invariants. A role includes those below it, except that only an admin includes an assistant. Keys are looked up by their
hash, so response times reveal nothing about keys. Without keys the API is open, and then it listens on loopback only.
What a principal may do is decided in `access.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from ipaddress import ip_address
from typing import Protocol

from highwater.api.core.attempts import Attempts
from highwater.api.core.errors import TooManyRequestsError, UnauthorizedError
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.checks import is_uuid
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import KEYS_REFUSED, get_log

SESSION_PREFIX = "hws_"
_log = get_log("api")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="highwater"'}
# 64 bits of a hash: two keys of a deployment do not share an id by chance.
_KEY_ID_CHARACTERS = 16
# In the scope of a request that was authenticated before its route: the caller. A session is read and renewed only
# once.
PRINCIPAL = "highwater.principal"


class Role(IntEnum):
    """What a key may do; a higher one includes the lower, except that an editor does not include an assistant.

    An assistant reads as a viewer does, and enters the results of matches (`Access.also`).
    """

    VIEWER = 1
    ASSISTANT = 2
    EDITOR = 3
    ADMIN = 4

    @property
    def label(self) -> str:
        """The role as it is written in settings and JSON."""
        return self.name.lower()

    def includes(self, other: Role) -> bool:
        """Return whether a caller with this role may do what the other one may."""
        return self >= other and (other is not Role.ASSISTANT or self in (Role.ASSISTANT, Role.ADMIN))

    def shared(self, other: Role) -> Role:
        """Return the highest role that both include: that of a session which is limited by both."""
        return max(role for role in Role if self.includes(role) and other.includes(role))


ROLES = {role.label: role for role in Role}


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request; `user_id` and `organization_id` None: bound to no user, to no organization.

    `plan` is that of a session. `session_id` and `key_id` name a session or API key where its secret must not appear.
    `scopes` are the scopes that a key is limited to; None: it has all of them.
    """

    role: Role
    user_id: str | None = None
    session_id: str | None = None
    plan: str | None = None
    organization_id: str | None = None
    key_id: str | None = field(default=None, compare=False)
    scopes: frozenset[str] | None = None

    @property
    def may_end(self) -> bool:
        """Whether it may be revoked or expire while its stream runs: true for sessions and keys, false for the caller
        of an open API.
        """
        return self.session_id is not None or self.key_id is not None

    @property
    def is_bound(self) -> bool:
        """Whether it acts for a user or an organization, and not for the operator."""
        return self.user_id is not None or self.organization_id is not None

    def is_user(self, user_id: str) -> bool:
        """Return whether it is bound to this user; UUIDs are compared in lower case, since settings may use capitals."""
        if self.user_id is None or self.user_id == user_id:
            return self.user_id is not None
        lower = user_id.lower()
        return self.user_id.lower() == lower and is_uuid(lower)


OPEN = Principal(Role.ADMIN)
# A caller without a key where an operation asks for none (`Access.may_be_public`).
ANONYMOUS = Principal(Role.VIEWER, scopes=frozenset({"league"}))


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key of the settings."""

    secret: bytes
    principal: Principal


def parse_api_keys(text: str | None) -> tuple[ApiKey, ...]:
    """The keys in `role:key[:user[:organization]]`, comma-separated; a key of an organization alone leaves its user empty.

    Raises:
        ConfigurationError: an entry has another form; the message names its place, never the key.
    """
    keys = []
    for number, entry in enumerate((text or "").split(","), start=1):
        if not entry.strip():
            continue
        role, _, rest = entry.strip().partition(":")
        secret, *bound = rest.split(":", 2)
        if role not in ROLES or not secret or (bound and not bound[-1]):
            raise ConfigurationError(
                f"HIGHWATER_API_KEYS: entry {number} is not {'|'.join(ROLES)}:key[:user[:organization]]"
            )
        if secret.startswith(SESSION_PREFIX):
            raise ConfigurationError(f"HIGHWATER_API_KEYS: entry {number} starts with {SESSION_PREFIX}, as sessions do")
        key_id = key_id_of(secret.encode())
        user_id, organization_id = (one or None for one in (*bound, "", "")[:2])
        principal = Principal(ROLES[role], user_id, organization_id=organization_id, key_id=key_id)
        keys.append(ApiKey(secret.encode(), principal))
    if text and not keys:
        raise ConfigurationError("HIGHWATER_API_KEYS holds no key; unset it to leave the API open on loopback")
    return tuple(keys)


def key_id_of(secret: bytes) -> str:
    """Return the id of an API key in names of counters, from which the key cannot be derived."""
    return key_id_of_hash(sha256(secret).hexdigest())


def key_id_of_hash(secret_sha256: str) -> str:
    """Return the same id for a key whose hash in hex is known."""
    return secret_sha256[:_KEY_ID_CHARACTERS]


def refuse_public_address_without_keys(host: str, keys: tuple[ApiKey, ...]) -> None:
    """Refuse to serve every caller as admin on an address that other machines reach.

    Raises:
        ConfigurationError: no keys, and the host is not loopback.
    """
    if keys:
        return
    try:
        is_loopback = host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigurationError(f"HIGHWATER_HOST={host} is not a loopback address: set HIGHWATER_API_KEYS first")


class KeyLookup(Protocol):
    """Keys that may change while the API runs (`keys.KeyFile`)."""

    def find(self, sha256: str) -> Principal | None:
        """Return the principal of the key with this hash in hex; None if no such key is valid now."""


class Authenticator:
    """Turns a request's token into a principal."""

    def __init__(
        self,
        keys: tuple[ApiKey, ...],
        read_session: Callable[[str], Awaitable[Principal | None]],
        key_file: KeyLookup | None = None,
        read_token: Callable[[str], Awaitable[Principal]] | None = None,
        *,
        is_league_public: bool = False,
    ) -> None:
        """`read_token` reads tokens of an OpenID provider; None: none is configured. `is_league_public`: operations that
        may be public are.
        """
        self._is_league_public = is_league_public
        self._principals = {sha256(key.secret).hexdigest(): key.principal for key in keys}
        self._key_file = key_file
        self._read_session = read_session
        self._read_token = read_token
        self.attempts = Attempts()

    @property
    def is_open(self) -> bool:
        """Whether neither keys nor an OpenID provider are configured; a file of keys closes the API even while it is
        empty.
        """
        return not self._principals and self._key_file is None and self._read_token is None

    def without_key(self, *, may_be_public: bool) -> Principal | None:
        """Return the caller of an operation that sends no key; None: it must send one."""
        if self.is_open:
            return OPEN
        return ANONYMOUS if may_be_public and self._is_league_public else None

    async def principal(self, authorization: str | None, *, may_be_public: bool = False) -> Principal:
        """Return the principal of an `Authorization` field, for an operation that may be public or not.

        Raises:
            UnauthorizedError: it names no valid caller.
            UnavailableError: it is a session and Redis is unavailable, or a token and the OpenID provider's keys are
                unknown.
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            nobody = self.without_key(may_be_public=may_be_public) if authorization is None else None
            if nobody is not None:
                return nobody
            raise UnauthorizedError(headers=_CHALLENGE)
        if token.startswith(SESSION_PREFIX):
            found = await self._read_session(token)
        else:
            found = self._of_key(token.encode("utf-8", "replace"))
            if found is None and self._read_token is not None and token.count(".") == 2:
                found = await self._read_token(token)
        if found is None:
            raise UnauthorizedError("this key or session is not valid", headers=_CHALLENGE)
        return found

    async def is_still_valid(self, authorization: str | None) -> bool:
        """Return whether the credentials of an open stream are still valid; true while this cannot be determined."""
        try:
            await self.principal(authorization)
        except UnauthorizedError:
            return False
        except UnavailableError:
            return True
        return True

    def quick(self, authorization: str | None, *, may_be_public: bool = False) -> Principal | None:
        """Return the principal of an `Authorization` field if this needs no I/O; None leaves it to `principal`."""
        if authorization is None:
            return self.without_key(may_be_public=may_be_public)
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or token.startswith(SESSION_PREFIX):
            return None
        return self._of_key(token.encode("utf-8", "replace"))

    def _of_key(self, token: bytes) -> Principal | None:
        hashed = sha256(token).hexdigest()
        found = self._principals.get(hashed)
        return self._key_file.find(hashed) if found is None and self._key_file is not None else found


async def authenticated(
    authenticator: Authenticator, authorization: str | None, address: str, *, may_be_public: bool = False
) -> Principal:
    """Return the principal of an `Authorization` field from an address; wrong ones slow the address down
    (`attempts.py`). `may_be_public` as of `Authenticator.principal`.

    Raises:
        UnauthorizedError: it names no valid caller.
        TooManyRequestsError: the address has sent too many wrong ones, and this one was not checked.
        UnavailableError: it is a session and Redis is unavailable.
    """
    if authorization is None or _is_session(authorization):
        return await authenticator.principal(authorization, may_be_public=may_be_public)
    attempts, now_ms = authenticator.attempts, int(monotonic_seconds() * 1000)
    wait_ms = attempts.wait_ms(address, now_ms)
    if wait_ms and not attempts.is_proven(address, authorization):
        KEYS_REFUSED.inc()
        # Rounded up: a client that retries a fraction of a second too early is refused again.
        headers = {"Retry-After": str(-(-wait_ms // 1000))}
        raise TooManyRequestsError("too many wrong keys from this address", headers=headers)
    try:
        found = await authenticator.principal(authorization)
    except UnauthorizedError:
        if attempts.note_wrong(address, now_ms):
            _log.warning("too many wrong keys; further ones are refused for a minute", address=address)
        raise
    attempts.note_right(address, authorization)
    return found


def _is_session(authorization: str) -> bool:
    """Return whether it names a session: its id is random and cannot be guessed, and an expired one is not an attempt."""
    return authorization.partition(" ")[2].strip().startswith(SESSION_PREFIX)
