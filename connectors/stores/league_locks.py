"""Locks of the leagues that no row stands for: erasures against what users say, and the one recalculation of ratings.

Order of all locks of the leagues, so that no two transactions wait for each other: users' rows, documents, erasures, ratings or
seasons, matches. Rows are locked in the order of their keys.
"""

from __future__ import annotations

from connectors.stores.postgres import QUERIES, Connection

# Numbers of the advisory locks; the classes of others are in `connectors/outbox.py`, `bases.py` and `documents.py`.
_LOCK_CLASS, _ERASURES, _RATINGS, _ADS = 7_421, 0, 1, 2


async def share_erasures(tx: Connection) -> None:
    """Store what users said: no user is erased until the transaction ends."""
    await tx.execute(QUERIES["share_league_lock"], _LOCK_CLASS, _ERASURES)


async def hold_erasures(tx: Connection) -> None:
    """Erase users: nobody stores what users said until the transaction ends."""
    await tx.execute(QUERIES["hold_league_lock"], _LOCK_CLASS, _ERASURES)


async def hold_ratings(tx: Connection) -> None:
    """Rate users alone: what is rated next is seen as the one before has left it."""
    await tx.execute(QUERIES["hold_league_lock"], _LOCK_CLASS, _RATINGS)


async def hold_ads(tx: Connection) -> None:
    """Change advertisements alone: they are few, and a new one has no row to lock."""
    await tx.execute(QUERIES["hold_league_lock"], _LOCK_CLASS, _ADS)
