"""Leases in PostgreSQL: who owns what, until when by the server's clock. Their meaning is in `streams/leases.py`.

Invariant: an owner stores nothing under a lease that another has taken. Its transactions check the lease
(`HeldLease.fence`), which nobody takes until they end; an owner that is paused inside a transaction is ended by
`idle_in_transaction_session_timeout` (`sessions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum, unique

import asyncpg

from highwater.connectors.postgres.pool import AWAY, Connection
from highwater.connectors.postgres.statements import QUERIES
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import fresh_id, lease_seconds
from highwater.streams.leases import Lease

# A worker that ends, or whose connection does, is replaced at once; one that hangs, or whose host is lost, after this
# long. A shorter time would mistake a busy machine for a dead one.
LEASE_SECONDS = 10.0


@unique
class LeaseKind(StrEnum):
    """What is owned; the name of each lease says which one. They never change, since two releases may run concurrently."""

    OUTBOX = "outbox"  # a shard
    RELAY = "relay"  # a relay, a member of the group that shares the shards
    EMBED = "embed"  # `runner`: computes missing vectors and rolls out embedding model versions
    WORKER = "worker"  # a worker's number, unique over all kinds
    CHUNK_SOURCE = "chunk-source"  # a source whose vectors are being computed
    CHUNK_INDEXES = "chunk-indexes"  # `keeper`: builds indexes, whose builds exclude each other
    CHUNK_MODELS = "chunk-models"  # `maker`: computes vectors of the model that namespaces switch to
    FEED_BUILD = "feed-build"  # a user whose feed document is being built
    HISTORY = "history"  # `recorder`: the API process that records the history of metrics
    USER_REBUILD = "user-rebuild"  # a user, while Redis is unavailable


class LeaseLostError(UnavailableError):
    """The lease was lost to another worker. Nothing was stored; this worker waits until it may take the lease again."""


class Leases:
    """The leases of one kind that one owner holds.

    Args:
        kind: what is owned.
        seconds: how long one lasts after its last renewal.
        owner: the owner; a fresh id by default.
        ends_with_session: whether they also end with the connection on which they are taken.
    """

    def __init__(
        self,
        kind: LeaseKind,
        *,
        seconds: float = LEASE_SECONDS,
        owner: str | None = None,
        ends_with_session: bool = True,
    ) -> None:
        self.kind = kind
        self.owner = owner or fresh_id()
        self._seconds = seconds
        self._ends_with_session = ends_with_session
        self._held: dict[str, Lease] = {}

    @property
    def held(self) -> dict[str, Lease]:
        """Return those that this owner may continue with now, by name."""
        now = lease_seconds()
        return {name: lease for name, lease in self._held.items() if lease.is_held(now)}

    async def take(self, connection: Connection, names: Iterable[str]) -> list[str]:
        """Take the free ones of these names; return which they were."""
        asked_at, wanted = lease_seconds(), list(names)
        if not wanted:
            return []
        rows = await connection.fetch(
            QUERIES["take_leases"], self.kind, wanted, self.owner, self._seconds, self._ends_with_session
        )
        for row in rows:
            self._held[row["name"]] = Lease(row["name"], row["epoch"], asked_at, self._seconds)
        return [row["name"] for row in rows]

    async def renew(self, connection: Connection, *, all_of_them: bool = False) -> list[str]:
        """Renew due leases; return those that were lost."""
        asked_at = lease_seconds()
        due = [lease for lease in self._held.values() if all_of_them or lease.is_due(asked_at)]
        if not due:
            return []
        rows = await connection.fetch(QUERIES["renew_leases"], self.kind, *_columns(due), self.owner, self._seconds)
        renewed = {row["name"] for row in rows}
        for lease in due:
            if lease.name in renewed:
                self._held[lease.name] = Lease(lease.name, lease.epoch, asked_at, self._seconds)
            else:
                self._held.pop(lease.name, None)
        return [lease.name for lease in due if lease.name not in renewed]

    async def release(self, connection: Connection, names: Collection[str] | None = None) -> None:
        """Release these leases, or all; others may take them at once. Their epochs are kept."""
        ended = self._ended(names)
        if ended:
            await connection.execute(QUERIES["release_leases"], self.kind, *_columns(ended), self.owner)

    async def drop(self, connection: Connection, names: Collection[str] | None = None) -> None:
        """Release leases with temporary names, and delete their rows."""
        ended = self._ended(names)
        if ended:
            await connection.execute(QUERIES["drop_leases"], self.kind, *_columns(ended), self.owner)

    def _ended(self, names: Collection[str] | None) -> list[Lease]:
        ended = [lease for lease in self._held.values() if names is None or lease.name in names]
        for lease in ended:
            del self._held[lease.name]
        return ended

    def forget(self) -> None:
        """Forget all leases: their session has ended, and they with it."""
        self._held.clear()


class HeldLease:
    """A lease that is renewed while work under it runs."""

    def __init__(self, leases: Leases, name: str) -> None:
        self._leases = leases
        self._name = name

    def check(self) -> None:
        """Check that it is still ours.

        Raises:
            LeaseLostError: it is not, or PostgreSQL did not answer in time.
        """
        self._current()

    async def fence(self, tx: Connection) -> None:
        """Make the commit of this transaction depend on the lease; nobody takes it before the commit.

        Raises:
            LeaseLostError: another worker took it.
        """
        lease = self._current()
        found = await tx.fetchval(QUERIES["hold_lease"], self._leases.kind, lease.name, lease.epoch, self._leases.owner)
        if found is None:
            self._leases.forget()
            raise self._lost()

    def _current(self) -> Lease:
        lease = self._leases.held.get(self._name)
        if lease is None:
            raise self._lost()
        return lease

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(f"the lease {self._leases.kind}/{self._name} was lost to another worker")

    async def renew_beside(self, pool: asyncpg.Pool[asyncpg.Record], seconds: float) -> None:
        """Renew it until cancelled or lost, on connections of the pool."""
        while self._name in self._leases.held:
            await asyncio.sleep(seconds / 3)
            with suppress(*AWAY):  # repeated; after it expires nothing can be stored
                async with pool.acquire(timeout=seconds / 3) as connection:
                    await self._leases.renew(connection, all_of_them=True)


@asynccontextmanager
async def holding(
    connection: Connection,
    pool: asyncpg.Pool[asyncpg.Record],
    kind: LeaseKind,
    name: str,
    *,
    seconds: float = LEASE_SECONDS,
) -> AsyncIterator[HeldLease | None]:
    """Yield a lease that is taken on a connection and renewed on others; None if another owner has it."""
    leases = Leases(kind, seconds=seconds)
    if not await leases.take(connection, [name]):
        yield None
        return
    lease = HeldLease(leases, name)
    renewing = asyncio.create_task(lease.renew_beside(pool, seconds), name=f"lease-{kind}")
    try:
        yield lease
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(*AWAY):  # it ends with the session
            await leases.release(connection)


async def live(connection: Connection, kind: LeaseKind) -> dict[str, str]:
    """Return the current leases of a kind: name -> owner."""
    return {row["name"]: row["owner"] for row in await connection.fetch(QUERIES["live_leases"], kind)}


async def drop_ended(connection: Connection, kind: LeaseKind) -> None:
    """Delete leases that owners left without releasing them, of a kind with temporary names."""
    await connection.execute(QUERIES["drop_ended_leases"], kind)


async def owner_of(connection: Connection, kind: LeaseKind, name: str) -> str | None:
    """Return the present or last owner of a lease; None if there was none."""
    owner: str | None = await connection.fetchval(QUERIES["owner_of_lease"], kind, name)
    return owner


async def drop_of(connection: Connection, kind: LeaseKind, name: str, owner: str) -> None:
    """Delete the lease of an owner that is known to have ended."""
    await connection.execute(QUERIES["drop_lease_of"], kind, name, owner)


def _columns(leases: Collection[Lease]) -> tuple[list[str], list[int]]:
    return [lease.name for lease in leases], [lease.epoch for lease in leases]
