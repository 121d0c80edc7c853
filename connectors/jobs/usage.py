"""Usage in PostgreSQL: flushed totals, and the same recomputed from the entries of jobs (R2.37).

Invariant: stored totals only ever increase. Each count is a separate entry, written when its job ended, so recomputing
counts none twice. A flush lags by up to a quarter of an hour: it is compared with the entries up to its own position,
and only a difference there is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import asyncpg

from highwater.connectors.identity import organizations
from highwater.connectors.identity.organizations import Counted
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row, reading, transaction
from highwater.schemas.jobs import UsageFlushed, UsageRecorded
from highwater.streams.clock import to_datetime
from highwater.streams.jobs.usage import month_of

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

# Organizations whose totals are increased in one statement.
_ROWS_MAX = 5_000


class Amounts(NamedTuple):
    """The amounts of usage."""

    presentations: int = 0
    slides: int = 0
    tokens: int = 0
    cost_cents: int = 0

    def raised(self, other: Amounts) -> Amounts:
        """Return the higher of each."""
        return Amounts(*map(max, self, other))


@dataclass(frozen=True, slots=True)
class Usage:
    """An organization and period: as flushed, by its entries, and the sums; times in ms since 1970, None before any.

    `recomputed` are all entries, up to `last_seq`; `recomputed_then` those up to `flushed_seq`, the last one that the
    flush counted.
    """

    organization_id: str
    period: str
    flushed: Amounts
    flushed_seq: int
    recomputed: Amounts
    recomputed_then: Amounts
    summed: Amounts
    last_seq: int

    @property
    def unflushed(self) -> int:
        """Return counts to flush at the next quarter of an hour."""
        return max(0, self.last_seq - self.flushed_seq)

    @property
    def is_behind(self) -> bool:
        """Return whether the flush is below the entries counted before it."""
        return self.flushed.raised(self.recomputed_then) != self.flushed

    @property
    def is_above(self) -> bool:
        """Return whether more was flushed than was counted until then: the database was restored since, or a flush was wrong."""
        return self.flushed.raised(self.recomputed_then) != self.recomputed_then

    @property
    def is_summed(self) -> bool:
        """Return whether the sums that limits are checked against are those of the entries."""
        return self.summed == self.recomputed


def amounts_of(event: UsageRecorded) -> Amounts:
    """Return the amounts of a usage."""
    return Amounts(event["presentations"], event["slides"], event["tokens"], event["cost_cents"])


async def store_flushed(tx: Connection, events: Sequence[UsageFlushed]) -> None:
    """Increase the stored totals to those of `jobs.usage-flushed`."""
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


async def usage_of(pool: Pool, organization_id: str, period: str) -> Counted:
    """Return the usage of an organization in a period (YYYY-MM): its limits are checked against the same number.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with reading(pool) as connection:
        return (await organizations.counted_of(connection, [organization_id], period))[organization_id]


async def recompute_usage(
    pool: Pool, *, organization_id: str | None = None, period: str | None = None, is_stored: bool = False, now_ms: int
) -> list[Usage]:
    """Return recomputed usage beside the flushed totals, in order; the flushed totals can be increased to it.

    Args:
        pool: of PostgreSQL.
        organization_id: only this one.
        period: only this month (YYYY-MM).
        is_stored: whether totals below the entries are increased, including those that wait for their flush.
        now_ms: the current time.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with transaction(pool) as tx:
        if period is not None:
            month_of(period)
        rows = await tx.fetch(QUERIES["usage_recounted"], organization_id, period)
        found = [_usage(row) for row in rows]
        behind = [one for one in found if one.flushed.raised(one.recomputed) != one.flushed] if is_stored else []
        for first in range(0, len(behind), _ROWS_MAX):
            await store_flushed(tx, [_flushed(usage, now_ms) for usage in behind[first : first + _ROWS_MAX]])
    return found


def _flushed(usage: Usage, now_ms: int) -> UsageFlushed:
    presentations, slides, tokens, cost_cents = usage.flushed.raised(usage.recomputed)
    return {
        "organization_id": usage.organization_id,
        "period": usage.period,
        "upto_seq": max(usage.last_seq, usage.flushed_seq),
        "presentations": presentations,
        "slides": slides,
        "tokens": tokens,
        "cost_cents": cost_cents,
        "at": now_ms,
    }


def _usage(row: Row) -> Usage:
    def amounts(prefix: str) -> Amounts:
        return Amounts(*(row[f"{prefix}{name}"] for name in Amounts._fields))

    return Usage(
        organization_id=row["organization_id"],
        period=row["period"],
        flushed=amounts("flushed_"),
        flushed_seq=row["flushed_seq"],
        recomputed=amounts(""),
        recomputed_then=amounts("then_"),
        summed=amounts("summed_"),
        last_seq=row["last_seq"],
    )
