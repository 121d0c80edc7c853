"""Consumer groups: the next offset of each, and the end of the log.

Invariant: for Highwater's own consumers the table `positions` is the truth and the offsets in Kafka are informational; the
worker's are only in Kafka. Nothing here writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.offsets import committed_offsets
from highwater.connectors.kafka.reading import Place, log_ranges_of, open_reader, read_spans
from highwater.connectors.kafka.stopped import Stopped, all_stopped
from highwater.connectors.kafka.truncation import COMMAND, Truncation, all_truncations
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import ProductClock

if TYPE_CHECKING:
    import asyncpg

KAFKA_GROUP_PREFIX = "highwater-"
# The catalogue's name of the Faust worker, and its group in Kafka (streams/agents.py).
WORKER, WORKER_KAFKA_GROUP = "worker", "highwater-feeds"
# Readers in the catalogue that are not consumers.
_PEOPLE = frozenset({"operator"})
# Only the first unread record of a partition is needed.
_PEEK_BYTES = 64 * 1024

ALL_POSITIONS = 'SELECT "group", topic, partition, topic_id, next FROM positions ORDER BY "group", topic, partition'


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a group in one partition; `next` None = it has no position there, and is counted from the first record.

    Our groups begin there; a group of another application begins as its consumers' `auto.offset.reset` says.
    """

    topic: str
    partition: int
    next: int | None
    range: LogRange
    recreated: bool = False
    stopped: Stopped | None = None
    truncated: Truncation | None = None

    @property
    def is_truncated(self) -> bool:
        """Return whether the log lost its tail."""
        return self.truncated is not None or (not self.recreated and (self.next or 0) > self.range.high)

    @property
    def problem(self) -> str | None:
        """Return why the partition is not read."""
        if self.truncated is not None:
            return self.truncated.text
        if self.is_truncated:
            return (
                f"{self.topic}/{self.partition} ends at offset {self.range.high}, before {self.next}, to where it was read:"
                f" Kafka lost its tail; `{COMMAND}` shows what can be repaired"
            )
        return None if self.stopped is None else self.stopped.text

    @property
    def events(self) -> int:
        """Return the number of records that are not accounted for; 0 of a log that ends before `next`, which has a problem."""
        return max(0, self.range.high - max(self.next or 0, self.range.low))

    @property
    def begin(self) -> int:
        """Return the offset of the first of them."""
        return max(self.next or 0, self.range.low)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group. `seconds` is the age of its oldest unread record; None if it has read everything."""

    group: str
    standings: tuple[Standing, ...]
    seconds: float | None

    @property
    def events(self) -> int:
        """Return the number of records that are not accounted for."""
        return sum(standing.events for standing in self.standings)

    @property
    def stopped(self) -> tuple[Stopped, ...]:
        """Return its partitions that are not read because of too many bad events."""
        return tuple(standing.stopped for standing in self.standings if standing.stopped is not None)

    @property
    def is_truncated(self) -> bool:
        """Return whether the log of one of its partitions lost its tail."""
        return any(standing.is_truncated for standing in self.standings)

    @property
    def problem(self) -> str | None:
        """Return what requires an operator."""
        topics = sorted({standing.topic for standing in self.standings if standing.recreated})
        if topics:
            return f"{', '.join(topics)} was recreated; `highwater reset {self.group} --to earliest --execute`"
        problems = [standing.problem for standing in self.standings if standing.problem is not None]
        if problems:
            return "; ".join(problems)
        if all(standing.next is None for standing in self.standings):
            return "has never run"
        return None

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "group": self.group,
            "events": self.events,
            "seconds": self.seconds,
            "problem": self.problem,
            "partitions": [
                {
                    "topic": s.topic,
                    "partition": s.partition,
                    "next": s.next,
                    "high": s.range.high,
                    "events": s.events,
                    "stopped": s.problem,
                }
                for s in self.standings
            ],
        }


def kafka_group_of(group: str) -> str:
    """Return the name in Kafka of one of our groups."""
    return WORKER_KAFKA_GROUP if group == WORKER else KAFKA_GROUP_PREFIX + group


def own_name(group: str) -> str:
    """Return our name of a group, given either name."""
    return WORKER if group == WORKER_KAFKA_GROUP else group.removeprefix(KAFKA_GROUP_PREFIX)


def catalogued_groups() -> dict[str, list[str]]:
    """Return every consumer in the catalogue with the topics it reads."""
    found: dict[str, list[str]] = {}
    for topic in TOPICS.values():
        for consumer in topic.consumers:
            if consumer not in _PEOPLE:
                found.setdefault(consumer, []).append(topic.name)
    return found


async def committed(client: Mapping[str, str], kafka_group: str) -> dict[Place, int]:
    """Return the offsets that a group has committed in Kafka."""
    return await asyncio.to_thread(committed_offsets, client, kafka_group)


async def standings(
    client: Mapping[str, str], pool: asyncpg.Pool[asyncpg.Record], groups: Mapping[str, list[str]]
) -> dict[str, tuple[Standing, ...]]:
    """Return the place of each group in each partition of its topics."""
    admin = Admin(client)
    stored: dict[tuple[str, Place], tuple[int, str]] = {}
    for row in await pool.fetch(ALL_POSITIONS):
        stored[row["group"], (row["topic"], row["partition"])] = (row["next"], row["topic_id"])
    stopped = {(one.group, one.place): one for one in await all_stopped(pool)}
    truncated = {one.place: one for one in await all_truncations(pool) if one.is_open}
    wanted = {topic for topics in groups.values() for topic in topics} | {place[0] for _, place in stored}
    ranges = await log_ranges_of(admin, sorted(wanted))
    ids = await admin.topic_ids(sorted({topic for topic, _ in ranges})) if ranges else {}
    found: dict[str, tuple[Standing, ...]] = {}
    for group, topics in groups.items():
        read = set(topics) | {place[0] for name, place in stored if name == group}
        offsets = await committed(client, WORKER_KAFKA_GROUP) if group == WORKER else {}
        rows = []
        for place, held in sorted(ranges.items()):
            if place[0] in read:
                next_offset, topic_id = stored.get((group, place), (offsets.get(place), ids[place[0]]))
                is_recreated = topic_id != ids[place[0]]
                stop = stopped.get((group, place))
                rows.append(Standing(*place, next_offset, held, is_recreated, stop, truncated.get(place)))
        found[group] = tuple(rows)
    return found


async def lags(client: Mapping[str, str], pool: asyncpg.Pool[asyncpg.Record]) -> list[GroupLag]:
    """Return the lag of every consumer, in events and in seconds."""
    groups = catalogued_groups()
    for row in await pool.fetch(ALL_POSITIONS):
        groups.setdefault(row["group"], [])
    found = await standings(client, pool, groups)
    return await asyncio.to_thread(_with_seconds, client, found)


def _with_seconds(client: Mapping[str, str], found: Mapping[str, tuple[Standing, ...]]) -> list[GroupLag]:
    # The broker stamps records by its own clock, so the product's clock, which may be moved, is not used.
    now_ms = ProductClock()()
    unread = [
        ((s.topic, s.partition), LogRange(s.begin, s.range.high)) for rows in found.values() for s in rows if s.events
    ]
    arrived: dict[tuple[Place, int], int] = {}
    if unread:
        reader = open_reader(client, fetch_bytes=_PEEK_BYTES)
        try:
            arrived = _first_arrivals(reader, unread)
        finally:
            reader.close()
    result = []
    for group, standings_ in sorted(found.items()):
        # What is left may be markers of transactions, which no reader gets.
        rows = tuple(
            s if not s.events or ((s.topic, s.partition), s.begin) in arrived else replace(s, next=s.range.high)
            for s in standings_
        )
        times = [arrived.get(((s.topic, s.partition), s.begin)) for s in rows if s.events]
        oldest_ms = min((time for time in times if time is not None), default=None)
        seconds = None if oldest_ms is None else max(0.0, round((now_ms - oldest_ms) / 1000, 1))
        result.append(GroupLag(group, rows, seconds))
    return result


def _first_arrivals(reader: Any, unread: Iterable[tuple[Place, LogRange]]) -> dict[tuple[Place, int], int]:
    """Return, by partition and offset, the arrival of the first record from there on; missing if there is none.

    One read serves all groups that wait at the same record, so there are as many reads as distinct positions in a
    partition.
    """
    wanted: dict[Place, set[int]] = {}
    highs: dict[Place, int] = {}
    for place, span in unread:
        wanted.setdefault(place, set()).add(span.low)
        highs[place] = span.high
    found: dict[tuple[Place, int], int] = {}
    while wanted:
        spans = {place: LogRange(min(begins), highs[place]) for place, begins in wanted.items()}
        later: dict[Place, set[int]] = {}
        for record in read_spans(reader, spans, first_only=True):
            place = (record.topic, record.partition)
            for begin in wanted[place]:
                if begin <= record.offset:
                    found[place, begin] = record.arrived_ms
                else:
                    later.setdefault(place, set()).add(begin)
        wanted = later
    return found
