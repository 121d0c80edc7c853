"""The usage agent: it keeps the totals of each organization and month, and publishes changed ones every quarter of an
hour.

The invariant is that of `streams/agents.py`: send, await the acknowledgements, then write the rows. Totals are
absolute, so an event that is repeated after a crash changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from highwater.schemas.jobs import USAGE_FLUSHED, USAGE_RECORDED, UsageRecorded
from highwater.schemas.streams import TICK, Tick
from highwater.streams.agents import ROWS_PER_TURN, TableAgent, Wiring, items_of, on
from highwater.streams.due import DueIndex
from highwater.streams.intake import Intake, Record, position_of
from highwater.streams.jobs.usage import (
    Totals,
    count,
    decode_row,
    encode_row,
    flushed,
    flushed_event,
    plan_flush,
    row_key,
)
from highwater.streams.telemetry import DECISIONS

# Rows published per partition and tick: all organizations with usage fall due together. At about 50 us each that is a
# tenth of a second; remaining rows come first at the next tick.
ROWS_PER_TICK_MAX = 2_000


class UsageAgent(TableAgent):
    """Keeps rows of organizations and periods; a tick that begins a quarter of an hour publishes changed ones (R2.37)."""

    name = "usage"
    topics = (USAGE_RECORDED, TICK)
    shared_topics = (TICK,)

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self.handlers = dict((on(USAGE_RECORDED, self._on_recorded), on(TICK, self._on_tick)))

    async def _on_recorded(self, event: UsageRecorded, record: Record) -> None:
        held = decode_row(self._rows.get(row_key(event["organization_id"], event["period"])))
        row = count(held, event, self._newest_now(record.partition))
        # Written even if nothing changed: this may be a redelivery because the changelog lost the first write.
        self._rows[row.key] = encode_row(row)
        self._schedule(row, record.partition)

    async def _on_tick(self, tick: Tick, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            await self._flush(tick, record)
        self._applied(tick, record, is_admitted=is_admitted)

    async def _flush(self, tick: Tick, record: Record) -> None:
        now_ms = tick["now"]
        keys = self._index(record.partition).take(now_ms, ROWS_PER_TICK_MAX)
        rows = [row for key in keys if (row := decode_row(self._rows.get(key.encode()))) is not None]
        told, left = plan_flush(rows, now_ms)
        cause = position_of(record)
        acks = [
            await self._send(USAGE_FLUSHED, row.organization_id, flushed_event(row, now_ms), cause, now_ms)
            for row in told
        ]
        await asyncio.gather(*acks)
        DECISIONS.labels("usage-flush").inc(len(told))
        await self._note(told, left, record.partition)

    async def _note(self, totals: Iterable[Totals], left: Iterable[Totals], partition: int) -> None:
        """Write the published rows, and schedule a check of the waiting ones."""
        for number, row in enumerate(totals, start=1):
            self._rows[row.key] = encode_row(flushed(row))
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        for row in left:
            self._schedule(row, partition)

    def _schedule(self, row: Totals, partition: int) -> None:
        index, key, due_ms = self._index(partition), row.key.decode(), row.due_ms
        if due_ms is None:
            index.drop(key)
        else:
            index.put(key, due_ms)

    def _corrected(self, row: bytes, now: int) -> bytes | None:
        held = decode_row(row)
        if held is None or held.since_ms is None or held.since_ms <= now:
            return None
        return encode_row(replace(held, since_ms=now))

    def _derive_index(self, partition: int) -> DueIndex:
        index = DueIndex()
        for _, data in items_of(self._rows, partition):
            row = decode_row(data)
            if row is not None and row.due_ms is not None:
                index.put(row.key.decode(), row.due_ms)
        return index
