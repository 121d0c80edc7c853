"""A log that lost its tail: how it is found, and what is known of it until it is repaired.

Kafka acknowledges a record before it is synced to a disk; a power loss of a single broker, or an election of a replica that
is behind, takes the last records away. PostgreSQL syncs what was stored of them. From then on the log gives offsets a
second time, so nobody may read or write the partition until `highwater repair-log` has filled it up.

Invariant: a loss is stored before anything else is read of its partition, and everybody refuses the partition until the
row is closed. A log has lost records that were read if it ends before a stored position, or if the record before that position
has another leader epoch than the one that was read: each leader appends under an epoch of its own (KIP-101, KIP-320).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import asyncpg

from highwater.connectors.kafka.admin import Admin, LogEnd, LogRange
from highwater.connectors.kafka.positions import Place, Stored
from highwater.connectors.kafka.reading import open_reader, read_spans
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.postgres.pool import STATEMENT_SECONDS_MAX, Connection, Row, fetched, transaction
from highwater.schemas.envelope import iso_from_ms
from highwater.schemas.errors import UnavailableError
from highwater.streams.clock import to_datetime, to_ms
from highwater.streams.wording import counted

COMMAND = "highwater repair-log"


@dataclass(frozen=True, slots=True)
class Truncation:
    """A loss: `end_offset` is the first offset whose record was lost, `next` one past the last that was read before.

    Of a repaired one, offsets before `filled_to` are given to no record again, and `missing` records could not be recreated.
    """

    topic: str
    partition: int
    end_offset: int
    next: int
    found_at_ms: int
    found_by: str
    filled_to: int | None = None
    missing: int | None = None
    repaired_at_ms: int | None = None

    @property
    def place(self) -> Place:
        """Return topic and partition."""
        return self.topic, self.partition

    @property
    def is_open(self) -> bool:
        """Return whether it waits for its repair."""
        return self.repaired_at_ms is None

    @property
    def fact(self) -> str:
        """Return what happened, in one clause."""
        records = counted(self.next - self.end_offset, "record")
        return (
            f"{self.topic}/{self.partition} lost its tail: Kafka no longer has the {records} from offset"
            f" {self.end_offset} on that Highwater has read (found {iso_from_ms(self.found_at_ms)})"
        )

    @property
    def text(self) -> str:
        """Return what happened and what the operator can do, in one line."""
        return (
            f"{self.fact}; the partition is neither read nor written. `{COMMAND}` shows what can be repaired, and"
            f" `{COMMAND} --execute` repairs it"
        )

    def covers(self, offset: int) -> bool:
        """Return whether the record of an offset was lost, or may be another one than was read there."""
        return self.end_offset <= offset and (self.is_open or offset < (self.filled_to or self.next))


class LogTruncatedError(UnavailableError):
    """Kafka lost the tail of a partition. Run `highwater repair-log`."""

    retry_after_ms = 60_000


def beyond_end(stored: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[Place, int]:
    """Return the end of each partition that ends before the position that is stored of it."""
    return {place: ends[place] for place, next_ in stored.items() if next_ > ends.get(place, next_)}


def kept_end(client: Mapping[str, str], place: Place, stored: Stored, span: LogRange) -> int:
    """Return the first offset whose record is not the one that was read there; `stored.next` if none is. Blocks.

    A record of a later leader epoch than the last one that was read stands where a lost one stood, and all after it; epochs
    only grow along the log, so a binary search finds the first (KIP-101).

    Raises:
        UnavailableError: the broker does not answer.
    """
    low, high = span.low, min(stored.next, span.high)
    if stored.leader_epoch is None:
        return high
    reader = open_reader(client, fetch_bytes=1)
    try:
        while low < high:
            middle = (low + high) // 2
            record = next(read_spans(reader, {place: LogRange(middle, high)}, first_only=True), None)
            if record is not None and (record.leader_epoch or 0) <= stored.leader_epoch:
                low = record.offset + 1
            else:
                high = middle
    finally:
        reader.close()
    return high


def _truncation(row: Row) -> Truncation:
    repaired_at = row["repaired_at"]
    return Truncation(
        row["topic"],
        row["partition"],
        row["end_offset"],
        row["next"],
        to_ms(row["found_at"]),
        row["found_by"],
        row["filled_to"],
        row["missing"],
        None if repaired_at is None else to_ms(repaired_at),
    )


async def note(tx: Connection, found_by: str, found: Collection[tuple[Place, int, int]], now_ms: int) -> None:
    """Store losses: place, first lost offset, and one past the last offset that was read; one that is known is widened."""
    if found:
        columns = zip(*((*place, end, next_) for place, end, next_ in found), strict=True)
        await tx.execute(QUERIES["note_truncations"], found_by, to_datetime(now_ms), *map(list, columns))


async def open_of(tx: Connection, places: Collection[Place]) -> dict[Place, Truncation]:
    """Return the losses among these partitions that are not repaired."""
    found = map(_truncation, await tx.fetch(QUERIES["truncations_open"]))
    return {one.place: one for one in found if one.place in places}


async def repaired_in(tx: Connection, places: Collection[Place]) -> list[Truncation]:
    """Return the repaired losses of these partitions."""
    found = map(_truncation, await tx.fetch(QUERIES["truncations_all"]))
    return [one for one in found if one.place in places and not one.is_open]


def is_replaced(repaired: Iterable[Truncation], place: Place, offset: int) -> bool:
    """Return whether a record stands where a lost one stood, in a partition that was repaired: its copy further on counts."""
    return any(one.place == place and not one.is_open and one.covers(offset) for one in repaired)


async def all_truncations(
    pool: asyncpg.Pool[asyncpg.Record], *, seconds_max: float = STATEMENT_SECONDS_MAX
) -> list[Truncation]:
    """Return every loss, the repaired ones included; none of a database of a release that noted none (`upgrade --check`).

    Raises:
        UnavailableError: PostgreSQL is unavailable, or does not answer in time.
    """
    try:
        rows = await fetched(pool, QUERIES["truncations_all"], seconds_max=seconds_max)
    except asyncpg.UndefinedTableError:
        return []
    return list(map(_truncation, rows))


def of_place(truncations: Iterable[Truncation], place: Place, offset: int) -> Truncation | None:
    """Return the loss that took the record of a position; an open one before a repaired one."""
    found = [one for one in truncations if one.place == place and one.covers(offset)]
    return next((one for one in found if one.is_open), found[0] if found else None)


class Highest(NamedTuple):
    """One past the highest offset of a partition that any group has read, and the highest position with a known epoch."""

    next: int
    known: Stored | None = None


async def highest_positions(
    admin: Admin, pool: asyncpg.Pool[asyncpg.Record], positions: Mapping[Place, int]
) -> dict[Place, Highest]:
    """Return the highest position of any group in each partition, in the topics that exist now.

    `positions` are those of a reader that stores none in PostgreSQL; of a topic that was recreated they are left out.

    Raises:
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    rows = await fetched(pool, QUERIES["highest_positions"])
    ids = await admin.topic_ids_lately({row["topic"] for row in rows})
    highest = {
        (row["topic"], row["partition"]): Highest(row["next"], None if row["known"] is None else Stored(*row["known"]))
        for row in rows
        if ids.get(row["topic"]) == row["topic_id"]
    }
    recreated = {row["topic"] for row in rows if ids.get(row["topic"]) != row["topic_id"]}
    for place, next_ in positions.items():
        if place[0] not in recreated:
            one = highest.get(place, Highest(0))
            highest[place] = one._replace(next=max(next_, one.next))
    return highest


def led_since(highest: Mapping[Place, Highest], ends: Mapping[Place, LogEnd]) -> dict[Place, Stored]:
    """Return positions of partitions that do not end before them, and have another leader since they were stored."""
    return {
        place: one.known
        for place, one in highest.items()
        if one.known is not None
        and (end := ends.get(place)) is not None
        and 0 < one.known.next <= end.offset
        and (end.leader_epoch is None or end.leader_epoch != one.known.leader_epoch)
    }


def other_records(client: Mapping[str, str], stored: Mapping[Place, Stored]) -> dict[Place, int]:
    """Return the partitions in which the record before a position is not the one that was read, with the first such. Blocks.

    Raises:
        UnavailableError: the broker does not answer.
    """
    reader = open_reader(client, fetch_bytes=1)
    try:
        before = {place: LogRange(one.next - 1, one.next) for place, one in stored.items()}
        epochs = {
            (record.topic, record.partition): record.leader_epoch
            for record in read_spans(reader, before, first_only=True)
        }
    finally:
        reader.close()
    others = {place for place, epoch in epochs.items() if epoch != stored[place].leader_epoch}
    return {place: kept_end(client, place, stored[place], LogRange(0, stored[place].next)) for place in others}


async def look(
    admin: Admin,
    pool: asyncpg.Pool[asyncpg.Record],
    found_by: str,
    now_ms: int,
    positions: Mapping[Place, int] | None = None,
    given_again: Mapping[Place, LogRange] | None = None,
) -> list[Truncation]:
    """Compare the positions of all groups with the log, store what it lost, and return the open losses.

    A process does this before it reads or publishes anything: after a start of everything, nobody else has.

    `positions`: as of `highest_positions`. `given_again`: offsets that a log gave a second time to a producer of this process.

    Raises:
        UnavailableError: Kafka or PostgreSQL does not answer.
    """
    again = given_again or {}
    given = {**(positions or {}), **{place: span.high for place, span in again.items()}}
    highest = await highest_positions(admin, pool, given)
    # A partition without a leader holds nobody up: nothing can be written to it, and its consumers compare when it has one.
    ends = await admin.log_ends_led(highest) if highest else {}
    nexts = {place: one.next for place, one in highest.items()}
    lost = beyond_end(nexts, {place: one.offset for place, one in ends.items()})
    grown = led_since(highest, ends)
    if grown:
        lost |= await asyncio.to_thread(other_records, admin.client, grown)
    for place, span in again.items():
        if nexts.get(place, 0) >= span.high:  # not of a topic that was recreated
            lost[place] = min(span.low, lost.get(place, span.low))
    found = [(place, end, nexts[place]) for place, end in lost.items() if end < nexts[place]]
    async with transaction(pool) as tx:
        await note(tx, found_by, found, now_ms)
        return [_truncation(row) for row in await tx.fetch(QUERIES["truncations_open"])]
