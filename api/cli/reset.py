"""`highwater reset`: sets where a group reads next. A dry run unless `--execute` is said.

Law: the table `positions` and the group's offsets in Kafka are set to the same place, and never under a live member, which would
go on from where it was. A stopped partition is the exception: nobody reads it, and its consumer looks whether it may go on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table
from highwater.schemas.envelope import iso_from_ms, ms_from_iso

if TYPE_CHECKING:
    from highwater.connectors.kafka.admin import LogRange
    from highwater.streams.settings import Settings

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

SET_POSITIONS = """
INSERT INTO positions ("group", topic, partition, topic_id, next)
SELECT $1, topic, partition, topic_id, next
FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[]) AS wanted (topic, partition, topic_id, next)
ON CONFLICT ("group", topic, partition) DO UPDATE SET topic_id = EXCLUDED.topic_id, next = EXCLUDED.next
"""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: the first or last offset there is, an offset, or the first record from a time on (`value` in ms)."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One partition of the plan; `before` None = the group had not read there."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The topics and partitions that are reset; none named means all."""

    topics: Sequence[str] = ()
    partitions: Sequence[int] = ()

    def has(self, topic: str, partition: int) -> bool:
        """Whether a partition is one of them."""
        return (not self.topics or topic in self.topics) and (not self.partitions or partition in self.partitions)


def parse_target(text: str, now_ms: int) -> Target:
    """Read `earliest`, `latest`, an offset, an ISO 8601 time, or one before now such as `-90m`.

    Raises:
        ValueError: it is none of these.
    """
    if text in ("earliest", "latest"):
        return Target("earliest" if text == "earliest" else "latest")
    if text.isascii() and text.isdecimal():
        return Target("offset", int(text))
    if ago := re.fullmatch(r"-(\d{1,9})([smhd])", text):
        return Target("time", now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    return Target("time", ms_from_iso(text))


def place_in(held: LogRange, target: Target, at_time: int | None) -> int:
    """The offset in a partition that holds `held`; `at_time` is the first offset from the target's time on, if any."""
    match target.kind:
        case "earliest":
            return held.low
        case "latest":
            return held.high
        case "offset":
            return min(max(target.value, held.low), held.high)
        case "time":
            return held.high if at_time is None else at_time


@click.command(cls=Command)
@click.argument("group")
@click.option(
    "--to",
    "to",
    required=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="Where to continue reading; TIME is ISO 8601, or an age such as -1h.",
)
@click.option("--topic", "topics", multiple=True, help="Only this topic (may be repeated).")
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one (may be repeated)."
)
@click.option("--execute/--dry-run", default=False, help="Apply the reset, or only show it (the default).")
@json_option
def reset(
    group: str, to: str, topics: tuple[str, ...], partitions: tuple[int, ...], execute: bool, as_json: bool
) -> None:
    """Set the position that GROUP reads from next.

    Stop its members first, unless GROUP has stopped every given partition because of bad events: such a partition
    resumes at the new offset.
    """
    from highwater.streams.clock import ProductClock

    try:
        target = parse_target(to, ProductClock()())
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{to!r} is neither earliest, latest, an offset nor a time", click.get_current_context(), param_hint="--to"
        ) from error
    settings = stack_settings("kafka", "database", *(["schema_registry"] if execute else []))
    if partitions and len(topics) != 1:
        raise click.UsageError("--partition needs one --topic", click.get_current_context())
    chosen = Chosen(topics, partitions)
    named = " ".join([group, *topics, *map(str, partitions), "to", to])
    with recorded(settings, "reset", named) if execute else nullcontext():
        steps, members = asyncio.run(_reset(settings, group, target, chosen, execute=execute))
    if as_json:
        rows = [{"topic": s.topic, "partition": s.partition, "before": s.before, "after": s.after} for s in steps]
        print_json({"group": group, "executed": execute, "live_members": members, "partitions": rows})
        return
    shown = [(s.topic, s.partition, "-" if s.before is None else s.before, s.after) for s in steps]
    print_table(["topic", "partition", "now", "then"], shown, right=["partition", "now", "then"])
    when = f" (records from {iso_from_ms(target.value)} on)" if target.kind == "time" else ""
    if execute:
        click.echo(f"{group} reads on from there{when}")
    else:
        hint = f"; stop its {members} live members first" if members else ""
        click.echo(f"dry run{when}: nothing was changed, --execute does it{hint}")


async def _reset(
    settings: Settings, group: str, target: Target, chosen: Chosen, *, execute: bool
) -> tuple[list[Step], int]:
    """Gather, decide, apply."""
    from highwater.connectors.kafka import groups

    client = kafka_client(settings)
    name = groups.own_name(group)
    async with database(settings) as pool:
        known = groups.catalogued_groups()
        stored = {row["group"] for row in await pool.fetch(groups.ALL_POSITIONS)}
        if name not in known and name not in stored:
            raise click.UsageError(
                f"there is no group {group!r}; there are {', '.join(sorted(set(known) | stored))}",
                click.get_current_context(silent=True),
            )
        found = (await groups.standings(client, pool, {name: known.get(name, [])}))[name]
        _refuse_unread(chosen, {(s.topic, s.partition) for s in found}, group)
        wanted = [s for s in found if chosen.has(s.topic, s.partition)]
        at_times = await _offsets_at(client, wanted, target)
        steps = [
            Step(s.topic, s.partition, s.next, place_in(s.range, target, at_times.get((s.topic, s.partition))))
            for s in wanted
        ]
        members = 0
        if not all(s.stopped for s in wanted):
            members = await live_members(client, groups.kafka_group_of(name))
        if execute:
            if members:
                raise CommandFailedError(f"{group} has {members} live members; stop them, then reset")
            await _apply(client, pool, name, steps, is_committed=not all(s.stopped for s in wanted))
    return steps, members


def _refuse_unread(chosen: Chosen, read: set[tuple[str, int]], group: str) -> None:
    topics = sorted({topic for topic, _ in read})
    for topic in chosen.topics:
        if topic not in topics:
            raise click.UsageError(
                f"{group} does not read {topic!r}; it reads {', '.join(topics) or 'nothing that is on the broker'}",
                click.get_current_context(silent=True),
            )
        for partition in chosen.partitions:
            if (topic, partition) not in read:
                raise click.UsageError(f"{topic} has no partition {partition}", click.get_current_context(silent=True))


async def _offsets_at(client: Mapping[str, str], wanted: Sequence[Any], target: Target) -> dict[tuple[str, int], int]:
    """First offset from the target's time on, of the partitions that have one."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    from highwater.connectors.kafka.admin import REQUEST_SECONDS
    from highwater.connectors.kafka.reading import kafka_error

    if target.kind != "time" or not wanted:
        return {}

    def ask() -> dict[tuple[str, int], int]:
        asked = {TopicPartition(s.topic, s.partition): OffsetSpec.for_timestamp(max(0, target.value)) for s in wanted}
        admin = AdminClient(dict(client))  # kept: with the client gone, its futures would never be resolved
        try:
            futures = admin.list_offsets(asked, request_timeout=REQUEST_SECONDS)
            found = {(tp.topic, tp.partition): f.result(2 * REQUEST_SECONDS).offset for tp, f in futures.items()}
        except KafkaException as error:
            raise kafka_error(error) from error
        return {place: offset for place, offset in found.items() if offset >= 0}

    return await asyncio.to_thread(ask)


async def live_members(client: Mapping[str, str], kafka_group: str) -> int:
    """How many members a group has in Kafka."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    from highwater.connectors.kafka.admin import REQUEST_SECONDS
    from highwater.connectors.kafka.reading import kafka_error

    def ask() -> int:
        admin = AdminClient(dict(client))
        future = admin.describe_consumer_groups([kafka_group], request_timeout=REQUEST_SECONDS)[kafka_group]
        try:
            return len(future.result(2 * REQUEST_SECONDS).members)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise kafka_error(error) from error

    return await asyncio.to_thread(ask)


async def _apply(
    client: Mapping[str, str], pool: Any, group: str, steps: Sequence[Step], *, is_committed: bool
) -> None:
    """Set the positions; Kafka refuses offsets of a live group, whose members commit them as they read on."""
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.groups import WORKER, kafka_group_of
    from highwater.connectors.kafka.stopped import resume
    from highwater.connectors.postgres.pool import transaction

    if not steps:
        raise CommandFailedError(f"none of the topics of {group} is on the broker; run `highwater init`")
    if group != WORKER:
        ids = await Admin(client).topic_ids(sorted({step.topic for step in steps}))
        columns = (
            [step.topic for step in steps],
            [step.partition for step in steps],
            [ids[step.topic] for step in steps],
            [step.after for step in steps],
        )
        async with transaction(pool) as tx:
            await tx.execute(SET_POSITIONS, group, *columns)
            await resume(tx, group, [(step.topic, step.partition) for step in steps])
    if is_committed:
        await asyncio.to_thread(_commit, client, kafka_group_of(group), steps)


def _commit(client: Mapping[str, str], kafka_group: str, steps: Sequence[Step]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    from highwater.connectors.kafka.admin import REQUEST_SECONDS
    from highwater.connectors.kafka.reading import kafka_error

    places = [TopicPartition(step.topic, step.partition, step.after) for step in steps]
    request = [ConsumerGroupTopicPartitions(kafka_group, places)]
    admin = AdminClient(dict(client))  # kept: with the client gone, its futures would never be resolved
    try:
        futures = admin.alter_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)
        for place in futures[kafka_group].result(2 * REQUEST_SECONDS).topic_partitions:
            if place.error is not None:
                raise CommandFailedError(f"{place.topic}/{place.partition}: {place.error.str()}")
    except KafkaException as error:
        raise kafka_error(error) from error
