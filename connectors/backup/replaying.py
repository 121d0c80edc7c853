"""Runs the sinks during a restore, from the restored positions to the log's ends: read models and erasures are current
before any role decides.

Invariant: a sink's effects and positions are one transaction. An event that the log already has is removed from the
outbox again; one that the lost database had not published remains, and is published when the outbox runs.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

import orjson

from highwater.connectors.backup.manifest import BackupError
from highwater.connectors.backup.recorded import RecordedResults
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.identity import organizations
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.records import DeadLetter, Event, Record, dead_letter_row
from highwater.connectors.postgres.pool import Connection, Row, is_of_the_store, transaction
from highwater.connectors.slices import SLICES
from highwater.connectors.verify.log import ReadLog, decoded, in_slices
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.connectors.wiring import Wiring
from highwater.schemas.cache import VERSION_BUMPED
from highwater.schemas.envelope import caused_by
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.jobs import PLAN_CHANGED, PlanChanged
from highwater.streams.jobs.validation import check_jobs_event
from highwater.streams.settings import Settings

# The sinks of events from outside; each topic belongs to one of them. The others read the log's own decisions, and
# continue from the restored positions when they start: repeating them changes nothing. Erasures void earlier events,
# whenever those are read, and results and votes wait for schedules: after these sinks no order between topics matters.
FIRST = ("fixtures", "users")
NEXT = ("insights", "results", "votes", "posts", "queries", "jobs", "jobcontrols", "usage", "chunks")
# They depend on the outcome of runs and on charges, so they run after those were loaded.
THEN = ("controls", "tokens")
# Their refusals depend on the time: events that were accepted then may look invalid now.
_JUDGED_THEN = frozenset({"controls", "jobcontrols"})
_OUTBOX_ROWS = 5_000


class Replay:
    """The sinks over the restored database. `now_ms` is the broker's time of the current events, as when they ran live."""

    def __init__(
        self, context: ProcessContext, settings: Settings, results: RecordedResults, time_limit: TimeLimit
    ) -> None:
        self._pool = context.pool
        self._told = results
        self._time_limit = time_limit
        self._settings = settings
        self._now_ms = 0
        self._context = replace(context, admin=ReadLog(), clock=lambda: self._now_ms)
        self._sinks: dict[str, Handler[Any, Any]] = {}
        self._upto_outbox = 0
        self.bumped: set[str] = set()
        self.events = 0
        self.dropped = 0

    async def open(self, resources: AsyncExitStack) -> None:
        """Open the sinks; `resources` closes what they hold."""
        wiring = Wiring(self._settings, self._context, resources)
        made = {name: make for one in SLICES for name, make in one.sinks.items()}
        for name in (*FIRST, *NEXT, *THEN):
            consumer = await made[name](wiring)
            assert isinstance(consumer, BatchConsumer)  # every sink of these is
            self._sinks[name] = consumer.handler
        async with transaction(self._pool) as tx:
            self._upto_outbox = await tx.fetchval(QUERIES["outbox_top"])

    def topics_of(self, name: str) -> tuple[str, ...]:
        """Return the topics of a sink."""
        return tuple(self._sinks[name].topics)

    async def run(self, names: Sequence[str], records: AsyncIterable[Record], topic_ids: Mapping[str, str]) -> None:
        """Let these sinks store records, which come in the order of the broker's time."""
        async for part in in_slices(records):
            await self._store(names, part, topic_ids)

    async def _store(self, names: Sequence[str], records: Sequence[Record], topic_ids: Mapping[str, str]) -> None:
        await self._store_plans(records)
        for name in names:
            sink = self._sinks[name]
            own = [record for record in records if record.topic in sink.topics]
            for first in range(0, len(own), sink.batch_max):
                part = own[first : first + sink.batch_max]
                self._time_limit.at(f"the sink {name} at {part[0].position}")
                await self._apply(sink, part, topic_ids)
        await self._drop_told()

    async def _store_plans(self, records: Sequence[Record]) -> None:
        """Store the plans of organizations, by which jobs and queries are judged; their own sink stores them again."""
        found: list[Event[PlanChanged]] = []
        for record in records:
            if record.topic == PLAN_CHANGED and (value := await decoded(self._context, record)) is not None:
                with contextlib.suppress(InvalidEventError):  # its own sink dead-letters it
                    check_jobs_event(record.topic, value)
                    found.append(Event(record, cast("PlanChanged", value)))
        if found:
            async with transaction(self._pool) as tx:
                now_ms = max(event.record.arrived_ms for event in found)
                await organizations.store_words(tx, [organizations.plan_word(event) for event in found], now_ms)

    async def _apply(
        self, sink: Handler[Any, Any], records: Sequence[Record], topic_ids: Mapping[str, str], *, is_bad: bool = False
    ) -> None:
        """Apply records as the consumer framework does: undecodable ones are dead-lettered, a refused batch is split."""
        events, dead = await self._decoded(records)
        if is_bad:
            dead += [DeadLetter(event.record, "handler_failed", "while the database was restored") for event in events]
            events = []
        self._now_ms = max(record.arrived_ms for record in records)
        try:
            prepared = await sink.prepare(events) if events else None
            try:
                async with transaction(self._pool) as tx:
                    if events:
                        dead += await sink.apply(tx, events, prepared)
                    await self._add_letters(tx, sink.group, dead)
                    await _move(tx, sink.group, records, topic_ids)
            finally:
                if events:
                    await sink.settle(prepared)
        except UnavailableError:
            raise
        except Exception as error:
            if is_of_the_store(error) or is_bad:
                raise
            if len(records) == 1:
                await self._apply(sink, records, topic_ids, is_bad=True)
                return
            half = len(records) // 2
            await self._apply(sink, records[:half], topic_ids)
            await self._apply(sink, records[half:], topic_ids)
            return
        self.events += len(records)

    async def _decoded(self, records: Sequence[Record]) -> tuple[list[Event[Any]], list[DeadLetter]]:
        events, dead = [], []
        for record in records:
            value = await decoded(self._context, record)
            if value is None:
                dead.append(DeadLetter(record, "not_readable", "found while the database was restored"))
            else:
                events.append(Event(record, value))
        return events, dead

    async def _add_letters(self, tx: Connection, group: str, letters: Sequence[DeadLetter]) -> None:
        """Add the dead letters that the log does not have."""
        rows = [
            dead_letter_row(letter, group=group, now_ms=self._now_ms)
            for letter in letters
            if not self._told.has_letter(str(letter.record.position), group)
            and not (group in _JUDGED_THEN and self._is_behind(letter.record))
        ]
        await outbox.add(tx, rows)

    def _is_behind(self, record: Record) -> bool:
        return record.offset <= self._told.reached.get((record.topic, record.partition), -1)

    async def _drop_told(self) -> None:
        """Remove from the outbox what the log has. All versions are removed: the restore publishes them at the end."""
        while True:
            async with transaction(self._pool) as tx:
                rows = await tx.fetch(QUERIES["outbox_after"], self._upto_outbox, _OUTBOX_ROWS)
                if not rows:
                    return
                told = [row["id"] for row in rows if self._is_told(row)]
                await tx.execute(QUERIES["drop_outbox"], told)
            self.dropped += len(told)
            self._upto_outbox = rows[-1]["id"]

    def _is_told(self, row: Row) -> bool:
        if row["topic"] == VERSION_BUMPED:
            self.bumped.add((row["key"] or b"").decode())
            return True
        headers = [(name, base64.b64decode(value)) for name, value in orjson.loads(row["headers"])]
        if any(name == "dlq_origin" for name, _ in headers):
            return False
        return self._told.covers(row["topic"], row["key"], caused_by(headers))


async def _move(tx: Connection, group: str, records: Sequence[Record], topic_ids: Mapping[str, str]) -> None:
    upto: dict[Place, int] = {}
    for record in records:
        upto[record.topic, record.partition] = record.offset + 1
    await set_positions(tx, group, upto, topic_ids)


async def set_positions(tx: Connection, group: str, upto: Mapping[Place, int], topic_ids: Mapping[str, str]) -> None:
    """Let a group continue from these offsets.

    Raises:
        BackupError: a topic is not on the broker.
    """
    missing = sorted({topic for topic, _ in upto} - topic_ids.keys())
    if missing:
        raise BackupError(f"{missing[0]} is not on the broker; run `highwater init`")
    rows = [(topic, partition, topic_ids[topic], next_) for (topic, partition), next_ in sorted(upto.items())]
    if rows:
        await tx.execute(QUERIES["set_restored_positions"], group, *map(list, zip(*rows, strict=True)))
