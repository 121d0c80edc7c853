"""The form of the ids of runs, jobs, decks and querying users.

Invariant: they are UUIDs, stored in lower case with hyphens, so one run or user has one id.
"""

from __future__ import annotations

from highwater.api.core.errors import UnprocessableError
from highwater.streams.checks import is_uuid


def canonical_uuid(name: str, text: str) -> str:
    """Return a UUID in lower case.

    Raises:
        UnprocessableError: the text is not a UUID; `name` is the field at fault.
    """
    lower = text.lower()
    if not is_uuid(lower):
        raise UnprocessableError(f"{name} is not a UUID", field=name)
    return lower
