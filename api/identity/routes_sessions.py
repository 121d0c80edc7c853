"""Sessions and roles (R2.4 to R2.10).

Invariants. A session's role is never above its creator's, nor above the role stored for its user. A change of role is
published as an event first; it is stored and revokes the user's sessions before the answer, and its sink, which reads
it again, changes nothing more.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import ROLES, Principal, Role
from highwater.api.core.errors import ForbiddenError
from highwater.api.core.guard import Called, Caller, GuardedRoute, User
from highwater.api.core.openapi import ID
from highwater.api.core.resources import SESSION
from highwater.api.core.services import Services, Wired
from highwater.api.identity.answers import RoleChanged, Session, SessionsRevoked
from highwater.connectors.identity import roles
from highwater.connectors.identity.organizations import stored_plan_name
from highwater.connectors.identity.sessions import NewSession
from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.postgres.pool import one_row, transaction
from highwater.connectors.redis.keys import SESSION_SECONDS
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.jobs import ROLE_CHANGED
from highwater.schemas.positions import Cause
from highwater.streams.checks import check_id
from highwater.streams.clock import to_datetime
from highwater.streams.identity.rate_limits import RateLimit

router = APIRouter(tags=["sessions"], route_class=GuardedRoute)

Text = Annotated[str, Field(max_length=512)]


class SessionRequest(BaseModel):
    """The user of the session. Default role: the user's stored role, or viewer. Default plan: the organization's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    user_id: Annotated[str, ID]
    role: Literal["viewer", "assistant", "editor", "admin"] | None = None
    email: Text = ""
    organization_id: Text = ""
    plan: Literal["free", "pro", "team", "enterprise"] | None = None


class RoleRequest(BaseModel):
    """The new role of a user."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["viewer", "assistant", "editor", "admin"]


def _organization_of(called: Caller, body: SessionRequest) -> str:
    """Return the organization of a new session: the key's, if it has one.

    Raises:
        ForbiddenError: the key may not create such a session.
    """
    called.user(body.user_id)
    creator = called.principal
    if creator.scopes is not None:
        raise ForbiddenError("a key with scopes cannot create a session, because a session would have all scopes")
    if called.is_operator:
        return body.organization_id or creator.organization_id or ""
    # Otherwise users would choose whose limits and usage count, and how many requests are allowed.
    if body.plan or body.organization_id not in ("", creator.organization_id):
        raise ForbiddenError("a key that is bound to a user cannot name another organization or a plan")
    return creator.organization_id or ""


def _session_role(creator: Principal, stored: str | None, requested: str | None) -> Role:
    """Return the role of a new session.

    Raises:
        ForbiddenError: it would be above its creator's, or above the user's.
    """
    ceiling = creator.role if stored is None else creator.role.shared(ROLES[stored])
    if requested is None:
        return Role.VIEWER if stored is None else ceiling
    if not ceiling.includes(ROLES[requested]):
        raise ForbiddenError(f"a session of this user, made with this key, is at most {ceiling.label}")
    return ROLES[requested]


@router.post(
    "/api/sessions",
    status_code=HTTPStatus.CREATED,
    summary="Create a session",
    response_model=None,
    responses=answer(Session, status=HTTPStatus.CREATED),
)
@access(Role.EDITOR, Scope.ADMIN, OwnedBy.USER, own=Role.VIEWER, keys_only=True, limit=RateLimit.PLAN, cost=1)
async def post_session(
    body: SessionRequest, request: Request, response: Response, called: Called, services: Wired
) -> Session:
    """A session expires a day after its last request; its id is the bearer token."""
    organization_id = _organization_of(called, body)
    ip = request.client.host if request.client is not None else ""
    if organization_id:
        check_id("organization_id", organization_id)
    services.link.require()
    await services.security.permit(request.scope, called.principal)  # a session works like a key
    async with transaction(services.database.require()) as tx:
        await tx.execute(QUERIES["session_lock_shared"], body.user_id)
        rules = await one_row(tx, QUERIES["read_session_rules"], body.user_id)
        role = _session_role(called.principal, rules["role"], body.role)
        plan = body.plan or await stored_plan_name(tx, organization_id)
        new = NewSession(body.user_id, organization_id, body.email, plan, ip)
        token, session = await services.sessions.create(tx, new, role.label, services.clock())
    response.headers["Cache-Control"] = "no-store"
    return {
        "session_id": token,
        "user_id": session.user_id,
        "role": session.role,
        "organization_id": session.organization_id,
        "email": session.email,
        "plan": session.plan,
        "created_at": iso_from_ms(session.created_at),
        "expires_at": iso_from_ms(session.last_active + SESSION_SECONDS * 1000),
    }


@router.delete("/api/sessions/{session:id}", status_code=HTTPStatus.NO_CONTENT, summary="Log out")
@access(Role.ADMIN, Scope.ADMIN, OwnedBy.SESSION, own=Role.VIEWER, limit=RateLimit.CALLER, cost=1)
async def delete_session(session: str, called: Called, services: Wired) -> None:
    """Ends one session: the caller's own, one of the user that the key is bound to, or any session if the caller is an admin."""
    found = called.shown(SESSION, await services.sessions.peek(session), session)
    await services.sessions.delete(found)


@router.delete(
    "/api/users/{user:id}/sessions",
    summary="End all sessions of a user",
    response_model=None,
    responses=answer(SessionsRevoked),
)
@access(Role.ADMIN, Scope.ADMIN, OwnedBy.USER, own=Role.VIEWER, limit=RateLimit.CALLER, cost=1)
async def delete_user_sessions(user: User, services: Wired) -> SessionsRevoked:
    """Every session of the user gets 401 from its next request on. Returns the number of ended sessions."""
    return {"user_id": user, "revoked": await _revoke(services, user)}


@router.put(
    "/api/users/{user:id}/role",
    summary="Change a user's role (admin)",
    response_model=None,
    responses=answer(RoleChanged),
)
@access(Role.ADMIN, Scope.ADMIN, OwnedBy.USER, limit=RateLimit.CALLER, cost=1)
async def put_role(user: User, body: RoleRequest, services: Wired) -> RoleChanged:
    """Stores the role and ends the user's sessions, which still have the old role."""
    async with transaction(services.database.require()) as tx:
        # Locked before the event is published, so that its sink finds it done and the sessions are counted here.
        await tx.execute(QUERIES["session_lock"], user)
        now_ms = services.clock()
        taken = await services.publisher.taken(ROLE_CHANGED, {"user_id": user, "role": body.role, "ts": now_ms})
        word = roles.RoleWord(body.role, Cause(taken.arrived_ms, str(taken)))
        revocations = await roles.store_words(tx, {user: word}, now_ms)
    revoked = sum([await roles.tell(services.sessions, revocation) for revocation in revocations])
    return {"user_id": user, "role": body.role, "revoked": revoked, "positions": [str(taken)]}


async def _revoke(services: Services, user: str) -> int:
    """Void all sessions created until now. PostgreSQL first: if Redis is unavailable, it is copied there after its recovery."""
    async with transaction(services.database.require()) as tx:
        await tx.execute(QUERIES["session_lock"], user)
        now_ms = services.clock()
        await tx.execute(QUERIES["store_revocation"], user, to_datetime(now_ms))
    return await services.sessions.revoke_all(user, now_ms)
