"""Creates a new version of a resource: its number and its event, in one transaction with the content."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from highwater.connectors.kafka import outbox
from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, one_row
from highwater.connectors.redis.resource_cache import Head
from highwater.schemas.cache import VERSION_BUMPED, VersionBumped
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.positions import Position, parse_position
from highwater.streams.clock import to_datetime, to_ms


async def next_version(
    tx: Connection, key: str, caused_by: str, now_ms: int, reason: str = "", *, payload: bytes | None = None
) -> VersionBumped:
    """Create the next version of a resource; return the event to publish.

    `caused_by` is the position of the causing event, empty if there is none. The ETag contains a hash of `payload`;
    without one, of the change: no other installation and no restored backup uses the same ETag for anything else.
    """
    content = None if payload is None else sha256(payload).hexdigest()
    row = await one_row(tx, QUERIES["bump_version"], key, caused_by, to_datetime(now_ms), content)
    return VersionBumped(
        key=key, version=row["version"], etag=row["etag"], caused_by=caused_by, bumped_at=now_ms, reason=reason
    )


async def bump(
    tx: Connection,
    codec: Codec,
    key: str,
    *,
    caused_by: str,
    now_ms: int,
    source: str,
    reason: str = "",
    payload: bytes | None = None,
) -> Head:
    """Create the next version of a resource and publish it; arguments as in `next_version`."""
    event = await next_version(tx, key, caused_by, now_ms, reason, payload=payload)
    cause = position_of(caused_by)
    await outbox.add(
        tx, [outbox.event_row(codec, VERSION_BUMPED, event, source=source, now_ms=now_ms, caused_by=cause)]
    )
    return Head(event["version"], event["etag"], caused_by, checked_ms=now_ms, changed_ms=now_ms)


async def version_of_bytes(tx: Connection, key: str, payload: bytes, now_ms: int) -> Head | None:
    """Return the last version of a deleted resource, if these were its bytes: equal bytes never get a new one."""
    row = await tx.fetchrow(QUERIES["version_of_bytes"], key, sha256(payload).hexdigest())
    if row is None:
        return None
    return Head(row["version"], row["etag"], row["position"], checked_ms=now_ms, changed_ms=to_ms(row["changed_at"]))


async def end_versions(tx: Connection, keys: Sequence[str]) -> None:
    """End resources; if they return, their versions continue above all earlier ones."""
    await tx.execute(QUERIES["raise_version_floor"], keys)
    await tx.execute(QUERIES["erase_resources"], keys)


def position_of(text: str) -> Position | None:
    """Return the event that caused a version; None if there is none."""
    try:
        return parse_position(text)
    except InvalidEventError:
        return None  # no event caused it, such as the first page of an empty rating or a manual repair
