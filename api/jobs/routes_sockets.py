"""The open sockets on jobs over all processes, for operators (R2.23).

Invariant: a socket counts while its process reports it, so those of a killed process are gone after `SOCKET_SECONDS`.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from highwater.api.core import conditional
from highwater.api.core.access import OwnedBy, Scope, access
from highwater.api.core.answers import answer
from highwater.api.core.auth import Role
from highwater.api.core.guard import GuardedRoute
from highwater.api.core.services import Wired
from highwater.api.jobs.answers import OpenSockets
from highwater.api.jobs.services import WiredJobs
from highwater.streams.identity.rate_limits import RateLimit
from highwater.streams.jobs.sockets import count_sockets

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)


@router.get(
    "/api/sockets",
    summary="Count the open sockets on jobs, by process and user",
    response_model=None,
    responses=answer(OpenSockets),
)
# Five calls: every key of Redis is looked through.
@access(Role.VIEWER, Scope.SYSTEM, OwnedBy.DEPLOYMENT, limit=RateLimit.PLAN, cost=5)
async def get_sockets(services: Wired, jobs: WiredJobs) -> Response:
    """Those that a process reported within the last 300 seconds, and the 100 users with the most. Needs Redis."""
    return conditional.uncached(count_sockets(await jobs.streams.open_sockets(services.clock())))
