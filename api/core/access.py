"""What an operation asks of its caller: one declaration beside each route, and the pure rules that decide by it.

Invariants. A decision is a function of the declaration, the principal and the owner, and of nothing else; `guard.py` applies it
to every route. An admin reaches everything. A key or session bound to a user reaches what is that user's, one bound to an
organization also what is that organization's, and one bound to neither whatever its role allows.

What a refusal says of existence is decided here alone: a user, an organization and a namespace are named by the caller, so what
belongs to others is 403; everything else has an id that would tell whether it exists, so what belongs to others is 404, in the
same words as what does not exist.
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
    """The household of an operation; a key may be limited to some of them."""

    FEEDS = "feeds"
    LEAGUE = "league"
    QUERIES = "queries"
    JOBS = "jobs"
    CHUNKS = "chunks"
    EVENTS = "events"
    SYSTEM = "system"
    ADMIN = "admin"


class Whose(StrEnum):
    """What an operation reaches, and so whose it has to be."""

    NOBODY = "nothing of anybody"
    DEPLOYMENT = "deployment"
    USER = "user"
    ORGANIZATION = "organization"
    LISTED = "organization, or own entries"
    SUBMISSION = "user and organization"
    QUERY = "user, and the organization that pays"
    EVENT = "user or organization of each event"
    NAMESPACE = "namespace"
    KEY = "resource key"
    FILTERED = "what the caller may read"
    JOB = "job"
    DECK = "presentation"
    RUN = "query"
    BLOB = "blob"
    INGEST = "ingest"
    SESSION = "session"


# Named by the caller, so that a refusal tells nothing: 403. Whatever else has an owner is 404 to others.
NAMED = frozenset(
    {
        *(Whose.DEPLOYMENT, Whose.USER, Whose.ORGANIZATION, Whose.LISTED, Whose.SUBMISSION, Whose.QUERY, Whose.EVENT),
        *(Whose.NAMESPACE, Whose.KEY, Whose.FILTERED),
    }
)


@dataclass(frozen=True, slots=True)
class Access:
    """What an operation asks. `role` None: no key is needed.

    Attributes:
        role: the least role.
        scope: the household that a limited key must name; None: any key, since each entry is checked.
        whose: what it reaches.
        own: the least role of a principal bound to the user whose it is; None: `role` for everybody.
        keys_only: whether a session is refused.
        token: the header whose token is asked for instead of a key.
        limit: what bounds its calls; None: not said, and then it is no operation (`has_limit`).
        cost: for how many calls of that limit one counts; more than one for what works for seconds, none where nothing bounds it.
    """

    role: Role | None
    scope: Scope | None = None
    whose: Whose = Whose.NOBODY
    own: Role | None = None
    keys_only: bool = False
    token: str | None = None
    limit: RateLimit | None = None
    cost: int | None = None

    @property
    def has_limit(self) -> bool:
        """Whether it says what bounds its calls and what one counts for; an address is counted by calls alone."""
        if self.limit is None or self.cost is None:
            return False
        if self.limit is RateLimit.NONE:
            return self.cost == 0
        return self.cost == 1 if self.limit is RateLimit.ADDRESS else self.cost >= 1

    @property
    def is_secret(self) -> bool:
        """Whether what belongs to others is answered as what does not exist."""
        return self.whose is not Whose.NOBODY and self.whose not in NAMED

    @property
    def is_privileged(self) -> bool:
        """Whether a call that changes something is recorded before its effect (`security_log.py`)."""
        return self.role is Role.ADMIN


PUBLIC = Access(None, limit=RateLimit.NONE, cost=0)


def access(
    role: Role | None,
    scope: Scope | None = None,
    whose: Whose = Whose.NOBODY,
    *,
    own: Role | None = None,
    keys_only: bool = False,
    limit: RateLimit,
    cost: int,
) -> Callable[[F], F]:
    """Declare what the operation below asks of its caller."""
    return declared(Access(role, scope, whose, own, keys_only, None, limit, cost))


def declared(declaration: Access) -> Callable[[F], F]:
    """The same with a declaration that exists already."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, declaration)
        return endpoint

    return declare


def access_of(endpoint: Any) -> Access | None:
    """The declaration of an endpoint; None: it has none."""
    found: Access | None = getattr(endpoint, _ATTRIBUTE, None)
    return found


# -- decisions --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose something is; None: it has no such owner."""

    user_id: str | None = None
    organization_id: str | None = None


class Relation(Enum):
    """How a principal stands to an owner."""

    ANY = "not bound, or an admin"
    OWN = "bound to the user"
    COLLEAGUE = "bound to the organization"
    NONE = "bound to others"


class Refusal(Enum):
    """Why a principal may not."""

    ROLE = "role"
    SCOPE = "scope"
    SESSION = "session"
    OWNER = "owner"


def relation(principal: Principal, owner: Owner) -> Relation:
    """How a principal stands to an owner."""
    if principal.role is Role.ADMIN or not principal.is_bound:
        return Relation.ANY
    if owner.user_id is not None and principal.is_user(owner.user_id):
        return Relation.OWN
    if owner.organization_id is not None and principal.organization_id == owner.organization_id:
        return Relation.COLLEAGUE
    return Relation.NONE


def refusal(declaration: Access, principal: Principal) -> Refusal | None:
    """Return why a principal may not call an operation for any resource; None if it may, as far as is known before the body."""
    if declaration.role is None:
        return None
    if not in_scope(declaration.scope, principal):
        return Refusal.SCOPE
    if declaration.keys_only and principal.session_id is not None:
        return Refusal.SESSION
    least = declaration.role
    if declaration.own is not None and principal.user_id is not None:
        least = min(least, declaration.own)
    return Refusal.ROLE if principal.role < least else None


def in_scope(scope: Scope | None, principal: Principal) -> bool:
    """Whether the scopes of a key reach an operation of this household."""
    return scope is None or principal.scopes is None or scope in principal.scopes


def owner_refusal(declaration: Access, principal: Principal, owner: Owner) -> Refusal | None:
    """Why a principal may not do this to what is that owner's; None: it may."""
    found = relation(principal, owner)
    if found is Relation.NONE:
        return Refusal.OWNER
    role = declaration.role or Role.VIEWER
    least = declaration.own if found is Relation.OWN and declaration.own is not None else role
    return Refusal.ROLE if principal.role < least else None


def may_act_for(principal: Principal, owner: Owner) -> bool:
    """Whether something may be made in this name: a bound principal acts for its own user and its own organization alone."""
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
