"""Checks the stores of a stack after faults: whether all work has ended, and whether anything wrong is stored.

Invariant: it checks what holds for any stack at rest, from the stores alone; only the sender knows what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from highwater.connectors.chaos.statements import QUERIES
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.postgres.pool import Connection, one_row

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


async def has_standby(connection: Connection) -> bool:
    """Return whether a standby follows PostgreSQL, and has applied all that it was sent."""
    return bool(await connection.fetchval(QUERIES["chaos_standby"]))
