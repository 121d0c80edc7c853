"""The rating of users in PostgreSQL: a function of their predictions and the results, computed completely each time.

Invariant: a prediction that is stored before the result of its match is rated by the worker of ratings, a later one by
its own sink. Both lock the row of the match while they store, so each sees the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.league.locks import hold_ratings
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Connection

# Users rated by one statement: a season of 380 matches each is two million rows, well within its minute.
USERS_MAX = 5_000


async def rate_users(tx: Connection, users: Sequence[str]) -> list[str]:
    """Rate users by all their predictions; the caller holds the lock of ratings. Return those whose rating changed."""
    changed: list[str] = []
    for start in range(0, len(users), USERS_MAX):
        rated = await tx.fetch(QUERIES["rate_users"], users[start : start + USERS_MAX])
        changed += [row["user_id"] for row in rated]
    return changed


async def rate_late(tx: Connection, users: Sequence[str]) -> bool:
    """Rate users who voted or predicted after the result; return whether any rating changed."""
    if not users:
        return False
    await hold_ratings(tx)
    return bool(await rate_users(tx, users))
