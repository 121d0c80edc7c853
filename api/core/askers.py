"""The form of the ids of runs, jobs, decks, and of the users who ask.

Invariant: they are UUIDs, in lower case with hyphens wherever they are kept, so one run or user has one name.
"""

from __future__ import annotations

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
