"""Lists what every operation requires of its caller: for the check at the start, OpenAPI, and the table in the docs.

Invariant. All of them are derived from the declarations that `guard.py` enforces, so they cannot contradict it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute, Route, WebSocketRoute

from highwater.api.core.access import PUBLIC, Access, OwnedBy, declared
from highwater.api.core.auth import Principal, Role
from highwater.api.core.documentation import add_problem, problem_response
from highwater.api.core.guard import GuardedRoute, UndeclaredAccessError, require_declared, require_limited
from highwater.streams.identity.rate_limits import RateLimit

SOCKET = "WS"
PAGE = "page"
_SCHEME = "bearer"
_TOKEN_SCHEMES = {"x-prewarm-token": "prewarm"}


class Operation(NamedTuple):
    """An operation: its method (`WS` for a socket, `page` for a page of the dashboard), path and declaration."""

    method: str
    path: str
    access: Access


def operations(routes: Sequence[BaseRoute]) -> Iterator[Operation]:
    """Every operation of an application.

    Raises:
        UndeclaredAccessError: a route declares no access, or its declaration is not enforced.
    """
    for context in iter_route_contexts(routes):
        route: Any = context.original_route
        pages: Mapping[str, Access] | None = getattr(route, "access", None)
        path = str(context.path_format if isinstance(route, APIRoute) else getattr(route, "path", route))
        if pages is not None:
            for page, declaration in pages.items():
                require_limited(declaration, page)
                yield Operation(PAGE, page, declaration)
            continue
        found = require_declared(getattr(route, "endpoint", None), path)
        if isinstance(route, WebSocketRoute):
            yield Operation(SOCKET, path, found)
        elif found != PUBLIC and not isinstance(route, GuardedRoute):
            raise UndeclaredAccessError(f"{path} declares an access that nothing enforces: its router is not guarded")
        else:
            yield from (Operation(method, path, found) for method in sorted(route.methods or ()))


def close(application: FastAPI) -> None:
    """Refuse an application with a route that declares no access; its OpenAPI pages are public.

    Raises:
        UndeclaredAccessError: a route declares none.
    """
    for route in application.router.routes:
        if type(route) is Route:
            declared(PUBLIC)(route.endpoint)
    for _ in operations(application.routes):
        pass


# -- OpenAPI ----------------------------------------------------------------------------------------------------------------


def describe(document: dict[str, Any], routes: Sequence[BaseRoute]) -> None:
    """Add to the OpenAPI document what each operation requires, and the errors for callers without access."""
    add_problem(document)
    schemes = document["components"].setdefault("securitySchemes", {})
    schemes[_SCHEME] = {"type": "http", "scheme": "bearer", "description": "An API key or a session."}
    for header, name in _TOKEN_SCHEMES.items():
        schemes[name] = {"type": "apiKey", "in": "header", "name": header}
    for method, path, access in operations(routes):
        operation = document["paths"].get(path, {}).get(method.lower())
        if operation is None:
            continue
        answers = {}
        if access.token is not None:
            operation["security"] = [{_TOKEN_SCHEMES[access.token]: []}]
            answers["401"] = "The token is missing or wrong."
        if access.role is not None:
            # An API without keys is open, and only on loopback.
            operation["security"] = [{_SCHEME: []}, {}]
            unless = ", unless `HIGHWATER_PUBLIC_LEAGUE` is on" if access.may_be_public else ""
            answers["401"] = f"A valid API key or session is required{unless}."
            answers["403"] = f"The key or session lacks permission: {asks(access)}."
        _describe_limit(operation, access, answers)
        if access.is_secret:
            answers["404"] = f"There is no such {access.owned_by}, or it belongs to others."
        for status, description in answers.items():
            operation["responses"][status] = problem_response(description) | operation["responses"].get(status, {})
        _add_limit_headers(document, operation, access)


# As `rate_limits.limit_headers` writes them.
_HEADERS = {
    "RateLimit-Policy": 'The limits of this call: `"key";q=60;w=60` is 60 calls in 60 s of this key, `user` of this user.',
    "RateLimit": 'What is left of each: `"key";r=59;t=30` is 59 more calls, and the next minute begins in 30 seconds.',
    "X-RateLimit-Limit": "Calls a minute, of the limit with the fewest left.",
    "X-RateLimit-Remaining": "How many are left of it.",
}


def _describe_limit(operation: dict[str, Any], access: Access, answers: dict[str, str]) -> None:
    """Describe the rate limit of an operation, in words and as `x-rate-limit`."""
    limit = access.limit
    if limit is None or limit is RateLimit.NONE:
        return
    operation["x-rate-limit"] = {"limit": str(limit), "cost": access.cost}
    counts = "" if access.cost == 1 else f" A call counts for {access.cost}."
    answers["429"] = f"Limited by {limit.meaning}.{counts} Also after too many connections or wrong keys."


def _add_limit_headers(document: dict[str, Any], operation: dict[str, Any], access: Access) -> None:
    """Describe the header fields of every answer to a counted call; unauthenticated calls are not counted."""
    if access.limit not in (RateLimit.PLAN, RateLimit.CALLER):
        return
    headers = document["components"].setdefault("headers", {})
    for name, description in _HEADERS.items():
        is_number = name.startswith("X-")
        headers[name] = {"description": description, "schema": {"type": "integer" if is_number else "string"}}
    told = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    for status, answer in operation["responses"].items():
        if status != "401":
            operation["responses"][status] = answer | {"headers": answer.get("headers", {}) | told}


# -- in words ---------------------------------------------------------------------------------------------------------------


def asks(access: Access) -> str:
    """Describe the access that an operation requires in a few words."""
    if access.token is not None:
        return f"the token in `{access.token}`"
    if access.role is None:
        return "nothing"
    text = f"role {access.least}"
    if access.own is not None:
        text += f", {access.own.label} for its own"
    if access.keys_only:
        text += ", no session"
    return text


# How the columns of the table are bound; `b` is bound to a user of an organization, `o` to an organization only.
UNBOUND = tuple(Principal(role) for role in Role)
BOUND = tuple(Principal(role, "user", organization_id="organization") for role in Role)
COLUMNS = (*UNBOUND, *BOUND, Principal(Role.EDITOR, organization_id="organization"))
# What a user can own, and what an organization can own.
_OF_USERS = frozenset(
    {
        OwnedBy.FILTERED,
        OwnedBy.USER,
        OwnedBy.LISTED,
        OwnedBy.SUBMISSION,
        OwnedBy.QUERY,
        OwnedBy.EVENT,
        OwnedBy.KEY,
        OwnedBy.JOB,
        OwnedBy.DECK,
        OwnedBy.RUN,
        OwnedBy.SESSION,
    }
)
_OF_ORGANIZATIONS = frozenset(
    {OwnedBy.ORGANIZATION, OwnedBy.LISTED, OwnedBy.SUBMISSION, OwnedBy.EVENT, OwnedBy.JOB, OwnedBy.DECK, OwnedBy.BLOB}
)


def reach(access: Access, principal: Principal) -> str:
    """Return which resources of an operation a principal reaches: `all`, `own`, `org`, `open` or nothing."""
    if access.role is None:
        return "all"
    if principal.role is access.also:
        return "all"
    is_operator = principal.role is Role.ADMIN or not principal.is_bound
    least = access.role
    if is_operator or access.owned_by is OwnedBy.NOBODY:
        return "all" if principal.role >= least else "no"
    if access.owned_by in (OwnedBy.NAMESPACE, OwnedBy.INGEST):
        return "open" if principal.role >= least else "no"
    found = []
    own = access.own if access.own is not None else least
    if principal.user_id is not None and access.owned_by in _OF_USERS and principal.role >= own:
        found.append("own")
    acts_for_one = access.owned_by in (OwnedBy.SUBMISSION, OwnedBy.EVENT) and principal.user_id is not None
    if access.owned_by in _OF_ORGANIZATIONS and principal.role >= least and not acts_for_one:
        found.append("org")
    if access.owned_by in (OwnedBy.KEY, OwnedBy.FILTERED):
        found.append("open")
    return ", ".join(found) or "no"


def table(routes: Sequence[BaseRoute]) -> str:
    """Return operations by principals, as a Markdown table."""
    heads = (
        *("Operation", "Subsystem", "Limit", "Counts for", "Reaches", "Others get", "no key"),
        *(_head(one) for one in COLUMNS),
    )
    lines = [heads, tuple("---" for _ in heads)]
    for method, path, access in sorted(
        set(operations(routes)), key=lambda one: (one.method == PAGE, one.path, one.method)
    ):
        if method == "HEAD":
            continue  # as GET
        refused = "" if access.owned_by in (OwnedBy.NOBODY, OwnedBy.FILTERED) else "404" if access.is_secret else "403"
        nobody = "public" if access.may_be_public else "token" if access.token else "no" if access.role else "all"
        reached = [nobody if access.token is not None else reach(access, one) for one in COLUMNS]
        counts = "" if access.limit is RateLimit.NONE else str(access.cost)
        lines.append(
            (
                *(
                    f"{method} `{path}`",
                    access.scope or "any",
                    str(access.limit),
                    counts,
                    access.owned_by.value,
                    refused,
                ),
                *(nobody, *reached),
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _head(principal: Principal) -> str:
    if not principal.is_bound:
        return principal.role.label
    return f"{principal.role.label} of {'a user' if principal.user_id else 'an org'}"
