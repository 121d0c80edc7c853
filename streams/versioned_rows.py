"""Rows of tables as JSON, the version of their form first: a row of a newer release is refused, not misread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson


def encode_facts(version: int, facts: Sequence[Any]) -> bytes:
    """Return a row in its form."""
    return orjson.dumps([version, *facts])


def decode_facts(data: bytes, version: int) -> list[Any]:
    """Return what a row holds.

    Raises:
        ValueError: the row has another form.
    """
    found, *facts = orjson.loads(data)
    if found != version:
        raise ValueError(f"a row of version {found}, not {version}: it was written by a newer release")
    return list(facts)
