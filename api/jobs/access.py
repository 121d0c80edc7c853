"""Whose jobs a principal may watch and end.

Laws. A key or session bound to a user sees that user's jobs; a session also sees those of its organization, and ends them if it
is an editor's. An admin, and a key that is bound to nobody, sees all.
"""

from __future__ import annotations

from highwater.api.core.auth import Principal, Role
from highwater.api.core.errors import ForbiddenError, UnprocessableError
from highwater.streams.checks import check_id


def may_read(principal: Principal, organization_id: str, user_id: str) -> bool:
    """Whether a principal may see what a user of an organization has."""
    if principal.may_touch(user_id):
        return True
    return principal.session_id is not None and principal.organization_id == organization_id


def require_reader(principal: Principal, organization_id: str, user_id: str) -> None:
    """Refuse a principal that may not see a job or deck.

    Raises:
        ForbiddenError: it belongs to others.
    """
    if not may_read(principal, organization_id, user_id):
        raise ForbiddenError("this belongs to another user")


def require_ender(principal: Principal, organization_id: str, user_id: str) -> None:
    """Refuse a principal that may not end a job.

    Raises:
        ForbiddenError: it belongs to others, or only an editor of its organization may.
    """
    require_reader(principal, organization_id, user_id)
    if not principal.may_touch(user_id) and principal.role < Role.EDITOR:
        raise ForbiddenError("the job of another user is ended by an editor")


def submitter(principal: Principal, named: str | None) -> str:
    """The user whose job it will be; a principal bound to one needs not say so.

    Raises:
        UnprocessableError: nobody is named.
        ForbiddenError: the principal is bound to another.
    """
    user_id = principal.user_id if named is None else named
    if user_id is None:
        raise UnprocessableError("user_id is missing, and this key is bound to no user", field="user_id")
    check_id("user_id", user_id)
    if not principal.may_touch(user_id):
        raise ForbiddenError("this key is bound to another user")
    return user_id
