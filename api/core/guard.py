"""Enforces the access that every route declares (`access.py`), before its body is read.

Invariants. A route without a declaration cannot exist: creating it raises. An operation on owned resources answers
nothing before its `Caller` has checked the owner; one that forgets the check fails, and nothing of its answer is sent.
HTTP routes, sockets and dashboard pages are admitted by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Path, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from highwater.api.core import resources
from highwater.api.core.access import (
    Access,
    OwnedBy,
    Owner,
    Refusal,
    Relation,
    access_of,
    may_act_for,
    may_read_namespace,
    owner_refusal,
    refusal,
    relation,
)
from highwater.api.core.auth import OPEN, PRINCIPAL, Principal, Role, authenticated
from highwater.api.core.errors import ForbiddenError, UnprocessableError
from highwater.api.core.heads import IS_HEAD
from highwater.api.core.proxies import address_of
from highwater.schemas.errors import HighwaterError
from highwater.streams.checks import check_id
from highwater.streams.identity.rate_limits import RateLimit

if TYPE_CHECKING:
    from highwater.api.core.resources import Resource
    from highwater.api.core.services import Services

T = TypeVar("T")

# In the scope of an admitted request: the caller.
ASKER = "highwater.asker"


class UndeclaredAccessError(HighwaterError):
    """A route declares no access, or no limit. Put `@access(..., limit=..., cost=...)` beside its path."""


class UncheckedOwnerError(HighwaterError):
    """An operation answered without checking the owner of the resource. Check the owner first."""


class Caller:
    """The caller of one operation: its declaration, and whether the owner of the resource was checked."""

    def __init__(self, services: Services, declaration: Access, principal: Principal) -> None:
        self._services = services
        self.declaration = declaration
        self.principal = principal
        self._is_checked = declaration.owned_by is OwnedBy.NOBODY

    @property
    def is_operator(self) -> bool:
        """Return whether it is an admin, or bound to no user and no organization."""
        return self.principal.role is Role.ADMIN or not self.principal.is_bound

    def require_checked(self) -> None:
        """Refuse to answer before the owner was checked.

        Raises:
            UncheckedOwnerError: it was not checked.
        """
        if not self._is_checked:
            raise UncheckedOwnerError(f"the owner of a {self.declaration.owned_by} was not checked before the answer")

    def require_role(self, role: Role) -> None:
        """Refuse a caller below a role, where the named resource decides the role.

        Raises:
            ForbiddenError: its role is lower.
        """
        if self.principal.role < role:
            raise ForbiddenError(f"this needs the role {role.label}")

    def note_checked(self) -> None:
        """Note that the answer was filtered, entry by entry, by what the caller may read."""
        self._is_checked = True

    def under(self, declaration: Access) -> Caller:
        """Return the same caller for another operation, which a command on a socket stands for.

        Raises:
            ForbiddenError: it may not call that operation.
        """
        admit(declaration, self.principal)
        return Caller(self._services, declaration, self.principal)

    # -- named by the caller ------------------------------------------------------------------------------------------

    def owner(self, owner: Owner) -> None:
        """Refuse a caller that may not do this to the resources of an owner that it named itself.

        Raises:
            ForbiddenError: it may not.
        """
        self._is_checked = True
        found = owner_refusal(self.declaration, self.principal, owner)
        if found is not None:
            raise forbidden(found, self.declaration, owner)

    def user(self, named: str | None, field: str = "user_id") -> str:
        """Return the user that a request names, or that the caller is bound to.

        Raises:
            UnprocessableError: no user is named, and the caller is bound to none.
            ForbiddenError: the caller is bound to another user.
        """
        user_id = self.principal.user_id if named is None else named
        if user_id is None:
            raise UnprocessableError(f"{field} is missing, and this key is bound to no user", field=field)
        check_id(field, user_id)
        self.owner(Owner(user_id))
        return user_id

    def organization(self, named: str | None) -> str:
        """Return the organization that a request names, or that the caller is bound to.

        Raises:
            UnprocessableError: none is named, and the caller is bound to none.
            ForbiddenError: the caller is bound to another organization, or to a user without one.
        """
        organization_id = self._organization_id(named)
        self.owner(Owner(None, organization_id))
        return organization_id

    def _organization_id(self, named: str | None) -> str:
        organization_id = self.principal.organization_id if named is None else named
        if organization_id is None:
            if not self.is_operator:
                raise ForbiddenError("this key or session is bound to a user of no organization")
            raise UnprocessableError(
                "organization_id is missing, and this key is bound to none", field="organization_id"
            )
        check_id("organization_id", organization_id)
        return organization_id

    def submission(self, organization: str | None, user: str | None) -> tuple[str, str]:
        """Return the organization and the user that a submission is for.

        Raises:
            UnprocessableError: one is missing.
            ForbiddenError: the caller is bound to others, or its role is too low.
        """
        organization_id = self._organization_id(organization)
        user_id = self.principal.user_id if user is None else user
        if user_id is None:
            raise UnprocessableError("user_id is missing, and this key is bound to no user", field="user_id")
        check_id("user_id", user_id)
        owner = Owner(user_id, organization_id)
        if not may_act_for(self.principal, owner):
            raise forbidden(Refusal.OWNER, self.declaration, owner)
        self.owner(owner)
        return organization_id, user_id

    def payer(self, named: str | None) -> str | None:
        """Return the organization that a query is charged to; None: the operator's own, if the key names none.

        Raises:
            ForbiddenError: the caller is bound to another organization, or to a user without one.
        """
        if named is None and self.principal.organization_id is None and self.is_operator:
            return None
        organization_id = self._organization_id(named)
        if not self.is_operator and organization_id != self.principal.organization_id:
            raise forbidden(Refusal.OWNER, self.declaration, Owner(None, organization_id))
        return organization_id

    def listed(self, organization_id: str) -> str | None:
        """Return the only user whose entries of an organization are listed; None: entries of all users.

        Raises:
            ForbiddenError: the caller is bound to another organization, and to no user.
        """
        self._is_checked = True
        owner = Owner(None, organization_id)
        if relation(self.principal, owner) is not Relation.NONE:
            return None
        if self.principal.user_id is None:
            raise forbidden(Refusal.OWNER, self.declaration, owner)
        return self.principal.user_id

    # -- looked up by an id -------------------------------------------------------------------------------------------

    async def found(self, resource: Resource[T], identifier: str) -> T:
        """Return the resource with this id.

        Raises:
            NotFoundError: it does not exist, or it belongs to others.
            ForbiddenError: the caller may read it, but its role is too low for this operation.
            UnavailableError: PostgreSQL is unavailable, or `resources.known` cannot say whether it exists.
        """
        value: T | None = await resources.known(self._services, resource, identifier)
        return self.shown(resource, value, identifier)

    async def found_fresh(self, request: Request, resource: Resource[T], identifier: str) -> T:
        """Return the same, once the events that the request names are processed. Raises the errors of `found` and
        `Services.fresh`.
        """
        await self._services.fresh(request, resource.fed_by)
        return await self.found(resource, identifier)

    def shown(self, resource: Resource[T], value: T | None, identifier: str) -> T:
        """Return a resource that was read already; errors as of `found`."""
        self._is_checked = True
        if value is None:
            raise resource.missing(identifier)
        owner = resource.owner(value)
        found = owner_refusal(self.declaration, self.principal, owner)
        if found is Refusal.OWNER:
            raise resource.missing(identifier)
        if found is not None:
            raise forbidden(found, self.declaration, owner)
        return value

    async def namespace(self, ns: str) -> None:
        """Refuse a caller that may not read a namespace of chunks.

        Raises:
            ForbiddenError: it is closed.
        """
        self.readable_namespace(ns, is_open=self.is_operator or await resources.namespace_is_open(self._services, ns))

    def readable_namespace(self, ns: str, *, is_open: bool) -> None:
        """Refuse a caller that may not read a namespace, if it is known whether the namespace is open."""
        self._is_checked = True
        if not may_read_namespace(self.principal, is_open=is_open):
            raise ForbiddenError(f"the namespace {ns!r} is not open to users")

    async def ingest(self, ingest_id: str) -> None:
        """Refuse a caller that may not read every namespace that an ingest wrote to.

        Raises:
            NotFoundError: one is closed.
        """
        self._is_checked = True
        if self.is_operator:
            return
        for ns in await resources.ingest_namespaces(self._services, ingest_id):
            if not await resources.namespace_is_open(self._services, ns):
                raise resources.no_ingest(ingest_id)

    async def key(self, key: str) -> None:
        """Refuse a caller that may not read the resource of a key.

        Raises:
            ForbiddenError: it belongs to others, or is for administrators.
            InvalidEventError: it names a user by an invalid id.
        """
        self._is_checked = True
        ns = resources.namespace_of(key)
        if ns is not None:
            await self.namespace(ns)
            return
        resources.require_key(self.principal, key)


# -- admission --------------------------------------------------------------------------------------------------------------


def admit(declaration: Access, principal: Principal) -> None:
    """Refuse a principal that may not call an operation for any resource.

    Raises:
        ForbiddenError: it may not.
    """
    found = refusal(declaration, principal)
    if found is not None:
        raise forbidden(found, declaration)


def forbidden(found: Refusal, declaration: Access, owner: Owner | None = None) -> ForbiddenError:
    """Return the error for a refusal."""
    if found is Refusal.SCOPE:
        return ForbiddenError(f"this key is not for {declaration.scope}")
    if found is Refusal.SESSION:
        return ForbiddenError("a session may not do this; use an API key")
    if found is Refusal.OWNER:
        if owner is None or owner == Owner():
            return ForbiddenError("this key or session is bound and writes only what is its own")
        named = "another organization"
        if owner.user_id is not None:
            named = "another user"
        return ForbiddenError(f"this key or session is bound to {named}")
    more = "" if declaration.own is None else ", or the user's own key"
    return ForbiddenError(f"this needs the role {declaration.least}{more}")


async def admitted(request: Request, declaration: Access) -> Caller:
    """Return the caller of a request that is admitted, as far as its path decides.

    Raises:
        UnauthorizedError: it is not authenticated.
        ForbiddenError: it has no access.
        UnavailableError: it is a session and Redis is unavailable.
    """
    services: Services = request.app.state.services
    if declaration.role is None:
        return Caller(services, declaration, OPEN)
    principal: Principal | None = request.scope.get(PRINCIPAL)
    if principal is None:
        authorization = request.headers.get("authorization")
        principal = await authenticated(
            services.authenticator,
            authorization,
            address_of(request.scope),
            may_be_public=declaration.may_be_public,
        )
        request.scope[PRINCIPAL] = principal  # the record of a refusal names the caller
    admit(declaration, principal)
    asker = Caller(services, declaration, principal)
    named = request.path_params
    if declaration.owned_by is OwnedBy.DEPLOYMENT:
        asker.owner(Owner())
    elif declaration.owned_by is OwnedBy.USER and "user" in named:
        check_id("user", named["user"])
        asker.owner(Owner(named["user"]))
    elif declaration.owned_by is OwnedBy.ORGANIZATION and "org" in named:
        check_id("org", named["org"])
        asker.owner(Owner(None, named["org"]))
    if declaration.is_privileged:
        await services.security.permit(request.scope, principal)
    if request.method == "GET" and IS_HEAD not in request.scope:
        services.activity.note(principal)
    return asker


def caller_on_socket(services: Services, endpoint: Any, principal: Principal) -> Caller:
    """Return the caller on a socket.

    Raises:
        ForbiddenError: it has no access.
        UndeclaredAccessError: the socket declares no access.
    """
    declaration = require_declared(endpoint, "a socket")
    admit(declaration, principal)
    return Caller(services, declaration, principal)


def require_declared(endpoint: Any, name: str) -> Access:
    """The declaration of an endpoint.

    Raises:
        UndeclaredAccessError: it has none.
    """
    found = access_of(endpoint)
    if found is None:
        raise UndeclaredAccessError(f"{name} declares no access: put @access(...) beside its path")
    require_limited(found, name)
    return found


def require_limited(declaration: Access, name: str) -> None:
    """Refuse a declaration without a rate limit or the cost of a call.

    Raises:
        UndeclaredAccessError: one is missing.
    """
    if not declaration.has_limit:
        raise UndeclaredAccessError(f"{name} does not declare the limit of its calls and the cost of one call")


class GuardedRoute(APIRoute):
    """A route that counts a call, and admits its caller, before any of the request's body is read.

    Counting is not a dependency, since FastAPI reads the body before dependencies run and drops their headers from an
    error.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the call, then answer it."""
        declaration = require_declared(self.endpoint, self.path)
        if declaration.limit is RateLimit.NONE or scope["method"] not in (self.methods or ()):  # else answered with 405
            await super().handle(scope, receive, send)
            return
        told = await _counted(scope, declaration)
        fields = [(name.lower().encode(), value.encode()) for name, value in told.items()]

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        await super().handle(scope, receive, send_with_limits if fields else send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler behind its access check."""
        declaration = require_declared(self.endpoint, self.path)
        usual = self.admitted_handler()

        async def handler(request: Request) -> Response:
            asker = request.scope[ASKER] = await admitted(request, declaration)
            response = await usual(request)
            if response.status_code < HTTPStatus.BAD_REQUEST:
                asker.require_checked()
            return response

        return handler

    def admitted_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler for an admitted caller."""
        return super().get_route_handler()


async def _counted(scope: Scope, declaration: Access) -> dict[str, str]:
    """Count a call and return the rate-limit headers of its answer; errors as of `authenticated` and
    `RateLimiter.admit`.
    """
    services: Services = scope["app"].state.services
    principal = OPEN
    if declaration.role is not None:
        authorization = Headers(scope=scope).get("authorization")
        principal = await authenticated(
            services.authenticator, authorization, address_of(scope), may_be_public=declaration.may_be_public
        )
        scope[PRINCIPAL] = principal
    return await services.rate_limiter.admit(declaration, principal, scope)


async def caller_of(request: Request) -> Caller:
    """The caller of this request."""
    asker: Caller = request.scope[ASKER]
    return asker


Called = Annotated[Caller, Depends(caller_of)]
User = Annotated[str, Path(description="a user")]
Org = Annotated[str, Path(description="an organization")]
