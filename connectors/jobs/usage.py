"""Usage as PostgreSQL holds it: flushed totals, and the same counted anew from the jobs (R2.37).

Law: stored totals are only ever raised. The jobs are the truth, one row a job, so counting them again never counts one twice;
whoever reads takes the higher of the two, since a flush may lag by a quarter of an hour and jobs may have been erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

import asyncpg

from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row, reading, transaction
from highwater.schemas.jobs import UsageFlushed, UsageRecorded
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.jobs.usage import month_of

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

# Organizations whose totals are raised in one statement.
_ROWS_MAX = 5_000


class Amounts(NamedTuple):
    """What was used."""

    presentations: int = 0
    slides: int = 0
    tokens: int = 0
    cost_cents: int = 0

    def raised(self, other: Amounts) -> Amounts:
        """The higher of each."""
        return Amounts(*map(max, self, other))


@dataclass(frozen=True, slots=True)
class Usage:
    """An organization and period: as flushed, and as its jobs say; times in ms since 1970, None before any.

    `upto_seq` is the number of the last usage in the amounts.
    """

    organization_id: str
    period: str
    flushed: Amounts
    recomputed: Amounts
    upto_seq: int
    flushed_ms: int | None
    last_ms: int | None

    @property
    def amounts(self) -> Amounts:
        """What was used: nothing that was flushed is ever taken back."""
        return self.flushed.raised(self.recomputed)

    @property
    def upto_ms(self) -> int | None:
        """Up to when usage is in the amounts."""
        return max((ms for ms in (self.flushed_ms, self.last_ms) if ms is not None), default=None)

    @property
    def is_behind(self) -> bool:
        """Whether the jobs say more than was flushed."""
        return self.amounts != self.flushed

    @property
    def is_above(self) -> bool:
        """Whether more was flushed than the jobs say: some were erased, or a flush was wrong."""
        return self.amounts != self.recomputed


def amounts_of(event: UsageRecorded) -> Amounts:
    """What a usage adds."""
    return Amounts(event["presentations"], event["slides"], event["tokens"], event["cost_cents"])


async def store_flushed(tx: Connection, events: Sequence[UsageFlushed]) -> None:
    """Raise the stored totals to those that `jobs.usage-flushed` tells."""
    merged: dict[tuple[str, str], list[int]] = {}
    for event in events:
        told = [
            event["presentations"],
            event["slides"],
            event["tokens"],
            event["cost_cents"],
            event["upto_seq"],
            event["at"],
        ]
        key = (event["organization_id"], event["period"])
        merged[key] = [*map(max, merged.get(key, told), told)]
    rows = [(*key, *totals[:-1], to_datetime(totals[-1])) for key, totals in merged.items()]
    if rows:
        await tx.execute(QUERIES["raise_usage"], *map(list, zip(*rows, strict=True)))


async def usage_of(pool: Pool, organization_id: str, period: str) -> Usage:
    """What an organization used in a period (YYYY-MM).

    Raises:
        UnavailableError: PostgreSQL is away.
    """
    async with reading(pool) as connection:
        found = await _usages(connection, organization_id, period)
    return found[0] if found else Usage(organization_id, period, Amounts(), Amounts(), 0, None, None)


async def recompute_usage(
    pool: Pool, *, organization_id: str | None = None, period: str | None = None, is_stored: bool = False, now_ms: int
) -> list[Usage]:
    """Usage counted anew from the jobs beside what was flushed, in order; those that differ can be raised.

    Args:
        pool: of PostgreSQL.
        organization_id: of this one only.
        period: of this month only (YYYY-MM).
        is_stored: whether totals below what the jobs say are raised.
        now_ms: when.

    Raises:
        UnavailableError: PostgreSQL is away.
    """
    async with transaction(pool) as tx:
        found = await _usages(tx, organization_id, period)
        behind = [usage for usage in found if usage.is_behind] if is_stored else []
        for first in range(0, len(behind), _ROWS_MAX):
            await store_flushed(tx, [_flushed(usage, now_ms) for usage in behind[first : first + _ROWS_MAX]])
    return found


def _flushed(usage: Usage, now_ms: int) -> UsageFlushed:
    presentations, slides, tokens, cost_cents = usage.amounts
    return {
        "organization_id": usage.organization_id,
        "period": usage.period,
        "upto_seq": usage.upto_seq,
        "presentations": presentations,
        "slides": slides,
        "tokens": tokens,
        "cost_cents": cost_cents,
        "at": now_ms,
    }


async def _usages(connection: Connection, organization_id: str | None, period: str | None) -> list[Usage]:
    first, last = (None, None) if period is None else month_of(period)
    rows = await connection.fetch(QUERIES["usage_of_jobs"], organization_id, period, _moment(first), _moment(last))
    return [_usage(row) for row in rows]


def _moment(month: tuple[int, int] | None) -> datetime | None:
    return None if month is None else datetime(*month, 1, tzinfo=UTC)


def _usage(row: Row) -> Usage:
    return Usage(
        organization_id=row["organization_id"],
        period=row["period"],
        flushed=Amounts(*(row[f"flushed_{name}"] for name in Amounts._fields)),
        recomputed=Amounts(*(row[name] for name in Amounts._fields)),
        upto_seq=row["upto_seq"],
        flushed_ms=None if row["flushed_at"] is None else to_ms(row["flushed_at"]),
        last_ms=None if row["last_at"] is None else to_ms(row["last_at"]),
    )
