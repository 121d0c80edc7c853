"""The form of the ids of runs, jobs and decks, and of users, who may have any other id as well.

Invariant: UUIDs are stored in lower case with hyphens, so one run or user has one id.
"""

from __future__ import annotations

from highwater.api.core.errors import UnprocessableError
from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_id, is_uuid


def canonical_uuid(name: str, text: str) -> str:
    """Return a UUID in lower case.

    Raises:
        UnprocessableError: the text is not a UUID; `name` is the field at fault.
    """
    lower = text.lower()
    if not is_uuid(lower):
        raise UnprocessableError(f"{name} is not a UUID", field=name)
    return lower


def canonical_user(name: str, text: str) -> str:
    """Return the id of a user: a UUID in lower case, any other id as it is.

    Raises:
        UnprocessableError: it is not a valid id; `name` is the field at fault.
    """
    lower = text.lower()
    if is_uuid(lower):
        return lower
    try:
        check_id(name, text)
    except InvalidEventError as error:
        raise UnprocessableError(str(error), field=name) from error
    return text
