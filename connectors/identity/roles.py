"""Roles of users, and the revocation of sessions with an earlier role (R2.9, R2.10).

Invariant: a role and the revocation are one transaction under the user's session lock, so a session is created entirely
before it, and ends with it, or entirely after it, and has the new role. The latest event about a user in the order of
the broker's time counts. Redis is updated after the commit, and for a known event it is updated again with what
PostgreSQL holds: the first writer may have died in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from highwater.connectors.identity.sessions import SessionStore
from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.positions import Cause
from highwater.streams.clock import to_datetime, to_ms


class RoleWord(NamedTuple):
    """The new role of a user."""

    role: str
    cause: Cause


class Revocation(NamedTuple):
    """The time up to which a user's sessions are void, in ms since 1970; `is_new`: by an event that was new."""

    user_id: str
    revoked_ms: int
    is_new: bool


async def store_words(tx: Connection, words: Mapping[str, RoleWord], now_ms: int) -> list[Revocation]:
    """Store roles that are newer than the stored ones, and revoke; for a known event return its revocation."""
    users = sorted(words)
    await tx.execute(QUERIES["lock_sessions"], users)
    known = {row["user_id"]: row for row in await tx.fetch(QUERIES["roles_of_users"], users)}
    new, revocations = [], []
    for user_id in users:
        row, word = known[user_id], words[user_id]
        order = None if row["arrived_ms"] is None else Cause(row["arrived_ms"], row["position"]).order
        if order is None or word.cause.order > order:
            new.append((user_id, word.role, *word.cause))
            revocations.append(Revocation(user_id, now_ms, is_new=True))
        elif row["revoked_at"] is not None:
            revocations.append(Revocation(user_id, to_ms(row["revoked_at"]), is_new=False))
    if new:
        at = to_datetime(now_ms)
        await tx.execute(QUERIES["store_roles"], *map(list, zip(*new, strict=True)), at)
        await tx.execute(QUERIES["store_revocations"], [user_id for user_id, *_ in new], at)
    return revocations


async def tell(sessions: SessionStore, revocation: Revocation) -> int:
    """Update Redis after the commit; return how many sessions ended.

    Raises:
        RedisAwayError: Redis does not have it yet.
    """
    user_id, revoked_ms, is_new = revocation
    if is_new:
        return await sessions.revoke_all(user_id, revoked_ms)
    # Later sessions are valid and stay; earlier ones are void by their time.
    await sessions.mark_revoked(user_id, revoked_ms)
    return 0
