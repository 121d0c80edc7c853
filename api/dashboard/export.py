"""The downloads of the topic browser and of the SQL page, for the signed-in browser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from highwater.api.core.access import Access, Owner, owner_refusal
from highwater.api.core.auth import Principal
from highwater.api.core.errors import ForbiddenError, UnprocessableError, problem_of
from highwater.api.core.guard import admit
from highwater.api.core.services import Services
from highwater.api.dashboard.browsing import Browsing
from highwater.api.dashboard.sign_in import SignIn
from highwater.api.records.routes import MEDIA_TYPES
from highwater.api.records.routes import exported as exported_records
from highwater.api.records.searches import SEARCH
from highwater.api.sql.queries import QUERY, QUERY_CHARACTERS_MAX
from highwater.api.sql.routes import exported as exported_rows
from highwater.schemas.errors import HighwaterError

SQL_EXPORT_PATH = "/sql/export"


async def export(sign_in: SignIn, services: Services, request: Request) -> Response:
    """Return all results of a search of the topic browser, or why there is no file."""

    async def give(principal: Principal, kind: str) -> Response:
        browsing = Browsing.of(request.query_params)
        return exported_records(services, principal, browsing.search_of_topic, kind)

    return await _given(SEARCH, sign_in, services, request, give)


async def export_query(sign_in: SignIn, services: Services, request: Request) -> Response:
    """Return the answer of a query, or why there is no file."""

    async def give(principal: Principal, kind: str) -> Response:
        query = request.query_params.get("query", "")
        if len(query) > QUERY_CHARACTERS_MAX:
            raise UnprocessableError(f"the query has more than {QUERY_CHARACTERS_MAX:,} characters", field="query")
        return exported_rows(services, principal, query, kind)

    return await _given(QUERY, sign_in, services, request, give)


async def _given(
    declaration: Access,
    sign_in: SignIn,
    services: Services,
    request: Request,
    give: Callable[[Principal, str], Awaitable[Response]],
) -> Response:
    visitor = await sign_in.visitor(request)
    if visitor is None:
        return RedirectResponse("/login", 303)
    principal = visitor.principal
    try:
        admit(declaration, principal)
        if owner_refusal(declaration, principal, Owner()) is not None:
            raise ForbiddenError("topics contain events of all users; this key is bound to one user")
        await services.rate_limiter.admit(declaration, principal, request.scope)
        kind = request.query_params.get("format", "")
        if kind not in MEDIA_TYPES:
            raise UnprocessableError(
                f"there is no format {kind[:20]!r}; there are {', '.join(MEDIA_TYPES)}", field="format"
            )
        return await give(principal, kind)
    except HighwaterError as error:
        return problem_of(error)
