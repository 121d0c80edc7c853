"""The download of everything that a search of the topic browser finds, for the browser that is signed in."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from highwater.api.core.access import Owner, owner_refusal
from highwater.api.core.errors import ForbiddenError, UnprocessableError, problem_of
from highwater.api.core.guard import admit
from highwater.api.core.services import Services
from highwater.api.dashboard.browsing import Browsing
from highwater.api.dashboard.door import Door
from highwater.api.records.routes import MEDIA_TYPES, exported
from highwater.api.records.searches import SEARCH
from highwater.schemas.errors import HighwaterError


async def export(door: Door, services: Services, request: Request) -> Response:
    """The file, or why there is none."""
    visitor = await door.visitor(request)
    if visitor is None:
        return RedirectResponse("/login", 303)
    principal = visitor.principal
    try:
        admit(SEARCH, principal)
        if owner_refusal(SEARCH, principal, Owner()) is not None:
            raise ForbiddenError("topics hold the events of everybody; this key is bound to one user")
        await services.rate_limiter.admit(SEARCH, principal, request.scope)
        browsing, kind = Browsing.of(request.query_params), request.query_params.get("format", "")
        if kind not in MEDIA_TYPES:
            raise UnprocessableError(
                f"there is no format {kind[:20]!r}; there are {', '.join(MEDIA_TYPES)}", field="format"
            )
        return await exported(services, principal, browsing.search_of_topic, kind)
    except HighwaterError as error:
        return problem_of(error)
