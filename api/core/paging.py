"""Paging by cursor: opaque to clients. It names the place in the order, not a count, so new entries shift nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from typing import Annotated

import orjson
from fastapi import Query, Request

from highwater.api.core.errors import BadRequestError, UnprocessableError

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="maximum number")]
Cursor = Annotated[str | None, Query(max_length=4_096, description="`next_cursor` of the previous page")]


def require_known_parameters(request: Request, names: Collection[str]) -> None:
    """Refuse an unknown parameter, which would otherwise look like a filter that matches everything.

    Raises:
        UnprocessableError: names the first one, and the known ones.
    """
    unknown = next((name for name in request.query_params if name not in names), None)
    if unknown is not None:
        raise UnprocessableError(
            f"there is no parameter {unknown[:64]!r}; there are {', '.join(names)}", field=unknown[:64]
        )


def encode_cursor(*place: str | int) -> str:
    """Encode a place as a cursor."""
    return base64.urlsafe_b64encode(orjson.dumps(place)).rstrip(b"=").decode()


def decode_cursor(cursor: str, *kinds: type) -> tuple[str | int, ...]:
    """Decode a cursor into a place.

    Raises:
        BadRequestError: it is not one of our cursors.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        place = orjson.loads(base64.urlsafe_b64decode(padded))
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise BadRequestError("cursor does not come from this list", field="cursor") from error
    if not isinstance(place, list) or [type(part) for part in place] != list(kinds):
        raise BadRequestError("cursor does not come from this list", field="cursor")
    # No id holds it, and PostgreSQL refuses the text.
    if any(isinstance(part, str) and "\0" in part for part in place):
        raise BadRequestError("cursor does not come from this list", field="cursor")
    return tuple(place)
