"""Erased users: their events up to the erasure are void, whenever they are read.

Invariant: votes wait for their window, and a log may be read again from its beginning; neither restores what an erasure
removed. Erased users are known by a hash of their ids; the ids are not kept. Transactions that store users' events
share a lock; an erasure holds it alone, so nothing slips between the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict, TypeVar

from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.kafka.records import Event
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.positions import Cause


class AboutUser(TypedDict):
    """The common fields of a user's events."""

    user_id: str


SaidT = TypeVar("SaidT", bound=AboutUser)


async def share(tx: Connection) -> None:
    """Take the lock for storing users' events: no user is erased until the transaction ends."""
    await tx.execute(QUERIES["share_erasures"], LockClass.ERASURES, 0)


async def hold(tx: Connection) -> None:
    """Take the lock for erasing users: no users' events are stored until the transaction ends."""
    await tx.execute(QUERIES["hold_erasures"], LockClass.ERASURES, 0)


async def valid(tx: Connection, events: Sequence[Event[SaidT]]) -> list[Event[SaidT]]:
    """Return events that no erasure of their user has voided; no erasure is added until the transaction ends."""
    await share(tx)
    voided = await _erased_ms(tx, {event.value["user_id"] for event in events})
    return [event for event in events if event.record.arrived_ms > voided.get(event.value["user_id"], -1)]


async def _erased_ms(tx: Connection, user_ids: Collection[str]) -> dict[str, int]:
    """Return, for erased users, the broker times up to which their events are void."""
    by_hash = {_hash(user_id): user_id for user_id in user_ids}
    rows = await tx.fetch(QUERIES["user_erasures"], list(by_hash))
    return {by_hash[row["user_hash"]]: row["erased_ms"] for row in rows}


async def remember(tx: Connection, erased: Mapping[str, Cause]) -> None:
    """Void users' events up to the broker times of these erasures."""
    rows = sorted((_hash(user_id), cause.arrived_ms, cause.position) for user_id, cause in erased.items())
    await tx.execute(QUERIES["remember_user_erasures"], *map(list, zip(*rows, strict=True)))


async def cause_of(connection: Connection, user_id: str) -> Cause | None:
    """Return the event that last erased a user, which explains why older data is missing."""
    row = await connection.fetchrow(QUERIES["erasure_of_user"], _hash(user_id))
    return None if row is None or row["position"] is None else Cause(row["erased_ms"], row["position"])


def _hash(user_id: str) -> bytes:
    return hashlib.sha256(user_id.encode()).digest()
