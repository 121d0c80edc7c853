"""Partitions that a consumer does not read because too many of their records are bad, or because their log lost its tail
(`truncation.py`), and how reading resumes.

Invariants. The stop of a partition and the effects of the good records before it are one transaction, and its position
stays there until an operator acts: a restart changes nothing. Every text about a stopped partition names the command
that resumes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import asyncpg

from highwater.connectors.kafka.breaker import Counts, Place, RatioBreaker
from highwater.connectors.kafka.positions import Move
from highwater.connectors.kafka.records import DeadLetter, Record
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.kafka.truncation import Truncation, is_replaced, open_of, repaired_in
from highwater.connectors.postgres.pool import STATEMENT_SECONDS_MAX, Connection, Row, fetched, transaction
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import FencedError, HighwaterError
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.telemetry import PARTITIONS_STOPPED, Log

# How often a consumer with a stopped partition checks whether an operator has acted.
LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Stopped:
    """A stopped partition: its offset, its time, and the records that stopped it (`dead` of `events`, mostly by `reason`)."""

    group: str
    topic: str
    partition: int
    next: int
    stopped_at_ms: int
    reason: str
    dead: int
    events: int
    park_until: int | None = None

    @property
    def place(self) -> Place:
        """Return topic and partition."""
        return self.topic, self.partition

    @property
    def command(self) -> str:
        """Return the command line that dead-letters the bad records and resumes the partition."""
        return f"highwater dlq park {self.group} {self.topic} --partition {self.partition}"

    @property
    def text(self) -> str:
        """Return what happened and what the operator can do, in one line."""
        return (
            f"{self.topic}/{self.partition} is stopped at offset {self.next} since {iso_from_ms(self.stopped_at_ms)}: "
            f"{self.dead} of the last {self.events} events could not be processed (mostly {self.reason}); "
            f"other partitions continue. `{self.command}` dead-letters the bad events and resumes"
        )


class PartitionsStoppedError(HighwaterError):
    """Too many events of a partition cannot be processed, so it is stopped. Run the command that the message names."""

    def __init__(self, stops: Sequence[Stopped]) -> None:
        super().__init__("; ".join(stop.text for stop in stops))
        self.stops = tuple(stops)


def _stopped(row: Row) -> Stopped:
    values = dict(row)
    return Stopped(stopped_at_ms=to_ms(values.pop("stopped_at")), **values)


async def all_stopped(
    pool: asyncpg.Pool[asyncpg.Record], *, seconds_max: float = STATEMENT_SECONDS_MAX
) -> list[Stopped]:
    """Return the stopped partitions of every group.

    Raises:
        UnavailableError: PostgreSQL is unavailable, or does not answer in time.
    """
    return [_stopped(row) for row in await fetched(pool, QUERIES["stopped_all"], seconds_max=seconds_max)]


async def stopped_of(tx: Connection, group: str) -> dict[Place, Stopped]:
    """Return the partitions of a group that are stopped, or resuming (`park_until`)."""
    found = [_stopped(row) for row in await tx.fetch(QUERIES["stopped_of"], group)]
    return {stop.place: stop for stop in found}


async def resume(tx: Connection, group: str, places: Sequence[Place]) -> None:
    """Forget that partitions were stopped."""
    topics, partitions = [topic for topic, _ in places], [partition for _, partition in places]
    await tx.execute(QUERIES["resume_partitions"], group, topics, partitions)


@dataclass(frozen=True, slots=True)
class Parked:
    """A partition that resumes: from `next` on, bad events below `until` are dead-lettered at any share."""

    group: str
    topic: str
    partition: int
    next: int
    until: int
    is_done: bool = False

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


async def park(pool: asyncpg.Pool[asyncpg.Record], group: str, place: Place, until: int) -> Parked:
    """Instruct a group to dead-letter the invalid events of a stopped partition up to an offset.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with transaction(pool) as tx:
        await tx.execute(QUERIES["park_partition"], group, *place, until)
        offset = await tx.fetchval(QUERIES["position_of"], group, *place)
    return Parked(group, *place, offset, until)


async def parked(pool: asyncpg.Pool[asyncpg.Record], before: Parked) -> Parked:
    """Return how far a group has dead-lettered what it was instructed to.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    place = (before.topic, before.partition)
    async with transaction(pool) as tx:
        rows = await stopped_of(tx, before.group)
        offset = await tx.fetchval(QUERIES["position_of"], before.group, *place)
    row = rows.get(place)
    return replace(before, next=offset, is_done=row is None or row.park_until is None)


class PartitionGuard:
    """The stopped partitions of one consumer, and the breaker that stops them."""

    def __init__(self, group: str, log: Log) -> None:
        self._group = group
        self._log = log
        self._breaker = RatioBreaker()
        self._parked_until: dict[Place, int] = {}
        self._looked_at = 0.0
        self._repaired: list[Truncation] = []
        self.stopped: dict[Place, Stopped] = {}
        self.truncated: dict[Place, Truncation] = {}

    def is_replaced(self, place: Place, offset: int) -> bool:
        """Return whether a record was published again further on, since it stood where a lost one had stood."""
        return bool(self._repaired) and is_replaced(self._repaired, place, offset)

    @property
    def holds_back(self) -> bool:
        """Return whether a partition is not read."""
        return bool(self.stopped or self.truncated)

    @property
    def degraded(self) -> str | None:
        """Return which partitions of this consumer are stopped, and the commands that resume them; None = all are read."""
        texts = [loss.text for loss in self.truncated.values()] + [stop.text for stop in self.stopped.values()]
        return "; ".join(texts) or None

    async def load(self, tx: Connection, found: Mapping[Place, int]) -> dict[Place, int]:
        """Return the positions to read among the assigned partitions; the others are remembered as stopped."""
        rows = {place: stop for place, stop in (await stopped_of(tx, self._group)).items() if place in found}
        parked = {place: stop.park_until for place, stop in rows.items() if stop.park_until is not None}
        # Retention may have deleted the bad records: then there is nothing to dead-letter.
        done = [place for place, until in parked.items() if found[place] >= until]
        await resume(tx, self._group, done)
        for place in (parked.keys() - self._parked_until.keys()) | (self.stopped.keys() & found.keys() - rows.keys()):
            self._breaker.forget(place)
            self._log.info("partition_resumed", topic=place[0], partition=place[1], offset=found[place])
        self._parked_until = {place: until for place, until in parked.items() if place not in done}
        self._repaired = await repaired_in(tx, found)
        self._remember(
            {place: stop for place, stop in rows.items() if stop.park_until is None}, await open_of(tx, found)
        )
        return {place: offset for place, offset in found.items() if place not in {*self.stopped, *self.truncated}}

    def release(self) -> None:
        """Release the partitions: other members load the stopped ones themselves."""
        self._parked_until = {}
        self._remember({}, {})

    def _remember(self, stopped: dict[Place, Stopped], truncated: dict[Place, Truncation]) -> None:
        for place, loss in truncated.items():
            if place not in self.truncated:
                self._log.error("partition_truncated", topic=loss.topic, partition=loss.partition, reason=loss.text)
        for place, loss in self.truncated.items():
            if place not in truncated:
                self._log.info("partition_repaired", topic=loss.topic, partition=loss.partition)
        for place, stop in stopped.items():
            if place not in self.stopped:
                self._log.error(
                    "partition_stopped", topic=stop.topic, partition=stop.partition, offset=stop.next, reason=stop.text
                )
        for topic, _ in (*self.stopped, *self.truncated):
            PARTITIONS_STOPPED.labels(self._group, topic).set(0)
        for topic, count in Counter(topic for topic, _ in {*stopped, *truncated}).items():
            PARTITIONS_STOPPED.labels(self._group, topic).set(count)
        self.stopped, self.truncated = stopped, truncated

    async def has_changed(self, pool: asyncpg.Pool[asyncpg.Record], now_seconds: float) -> bool:
        """Return whether an operator has acted on a stopped partition; the table is read at most every `LOOK_SECONDS`.

        Raises:
            UnavailableError: PostgreSQL is unavailable.
        """
        if not self.holds_back or now_seconds - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now_seconds
        async with transaction(pool) as tx:
            rows = await stopped_of(tx, self._group)
            truncated = await open_of(tx, self.truncated)
        return any(rows.get(place) != stop for place, stop in self.stopped.items()) or truncated != self.truncated

    def check(self, records: Sequence[Record], dead: Sequence[DeadLetter], now_ms: int) -> Mapping[Place, Counts]:
        """Return the counts of a batch whose bad records may be dead-lettered; `record` adds them later.

        Raises:
            PartitionsStoppedError: a partition has too many. Each stop is at the first bad record of this batch.
        """
        counts_of = self._counts(records, dead)
        tripped = self._breaker.tripped(counts_of)
        if not tripped:
            return counts_of
        stops = []
        for (topic, partition), counts in tripped.items():
            bad = [one for one in dead if (one.record.topic, one.record.partition) == (topic, partition)]
            reason = Counter(one.reason for one in bad).most_common(1)[0][0]
            first = min(one.record.offset for one in bad if not self._is_parked(one.record))
            stops.append(Stopped(self._group, topic, partition, first, now_ms, reason, counts.dead, counts.events))
        raise PartitionsStoppedError(stops)

    def record(self, counts: Mapping[Place, Counts]) -> None:
        """Count a stored batch."""
        self._breaker.record(counts)

    def _counts(self, records: Sequence[Record], dead: Sequence[DeadLetter]) -> dict[Place, Counts]:
        """Return events and bad ones by partition, without those that an operator allowed to dead-letter."""
        counted = [one for one in records if not self._is_parked(one)] if self._parked_until else records
        events = Counter([(one.topic, one.partition) for one in counted])
        bad = Counter((one.record.topic, one.record.partition) for one in dead if not self._is_parked(one.record))
        return {place: Counts(count, bad[place]) for place, count in events.items()}

    def _is_parked(self, record: Record) -> bool:
        return record.offset < self._parked_until.get((record.topic, record.partition), 0)

    async def store(
        self, tx: Connection, stops: Sequence[Stopped], moves: Sequence[Move], held_positions: Mapping[Place, int]
    ) -> None:
        """Store stops, and the end of parked runs that these moves pass, in the transaction of the batch.

        Raises:
            FencedError: another consumer has moved a partition that is to be stopped.
        """
        moved = {(move.topic, move.partition): move.next for move in moves}
        passed = [place for place, until in self._parked_until.items() if moved.get(place, 0) >= until]
        if passed:
            await resume(tx, self._group, passed)
        for stop in stops:
            expected = moved.get(stop.place, held_positions[stop.place])
            at = to_datetime(stop.stopped_at_ms)
            status = await tx.execute(
                QUERIES["stop_partition"], self._group, *stop.place, expected, at, stop.reason, stop.dead, stop.events
            )
            if status != "INSERT 0 1":
                raise FencedError(f"group {self._group} was overtaken on {stop.topic}/{stop.partition}")

    def moved(self, moves: Sequence[Move]) -> None:
        """Note moved positions: a parked run before them is done."""
        for move in moves:
            place = (move.topic, move.partition)
            if move.next >= self._parked_until.get(place, move.next + 1):
                del self._parked_until[place]
                self._log.info("partition_parked", topic=move.topic, partition=move.partition, offset=move.next)


def without(records: Sequence[Record], stops: Sequence[Stopped]) -> list[Record]:
    """Return the records that are stored although partitions stop: those of other partitions, and those before the
    first bad one.
    """
    ends = {stop.place: stop.next for stop in stops}
    return [one for one in records if one.offset < ends.get((one.topic, one.partition), one.offset + 1)]
