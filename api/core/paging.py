"""Paging by cursor: opaque to clients. It names the place in the order, not a count, so new entries shift nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, TypeVar

import orjson
from fastapi import Query, Request

from highwater.api.core.errors import BadRequestError, UnprocessableError

T = TypeVar("T")

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
        raise foreign_cursor() from error
    if not isinstance(place, list) or [type(part) for part in place] != list(kinds):
        raise foreign_cursor()
    # No id holds it, and PostgreSQL refuses the text.
    if any(isinstance(part, str) and "\0" in part for part in place):
        raise foreign_cursor()
    return tuple(place)


def foreign_cursor() -> BadRequestError:
    """Return the error for a cursor of another list."""
    return BadRequestError("cursor does not come from this list", field="cursor")


def text_after(cursor: str | None) -> str:
    """Return the text after which a page begins, in a list ordered by texts. Raises the errors of `decode_cursor`."""
    return str(decode_cursor(cursor, str)[0]) if cursor else ""


def number_before(cursor: str | None, most: int) -> int:
    """Return the number before which a page begins, in a list in descending order; `most` is above all of them.

    Raises:
        BadRequestError: it is not a cursor of this API.
    """
    before = int(decode_cursor(cursor, int)[0]) if cursor else most
    if not 0 <= before <= most:
        raise foreign_cursor()
    return before


def page_of(
    found: Sequence[T], limit: int, place: Callable[[T], Sequence[str | int]]
) -> tuple[Sequence[T], str | None]:
    """Return a page of rows that were read with one more than `limit`, and the cursor of the next one, None at the end.

    `place` returns the values of a row that its cursor contains.
    """
    page = found[:limit]
    return page, encode_cursor(*place(page[-1])) if len(found) > limit else None
