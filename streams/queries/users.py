"""Users of queries: any id as elsewhere, and the UUID by which their rows are found.

Invariant: a UUID is its own key, so that rows of users with UUIDs are as they always were; the key of another id depends
on the id alone.
"""

from __future__ import annotations

from hashlib import sha256

from highwater.schemas.errors import InvalidEventError
from highwater.streams.checks import check_id, is_uuid


def user_key(user_id: str) -> str:
    """Return the UUID by which rows of queries name a user: the id itself, or one made of its hash."""
    if is_uuid(user_id):
        return user_id
    digits = sha256(user_id.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def text_id(user_id: str) -> str | None:
    """Return an id that is not a UUID; None for a UUID."""
    return None if is_uuid(user_id) else user_id


def check_user_id(name: str, value: str) -> None:
    """Check that an id of a user is one; a UUID in its canonical form, so that one user has one id.

    Raises:
        InvalidEventError: it is not.
    """
    check_id(name, value)
    if is_uuid(value.lower()) and not is_uuid(value):
        raise InvalidEventError("bad_uuid", f"{name} is a UUID that is not in lower case", field=name)
