"""Which pages stored facts have made stale, and how they are rebuilt together.

Invariant: one event shows on every page that it changes, or on none. A transaction that stores facts also records the
pages that they make stale. A build reads its facts in one snapshot, and if any page is recorded in that snapshot,
builds all of them in one transaction: a page that is built out of turn (a read with a position, an expiry, a first
read) takes the others with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, snapshot


async def note_changes(tx: Connection, keys: Iterable[str]) -> None:
    """Record pages that this transaction's facts make stale, by their keys, whether or not anybody has requested them."""
    found = sorted(set(keys))
    if found:
        await tx.execute(QUERIES["note_page_changes"], found)


async def share(tx: Connection) -> None:
    """Take the shared lock of pages until the transaction ends: others may build single pages concurrently."""
    await tx.execute(QUERIES["share_pages"], LockClass.PAGES)


async def hold_alone(tx: Connection) -> None:
    """Take the exclusive lock until the transaction ends, to build everything that changed: earlier builds are stored,
    and none begins.
    """
    await tx.execute(QUERIES["hold_pages"], LockClass.PAGES)


class Moment:
    """A snapshot: every statement of its connection sees what was committed before it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self._name = name

    async def has_changes(self) -> bool:
        """Return whether any page is recorded."""
        return bool(await self.connection.fetchval(QUERIES["has_page_changes"]))

    async def changed(self) -> list[str]:
        """Return the keys of stored pages that are recorded, in order."""
        return sorted([row["key"] for row in await self.connection.fetch(QUERIES["changed_pages"])])

    async def forget(self, tx: Connection) -> None:
        """Delete the records of this snapshot, in the transaction that stores the pages built from it."""
        await tx.execute(QUERIES["forget_page_changes"], self._name)


@asynccontextmanager
async def one_moment(pool: Any) -> AsyncIterator[Moment]:
    """Yield a snapshot on a connection of the pool."""
    async with snapshot(pool) as connection:
        yield Moment(connection, await connection.fetchval(QUERIES["this_moment"]))
