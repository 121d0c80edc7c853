"""The agents of chunks: one decides how ingests end, the other how often namespaces are searched and when to sweep.

Invariant: that of `streams/agents.py`: send, await the acknowledgements, then write the rows. An event that is repeated
after a crash has the revision, or the tick, of its decision, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from highwater.schemas.chunks import (
    INGEST_DECIDED,
    INGEST_PROGRESSED,
    NAMESPACE_RATED,
    QUERIES_SERVED,
    SWEEP_REQUESTED,
    IngestProgressed,
    QueriesServed,
    SweepRequested,
)
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.streams import TICK, Tick
from highwater.streams.agents import ROWS_PER_TURN, TableAgent, Wiring, items_of, on
from highwater.streams.chunks import completion, temperature
from highwater.streams.chunks.completion import Decision, Ingest
from highwater.streams.chunks.passports import Passports
from highwater.streams.chunks.temperature import HOUR_MS, NamespaceSearches, Rating
from highwater.streams.due import DueIndex
from highwater.streams.intake import Intake, Record, position_of
from highwater.streams.telemetry import DECISIONS

# Rows checked in one partition at one tick; at about 50 us each a tenth of a second. The remaining rows come first at
# the next tick.
ROWS_PER_TICK_MAX = 2_000
# One of the tick's partitions requests sweeps, whichever worker has it.
_SWEEP_PARTITION = 0


class IngestAgent(TableAgent):
    """Keeps rows of ingests and sources; reports an outcome when the counts are complete, or after a long silence (R3.20)."""

    name = "ingests"
    topics = (INGEST_PROGRESSED, TICK)
    shared_topics = (TICK,)

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self.handlers = dict((on(INGEST_PROGRESSED, self._on_progressed), on(TICK, self._on_tick)))

    async def _on_progressed(self, event: IngestProgressed, record: Record) -> None:
        key = completion.row_key(completion.source_key(event), event["ingest_id"])
        row = completion.progressed(completion.decode_row(self._rows.get(key)), event)
        decision = completion.decide(row, event["at"])
        if decision is not None:
            await self._tell([(row, decision)], record, event["at"])
            row = completion.decided(row, event["at"])
        # Written even if nothing changed: a redelivery may come because the changelog lost the first write.
        self._keep(row, record.partition)

    async def _on_tick(self, tick: Tick, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            await self._look(tick["now"], record)
        self._applied(tick, record, is_admitted=is_admitted)

    async def _look(self, now_ms: int, record: Record) -> None:
        keys = self._index(record.partition).take(now_ms, ROWS_PER_TICK_MAX)
        rows = [row for key in keys if (row := completion.decode_row(self._rows.get(key.encode()))) is not None]
        plan = completion.plan_tick(rows, now_ms)
        await self._tell(plan.told, record, now_ms)
        kept = [*(completion.decided(row, now_ms) for row, _ in plan.told), *plan.left]
        for number, row in enumerate(kept, start=1):
            self._keep(row, record.partition)
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        for row in plan.forgotten:
            self._rows.pop(row.row_key, None)

    async def _tell(self, decisions: Sequence[tuple[Ingest, Decision]], record: Record, now_ms: int) -> None:
        """Send decisions and wait until the broker has them."""
        cause = position_of(record)
        acks = [
            await self._send(INGEST_DECIDED, row.key, completion.decided_event(row, decision, now_ms), cause, now_ms)
            for row, decision in decisions
        ]
        await asyncio.gather(*acks)
        DECISIONS.labels("ingest-decided").inc(len(decisions))

    def _keep(self, row: Ingest, partition: int) -> None:
        self._rows[row.row_key] = completion.encode_row(row)
        self._index(partition).put(row.row_key.decode(), row.due_ms)

    def _derive_index(self, partition: int) -> DueIndex:
        index = DueIndex()
        for _, data in items_of(self._rows, partition):
            row = completion.decode_row(data)
            if row is not None:
                index.put(row.row_key.decode(), row.due_ms)
        return index


class NamespaceAgent(TableAgent):
    """Rows of namespaces, rated when a tick crosses a full hour (UTC), when a sweep is also requested (R3.21 to R3.23)."""

    name = "namespaces"
    topics = (QUERIES_SERVED, TICK)
    shared_topics = (TICK,)

    def __init__(self, passports: Passports, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self._passports = passports
        self.handlers = dict((on(QUERIES_SERVED, self._on_served), on(TICK, self._on_tick)))

    async def _on_served(self, event: QueriesServed, record: Record) -> None:
        held = temperature.decode_row(self._rows.get(event["ns"].encode()))
        newest_ms = self._newest_now(record.partition)
        # Written even if nothing changed: a redelivery may come because the changelog lost the first write.
        self._keep(temperature.count(held, event, (record.partition, record.offset), newest_ms), record.partition)

    async def _on_tick(self, tick: Tick, record: Record) -> None:
        is_admitted = self._admit(tick, record)
        if is_admitted:
            if record.partition == _SWEEP_PARTITION and temperature.is_sweep_due(self._last_tick().now, tick["now"]):
                await self._request_sweep(tick["now"], record)
            await self._rate(tick["now"], record)
        self._applied(tick, record, is_admitted=is_admitted)

    async def _request_sweep(self, now_ms: int, record: Record) -> None:
        sweep: SweepRequested = {"sweep": iso_from_ms(now_ms // HOUR_MS * HOUR_MS), "now": now_ms}
        await (await self._send(SWEEP_REQUESTED, sweep["sweep"], sweep, position_of(record), now_ms))
        DECISIONS.labels("sweep-requested").inc()

    async def _rate(self, now_ms: int, record: Record) -> None:
        keys = self._index(record.partition).take(now_ms, ROWS_PER_TICK_MAX)
        rows = [row for key in keys if (row := temperature.decode_row(self._rows.get(key.encode()))) is not None]
        ratings = [temperature.rate(row, self._passports.of(row.ns), now_ms) for row in rows]
        cause = position_of(record)
        acks = [
            await self._send(NAMESPACE_RATED, row.ns, temperature.rated_event(row, now_ms), cause, now_ms)
            for row, is_told in ratings
            if is_told
        ]
        await asyncio.gather(*acks)
        DECISIONS.labels("namespace-rated").inc(len(acks))
        await self._note(ratings, record.partition)

    def _corrected(self, row: bytes, now: int) -> bytes | None:
        held = temperature.decode_row(row)
        if held is None or max(held.looked_ms, held.told_ms) <= now:
            return None
        return temperature.encode_row(replace(held, looked_ms=min(held.looked_ms, now), told_ms=min(held.told_ms, now)))

    async def _note(self, ratings: Sequence[Rating], partition: int) -> None:
        for number, rating in enumerate(ratings, start=1):
            if rating.is_over:
                self._rows.pop(rating.row.ns.encode(), None)
            else:
                self._keep(rating.row, partition)
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _keep(self, row: NamespaceSearches, partition: int) -> None:
        self._rows[row.ns.encode()] = temperature.encode_row(row)
        self._index(partition).put(row.ns, row.due_ms)

    def _derive_index(self, partition: int) -> DueIndex:
        index = DueIndex()
        for _, data in items_of(self._rows, partition):
            row = temperature.decode_row(data)
            if row is not None:
                index.put(row.ns, row.due_ms)
        return index
