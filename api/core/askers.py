"""Whose queries a principal may ask and read; the form of the ids of users and runs.

Laws. Ids are UUIDs, in lower case with hyphens wherever they are kept, so one run or user has one name. A principal that is bound
to a user asks, reads and cancels for nobody else, unless it is an admin's.
"""

from __future__ import annotations

from highwater.api.core.auth import Principal, require_user
from highwater.api.core.errors import UnprocessableError
from highwater.streams.checks import is_uuid


def canonical_uuid(name: str, text: str) -> str:
    """A UUID in lower case.

    Raises:
        UnprocessableError: it is none; `name` is the field at fault.
    """
    lower = text.lower()
    if not is_uuid(lower):
        raise UnprocessableError(f"{name} is not a UUID", field=name)
    return lower


def require_asker(principal: Principal, user_id: str) -> None:
    """Refuse a principal bound to another user.

    Args:
        principal: who asks.
        user_id: a canonical id; the settings may write that of a key in capitals.

    Raises:
        ForbiddenError: it is bound to another.
    """
    if principal.user_id is None or principal.user_id.lower() != user_id:
        require_user(principal, user_id)


def asker(principal: Principal, user_id: str | None) -> str:
    """The user who asks; a principal bound to one need not say so.

    Raises:
        UnprocessableError: nobody is named, or not by a UUID.
        ForbiddenError: the principal is bound to another.
    """
    named = principal.user_id if user_id is None else user_id
    if named is None:
        raise UnprocessableError("user_id is missing, and this key is bound to no user", field="user_id")
    found = canonical_uuid("user_id", named)
    require_asker(principal, found)
    return found
