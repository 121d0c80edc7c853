"""The `Idempotency-Key` of a request: a repeat under the same key is the same request.

Invariant: the slice decides what a key means; this module only reads it, and rejects an invalid one.
"""

from __future__ import annotations

import re

from fastapi import Request

from highwater.api.core.errors import BadRequestError

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
