"""Organizations: their plans, their usage of a month, and the copy of their limits in Redis.

Invariants. The latest event about an organization in the order of the broker's time counts, whichever process stores it.
Decisions on its jobs and changes of its plan are serialized, so that no two jobs both pass as the last one of a month.
A copy in Redis is never older than the row was when the copy began: a process that changes the row deletes the copy after the
commit, and with it the permission to store one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import asyncpg
import orjson

from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.kafka.records import Event
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, Row, reading
from highwater.connectors.redis.keys import PLAN_LIMITS, PLAN_LIMITS_SECONDS, key
from highwater.connectors.redis.link import RedisAwayError, RedisLink
from highwater.schemas.envelope import iso_from_ms, ms_from_iso
from highwater.schemas.jobs import PlanChanged
from highwater.schemas.positions import Cause
from highwater.streams.clock import fresh_id, to_datetime, to_ms_or_none
from highwater.streams.identity.plans import (
    FALLBACK_PLAN,
    FEATURES,
    PLANS,
    UNLIMITED,
    Plan,
    Subscription,
    Usage,
    plan_of,
)
from highwater.streams.jobs.jobs import period_of

# Number of locks that organizations share: a batch takes few, and two organizations rarely wait for each other.
_BUCKETS = 64
# Reading one row takes milliseconds; a reader that has not finished by then stores nothing.
_LOADING_SECONDS = 10

# Stores the limits only while the reader's permission exists: deleting the key revokes it.
_STORE = """
if redis.call('HGET', KEYS[1], 'loading') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class Organization:
    """The limits of an organization; times in ms since 1970. Unknown organizations are on the free plan."""

    organization_id: str
    plan: Plan
    status: str = Subscription.ACTIVE
    period_end_ms: int | None = None


class PlanWord(NamedTuple):
    """A change of an organization's plan; None keeps the earlier value."""

    plan: str
    status: str | None
    period_end_ms: int | None
    cause: Cause


def plan_word(event: Event[PlanChanged]) -> tuple[str, PlanWord]:
    """Return the organization of a plan event, and the change."""
    record, value = event
    cause = Cause(record.arrived_ms, str(record.position))
    return value["organization_id"], PlanWord(value["plan"], value["subscription_status"], value["period_end"], cause)


async def lock(tx: Connection, organization_ids: Collection[str]) -> None:
    """Lock these organizations until the transaction ends."""
    buckets = sorted({zlib.crc32(one.encode()) % _BUCKETS for one in organization_ids})
    await tx.execute(QUERIES["lock_organizations"], LockClass.ORGANIZATIONS, buckets)


async def store_words(tx: Connection, words: Sequence[tuple[str, PlanWord]], now_ms: int) -> None:
    """Store changes that are newer than the stored state."""
    names = sorted({name for name, _ in words})
    await lock(tx, names)
    rows = {row["organization_id"]: row for row in await tx.fetch(QUERIES["organizations_of"], names)}
    held = {name: _held_word(rows[name]) for name in rows}
    changed = set()
    for name, word in sorted(words, key=lambda said: said[1].cause.order):
        before = held.get(name)
        if before is None:
            held[name] = word._replace(status=word.status or Subscription.ACTIVE)
        elif word.cause.order > before.cause.order:
            status = word.status or before.status
            end_ms = before.period_end_ms if word.period_end_ms is None else word.period_end_ms
            held[name] = word._replace(status=status, period_end_ms=end_ms)
        else:
            continue
        changed.add(name)
    if changed:
        stored = [_columns(name, held[name]) for name in sorted(changed)]
        await tx.execute(QUERIES["store_organizations"], *map(list, zip(*stored, strict=True)), to_datetime(now_ms))


def _held_word(row: Row) -> PlanWord:
    cause = Cause(row["arrived_ms"], row["position"])
    return PlanWord(row["plan"], row["subscription_status"], to_ms_or_none(row["period_end"]), cause)


def _columns(name: str, word: PlanWord) -> tuple[Any, ...]:
    end = None if word.period_end_ms is None else to_datetime(word.period_end_ms)
    return name, word.plan, word.status, end, word.cause.arrived_ms, word.cause.position


async def organizations_of(
    tx: Connection, organization_ids: Collection[str], plans: Mapping[str, Plan]
) -> dict[str, Organization]:
    """Return these organizations as stored."""
    names = sorted(set(organization_ids))
    rows = {row["organization_id"]: row for row in await tx.fetch(QUERIES["organizations_of"], names)}
    return {name: _organization(name, rows.get(name), plans) for name in names}


async def stored_plan_name(tx: Connection, organization_id: str) -> str:
    """Return the plan for sessions of this organization; the lowest one without an organization."""
    if not organization_id:
        return FALLBACK_PLAN
    return (await organizations_of(tx, [organization_id], PLANS))[organization_id].plan.name


def _organization(name: str, row: Row | None, plans: Mapping[str, Plan]) -> Organization:
    if row is None:
        return Organization(name, plan_of(FALLBACK_PLAN, plans))
    return Organization(name, plan_of(row["plan"], plans), row["subscription_status"], to_ms_or_none(row["period_end"]))


class Counted(NamedTuple):
    """The counted usage of an organization in a month; the one number for limits and for every reader.

    `upto_seq` and `upto_ms`: the last count included. `being_made`: decks that have not ended, and are not counted yet.
    `built_in_tokens`: those of `tokens` that the built-in model read and wrote.
    """

    presentations: int = 0
    slides: int = 0
    tokens: int = 0
    cost_cents: int = 0
    upto_seq: int = 0
    upto_ms: int | None = None
    being_made: int = 0
    built_in_tokens: int = 0

    @property
    def limited_tokens(self) -> int:
        """Return the tokens that `ai_tokens_per_month` limits: those of services."""
        return self.tokens - self.built_in_tokens


async def counted_of(tx: Connection, organization_ids: Collection[str], period: str) -> dict[str, Counted]:
    """Return the usage of these organizations in a month (YYYY-MM)."""
    rows = await tx.fetch(QUERIES["usage_of_month"], sorted(set(organization_ids)), period)
    return {
        row["organization_id"]: Counted(
            row["presentations"],
            row["slides"],
            row["tokens"],
            row["cost_cents"],
            row["upto_seq"],
            to_ms_or_none(row["upto"]),
            row["being_made"],
            row["built_in_tokens"],
        )
        for row in rows
    }


async def usages_of(tx: Connection, organization_ids: Collection[str], now_ms: int) -> dict[str, Usage]:
    """Return the usage of these organizations in the month of `now_ms`, with the decks in progress."""
    found = await counted_of(tx, organization_ids, period_of(now_ms))
    return {name: Usage(one.presentations + one.being_made, one.limited_tokens) for name, one in found.items()}


async def sizes_of(tx: Connection, documents: Collection[str]) -> dict[str, int]:
    """Return the sizes in bytes of the stored ones among these documents."""
    rows = await tx.fetch(QUERIES["sizes_of_blobs"], sorted(set(documents))) if documents else []
    return {row["sha256"]: row["size_bytes"] for row in rows}


class Organizations:
    """Reads the limits of organizations: one HGETALL, and from PostgreSQL only what Redis does not hold (R2.33)."""

    def __init__(
        self,
        link: RedisLink,
        pool: Callable[[], asyncpg.Pool[asyncpg.Record]],
        plans: Mapping[str, Plan],
    ) -> None:
        """`pool` returns PostgreSQL, or raises `UnavailableError`; it is called only if Redis has no copy."""
        self._link = link
        self._pool = pool
        self.plans = plans
        self._store = link.script(_STORE)

    async def read_limits(self, organization_id: str) -> Organization:
        """Return the limits of an organization.

        Raises:
            UnavailableError: neither Redis nor PostgreSQL answers.
        """
        leave = fresh_id()
        try:
            found = await self._of_redis(organization_id, leave)
        except RedisAwayError:
            return await self._of_postgres(organization_id)
        return found if found is not None else await self._reloaded(organization_id, leave)

    async def forget(self, organization_id: str) -> None:
        """Delete the copy after a change was committed (R2.34).

        Raises:
            RedisAwayError: it may still exist.
        """
        await self._link.run(self._link.require().delete(key(PLAN_LIMITS, organization_id=organization_id)))

    async def usage(self, organization_id: str, documents: Collection[str], now_ms: int) -> Usage:
        """Return the usage of an organization in this month, and the size of the largest of these documents."""
        async with reading(self._pool()) as connection:
            used = (await usages_of(connection, [organization_id], now_ms))[organization_id]
            sizes = await sizes_of(connection, documents)
        return Usage(used.presentations, used.tokens, file_bytes=max(sizes.values(), default=0))

    async def _of_redis(self, organization_id: str, leave: str) -> Organization | None:
        """Return the copy; None if there is none, and then take the permission to store one."""
        client, name = self._link.require(), key(PLAN_LIMITS, organization_id=organization_id)
        fields = {k.decode(): v.decode() for k, v in (await self._link.run(client.hgetall(name))).items()}
        if "plan_name" in fields:
            return organization_of_fields(organization_id, fields)
        pipeline = client.pipeline(transaction=False)
        pipeline.hset(name, "loading", leave)
        pipeline.expire(name, _LOADING_SECONDS)
        await self._link.run(pipeline.execute())
        return None

    async def _of_postgres(self, organization_id: str) -> Organization:
        async with reading(self._pool()) as connection:
            found = await organizations_of(connection, [organization_id], self.plans)
        return found[organization_id]

    async def _reloaded(self, organization_id: str, leave: str) -> Organization:
        found = await self._of_postgres(organization_id)
        fields = [part for pair in fields_of(found).items() for part in pair]
        args = [leave, PLAN_LIMITS_SECONDS, *fields]
        try:
            await self._link.run(self._store(keys=[key(PLAN_LIMITS, organization_id=organization_id)], args=args))
        except RedisAwayError:
            return found  # the link reports it once; an unstored copy is read again
        return found


def fields_of(found: Organization) -> dict[str, str]:
    """Return the fields of `plan_limits` (R2.32), all of them text."""
    plan = found.plan
    return {
        "plan_name": plan.name,
        "max_presentations_per_month": _limit_text(plan.max_presentations_per_month),
        "ai_tokens_per_month": _limit_text(plan.ai_tokens_per_month),
        "max_file_size_mb": str(plan.max_file_size_mb),
        "storage_gb": str(plan.storage_gb),
        "requests_per_minute": str(plan.requests_per_minute),
        "features": orjson.dumps({name: name in plan.features for name in FEATURES}).decode(),
        "subscription_status": found.status,
        "period_end": "" if found.period_end_ms is None else iso_from_ms(found.period_end_ms),
    }


def organization_of_fields(organization_id: str, fields: Mapping[str, str]) -> Organization:
    """Return the organization that the fields of `plan_limits` describe."""
    plan = Plan(
        name=fields["plan_name"],
        max_presentations_per_month=_limit_of(fields["max_presentations_per_month"]),
        ai_tokens_per_month=_limit_of(fields["ai_tokens_per_month"]),
        max_file_size_mb=int(fields["max_file_size_mb"]),
        storage_gb=int(fields["storage_gb"]),
        requests_per_minute=int(fields["requests_per_minute"]),
        features=tuple(name for name, is_on in orjson.loads(fields["features"]).items() if is_on),
    )
    end = fields["period_end"]
    return Organization(organization_id, plan, fields["subscription_status"], ms_from_iso(end) if end else None)


def _limit_text(limit: int | None) -> str:
    return UNLIMITED if limit is None else str(limit)


def _limit_of(text: str) -> int | None:
    return None if text == UNLIMITED else int(text)
