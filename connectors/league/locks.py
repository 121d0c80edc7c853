"""Locks of the leagues that no row stands for: the recalculation of ratings, and advertisements.

Order of all locks of the leagues, so that no two transactions deadlock: users' rows, documents, erasures
(`connectors/identity/erasures.py`), seasons, matches, ratings. Rows are locked in the order of their keys.
"""

from __future__ import annotations

from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection

# Second numbers of `LockClass.LEAGUE`.
_RATINGS, _ADS = 1, 2


async def hold_ratings(tx: Connection) -> None:
    """Lock ratings: the next calculation sees the results of the previous one."""
    await tx.execute(QUERIES["hold_league_lock"], LockClass.LEAGUE, _RATINGS)


async def hold_ads(tx: Connection) -> None:
    """Lock advertisements: they are few, and a new one has no row to lock."""
    await tx.execute(QUERIES["hold_league_lock"], LockClass.LEAGUE, _ADS)
