"""Typed records of the streams events, written by `python -m schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import TypedDict


class Tick(TypedDict):
    """The clock in the log: one record a partition and tick."""

    number: int
    now: int
