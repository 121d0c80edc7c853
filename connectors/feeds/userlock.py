"""One rebuild of a user at a time: `lock:user:` in Redis, an advisory lock in PostgreSQL when Redis is away (R0.26).

The lock saves work; what keeps the data right is the version that the rebuild's transaction checks. Its token is the
position of the request, so that a request redelivered after a crash finds its own lock and goes on.
"""

from __future__ import annotations

import asyncpg

from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import AWAY
from highwater.connectors.redis.keys import USER_ENQUEUED, USER_ENQUEUED_SECONDS, USER_LOCK, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.schemas.errors import UnavailableError

_TRY = "SELECT pg_try_advisory_lock($1::int, hashtext($2))"
_FREE = "SELECT pg_advisory_unlock($1::int, hashtext($2))"
# Deletes a key only while it holds the caller's token.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class UserLock:
    """A lock on one user for one request."""

    def __init__(self, redis: RedisLink, pool: asyncpg.Pool[asyncpg.Record], user_id: str, *, token: str) -> None:
        self._redis = redis
        self._pool = pool
        self._user_id = user_id
        self._token = token
        self._names = (key(USER_LOCK, user_id=user_id), key(USER_ENQUEUED, user_id=user_id))
        self._connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record] | None = None

    async def acquire(self, seconds: float) -> bool:
        """Take the lock for at most `seconds`; False when another request holds it."""
        try:
            client = self._redis.require()
            lock, enqueued = self._names
            if not await self._redis.run(client.set(lock, self._token, nx=True, ex=int(seconds))):
                return bool(await self._redis.run(client.get(lock)) == self._token.encode())
            await self._redis.run(client.set(enqueued, self._token, nx=True, ex=USER_ENQUEUED_SECONDS))
        except RedisAwayError:
            return await self._acquire_in_postgres()
        return True

    async def _acquire_in_postgres(self) -> bool:
        try:
            connection = await self._pool.acquire(timeout=5.0)
            try:
                if await connection.fetchval(_TRY, LockClass.USER_REBUILD, self._user_id):
                    self._connection = connection  # the lock lives as long as this session
            finally:
                if self._connection is None:  # also when the server goes away: the pool has few
                    await self._pool.release(connection)
        except AWAY as error:
            raise UnavailableError(f"PostgreSQL is away: {error or type(error).__name__}") from error
        return self._connection is not None

    async def release(self) -> None:
        """Let go of one's own lock; one that Redis lost, or that expired, is gone already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._release_in_postgres(connection)
            return
        try:
            client = self._redis.require()
            for name in self._names:
                await self._redis.run(client.eval(_RELEASE, 1, name, self._token))
        except RedisAwayError:
            return  # it expires by itself

    async def _release_in_postgres(self, connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record]) -> None:
        try:
            await connection.fetchval(_FREE, LockClass.USER_REBUILD, self._user_id)
        except AWAY:
            return  # the session ended, and its lock with it
        finally:
            await self._pool.release(connection)
