"""Checks the stores of a stack after faults: whether all work has ended, and whether anything wrong is stored.

Invariant: it checks what holds for any stack at rest, from the stores alone; only the sender knows what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from highwater.connectors.chaos.statements import QUERIES
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.groups import WORKER_KAFKA_GROUP
from highwater.connectors.kafka.groups import committed as committed_in_kafka
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.reading import open_reader, read_spans
from highwater.connectors.postgres.pool import Connection, one_row
from highwater.schemas.streams import TICK

_DEAD_LETTERS = ".dlq"


async def unfinished(connection: Connection, admin: Admin) -> dict[str, int]:
    """Return unfinished work by kind, with counts; empty at rest.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    found = {row["what"]: int(row["n"]) for row in await connection.fetch(QUERIES["chaos_unfinished"])}
    rows = await connection.fetch(QUERIES["chaos_positions"])
    ranges = await admin.log_ranges({(row["topic"], row["partition"]) for row in rows})
    for row in rows:
        behind = ranges[row["topic"], row["partition"]].high - row["next"]
        if behind > 0:
            name = f"records that {row['group']} has not read"
            found[name] = found.get(name, 0) + behind
    return found


async def open_losses(connection: Connection) -> int:
    """Return how many partitions wait for `highwater repair-log`."""
    return int((await one_row(connection, QUERIES["chaos_open_losses"]))["number"])


async def stored(connection: Connection) -> dict[str, int]:
    """Return how much of each kind is stored."""
    return {name: int(number) for name, number in (await one_row(connection, QUERIES["chaos_stored"])).items()}


async def wrong(connection: Connection, admin: Admin, sent: Mapping[str, int], lost: Sequence[str] = ()) -> list[str]:
    """Return what is wrong, one line each.

    Args:
        connection: to PostgreSQL.
        admin: the broker.
        sent: how much of each kind must exist, once.
        lost: errors of work that may be lost, because a fault took the database's last commits.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    found = [str(row["what"]) for row in await connection.fetch(QUERIES["chaos_wrong"], list(lost))]
    there = await stored(connection)
    found += [
        f"{there[name]:,} {name} are stored, {count:,} were sent"
        for name, count in sent.items()
        if there[name] != count
    ]
    counts = {name: count for name, count in (await admin.partition_counts()).items() if name.endswith(_DEAD_LETTERS)}
    ranges = await admin.log_ranges([(name, place) for name, count in counts.items() for place in range(count)])
    for (name, place), held in sorted(ranges.items()):
        if held.high:
            found.append(f"{held.high:,} dead letters in {name}/{place}")
    return found


async def rewind(connection: Connection, group: str, records: int) -> None:
    """Set the consumers of a group back by a number of records in each partition."""
    await connection.execute(QUERIES["chaos_rewind"], group, records)


async def terminate(connection: Connection) -> None:
    """Let the server end every other connection of this user."""
    await connection.execute(QUERIES["chaos_terminate"])


async def set_region(connection: Connection, zone: str, date_style: str) -> None:
    """Set the time zone and the date style of every session that begins from now on."""
    await connection.execute(await connection.fetchval(QUERIES["chaos_region"], zone, date_style))


async def unread_by_worker(client: Mapping[str, str], admin: Admin) -> bool:
    """Return whether there are records that the worker has not read, or has not committed yet; ticks are left out.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    committed = await committed_in_kafka(client, WORKER_KAFKA_GROUP)
    places = {place: next_ for place, next_ in committed.items() if place[0] != TICK}
    ranges = await admin.log_ranges(places)
    left = {place: LogRange(max(next_, ranges[place].low), ranges[place].high) for place, next_ in places.items()}
    unread = {place: span for place, span in left.items() if span.low < span.high}
    return bool(unread) and await asyncio.to_thread(_has_records, client, unread)


def _has_records(client: Mapping[str, str], spans: Mapping[Place, LogRange]) -> bool:
    """Return whether there is a record; a marker of a transaction does not count, nor does an aborted record."""
    reader = open_reader(client)
    try:
        return any(True for _ in read_spans(reader, spans, first_only=True))
    finally:
        reader.close()


async def has_standby(connection: Connection) -> bool:
    """Return whether a standby follows PostgreSQL, and has applied all that it was sent."""
    return bool(await connection.fetchval(QUERIES["chaos_standby"]))
