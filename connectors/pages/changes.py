"""What stored facts have made old, and the one moment from which it is made anew.

Invariant: one event shows on every page that it alters, or on none. Whoever stores facts notes the pages that they make old in
the same transaction. Whoever makes a page reads its facts at one moment, and if anything is noted at that moment, makes all of it
in one transaction: a page made before its turn (a read with a position, an expiry, a first read) takes the others with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, snapshot


async def note_changes(tx: Connection, keys: Iterable[str]) -> None:
    """Note pages that this transaction's facts make old, by their keys, whether or not anybody has asked for them."""
    found = sorted(set(keys))
    if found:
        await tx.execute(QUERIES["note_page_changes"], found)


async def share(tx: Connection) -> None:
    """Take the shared lock of pages until the transaction ends: others may build single pages at the same time."""
    await tx.execute(QUERIES["share_pages"], LockClass.PAGES)


async def hold_alone(tx: Connection) -> None:
    """Make all that changed until the transaction ends: what others were making is stored, and nobody begins."""
    await tx.execute(QUERIES["hold_pages"], LockClass.PAGES)


class Moment:
    """A moment of the store: every statement of its connection sees what was committed before it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self._name = name

    async def has_changes(self) -> bool:
        """Whether anything is noted."""
        return bool(await self.connection.fetchval(QUERIES["has_page_changes"]))

    async def changed(self) -> list[str]:
        """The keys of stored pages that are noted, in order."""
        return sorted([row["key"] for row in await self.connection.fetch(QUERIES["changed_pages"])])

    async def forget(self, tx: Connection) -> None:
        """Strike off what is noted at this moment, in the transaction that stores the pages made of it."""
        await tx.execute(QUERIES["forget_page_changes"], self._name)


@asynccontextmanager
async def one_moment(pool: Any) -> AsyncIterator[Moment]:
    """The present moment, on a connection of the pool."""
    async with snapshot(pool) as connection:
        yield Moment(connection, await connection.fetchval(QUERIES["this_moment"]))
