"""Who asks, and what they may do: API keys, sessions, roles, and users whose resources are their own.

Tokens of people, which an OpenID provider issues, are read in `oidc.py`.

Laws. A key or a session bound to a user reads and writes that user's resources only, unless it is an admin's. A role
includes those below it. Keys are compared in constant time. Without keys the API is open, and then it listens on loopback only.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from ipaddress import ip_address
from typing import Annotated

from fastapi import Depends, Path, Request

from highwater.api.core.attempts import Attempts
from highwater.api.core.errors import ForbiddenError, TooManyRequestsError, UnauthorizedError
from highwater.api.core.proxies import address_of
from highwater.schemas.errors import ConfigurationError
from highwater.streams.checks import check_id
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import KEYS_REFUSED, get_log

SESSION_PREFIX = "hws_"
_log = get_log("api")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="highwater"'}
# 64 bits of a hash: no two of a deployment's keys share an id by chance.
_KEY_ID_CHARACTERS = 16
# In the scope of a request that was authenticated before its route: who sent it. A session is read, and renewed, once.
PRINCIPAL = "highwater.principal"


class Role(IntEnum):
    """What a key may do; a higher one includes the lower."""

    VIEWER = 1
    EDITOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """The role as it is written in settings and JSON."""
        return self.name.lower()


ROLES = {role.label: role for role in Role}


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever sent a request; `user_id` None: bound to no user. `plan` and `organization_id` are those of a session.

    `key_id` names an API key where its secret must not stand.
    """

    role: Role
    user_id: str | None = None
    session_id: str | None = None
    plan: str | None = None
    organization_id: str | None = None
    key_id: str | None = field(default=None, compare=False)

    def may_touch(self, user_id: str) -> bool:
        """Whether this user's resources are open to it."""
        return self.role is Role.ADMIN or self.user_id is None or self.user_id == user_id


OPEN = Principal(Role.ADMIN)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key of the settings."""

    secret: bytes
    principal: Principal


def parse_api_keys(text: str | None) -> tuple[ApiKey, ...]:
    """The keys in `role:key[:user]`, comma-separated.

    Raises:
        ConfigurationError: an entry has another form; the message names its place, never the key.
    """
    keys = []
    for number, entry in enumerate((text or "").split(","), start=1):
        if not entry.strip():
            continue
        role, _, rest = entry.strip().partition(":")
        secret, has_user, user_id = rest.partition(":")
        if role not in ROLES or not secret or (has_user and not user_id):
            raise ConfigurationError(f"HIGHWATER_API_KEYS: entry {number} is not viewer|editor|admin:key[:user]")
        if secret.startswith(SESSION_PREFIX):
            raise ConfigurationError(f"HIGHWATER_API_KEYS: entry {number} starts with {SESSION_PREFIX}, as sessions do")
        principal = Principal(ROLES[role], user_id or None, key_id=key_id_of(secret.encode()))
        keys.append(ApiKey(secret.encode(), principal))
    if text and not keys:
        raise ConfigurationError("HIGHWATER_API_KEYS holds no key; unset it to leave the API open on loopback")
    return tuple(keys)


def key_id_of(secret: bytes) -> str:
    """What stands for an API key in names of counters: nobody learns the key from it."""
    return sha256(secret).hexdigest()[:_KEY_ID_CHARACTERS]


def refuse_open_door(host: str, keys: tuple[ApiKey, ...]) -> None:
    """Refuse to serve everybody as admin on an address that others reach.

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


class Authenticator:
    """Turns a request's token into a principal."""

    def __init__(
        self,
        keys: tuple[ApiKey, ...],
        read_session: Callable[[str], Awaitable[Principal | None]],
        read_token: Callable[[str], Awaitable[Principal]] | None = None,
    ) -> None:
        """`read_token` reads tokens of an OpenID provider; None: none is configured."""
        self._keys = keys
        self._read_session = read_session
        self._read_token = read_token
        self.attempts = Attempts()

    @property
    def is_open(self) -> bool:
        """Whether no keys and no OpenID provider are configured."""
        return not self._keys and self._read_token is None

    async def principal(self, authorization: str | None) -> Principal:
        """Who an `Authorization` field stands for.

        Raises:
            UnauthorizedError: nobody.
            UnavailableError: it is a session and Redis is away, or a token and the OpenID provider's keys are not known.
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            if self.is_open and authorization is None:
                return OPEN
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

    def quick(self, authorization: str | None) -> Principal | None:
        """Who an `Authorization` field stands for, where that takes no asking; None leaves it to `principal`."""
        if authorization is None:
            return OPEN if self.is_open else None
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or token.startswith(SESSION_PREFIX):
            return None
        return self._of_key(token.encode("utf-8", "replace"))

    def _of_key(self, token: bytes) -> Principal | None:
        found = None
        for key in self._keys:  # all of them each time, so that the time taken tells nothing
            if hmac.compare_digest(key.secret, token):
                found = key.principal
        return found


async def authenticated(authenticator: Authenticator, authorization: str | None, address: str) -> Principal:
    """Who an `Authorization` field from an address stands for; wrong ones slow the address down (`attempts.py`).

    Raises:
        UnauthorizedError: nobody.
        TooManyRequestsError: the address has sent too many wrong ones, and this one was not looked at.
        UnavailableError: it is a session and Redis is away.
    """
    if authorization is None or _is_session(authorization):
        return await authenticator.principal(authorization)
    attempts, now_ms = authenticator.attempts, int(monotonic_seconds() * 1000)
    wait_ms = attempts.wait_ms(address, now_ms)
    if wait_ms and not attempts.is_proven(address, authorization):
        KEYS_REFUSED.inc()
        # Rounded up: who comes a part of a second too early is refused again.
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
    """Whether it names a session: its id is random, found by nobody who tries, and one that has ended is no attempt."""
    return authorization.partition(" ")[2].strip().startswith(SESSION_PREFIX)


async def current_principal(request: Request) -> Principal:
    """Whoever sent this request."""
    services = request.app.state.services
    principal: Principal | None = request.scope.get(PRINCIPAL)
    if principal is None:
        authorization = request.headers.get("authorization")
        principal = await authenticated(services.authenticator, authorization, address_of(request.scope))
    if request.method == "GET":
        services.activity.note(principal)
    return principal


def needs(role: Role) -> Callable[..., Awaitable[Principal]]:
    """A dependency: the principal, of at least this role."""

    async def check(principal: Annotated[Principal, Depends(current_principal)]) -> Principal:
        require_role(principal, role)
        return principal

    return check


def require_role(principal: Principal, role: Role) -> None:
    """Refuse a principal below a role.

    Raises:
        ForbiddenError: it is below.
    """
    if principal.role < role:
        raise ForbiddenError(f"this needs the role {role.label}")


def require_user(principal: Principal, user_id: str) -> None:
    """Refuse a principal bound to another user.

    Raises:
        ForbiddenError: it is bound to another.
    """
    if not principal.may_touch(user_id):
        raise ForbiddenError("this key is bound to another user")


Viewer = Annotated[Principal, Depends(needs(Role.VIEWER))]
Editor = Annotated[Principal, Depends(needs(Role.EDITOR))]
Admin = Annotated[Principal, Depends(needs(Role.ADMIN))]


async def _own_user(principal: Viewer, user: Annotated[str, Path()]) -> str:
    check_id("user", user)
    require_user(principal, user)
    return user


async def _own_user_edited(principal: Editor, user: Annotated[str, Path()]) -> str:
    return await _own_user(principal, user)


async def _any_user(principal: Admin, user: Annotated[str, Path()]) -> str:
    return await _own_user(principal, user)


# The user in the path, once it is known that the principal may read, write or administer it.
ReadUser = Annotated[str, Depends(_own_user)]
WriteUser = Annotated[str, Depends(_own_user_edited)]
AdminUser = Annotated[str, Depends(_any_user)]
