"""What an operation requires of its caller: one declaration beside each route, and the pure rules that decide by it.

Invariants. A decision depends on the declaration, the principal and the owner only; `guard.py` applies it to every
route. An admin reaches everything. A key or session bound to a user reaches that user's resources; one bound to an
organization also reaches the organization's; one bound to neither reaches everything that its role allows.

Only this module decides what a refusal reveals. Callers name users, organizations and namespaces themselves, so those
of others are 403. Other resources have ids whose existence would be revealed, so those of others are 404, with the same
text as for a missing resource.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeVar

from highwater.api.core.auth import Principal, Role
from highwater.streams.identity.rate_limits import RateLimit

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__highwater_access__"


class Scope(StrEnum):
    """The group of operations that an operation belongs to; a key may be limited to some groups."""

    FEEDS = "feeds"
    LEAGUE = "league"
    QUERIES = "queries"
    JOBS = "jobs"
    CHUNKS = "chunks"
    EVENTS = "events"
    SYSTEM = "system"
    ADMIN = "admin"


class OwnedBy(StrEnum):
    """What an operation reaches, and therefore who must own it."""

    NOBODY = "no owner"
    DEPLOYMENT = "deployment"
    USER = "user"
    ORGANIZATION = "organization"
    LISTED = "organization, or own entries"
    SUBMISSION = "user and organization"
    QUERY = "user, and the organization that pays"
    EVENT = "user or organization of each event"
    NAMESPACE = "namespace"
    KEY = "resource key"
    FILTERED = "keys that the caller may read"
    JOB = "job"
    DECK = "presentation"
    RUN = "query"
    BLOB = "blob"
    INGEST = "ingest"
    SESSION = "session"


# The caller names these, so a refusal reveals nothing: 403. Every other owned resource is 404 to others.
NAMED = frozenset(
    {
        *(
            OwnedBy.DEPLOYMENT,
            OwnedBy.USER,
            OwnedBy.ORGANIZATION,
            OwnedBy.LISTED,
            OwnedBy.SUBMISSION,
            OwnedBy.QUERY,
            OwnedBy.EVENT,
        ),
        *(OwnedBy.NAMESPACE, OwnedBy.KEY, OwnedBy.FILTERED),
    }
)


@dataclass(frozen=True, slots=True)
class Access:
    """What an operation requires. `role` None: no key is needed.

    Attributes:
        role: the lowest role.
        scope: the scope that a limited key must include; None: any key, since each entry is checked.
        owned_by: what the operation reaches, and so who must own it.
        own: the lowest role of a principal bound to the owning user; None: `role` applies to everybody.
        may_be_public: whether an installation may require no key (`HIGHWATER_PUBLIC_LEAGUE`).
        also: a further role that may call it, on every resource, also with a bound key; None: only `role` and those above.
        keys_only: whether sessions are refused.
        token: the header whose token is required instead of a key.
        limit: which rate limit applies; None: not declared, and such an operation is refused (`has_limit`).
        cost: how many calls of that limit one call counts as; above one for expensive operations, none if nothing
            limits it.
    """

    role: Role | None
    scope: Scope | None = None
    owned_by: OwnedBy = OwnedBy.NOBODY
    own: Role | None = None
    keys_only: bool = False
    token: str | None = None
    limit: RateLimit | None = None
    cost: int | None = None
    also: Role | None = None
    may_be_public: bool = False

    @property
    def has_limit(self) -> bool:
        """Whether it declares a rate limit and the cost of one call; limits per address count calls only."""
        if self.limit is None or self.cost is None:
            return False
        if self.limit is RateLimit.NONE:
            return self.cost == 0
        return self.cost == 1 if self.limit is RateLimit.ADDRESS else self.cost >= 1

    @property
    def is_secret(self) -> bool:
        """Whether resources of others are answered like missing ones."""
        return self.owned_by is not OwnedBy.NOBODY and self.owned_by not in NAMED

    @property
    def is_privileged(self) -> bool:
        """Whether a call that changes something is recorded before its effect (`security_log.py`)."""
        return self.role is Role.ADMIN

    @property
    def least(self) -> str:
        """Return the lowest role, and the one that is admitted besides, in words."""
        role = (self.role or Role.VIEWER).label
        return role if self.also is None else f"{role} or {self.also.label}"


PUBLIC = Access(None, limit=RateLimit.NONE, cost=0)


def access(
    role: Role | None,
    scope: Scope | None = None,
    owned_by: OwnedBy = OwnedBy.NOBODY,
    *,
    own: Role | None = None,
    also: Role | None = None,
    keys_only: bool = False,
    limit: RateLimit,
    cost: int,
) -> Callable[[F], F]:
    """Declare the access that the endpoint below requires."""
    return declared(Access(role, scope, owned_by, own, keys_only, None, limit, cost, also))


def declared(declaration: Access) -> Callable[[F], F]:
    """Declare the same access as an existing declaration."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, declaration)
        return endpoint

    return declare


def access_of(endpoint: Any) -> Access | None:
    """Return the declaration of an endpoint; None if it has none."""
    found: Access | None = getattr(endpoint, _ATTRIBUTE, None)
    return found


# -- decisions --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a resource; None: it has no such owner."""

    user_id: str | None = None
    organization_id: str | None = None


class Relation(Enum):
    """How a principal is related to an owner."""

    ANY = "not bound, or an admin"
    OWN = "bound to the user"
    COLLEAGUE = "bound to the organization"
    NONE = "bound to others"


class Refusal(Enum):
    """Why a principal is refused."""

    ROLE = "role"
    SCOPE = "scope"
    SESSION = "session"
    OWNER = "owner"


def relation(principal: Principal, owner: Owner) -> Relation:
    """Return how a principal is related to an owner."""
    if principal.role is Role.ADMIN or not principal.is_bound:
        return Relation.ANY
    if owner.user_id is not None and principal.is_user(owner.user_id):
        return Relation.OWN
    if owner.organization_id is not None and principal.organization_id == owner.organization_id:
        return Relation.COLLEAGUE
    return Relation.NONE


def refusal(declaration: Access, principal: Principal) -> Refusal | None:
    """Return why a principal may not call an operation for any resource; None if it may, before the body is known."""
    if declaration.role is None:
        return None
    if not in_scope(declaration.scope, principal):
        return Refusal.SCOPE
    if declaration.keys_only and principal.session_id is not None:
        return Refusal.SESSION
    if principal.role is declaration.also:
        return None
    least = declaration.role
    if declaration.own is not None and principal.user_id is not None:
        least = min(least, declaration.own)
    return Refusal.ROLE if principal.role < least else None


def in_scope(scope: Scope | None, principal: Principal) -> bool:
    """Return whether the scopes of a key include this scope."""
    return scope is None or principal.scopes is None or scope in principal.scopes


def owner_refusal(declaration: Access, principal: Principal, owner: Owner) -> Refusal | None:
    """Return why a principal may not call the operation on this owner's resources; None if it may."""
    if principal.role is declaration.also:
        return None
    found = relation(principal, owner)
    if found is Relation.NONE:
        return Refusal.OWNER
    role = declaration.role or Role.VIEWER
    least = declaration.own if found is Relation.OWN and declaration.own is not None else role
    return Refusal.ROLE if principal.role < least else None


def may_act_for(principal: Principal, owner: Owner) -> bool:
    """Return whether a principal may create something for this owner: a bound principal acts only for its own user and
    organization.
    """
    if principal.role is Role.ADMIN or not principal.is_bound:
        return True
    if owner.organization_id is not None and principal.organization_id != owner.organization_id:
        return False
    if principal.user_id is not None:
        return owner.user_id is not None and principal.is_user(owner.user_id)
    return owner.organization_id is not None


def may_read_namespace(principal: Principal, *, is_open: bool) -> bool:
    """Return whether a namespace of chunks may be read: no user or organization may read a closed one."""
    return is_open or principal.role is Role.ADMIN or not principal.is_bound
