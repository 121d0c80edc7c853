"""JSON of other applications, with every digit of its numbers: `LongNumber` holds those that a double would change.

Invariant: what is read here and written here has the same numbers. orjson reads an integer of more than 64 bits, and a
fraction of more than 17 digits, as the nearest double.
"""

from __future__ import annotations

import base64
import json
import re
from decimal import Decimal
from typing import Any

import orjson

# Only a number with 16 digits, or with a large exponent, may lose some.
_MAY_LOSE_DIGITS = re.compile(rb"[0-9][0-9.]{15}")
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1


class LongNumber(Decimal):
    """A number that neither an integer of 64 bits nor a double holds."""


def read_json(raw: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON.
    """
    value = orjson.loads(raw)
    if _MAY_LOSE_DIGITS.search(raw if isinstance(raw, bytes) else raw.encode()) is None:
        return value
    try:
        return json.loads(raw, parse_int=_integer, parse_float=_fraction)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _integer(text: str) -> int | LongNumber:
    number = LongNumber(text)
    return int(text) if _INTEGER_MIN <= number <= _INTEGER_MAX else number


def _fraction(text: str) -> float | LongNumber:
    double, number = float(text), LongNumber(text)
    return double if Decimal(repr(double)) == number else number


def write_json(value: Any, option: int = 0) -> bytes:
    """Return a value as JSON; bytes in base64.

    Raises:
        TypeError: it has a value that JSON does not have.
    """
    return orjson.dumps(value, default=json_default, option=option)


def json_default(value: Any) -> Any:
    """Return a value of a type that orjson does not know, in one that it knows."""
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)


def with_doubles(value: Any) -> Any:
    """Return a value with doubles in place of its long numbers, for a language that has no others."""
    if isinstance(value, LongNumber):
        return float(value)
    if isinstance(value, dict):
        return {name: with_doubles(one) for name, one in value.items()}
    return [with_doubles(one) for one in value] if isinstance(value, list) else value
