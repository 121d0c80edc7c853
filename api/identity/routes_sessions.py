"""Sessions and roles (R2.4 to R2.10).

Laws. A session's role is never above its creator's, nor above the role stored for its user. A change of role is an event first;
it is stored and revokes the user's sessions before it is answered, and its sink, which reads it again, finds it done.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from highwater.api.core.auth import ROLES, AdminUser, Principal, ReadUser, Role, Viewer, require_user
from highwater.api.core.errors import ForbiddenError, NotFoundError
from highwater.api.core.openapi import ID
from highwater.api.core.rate_limits import LimitedRoute
from highwater.api.core.services import Services, Wired
from highwater.connectors.identity import roles
from highwater.connectors.identity.organizations import organizations_of
from highwater.connectors.identity.sessions import NewSession
from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, one_row, transaction
from highwater.connectors.redis.keys import SESSION_SECONDS
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.jobs import ROLE_CHANGED
from highwater.schemas.positions import Cause
from highwater.streams.checks import check_id
from highwater.streams.clock import to_datetime
from highwater.streams.identity.plans import FALLBACK_PLAN, PLANS

router = APIRouter(tags=["sessions"])
limited = APIRouter(tags=["sessions"], route_class=LimitedRoute)

Text = Annotated[str, Field(max_length=512)]


class SessionRequest(BaseModel):
    """Whom a session is for; without a role it gets the one stored for the user, or viewer; without a plan the organization's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    user_id: Annotated[str, ID]
    role: Literal["viewer", "editor", "admin"] | None = None
    email: Text = ""
    organization_id: Text = ""
    plan: Literal["free", "pro", "team", "enterprise"] | None = None


class RoleRequest(BaseModel):
    """The role that a user has from now on."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["viewer", "editor", "admin"]


def _check_creator(creator: Principal, body: SessionRequest) -> None:
    if creator.session_id is not None:
        raise ForbiddenError("a session does not make sessions; use an API key")
    require_user(creator, body.user_id)
    if creator.user_id is not None and creator.role is not Role.ADMIN and (body.organization_id or body.plan):
        # Else a user would choose whose limits and usage count, and how many requests are allowed.
        raise ForbiddenError("a key that is bound to a user names no organization and no plan")
    if creator.user_id is None and creator.role < Role.EDITOR:
        raise ForbiddenError("this needs the role editor, or the user's own key")


def _session_role(creator: Principal, stored: str | None, asked: str | None) -> Role:
    """The role of a new session.

    Raises:
        ForbiddenError: it would be above its creator's, or above the user's.
    """
    ceiling = creator.role if stored is None else min(creator.role, ROLES[stored])
    if asked is None:
        return min(ceiling, ROLES[stored] if stored is not None else Role.VIEWER)
    if ROLES[asked] > ceiling:
        raise ForbiddenError(f"a session of this user, made with this key, is at most {Role(ceiling).label}")
    return ROLES[asked]


@limited.post("/api/sessions", status_code=HTTPStatus.CREATED, summary="Make a session")
async def post_session(
    body: SessionRequest, request: Request, response: Response, creator: Viewer, services: Wired
) -> dict[str, Any]:
    """A session lives for a day after its last request; its id is the bearer token."""
    check_id("user_id", body.user_id)
    _check_creator(creator, body)
    ip = request.client.host if request.client is not None else ""
    if body.organization_id:
        check_id("organization_id", body.organization_id)
    services.link.require()
    async with transaction(services.database.require()) as tx:
        await tx.execute(QUERIES["session_lock_shared"], body.user_id)
        rules = await one_row(tx, QUERIES["read_session_rules"], body.user_id)
        role = _session_role(creator, rules["role"], body.role)
        plan = body.plan or await _plan_of(tx, body.organization_id)
        new = NewSession(body.user_id, body.organization_id, body.email, plan, ip)
        session = await services.sessions.create(tx, new, role.label, services.clock())
    response.headers["Cache-Control"] = "no-store"
    return {
        "session_id": session.session_id,
        "user_id": session.user_id,
        "role": session.role,
        "organization_id": session.organization_id,
        "email": session.email,
        "plan": session.plan,
        "created_at": iso_from_ms(session.created_at),
        "expires_at": iso_from_ms(session.last_active + SESSION_SECONDS * 1000),
    }


async def _plan_of(tx: Connection, organization_id: str) -> str:
    if not organization_id:
        return FALLBACK_PLAN
    return (await organizations_of(tx, [organization_id], PLANS))[organization_id].plan.name


@router.delete("/api/sessions/{session:id}", status_code=HTTPStatus.NO_CONTENT, summary="Log out")
async def delete_session(session: str, principal: Viewer, services: Wired) -> None:
    """End one session: one's own, one of the user the key is bound to, or any by an admin."""
    found = await services.sessions.peek(session)
    # Somebody else's session is answered as none, so that nobody learns which ids exist.
    if found is None or not (principal.role is Role.ADMIN or principal.user_id == found.user_id):
        raise NotFoundError("there is no such session")
    await services.sessions.delete(found)


@router.delete("/api/users/{user:id}/sessions", summary="End all sessions of a user")
async def delete_user_sessions(user: ReadUser, principal: Viewer, services: Wired) -> dict[str, Any]:
    """Every session of the user gets 401 from the next request on; answers how many there were."""
    if principal.role is not Role.ADMIN and principal.user_id != user:
        raise ForbiddenError("this needs the role admin, or the user's own key")
    return {"user_id": user, "revoked": await _revoke(services, user)}


@router.put("/api/users/{user:id}/role", summary="Change a user's role (admin)")
async def put_role(user: AdminUser, body: RoleRequest, services: Wired) -> dict[str, Any]:
    """Stores the role and ends the user's sessions, which carry the old one (R2.9)."""
    async with transaction(services.database.require()) as tx:
        # Held from before the event is there, so that its sink finds it done and the sessions are counted here.
        await tx.execute(QUERIES["session_lock"], user)
        now_ms = services.clock()
        taken = await services.publisher.taken(ROLE_CHANGED, {"user_id": user, "role": body.role, "ts": now_ms})
        word = roles.RoleWord(body.role, Cause(taken.arrived_ms, str(taken)))
        revocations = await roles.store_words(tx, {user: word}, now_ms)
    revoked = sum([await roles.tell(services.sessions, revocation) for revocation in revocations])
    return {"user_id": user, "role": body.role, "revoked": revoked, "positions": [str(taken)]}


async def _revoke(services: Services, user: str) -> int:
    """Void all sessions made until now. PostgreSQL first: with Redis away it is carried over when that is back."""
    async with transaction(services.database.require()) as tx:
        await tx.execute(QUERIES["session_lock"], user)
        now_ms = services.clock()
        await tx.execute(QUERIES["store_revocation"], user, to_datetime(now_ms))
    return await services.sessions.revoke_all(user, now_ms)


router.include_router(limited)
