"""Typed records of the cache events, written by `python -m schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import TypedDict


class VersionBumped(TypedDict):
    """A resource has a new version."""

    key: str
    version: int
    etag: str
    caused_by: str
    bumped_at: int
