"""Typed records of the cache events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class InvalidationRequested(TypedDict):
    """A document gets a new version, even if its content is unchanged."""

    key: str
    requested_at: int


class PrewarmRequested(TypedDict):
    """The pages of a season are to be built before readers request them."""

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


PREWARM_REQUESTED: Final = TopicName[PrewarmRequested]("cache.prewarm-requested")
INVALIDATION_REQUESTED: Final = TopicName[InvalidationRequested]("cache.invalidation-requested")
VERSION_BUMPED: Final = TopicName[VersionBumped]("cache.version-bumped")
