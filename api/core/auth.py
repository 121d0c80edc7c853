"""Who asks, and what they may do: API keys, sessions, roles, and users whose resources are their own.

Laws. A key or a session bound to a user reads and writes that user's resources only, unless it is an admin's. A role
includes those below it. Keys are looked up by their hash, so that no time taken tells of a key. Without
keys the API is open, and then it listens on loopback only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from ipaddress import ip_address
from typing import Annotated, Protocol

from fastapi import Depends, Path, Request

from highwater.api.core.errors import ForbiddenError, UnauthorizedError
from highwater.schemas.errors import ConfigurationError, UnavailableError
from highwater.streams.checks import check_id

SESSION_PREFIX = "hws_"
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
    """Whoever sent a request; `user_id` None: bound to no user. `plan` is that of a session, `organization_id` that of a session
    or key.

    `session_id` and `key_id` name a session or API key where its secret must not stand. `scopes` None: all that the role may.
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
        """Whether it may be revoked or expire while a stream of its runs: sessions and keys may, an open API's caller may not."""
        return self.session_id is not None or self.key_id is not None

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
                f"HIGHWATER_API_KEYS: entry {number} is not viewer|editor|admin:key[:user[:organization]]"
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
    """What stands for an API key in names of counters: nobody learns the key from it."""
    return key_id_of_hash(sha256(secret).hexdigest())


def key_id_of_hash(secret_sha256: str) -> str:
    """The same, of a key whose hash in hex is known."""
    return secret_sha256[:_KEY_ID_CHARACTERS]


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


class KeyLookup(Protocol):
    """Keys that may change while the API runs (`keys.KeyFile`)."""

    def find(self, sha256: str) -> Principal | None:
        """Whom the key of this hash in hex stands for; None when there is none that is valid now."""


class Authenticator:
    """Turns a request's token into a principal."""

    def __init__(
        self,
        keys: tuple[ApiKey, ...],
        read_session: Callable[[str], Awaitable[Principal | None]],
        key_file: KeyLookup | None = None,
    ) -> None:
        self._principals = {sha256(key.secret).hexdigest(): key.principal for key in keys}
        self._key_file = key_file
        self._read_session = read_session

    @property
    def is_open(self) -> bool:
        """Whether no keys are set; a file of keys closes the API even while it holds none."""
        return not self._principals and self._key_file is None

    async def principal(self, authorization: str | None) -> Principal:
        """Who an `Authorization` field stands for.

        Raises:
            UnauthorizedError: nobody.
            UnavailableError: it is a session and Redis is away.
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
        if found is None:
            raise UnauthorizedError("this key or session is not valid", headers=_CHALLENGE)
        return found

    async def is_still_valid(self, authorization: str | None) -> bool:
        """Whether what a stream was opened with is still good; while that cannot be told it is."""
        try:
            await self.principal(authorization)
        except UnauthorizedError:
            return False
        except UnavailableError:
            return True
        return True

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
        hashed = sha256(token).hexdigest()
        found = self._principals.get(hashed)
        return self._key_file.find(hashed) if found is None and self._key_file is not None else found


async def current_principal(request: Request) -> Principal:
    """Whoever sent this request."""
    services = request.app.state.services
    principal: Principal | None = request.scope.get(PRINCIPAL)
    if principal is None:
        principal = await services.authenticator.principal(request.headers.get("authorization"))
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
