"""For which organization a request speaks.

Law: a session speaks for its own organization alone, unless it is an admin's. An API key belongs to none and says for which it
speaks, as one that is bound to no user says whose request it is.
"""

from __future__ import annotations

from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import ForbiddenError, UnprocessableError
from highwater.streams.checks import check_id


def require_organization(principal: Principal, organization_id: str) -> None:
    """Refuse a session of another organization, or of none.

    Raises:
        ForbiddenError: it is one.
    """
    is_free = principal.role is Role.ADMIN or principal.session_id is None
    if not is_free and principal.organization_id != organization_id:
        raise ForbiddenError("this session is of another organization")


def organization_of(principal: Principal, named: str | None) -> str:
    """The organization that a request is for: the one it names, else that of its session.

    Raises:
        UnprocessableError: none is named, and the session has none.
        ForbiddenError: the session is of another.
    """
    organization_id = named if named is not None else principal.organization_id
    if organization_id is None:
        raise UnprocessableError("organization_id is missing, and this is no session of one", field="organization_id")
    check_id("organization_id", organization_id)
    require_organization(principal, organization_id)
    return organization_id
