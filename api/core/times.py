"""Parses the time that a request names."""

from __future__ import annotations

from highwater.api.core.errors import UnprocessableError
from highwater.schemas.envelope import ms_from_iso


def time_of(text: str, field: str) -> int:
    """The time in ms since 1970 that a field or parameter names.

    Raises:
        UnprocessableError: the text is not an ISO 8601 time.
    """
    try:
        return ms_from_iso(text)
    except ValueError as error:
        raise UnprocessableError(f"{field} is not an ISO 8601 time: {error}", field=field, reason="bad_time") from error
