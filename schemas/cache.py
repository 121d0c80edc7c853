"""Typed records of the cache events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import TypedDict


class InvalidationRequested(TypedDict):
    """A document is to get a new version whatever it says (R4.7)."""

    key: str
    requested_at: int


class PrewarmRequested(TypedDict):
    """Make the pages of a season before they are asked for (R4.32)."""

    season: str
    reason: str
    requested_at: int


class VersionBumped(TypedDict):
    """A resource has a new version."""

    key: str
    version: int
    etag: str
    caused_by: str
    bumped_at: int
    reason: str
