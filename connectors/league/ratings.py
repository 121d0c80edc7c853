"""The rating of users in PostgreSQL: a function of what they said and what came, computed as a whole each time.

Invariant: a word that is stored before the result of its match is rated by the worker of ratings, any other one with itself. Both
hold the row of the match while they store, so each sees the other or is seen by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.league.locks import hold_ratings
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Connection

# Users rated by one statement: a season of 380 matches of each is two million rows, well under its minute.
USERS_MAX = 5_000


async def rate_users(tx: Connection, users: Sequence[str]) -> list[str]:
    """Rate users by all they said; the caller holds the lock of ratings. Returns those whose rating changed."""
    changed: list[str] = []
    for start in range(0, len(users), USERS_MAX):
        rated = await tx.fetch(QUERIES["rate_users"], users[start : start + USERS_MAX])
        changed += [row["user_id"] for row in rated]
    return changed


async def rate_late(tx: Connection, users: Sequence[str]) -> bool:
    """Rate users who said something of a match that has its result; returns whether any rating changed."""
    if not users:
        return False
    await hold_ratings(tx)
    return bool(await rate_users(tx, users))
