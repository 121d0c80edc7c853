"""Paging by cursor: opaque to clients, and it names the place in the order, not a count, so that nothing shifts under it."""

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
    """Refuse a parameter that a list does not have, which would otherwise pass for a filter that matches everything.

    Raises:
        UnprocessableError: names the first one, and those that there are.
    """
    unknown = next((name for name in request.query_params if name not in names), None)
    if unknown is not None:
        raise UnprocessableError(
            f"there is no parameter {unknown[:64]!r}; there are {', '.join(names)}", field=unknown[:64]
        )


def encode_cursor(*place: str | int) -> str:
    """The cursor of a place."""
    return base64.urlsafe_b64encode(orjson.dumps(place)).rstrip(b"=").decode()


def decode_cursor(cursor: str, *kinds: type) -> tuple[str | int, ...]:
    """The place that a cursor names.

    Raises:
        BadRequestError: it is not one of ours.
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
