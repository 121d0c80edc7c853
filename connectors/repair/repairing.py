"""`highwater repair-log`: gives a partition that lost its tail new positions, and publishes again what the state still has.

Invariant: nobody reads or writes the partition until its loss is closed, which is the last step and one transaction with the
new positions of rows. An interrupted repair is repeated: what it published has a header with its former position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.groups import WORKER_KAFKA_GROUP
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.offsets import committed_offsets
from highwater.connectors.kafka.producer import AcceptedRecord, AsyncProducer, accepted
from highwater.connectors.kafka.reading import open_reader, read_spans
from highwater.connectors.kafka.records import Record
from highwater.connectors.kafka.truncation import Highest, Truncation, highest_positions, look
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.remaking import Remade, Remake, left_out_of
from highwater.connectors.repair.filling import fill_up, taken
from highwater.connectors.repair.statements import QUERIES
from highwater.schemas.envelope import Headers, make_headers
from highwater.schemas.errors import UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.streams import TICK
from highwater.schemas.topics import TOPICS
from highwater.streams import relay_epochs
from highwater.streams.clock import fresh_id, to_datetime

SOURCE = "/repair-log"
FOUND_BY = "repair-log"
# The former position of a recreated record, and of one that stood in the place of a lost one: the two may have had the same.
HEADER = "republished_from"
COPIED_HEADER = "copied_from"
# A former position, key, value and headers.
_Output = tuple[Position | None, bytes | None, bytes | None, Headers]
# Published several times a minute; the next one says all that a lost one said.
_OBSOLETE = frozenset({TICK})
# Positions in one query.
_POSITIONS_MAX = 10_000
# A marker comes within milliseconds; a busy broker may take some seconds.
_MARKER_LOOK_SECONDS, _MARKER_LOOKS_MAX = 0.05, 600


@dataclass(frozen=True, slots=True)
class Plan:
    """The repair of one partition.

    `end` is where its log ends, `given` one past the last position that anybody has read. `standing` are records that others
    wrote where lost ones stood. `done` and `copied` are former positions of what an interrupted repair has published, with the
    new ones: of recreated records, and of copies.
    """

    loss: Truncation
    end: int
    given: int
    remade: tuple[Remade, ...]
    standing: tuple[Record, ...]
    done: Mapping[Position, AcceptedRecord]
    copied: Mapping[Position, AcceptedRecord]
    left_out: str

    @property
    def lost(self) -> int:
        """Return the number of lost records."""
        return self.given - self.loss.end_offset

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "topic": self.loss.topic,
            "partition": self.loss.partition,
            "first_lost": self.loss.end_offset,
            "end": self.end,
            "given": self.given,
            "lost": self.lost,
            "made_again": len(self.remade),
            "standing": [str(record.position) for record in self.standing],
            "left_out": self.left_out,
        }


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repaired partition: one past the last offset that is not given again, and the new position of each former one.

    Of a position that was given twice it is that of the lost record, which was recreated.
    """

    plan: Plan
    filled_to: int
    moved: Mapping[Position, AcceptedRecord]

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        moved = {str(before): str(now) for before, now in self.moved.items()}
        return {**self.plan.document(), "filled_to": self.filled_to, "moved": moved}


async def plan_repairs(context: ProcessContext, remakes: Mapping[str, Remake]) -> list[Plan]:
    """Return what a repair would do, for every partition that lost its tail.

    Raises:
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    committed = await asyncio.to_thread(committed_offsets, context.client, WORKER_KAFKA_GROUP)
    losses = await look(context.admin, context.pool, FOUND_BY, context.clock(), committed)
    highest = await highest_positions(context.admin, context.pool, committed)
    ranges = await context.admin.log_ranges([loss.place for loss in losses]) if losses else {}
    return [
        await _plan(
            context,
            remakes,
            loss,
            ranges[loss.place],
            max(loss.next, highest.get(loss.place, Highest(0)).next),
        )
        for loss in losses
    ]


def missing_of(plan: Plan) -> int:
    """Return how many lost records are not recreated; of rows that keep no positions this is unknown, so all of them count."""
    lost = {
        Position(plan.loss.topic, plan.loss.partition, offset) for offset in range(plan.loss.end_offset, plan.given)
    }
    return len(lost - {one.position for one in plan.remade} - plan.done.keys())


async def _plan(
    context: ProcessContext, remakes: Mapping[str, Remake], loss: Truncation, span: LogRange, given: int
) -> Plan:
    records = await asyncio.to_thread(_left_and_after, context.client, loss, span)
    left = [record for record in records if record.offset < loss.end_offset]
    after = [record for record in records if record.offset >= loss.end_offset]
    done, copied = _published(after, HEADER), _published(after, COPIED_HEADER)
    standing = (
        []
        if loss.topic in _OBSOLETE
        else [record for record in after if record.offset < given and record.position not in copied]
    )
    since_ms = left[-1].arrived_ms if left else 0
    remade = await _remade(context, remakes.get(loss.topic), loss, given, since_ms)
    return Plan(
        loss, span.high, given, tuple(one for one in remade if one.position not in done), tuple(standing), done,
        copied, left_out_of(remakes, loss.topic),
    )  # fmt: skip


def _left_and_after(client: Mapping[str, str], loss: Truncation, span: LogRange) -> list[Record]:
    """Return the last record before the loss, and all after it."""
    reader = open_reader(client)
    try:
        first = LogRange(max(span.low, loss.end_offset - 1), span.high)
        return list(read_spans(reader, {loss.place: first}))
    finally:
        reader.close()


def _published(records: Sequence[Record], header: str) -> dict[Position, AcceptedRecord]:
    """Return the former positions that a header of these records names, with their present ones."""
    found: dict[Position, AcceptedRecord] = {}
    for record in records:
        for name, value in record.headers:
            if name == header and value is not None:
                topic, partition, offset = value.decode().rsplit("/", 2)
                found[Position(topic, int(partition), int(offset))] = accepted(*record[:4])
    return found


async def _remade(
    context: ProcessContext, remake: Remake | None, loss: Truncation, given: int, since_ms: int
) -> list[Remade]:
    if remake is None:
        return []
    lost = [Position(loss.topic, loss.partition, offset) for offset in range(loss.end_offset, given)]
    found: list[Remade] = []
    async with transaction(context.pool) as tx:
        for first in range(0, len(lost), _POSITIONS_MAX) if remake.moves else (0,):
            found += await remake.remade(tx, lost[first : first + _POSITIONS_MAX], since_ms)
    topic = TOPICS[loss.topic]
    return [
        one
        for one in found
        if one.position is not None
        or murmur2_partition(topic.key_of(one.event).encode(), topic.partitions) == loss.partition
    ]


async def repair(context: ProcessContext, remakes: Mapping[str, Remake], plan: Plan) -> Repaired:
    """Repair one partition.

    Raises:
        UnavailableError: Kafka or PostgreSQL does not answer; repeat it.
    """
    place = plan.loss.place
    filled_to = await _filled(context, plan)
    recreated = {**plan.done, **await _publish(context, plan, _made(context, plan))}
    moved = {**plan.copied, **await _publish(context, plan, _copied(plan.standing)), **recreated}
    async with transaction(context.pool) as tx:
        remake = remakes.get(plan.loss.topic)
        if remake is not None:
            await remake.moved(tx, {before: now for before, now in recreated.items() if before.offset < plan.given})
        now = to_datetime(context.clock())
        await tx.execute(QUERIES["go_on_behind"], *place, plan.loss.end_offset, filled_to)
        await tx.execute(QUERIES["close_truncation"], *place, plan.given, filled_to, missing_of(plan), now)
    return Repaired(plan, filled_to, moved)


async def _filled(context: ProcessContext, plan: Plan) -> int:
    """Fill the partition up, and return one past the last offset that is not given again.

    Kafka answers before it writes the marker of a transaction: groups that continued before the marker would seem to have
    an unread record.

    Raises:
        UnavailableError: Kafka does not answer, or writes no marker.
    """
    place, missing = plan.loss.place, plan.given - plan.end
    if missing <= 0:
        return plan.given
    await asyncio.to_thread(fill_up, context.client, place, missing)
    filled_to = plan.end + taken(missing)
    for _ in range(_MARKER_LOOKS_MAX):
        if (await context.admin.log_ends([place]))[place] >= filled_to:
            return filled_to
        await asyncio.sleep(_MARKER_LOOK_SECONDS)
    raise UnavailableError(f"Kafka has not ended the transaction that fills {place[0]}/{place[1]}; repeat the command")


async def _publish(context: ProcessContext, plan: Plan, outputs: Sequence[_Output]) -> dict[Position, AcceptedRecord]:
    """Publish records; return their former and new positions."""
    topic, partition = plan.loss.place
    producer = AsyncProducer(context.client, client_id="highwater-repair-log")
    try:
        waiting = [
            (origin, await producer.enqueue(topic, value, key=key, headers=headers, partition=partition))
            for origin, key, value, headers in outputs
        ]
        return {
            origin: taken for origin, taken in [(one, await future) for one, future in waiting] if origin is not None
        }
    finally:
        await producer.close()


def _made(context: ProcessContext, plan: Plan) -> Sequence[_Output]:
    topic, now_ms = TOPICS[plan.loss.topic], context.clock()
    outputs: list[_Output] = []
    for position, event in plan.remade:
        headers = make_headers(event_id=fresh_id(), event_type=topic.name, source=SOURCE, now_ms=now_ms, caused_by=None)
        value = context.codec.encode(topic.name, event)
        outputs.append((position, topic.key_of(event).encode(), value, [*headers, *_from(HEADER, position)]))
    return outputs


def _copied(records: Sequence[Record]) -> Sequence[_Output]:
    """Return copies without the stamp of a relay: readers would skip them as published by one that was overtaken."""
    return [
        (
            record.position,
            record.key,
            record.value,
            [
                *((name, value) for name, value in record.headers if name != relay_epochs.HEADER),
                *_from(COPIED_HEADER, record.position),
            ],
        )
        for record in records
    ]


def _from(header: str, position: Position | None) -> Headers:
    return [] if position is None else [(header, str(position).encode())]
