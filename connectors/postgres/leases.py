"""Leases in PostgreSQL: who owns what, until when by the server's clock. What they mean is in `streams/leases.py`.

Law: an owner stores nothing under a lease that another took since. Its transactions ask for the lease (`HeldLease.fence`), which
nobody takes until they end; an owner that is stopped inside of one is ended by `idle_in_transaction_session_timeout`
(`sessions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import StrEnum, unique

import asyncpg

from highwater.connectors.postgres.locks import FormerLock
from highwater.connectors.postgres.pool import AWAY, Connection
from highwater.connectors.postgres.statements import QUERIES
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import fresh_id, lease_seconds
from highwater.streams.leases import Lease

# A worker that ends, or whose connection does, is followed at once; one that hangs, or whose host is lost, after this long. A
# shorter time would take a busy machine for a dead one.
LEASE_SECONDS = 10.0


@unique
class LeaseKind(StrEnum):
    """What is owned; the name of each lease says which of it. They never change, since two releases may run side by side."""

    OUTBOX = "outbox"  # a shard
    RELAY = "relay"  # a relay, which is a member of those that share the shards
    EMBED = "embed"  # `runner`: who fills vectors and rolls out bases
    WORKER = "worker"  # a worker's number, which no two of any kind share
    CHUNK_SOURCE = "chunk-source"  # a source whose vectors are being made
    CHUNK_INDEXES = "chunk-indexes"  # `keeper`: who builds indexes of vectors
    CHUNK_MODELS = "chunk-models"  # `maker`: who makes vectors of the model that namespaces are switched to
    FEED_BUILD = "feed-build"  # a user, whose feed's document is being built
    HISTORY = "history"  # `recorder`: the API process that records the history of figures
    USER_REBUILD = "user-rebuild"  # a user, while Redis is away


# Kinds that the release before leases owned by advisory locks of a session, with their class; numbers are the names, or these.
# While roles are replaced one by one, two relays of one shard would change the order of a key's events, and an engine that takes
# another for gone would pay for its calls again. Sources of chunks, builds of feeds and rebuilds of users are left out: done
# twice at once they store the same. It goes with the release after this one.
_FORMER: Mapping[LeaseKind, int] = {
    LeaseKind.OUTBOX: FormerLock.OUTBOX,
    LeaseKind.WORKER: FormerLock.WORKER,
    LeaseKind.EMBED: FormerLock.BASIS_RUNNER,
    LeaseKind.CHUNK_INDEXES: FormerLock.CHUNK_INDEXES,
}
_FORMER_NUMBERS = {"runner": 1, "keeper": 1}
FORMER_OWNER = "a process of the release before leases"


class LeaseLostError(UnavailableError):
    """The lease was lost to another worker. Nothing was stored; this worker waits until it may take the lease again."""


class Leases:
    """The leases of one kind that one owner holds.

    Args:
        kind: what is owned.
        seconds: how long one lasts from its last renewal on.
        owner: who owns; a fresh id when not given.
        ends_with_session: whether they end with the connection that they are taken on, too.
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
        """Those that this owner may go on with now, by name."""
        now = lease_seconds()
        return {name: lease for name, lease in self._held.items() if lease.is_held(now)}

    async def take(self, connection: Connection, names: Iterable[str]) -> list[str]:
        """Take those of the names that are free; which they were."""
        asked_at, wanted = lease_seconds(), list(names)
        if self._ends_with_session:
            wanted = await _share_former(connection, self.kind, wanted)
        if not wanted:
            return []
        rows = await connection.fetch(
            QUERIES["take_leases"], self.kind, wanted, self.owner, self._seconds, self._ends_with_session
        )
        for row in rows:
            self._held[row["name"]] = Lease(row["name"], row["epoch"], asked_at, self._seconds)
        return [row["name"] for row in rows]

    async def renew(self, connection: Connection, *, all_of_them: bool = False) -> list[str]:
        """Renew what is due; which were lost, if any."""
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
        """Give up these leases, or all; others may take them at once. Their epochs are remembered."""
        ended = self._ended(names)
        if ended:
            await connection.execute(QUERIES["release_leases"], self.kind, *_columns(ended), self.owner)

    async def drop(self, connection: Connection, names: Collection[str] | None = None) -> None:
        """The same of leases whose names come and go: nothing is left of them."""
        ended = self._ended(names)
        if ended:
            await connection.execute(QUERIES["drop_leases"], self.kind, *_columns(ended), self.owner)

    def _ended(self, names: Collection[str] | None) -> list[Lease]:
        ended = [lease for lease in self._held.values() if names is None or lease.name in names]
        for lease in ended:
            del self._held[lease.name]
        return ended

    def forget(self) -> None:
        """The session that they were taken on is gone, and they with it."""
        self._held.clear()


class HeldLease:
    """A lease while somebody works under it, renewed beside the work."""

    def __init__(self, leases: Leases, name: str) -> None:
        self._leases = leases
        self._name = name

    def check(self) -> None:
        """Go on only if it is still ours.

        Raises:
            LeaseLostError: it is not, or nobody could say so in time.
        """
        self._current()

    async def fence(self, tx: Connection) -> None:
        """Let what is stored in this transaction count only while the lease is ours; nobody takes it before the commit.

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
            with suppress(*AWAY):  # tried again; past its time nothing is stored any more
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
    """Hold a lease that is taken on a connection and renewed on others; None when it is another's."""
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


async def _share_former(connection: Connection, kind: LeaseKind, names: list[str]) -> list[str]:
    """Those of the names that no process of an older release owns; none of them takes these while this session lasts."""
    numbers = {name: _FORMER_NUMBERS.get(name, name) for name in names} if kind in _FORMER else {}
    known = {name: int(number) for name, number in numbers.items() if str(number).isdigit()}
    if not known:
        return names
    rows = await connection.fetch(QUERIES["share_former_locks"], _FORMER[kind], [*known], [*known.values()])
    free = {row["name"] for row in rows}
    return [name for name in names if name in free or name not in known]


async def live(connection: Connection, kind: LeaseKind) -> dict[str, str]:
    """The leases of a kind that are somebody's now: name -> owner, `FORMER_OWNER` for what a process of an older release owns."""
    found = {row["name"]: row["owner"] for row in await connection.fetch(QUERIES["live_leases"], kind)}
    if kind in _FORMER:
        former = await connection.fetch(QUERIES["former_owners"], _FORMER[kind])
        found |= {row["name"]: FORMER_OWNER for row in former}
    return found


async def drop_ended(connection: Connection, kind: LeaseKind) -> None:
    """Drop what owners that ended without a word have left, of a kind whose names come and go."""
    await connection.execute(QUERIES["drop_ended_leases"], kind)


async def owner_of(connection: Connection, kind: LeaseKind, name: str) -> str | None:
    """Whose a lease is, or was last; None of one that is nobody's."""
    owner: str | None = await connection.fetchval(QUERIES["owner_of_lease"], kind, name)
    return owner


async def drop_of(connection: Connection, kind: LeaseKind, name: str, owner: str) -> None:
    """Drop the lease of an owner that is known to have ended."""
    await connection.execute(QUERIES["drop_lease_of"], kind, name, owner)


def _columns(leases: Collection[Lease]) -> tuple[list[str], list[int]]:
    return [lease.name for lease in leases], [lease.epoch for lease in leases]
