"""The `Idempotency-Key` of a request: a repeat under the same key is the same request.

Invariant: the slice decides what a key means; this module only reads it, and rejects an invalid one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request

from highwater.api.core.errors import BadRequestError
from highwater.api.core.freshness import NotYetError
from highwater.schemas.errors import UnavailableError

T = TypeVar("T")

KEY_CHARACTERS_MAX = 255
_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')


def idempotency_key(request: Request) -> str | None:
    """The `Idempotency-Key` of a request; a quoted string, as the draft has it, or the same without quotes.

    Raises:
        BadRequestError: it is empty, too long, not printable, or there are several.
    """
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    text = values[0].strip()
    quoted = _QUOTED.fullmatch(text)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted is not None else text
    if len(values) > 1 or _KEY.fullmatch(key) is None:
        raise BadRequestError(f"Idempotency-Key is not one key of 1 to {KEY_CHARACTERS_MAX} printable ASCII characters")
    return key


async def published_once(
    key: str | None, read: Callable[[], Awaitable[T | None]], publish: Callable[[], Awaitable[list[str]]]
) -> tuple[T | None, list[str]]:
    """Publish a submission under a key, unless it is stored already; return what is stored now, and the positions.

    `read` returns what is stored, or accepted and not stored yet. Only a key can have given the same id before, so
    without one nothing is read. While PostgreSQL is unavailable the event is written anyway: of two with one id the first
    counts.

    Raises:
        NotYetError: the sink is so far behind that the first event under the key could not be read.
    """

    async def stored() -> T | None:
        if key is None:
            return None
        try:
            return await read()
        except NotYetError:
            raise
        except UnavailableError:
            return None

    known = await stored()
    if known is not None:
        return known, []
    positions = await publish()
    return await stored(), positions  # of two at once, the one that came first
