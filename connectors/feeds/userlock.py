"""Limits rebuilds to one per user: `lock:user:` in Redis, a lease in PostgreSQL when Redis is unavailable (R0.26).

The lock saves work; correctness comes from the version that the rebuild's transaction checks. Its token is the position
of the request, so that a request redelivered after a crash finds its own lock and continues.

Invariant: a lock blocks nobody once its request has ended. Redis may restore a deleted key (a paused one executes an
old `SET` when it resumes, a promoted replica lacks the last writes), so a request that finds another's lock asks
PostgreSQL whether that request was answered.
"""

from __future__ import annotations

import asyncpg

from highwater.connectors.kafka.statements import QUERIES as POSITIONS
from highwater.connectors.postgres import leases
from highwater.connectors.postgres.leases import LeaseKind, Leases
from highwater.connectors.postgres.pool import reading
from highwater.connectors.redis.keys import USER_LOCK, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.positions import Position, parse_position

_GROUP = "rebuild"  # whose positions show which requests were answered
# Deletes a key only while it holds the caller's token.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
# Replaces another token by the caller's, if it is still that one.
_REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""


def request_of(token: str) -> Position | None:
    """Return the request that holds the lock; None for a token that none of our requests has written."""
    try:
        return parse_position(token)
    except InvalidEventError:
        return None


def has_ended(request: Position | None, next_offset: int | None) -> bool:
    """Return whether a request no longer needs its lock: it was answered, or was never a request.

    Args:
        request: the holder of the lock.
        next_offset: the next offset of the group of rebuilds in its partition; None before it began.
    """
    return request is None or (next_offset is not None and request.offset < next_offset)


class UserLock:
    """A lock on one user for one request."""

    def __init__(self, redis: RedisLink, pool: asyncpg.Pool[asyncpg.Record], user_id: str, *, token: str) -> None:
        self._redis = redis
        self._pool = pool
        self._user_id = user_id
        self._token = token
        self._name = key(USER_LOCK, user_id=user_id)
        self._lease: Leases | None = None

    async def acquire(self, seconds: float) -> bool:
        """Take the lock for at most `seconds`; False if another unfinished request holds it.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        try:
            return await self._acquire_in_redis(int(seconds))
        except RedisAwayError:
            return await self._acquire_in_postgres(seconds)

    async def _acquire_in_redis(self, seconds: int) -> bool:
        client = self._redis.require()
        if await self._redis.run(client.set(self._name, self._token, nx=True, ex=seconds)):
            return True
        held = await self._redis.run(client.get(self._name))
        if held is None:  # it ended between the two
            return bool(await self._redis.run(client.set(self._name, self._token, nx=True, ex=seconds)))
        if held == self._token.encode():
            return True
        if not await self._is_over(held.decode("utf-8", "replace")):
            return False
        return bool(await self._redis.run(client.eval(_REPLACE, 1, self._name, held, self._token, seconds)))

    async def _acquire_in_postgres(self, seconds: float) -> bool:
        lease = Leases(LeaseKind.USER_REBUILD, seconds=seconds, owner=self._token, ends_with_session=False)
        async with reading(self._pool) as connection:
            await leases.drop_ended(connection, LeaseKind.USER_REBUILD)
            taken = await lease.take(connection, [self._user_id])
            owner = None if taken else await leases.owner_of(connection, lease.kind, self._user_id)
        if owner is not None and await self._is_over(owner):
            async with reading(self._pool) as connection:
                await leases.drop_of(connection, lease.kind, self._user_id, owner)
                taken = await lease.take(connection, [self._user_id])
        self._lease = lease if taken else None
        return bool(taken)

    async def _is_over(self, token: str) -> bool:
        request = request_of(token)
        if request is None:
            return True
        async with reading(self._pool) as connection:
            return has_ended(request, await connection.fetchval(POSITIONS["position_of"], _GROUP, *request[:2]))

    async def release(self) -> None:
        """Release one's own lock; one that Redis lost, or that expired, needs no release."""
        lease, self._lease = self._lease, None
        try:
            if lease is None:
                await self._redis.run(self._redis.require().eval(_RELEASE, 1, self._name, self._token))
                return
            async with reading(self._pool) as connection:
                await lease.drop(connection)
        except UnavailableError:  # of Redis or of PostgreSQL
            return  # it expires by itself, and blocks nobody once the request has ended
