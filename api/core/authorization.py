"""What every operation asks of its caller, seen together: the check at the start, OpenAPI, and the table in the docs.

Invariant. All of them are read from the declarations that `guard.py` enforces, so none can say something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute, Route, WebSocketRoute

from highwater.api.core.access import PUBLIC, Access, Whose, declared
from highwater.api.core.auth import Principal, Role
from highwater.api.core.documentation import add_problem, problem_response
from highwater.api.core.guard import GuardedRoute, UndeclaredAccessError, require_declared

SOCKET = "WS"
PAGE = "page"
_SCHEME = "bearer"
_TOKEN_SCHEMES = {"x-prewarm-token": "prewarm"}


class Operation(NamedTuple):
    """An operation: its method (`WS` for a socket, `page` for one of the dashboard), path and declaration."""

    method: str
    path: str
    access: Access


def operations(routes: Sequence[BaseRoute]) -> Iterator[Operation]:
    """Every operation of an application.

    Raises:
        UndeclaredAccessError: a route declares no access, or none enforces what it declares.
    """
    for context in iter_route_contexts(routes):
        route: Any = context.original_route
        pages: Mapping[str, Access] | None = getattr(route, "access", None)
        path = str(context.path_format if isinstance(route, APIRoute) else getattr(route, "path", route))
        if pages is not None:
            yield from (Operation(PAGE, page, found) for page, found in pages.items())
            continue
        found = require_declared(getattr(route, "endpoint", None), path)
        if isinstance(route, WebSocketRoute):
            yield Operation(SOCKET, path, found)
        elif found != PUBLIC and not isinstance(route, GuardedRoute):
            raise UndeclaredAccessError(f"{path} declares an access that nothing enforces: its router is not guarded")
        else:
            yield from (Operation(method, path, found) for method in sorted(route.methods or ()))


def close(application: FastAPI) -> None:
    """Refuse an application of which a route declares no access; its own descriptions are for everybody.

    Raises:
        UndeclaredAccessError: one does not.
    """
    for route in application.router.routes:
        if type(route) is Route:
            declared(PUBLIC)(route.endpoint)
    for _ in operations(application.routes):
        pass


# -- OpenAPI ----------------------------------------------------------------------------------------------------------------


def describe(document: dict[str, Any], routes: Sequence[BaseRoute]) -> None:
    """Add to a description of the API what each operation asks, and its answers to who may not."""
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
            # An API without keys is open, on loopback alone.
            operation["security"] = [{_SCHEME: []}, {}]
            answers["401"] = "No valid API key or session was sent, and the API asks for one."
            answers["403"] = f"The key or session may not: {asks(access)}."
        if access.is_secret:
            answers["404"] = f"There is no such {access.whose}, or it belongs to others."
        for status, description in answers.items():
            operation["responses"][status] = problem_response(description) | operation["responses"].get(status, {})


# -- in words ---------------------------------------------------------------------------------------------------------------


def asks(access: Access) -> str:
    """What an operation asks, in a few words."""
    if access.token is not None:
        return f"the token in `{access.token}`"
    if access.role is None:
        return "nothing"
    text = f"role {access.role.label}"
    if access.own is not None:
        text += f", {access.own.label} for its own"
    if access.keys_only:
        text += ", no session"
    return text


# How the columns of the table are bound; `b` is bound to a user of an organization, `o` to an organization alone.
UNBOUND = tuple(Principal(role) for role in Role)
BOUND = tuple(Principal(role, "user", organization_id="organization") for role in Role)
COLUMNS = (*UNBOUND, *BOUND, Principal(Role.EDITOR, organization_id="organization"))
# What can be a user's own, and what an organization's.
_OF_USERS = frozenset(
    {
        Whose.FILTERED,
        Whose.USER,
        Whose.LISTED,
        Whose.SUBMISSION,
        Whose.EVENT,
        Whose.KEY,
        Whose.JOB,
        Whose.DECK,
        Whose.RUN,
        Whose.SESSION,
    }
)
_OF_ORGANIZATIONS = frozenset(
    {Whose.ORGANIZATION, Whose.LISTED, Whose.SUBMISSION, Whose.EVENT, Whose.JOB, Whose.DECK, Whose.BLOB}
)


def reach(access: Access, principal: Principal) -> str:
    """What of an operation's resources a principal reaches: `all`, `own`, `org`, `open` or nothing."""
    if access.role is None:
        return "all"
    is_operator = principal.role is Role.ADMIN or not principal.is_bound
    least = access.role
    if is_operator or access.whose is Whose.NOBODY:
        return "all" if principal.role >= least else "no"
    if access.whose in (Whose.NAMESPACE, Whose.INGEST):
        return "open" if principal.role >= least else "no"
    found = []
    own = access.own if access.own is not None else least
    if principal.user_id is not None and access.whose in _OF_USERS and principal.role >= own:
        found.append("own")
    acts_for_one = access.whose in (Whose.SUBMISSION, Whose.EVENT) and principal.user_id is not None
    if access.whose in _OF_ORGANIZATIONS and principal.role >= least and not acts_for_one:
        found.append("org")
    if access.whose in (Whose.KEY, Whose.FILTERED):
        found.append("open")
    return ", ".join(found) or "no"


def table(routes: Sequence[BaseRoute]) -> str:
    """Operations by principals, as Markdown."""
    heads = ("Operation", "Household", "Reaches", "Others' is", "no key", *(_head(one) for one in COLUMNS))
    lines = [heads, tuple("---" for _ in heads)]
    for method, path, access in sorted(
        set(operations(routes)), key=lambda one: (one.method == PAGE, one.path, one.method)
    ):
        if method == "HEAD":
            continue  # as GET
        refused = "" if access.whose in (Whose.NOBODY, Whose.FILTERED) else "404" if access.is_secret else "403"
        nobody = "token" if access.token is not None else "all" if access.role is None else "no"
        reached = [nobody if access.token is not None else reach(access, one) for one in COLUMNS]
        lines.append((f"{method} `{path}`", access.scope or "any", access.whose.value, refused, nobody, *reached))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _head(principal: Principal) -> str:
    if not principal.is_bound:
        return principal.role.label
    return f"{principal.role.label} of {'a user' if principal.user_id else 'an org'}"
