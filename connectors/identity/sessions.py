"""Sessions in Redis (R2.4 to R2.10), and their revocation, which PostgreSQL also stores.

Invariants. One request with a session is one write that also reads it, without PostgreSQL (R2.5); a stored time
decides, a TTL only collects garbage. A session created at or before its user's `revoked_at` is void, so one created
between the reading of the set and its deletion does not survive (R2.10). A revocation is acknowledged only once Redis
has it; if Redis is unavailable it is written to PostgreSQL first and copied to Redis before sessions are accepted
again. Redis knows a token only by its hash, in names, values and lists: reading its memory or its file reveals no
session. Each script touches one key, so that it runs on Redis Cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg

from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, one_row, transaction
from highwater.connectors.redis.keys import REVOKED_AT, SESSION, SESSION_SECONDS, USER_SESSIONS, key
from highwater.connectors.redis.link import RedisLink
from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from highwater.streams.clock import to_datetime, to_ms

PREFIX = "hws_"
_TOKEN_BYTES = 32  # 256 random bits: cannot be guessed and do not collide
_SESSION_MS = SESSION_SECONDS * 1000

# Renews and reads a session in one step; the write does not recreate a session that has ended.
_TOUCH = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local fields = redis.call('HGETALL', KEYS[1])
redis.call('HSET', KEYS[1], 'last_active', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return fields
"""
# A later revocation is never undone by an earlier one that arrives after it.
_RAISE = """
local held = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) > held then redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2]) end
return 1
"""


@dataclass(frozen=True, slots=True)
class Session:
    """One session, its times in milliseconds; `token_hash` names it where its token must not appear."""

    token_hash: str
    user_id: str
    role: str
    organization_id: str
    email: str
    plan: str
    created_at: int
    last_active: int
    ip: str


@dataclass(frozen=True, slots=True)
class NewSession:
    """The data of a new session."""

    user_id: str
    organization_id: str
    email: str
    plan: str
    ip: str


class SessionStore:
    """Creates, reads and revokes sessions."""

    def __init__(self, link: RedisLink, pool: Callable[[], asyncpg.Pool[asyncpg.Record]]) -> None:
        """`pool` returns PostgreSQL, or raises `UnavailableError`; it is called only after Redis recovered."""
        self._link = link
        self._pool = pool
        self._carried_over_in = -1  # generation of the link whose Redis has every revocation
        self._carrying_over = asyncio.Lock()
        self._touch = link.script(_TOUCH)
        self._raise = link.script(_RAISE)

    async def read(self, token: str, now_ms: int) -> Session | None:
        """Return the session of this token, renewed; None if it is unknown, expired or revoked.

        Raises:
            RedisAwayError: sessions are stored only in Redis.
        """
        self._link.require()
        await self.carry_over(now_ms)
        args = [iso_from_ms(now_ms), SESSION_SECONDS]
        hashed = token_hash(token)
        fields = await self._link.run(self._touch(keys=[key(SESSION, session_id=hashed)], args=args))
        if not fields:
            return None
        pairs = zip(fields[::2], fields[1::2], strict=True)
        session = _session(hashed, {name.decode(): value.decode() for name, value in pairs})
        revoked_at = await self._revoked_at(session.user_id)
        while self._carried_over_in != self._link.generation:  # another node took over meanwhile that may not know it
            await self.carry_over(now_ms)
            revoked_at = await self._revoked_at(session.user_id)
        if session.created_at <= revoked_at or now_ms - session.last_active >= _SESSION_MS:
            await self.delete(session)
            return None
        return session

    async def _revoked_at(self, user_id: str) -> int:
        """Return when the sessions of a user were last revoked, 0: never; the list of sessions is kept."""
        pipeline = self._link.require().pipeline(transaction=False)
        pipeline.get(key(REVOKED_AT, user_id=user_id))
        pipeline.expire(key(USER_SESSIONS, user_id=user_id), SESSION_SECONDS)
        revoked_at, _ = await self._link.run(pipeline.execute())
        return int(revoked_at or 0)

    async def peek(self, token: str) -> Session | None:
        """Return the session of this token without renewing it."""
        client = self._link.require()
        hashed = token_hash(token)
        fields = await self._link.run(client.hgetall(key(SESSION, session_id=hashed)))
        if not fields:
            return None
        return _session(hashed, {name.decode(): value.decode() for name, value in fields.items()})

    async def delete(self, session: Session) -> None:
        """End one session (R2.7)."""
        client = self._link.require()
        await self._link.run(client.delete(key(SESSION, session_id=session.token_hash)))
        await self._link.run(client.srem(key(USER_SESSIONS, user_id=session.user_id), session.token_hash))

    async def create(self, tx: Connection, new: NewSession, role: str, now_ms: int) -> tuple[str, Session]:
        """Create a session and its token; `tx` holds the user's session lock shared, and `role` was read under it.

        Raises:
            RedisAwayError: sessions are stored only in Redis.
        """
        client = self._link.require()
        rules = await one_row(tx, QUERIES["read_session_rules"], new.user_id)
        revoked_ms = 0 if rules["revoked_at"] is None else to_ms(rules["revoked_at"])
        # If our clock is behind the one that revoked, the new session must not be void from the start.
        created_at = max(now_ms, revoked_ms + 1)
        token = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        hashed = token_hash(token)
        times = {"created_at": iso_from_ms(created_at), "last_active": iso_from_ms(now_ms)}
        fields = {
            "user_id": new.user_id,
            "organization_id": new.organization_id,
            "role": role,
            "email": new.email,
            "plan": new.plan,
            "ip": new.ip,
            **times,
        }
        name, user_set = key(SESSION, session_id=hashed), key(USER_SESSIONS, user_id=new.user_id)
        # The set first, and separately: a session that is not on the list would escape revocation, and cluster nodes
        # execute their parts of a pipeline concurrently.
        listing = client.pipeline(transaction=False)
        listing.sadd(user_set, hashed)
        listing.expire(user_set, SESSION_SECONDS)
        await self._link.run(listing.execute())
        storing = client.pipeline(transaction=False)
        storing.hset(name, mapping=fields)
        storing.expire(name, SESSION_SECONDS)
        await self._link.run(storing.execute())
        return token, _session(hashed, fields)

    async def revoke_all(self, user_id: str, revoked_ms: int) -> int:
        """End every session of a user in Redis; return their number (R2.8).

        Raises:
            RedisAwayError: Redis does not have it yet.
        """
        client = self._link.require()
        user_set = key(USER_SESSIONS, user_id=user_id)
        await self.mark_revoked(user_id, revoked_ms)
        members = await self._link.run(client.smembers(user_set))
        if not members:
            return 0
        pipeline = client.pipeline(transaction=False)
        for member in members:
            pipeline.delete(key(SESSION, session_id=member.decode()))
        ended = await self._link.run(pipeline.execute())
        # After them, and only those that were read: one that a later session adds meanwhile stays on the list.
        await self._link.run(client.srem(user_set, *members))
        return sum(ended)

    async def mark_revoked(self, user_id: str, revoked_ms: int) -> None:
        """Void the sessions that a user had up to a time; they are deleted when they are next read.

        Raises:
            RedisAwayError: Redis does not have it yet.
        """
        self._link.require()
        await self._link.run(self._raise(keys=[key(REVOKED_AT, user_id=user_id)], args=[revoked_ms, SESSION_SECONDS]))

    async def carry_over(self, now_ms: int) -> None:
        """Copy every revocation that could still matter to Redis, once after Redis became available.

        Raises:
            UnavailableError: Redis is unavailable again, or PostgreSQL is, so that void sessions are unknown.
        """
        if self._carried_over_in == self._link.generation:
            return
        async with self._carrying_over:
            generation = self._link.generation
            if self._carried_over_in == generation:
                return
            self._link.require()
            async with transaction(self._pool()) as tx:
                rows = await tx.fetch(QUERIES["read_revocations_since"], to_datetime(max(0, now_ms - _SESSION_MS)))
            for row in rows:
                await self.mark_revoked(row["user_id"], to_ms(row["revoked_at"]))
            self._carried_over_in = generation


def token_hash(token: str) -> str:
    """Return the hash that stands for a token in Redis. A slow hash would add nothing: 256 random bits cannot be guessed."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _session(hashed: str, fields: dict[str, str]) -> Session:
    return Session(
        token_hash=hashed,
        user_id=fields["user_id"],
        role=fields["role"],
        organization_id=fields.get("organization_id", ""),
        email=fields.get("email", ""),
        plan=fields.get("plan", "free"),
        created_at=ms_from_iso(fields["created_at"]),
        last_active=ms_from_iso(fields["last_active"]),
        ip=fields.get("ip", ""),
    )
