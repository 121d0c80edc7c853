"""Positions of consumer groups in PostgreSQL: the fence that stores an effect and its position together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.errors import FencedError, TopicRecreatedError
from highwater.streams.relay_epochs import Epoch

Place = tuple[str, int]  # topic, partition
# The highest relay epochs read in each partition, by shard of the outbox (`streams/relay_epochs.py`).
Epochs = Mapping[Place, Mapping[int, Epoch]]


class Stored(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it; None if it is unknown."""

    next: int
    leader_epoch: int | None = None


class Move(NamedTuple):
    """A step of one partition: from the expected offset to the next to read, after a record of a leader epoch."""

    topic: str
    partition: int
    topic_id: str
    expected: int
    next: int
    leader_epoch: int | None = None


def recreated(group: str, topic: str) -> TopicRecreatedError:
    """Return the error of a group that finds another topic under the name it was reading."""
    return TopicRecreatedError(
        f"{topic} is not the topic that group {group} was reading (it was deleted and recreated); "
        f"run `highwater reset {group} --to earliest --topic {topic} --execute`"
    )


async def load(
    tx: Connection, group: str, places: Sequence[Place], *, topic_ids: Mapping[str, str], lows: Mapping[Place, int]
) -> dict[Place, Stored]:
    """Return where each partition is read next, and store missing ones; never below the first offset of the log.

    Raises:
        TopicRecreatedError: a stored position belongs to an earlier topic of the same name.
    """
    fresh = sorted(places)
    await tx.execute(
        QUERIES["insert_positions"],
        group,
        [topic for topic, _ in fresh],
        [partition for _, partition in fresh],
        [topic_ids[topic] for topic, _ in fresh],
        [lows[place] for place in fresh],
    )
    found: dict[Place, Stored] = {}
    for row in await tx.fetch(QUERIES["positions_of"], group):
        place = (row["topic"], row["partition"])
        if place not in lows:
            continue
        if row["topic_id"] != topic_ids[row["topic"]]:
            raise recreated(group, row["topic"])
        # Retention has deleted the record before the position: there is nothing to compare.
        found[place] = Stored(row["next"], row["leader_epoch"] if row["next"] > lows[place] else None)
        if row["next"] < lows[place]:
            found[place] = Stored(lows[place])
            await tx.execute(QUERIES["skip_to"], group, *place, lows[place])
    return found


async def hold(
    tx: Connection, group: str, places: Collection[Place], *, lows: Mapping[Place, int]
) -> dict[Place, Stored]:
    """Return the positions of some partitions as they are now; `highwater repair-log` waits until the transaction ends."""
    fresh = sorted(places)
    columns = [topic for topic, _ in fresh], [partition for _, partition in fresh]
    return {
        (row["topic"], row["partition"]): Stored(
            row["next"], row["leader_epoch"] if row["next"] > lows[row["topic"], row["partition"]] else None
        )
        for row in await tx.fetch(QUERIES["hold_positions"], group, *columns)
    }


async def advance(tx: Connection, group: str, moves: Sequence[Move]) -> None:
    """Move positions in the caller's transaction; their rows stay locked until it ends.

    Raises:
        FencedError: a partition is not at the expected offset: another consumer has it; or it lost its tail.
    """
    ordered = sorted(moves, key=lambda move: move[:2])  # one order for all, or two consumers could deadlock
    columns = [[getattr(move, name) for move in ordered] for name in Move._fields]
    status = await tx.execute(QUERIES["advance_positions"], group, *columns)
    if status != f"UPDATE {len(ordered)}":
        places = ", ".join(f"{move.topic}/{move.partition}" for move in ordered)
        raise FencedError(f"group {group} was overtaken on one of {places}")


async def load_epochs(tx: Connection, group: str) -> dict[Place, dict[int, Epoch]]:
    """Return the relay epochs that a group has read."""
    found: dict[Place, dict[int, Epoch]] = {}
    for row in await tx.fetch(QUERIES["relay_epochs_of"], group):
        place = row["topic"], row["partition"]
        found.setdefault(place, {})[row["shard"]] = Epoch(row["epoch"], row["offset"])
    return found


async def raise_epochs(tx: Connection, group: str, raised: Epochs) -> None:
    """Store epochs in the caller's transaction, after `advance`, whose rows guard them."""
    rows = [(*place, shard, *epoch) for place, epochs in raised.items() for shard, epoch in epochs.items()]
    if rows:
        await tx.execute(QUERIES["raise_relay_epochs"], group, *map(list, zip(*rows, strict=True)))
