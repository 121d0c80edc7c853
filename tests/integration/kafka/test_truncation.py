"""A log that lost its tail: no offset is taken for another record's, the loss is reported, and a repair leaves nothing out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import httpx2
import pytest

from highwater.api.chaos.unsynced import lose_unsynced
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.kafka import outbox, positions
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.groups import WORKER_KAFKA_GROUP, committed, lags
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.outbox import OutboxRow, Relay
from highwater.connectors.kafka.positions import Place, Stored
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.reading import open_reader, read_spans
from highwater.connectors.kafka.truncation import COMMAND, all_truncations
from highwater.connectors.postgres.pool import transaction
from highwater.connectors.repair.repairing import Plan, plan_repairs, repair
from highwater.connectors.slices import REMAKES
from highwater.connectors.wiring import Wiring
from highwater.schemas.errors import UnavailableError
from highwater.schemas.positions import parse_position
from highwater.schemas.topics import TOPICS
from tests.conftest import Stack
from tests.integration.api_server import Api, Seeds
from tests.integration.commands import printed, run
from tests.integration.connecting import codec_of, fresh, running, send, surroundings, until
from tests.integration.kafka.making import Case, names
from tests.integration.kafka.tally import own_topic

INGESTED = "feeds.insight-ingested"


def lose_power(stack: Stack, keep: Mapping[Place, int]) -> None:
    """Take the records from these offsets on away from the broker, as a power loss does."""
    stack.local.kill_part("kafka")
    log_dir = next(Path(stack.local.data_dir).glob("kafka/**/recovery-point-offset-checkpoint")).parent
    lost = lose_unsynced(log_dir, keep)
    stack.local.start_part("kafka")
    assert lost == dict(keep)


@pytest.fixture
async def case(stack: Stack, context: ProcessContext) -> AsyncIterator[Case]:
    """A topic of two partitions and a group of the test's own."""
    topic = fresh("test.truncation")
    async with own_topic(context, topic) as made:
        yield Case(stack, made, topic)


async def test_records_in_the_place_of_lost_ones_are_not_taken_for_them(case: Case):
    """The log grew beyond the stored position again: the partition stops, the other continues, and all is stored in the end."""
    before = case.send(names(10, "a")[:5], 0) + case.send(names(10, "a")[5:], 0)  # a loss takes whole batches
    async with running(case.consumer()):
        await case.all_stored(names(10, "a"))
    lose_power(case.stack, {(case.topic, 0): 5})
    strange = case.send(names(8, "b"), 0)
    assert [one.offset for one in strange] == [*range(5, 13)]  # five of them have offsets that were given before
    case.send(["other"], 1)

    consumer = case.consumer()
    async with running(consumer):
        await case.all_stored([*names(10, "a"), "other"])
        await until(lambda: consumer.degraded is not None, "the loss is reported")
        assert consumer.degraded is not None
        assert f"{case.topic}/0 lost its tail: Kafka no longer has the 5 records from offset 5 on" in consumer.degraded
        assert COMMAND in consumer.degraded
        assert consumer.problem is None
        group = next(one for one in await lags(case.context.client, case.context.pool) if one.group == case.group)
        assert COMMAND in (group.problem or "")

        plan = await plan_of(case)
        assert (plan.loss.end_offset, plan.given, plan.end) == (5, 10, 13)
        assert [record.offset for record in plan.standing] == [5, 6, 7, 8, 9]
        assert await case.positions() == {0: 10, 1: 1}  # planning changed nothing
        repaired = await repair(case.context, REMAKES, plan)
        assert list(repaired.moved) == strange[:5]
        assert min(now.offset for now in repaired.moved.values()) >= 13

        await case.all_stored([*names(10, "a"), "other", *names(8, "b")])
        await until(lambda: consumer.degraded is None, "the partition is read again")
    assert before[-1].offset == 9
    [loss] = [one for one in await all_truncations(case.context.pool) if one.topic == case.topic]
    assert not loss.is_open


async def test_a_consumer_that_is_behind_stops_too_and_the_outbox_waits(case: Case):
    """A second group has not read what was lost; it stops at the row of the first, and a relay publishes nothing there."""
    case.send(names(10, "a")[:9], 0)
    case.send(names(10, "a")[9:], 0)
    async with running(case.consumer()):
        await case.all_stored(names(10, "a"))
    later = dataclasses.replace(case, group=fresh("later"))
    async with running(later.consumer()):
        await later.all_stored(names(10, "a"))
    await case.context.pool.execute('UPDATE positions SET next = 3 WHERE "group" = $1 AND partition = 0', later.group)
    lose_power(case.stack, {(case.topic, 0): 9})

    async with running(first := case.consumer()):
        await until(lambda: COMMAND in (first.degraded or ""), "the loss is reported")
    async with running(case.consumer(), consumer := later.consumer()):
        await until(lambda: COMMAND in (consumer.degraded or ""), "the other group stops, too")
        assert (await later.positions())[0] == 3
        async with case.context.pool.acquire() as tx:
            value = case.context.codec.encode(case.topic, {"user_id": "late", "ts": 1})
            await outbox.add(tx, [OutboxRow(case.topic, b"k", value, [], 0)])
        producer = AsyncProducer(case.context.client, client_id="test")
        relay = Relay(case.stack.database, producer)
        try:
            async with running(relay):
                waiting = "SELECT count(*) FROM outbox WHERE topic = $1"
                assert await case.context.pool.fetchval(waiting, case.topic) == 1
                plan = await plan_of(case)
                repaired = await repair(case.context, REMAKES, plan)
                assert repaired.filled_to == 11  # with the marker of the transaction, though Kafka writes it later
                await until(lambda: _stored(case, "late"), "the event of the outbox comes")
        finally:
            await producer.close()
        await case.all_stored([*names(10, "a"), "late"])


async def test_a_log_that_grew_again_is_found_with_nothing_running(case: Case):
    """The command alone finds the loss by leader epochs; a group that was behind gets what stood there once, at its new place."""
    case.send(names(5, "a"), 0)
    case.send(names(10, "a")[5:], 0)
    later = dataclasses.replace(case, group=fresh("later"))
    async with running(case.consumer(), later.consumer()):
        await case.all_stored(names(10, "a"))
        await later.all_stored(names(10, "a"))
    await case.context.pool.execute('UPDATE positions SET next = 3 WHERE "group" = $1 AND partition = 0', later.group)
    lose_power(case.stack, {(case.topic, 0): 5})
    strange = case.send(names(8, "b"), 0)

    await until(lambda: _has_groups(case.context), "Kafka is back for the command")
    plan = await plan_of(case)
    assert (plan.loss.end_offset, plan.given, plan.end, len(plan.standing)) == (5, 10, 13, 5)
    repaired = await repair(case.context, REMAKES, plan)
    assert list(repaired.moved) == strange[:5]
    async with running(case.consumer(), later.consumer()):
        await case.all_stored([*names(10, "a"), *names(8, "b")])
        await until(lambda: _is_at(later, 18), "the other group has read all")
    # Its first two were read again after 3; nothing else was stored twice.
    assert sorted(await later.stored()) == sorted([*names(10, "a"), *names(5, "a")[3:], *names(8, "b")])


async def _has_groups(context: ProcessContext) -> bool:
    """A broker that has just started does not know yet that it coordinates the groups."""
    try:
        await committed(context.client, WORKER_KAFKA_GROUP)
    except UnavailableError:
        return False
    return True


async def _is_at(case: Case, next_: int) -> bool:
    return (await case.positions())[0] >= next_


async def test_a_producer_whose_log_lost_its_tail_stores_it(stack: Stack, context: ProcessContext):
    """A topic that only the worker reads has no stored positions: its producer finds the loss and continues after the repair."""
    topic = fresh("test.unread")
    async with own_topic(context, topic) as made, AsyncExitStack() as resources:
        producer = await Wiring(stack.settings(), made, resources).producer()
        for number in range(4):
            await producer.publish(topic, b"%d" % number, key=b"k")
        place = (topic, murmur2_partition(b"k", 2))
        lose_power(stack, {place: 2})

        async def refusal() -> str:
            try:
                await producer.publish(topic, b"again", key=b"k")
            except UnavailableError as error:
                return str(error)
            return ""

        await until(lambda: _says(refusal, "a second time"), "an offset is given a second time")
        await until(lambda: _is_noted(made, place), "the loss is stored")
        await until(lambda: _has_groups(made), "Kafka knows its groups again")
        plan = next(one for one in await plan_repairs(made, REMAKES) if one.loss.place == place)
        assert (plan.loss.end_offset, plan.given) == (2, 4)
        await repair(made, REMAKES, plan)
        taken = await producer.publish(topic, b"after", key=b"k")
        assert taken.offset >= 4


async def _says(ask: Callable[[], Awaitable[str]], text: str) -> bool:
    return text in await ask()


async def _is_noted(context: ProcessContext, place: Place) -> bool:
    return any(one.place == place and one.is_open for one in await all_truncations(context.pool))


async def test_a_loss_is_noted_of_held_positions_and_later_ends(case: Case):
    """So a consumer that was assigned a partition while it was repaired does not report the loss a second time."""
    case.send(["a", "b"], 0)
    async with running(case.consumer()):
        await case.all_stored(["a", "b"])
    place, pool = (case.topic, 0), case.context.pool
    assert await case.consumer()._lost({place: Stored(2)}) == []
    assert await case.consumer()._lost({place: Stored(3)}) == [(place, 2, 3)]
    async with transaction(pool) as tx:
        held = await positions.hold(tx, case.group, {place}, lows={place: 0})
        assert held[place].next == 2
        with pytest.raises(asyncpg.LockNotAvailableError):
            await pool.execute("SELECT FROM positions WHERE topic = $1 AND partition = 0 FOR UPDATE NOWAIT", case.topic)


async def plan_of(case: Case) -> Plan:
    """The repair of the test's own topic; those of other tests are gone, and so are topics that their groups read."""
    return next(plan for plan in await plan_repairs(case.context, REMAKES) if plan.loss.topic == case.topic)


async def _stored(case: Case, name: str) -> bool:
    return name in await case.stored()


@asynccontextmanager
async def insights_sink(stack: Stack, seeds: Seeds) -> AsyncIterator[tuple[ProcessContext, BatchConsumer]]:
    """The sink of insights on the module's database."""
    async with surroundings(dataclasses.replace(stack, database=seeds.url)) as context:
        sink = InsightsSink(context.codec, context.clock, context.pool, dimensions=384)
        consumer = BatchConsumer(sink, context)
        async with running(consumer):
            yield context, consumer


async def test_a_position_that_was_given_twice_is_moved_for_the_lost_record(stack: Stack, seeds: Seeds):
    """A stranger's insight stands where a lost one stood: after the repair each row has the position that its record has."""
    channel = fresh("place")
    place = place_of(channel)
    codec = await codec_of(stack)

    def insight(number: int) -> tuple[bytes, bytes, list[tuple[str, bytes]], int]:
        event = {
            "insight_id": f"{channel}-{number}",
            "channel_id": channel,
            "ts": 1_790_000_000_000,
            "text": f"n {number}",
        }
        value = codec.encode(INGESTED, event)
        return channel.encode(), value, [("h", b"1")], place[1]

    async def rows(context: ProcessContext) -> dict[str, int]:
        statement = "SELECT insight_id, source_offset FROM insights WHERE channel_id = $1"
        return {row["insight_id"]: row["source_offset"] for row in await context.pool.fetch(statement, channel)}

    async def has(context: ProcessContext, count: int) -> bool:
        return len(await rows(context)) == count

    async with insights_sink(stack, seeds) as (context, _):
        send(stack.kafka, INGESTED, [insight(0)])
        [lost] = send(stack.kafka, INGESTED, [insight(1)])
        await until(lambda: has(context, 2), "both are stored")
    await asyncio.to_thread(lose_power, stack, {place: lost.offset})
    [strange] = send(stack.kafka, INGESTED, [insight(2)])
    assert strange == lost

    async with insights_sink(stack, seeds) as (context, consumer):
        await until(lambda: COMMAND in (consumer.degraded or ""), "the loss is reported")
        plan = next(one for one in await plan_repairs(context, REMAKES) if one.loss.place == place)
        repaired = await repair(context, REMAKES, plan)
        await until(lambda: has(context, 3), "the stranger's is stored")
        stored = await rows(context)
        span = (await context.admin.log_ranges([place]))[place]
        reader = open_reader(context.client)
        try:
            behind = list(read_spans(reader, {place: LogRange(repaired.filled_to, span.high)}))
        finally:
            reader.close()
    in_log = {codec.decode(INGESTED, record.value)["insight_id"]: record.offset for record in behind}
    assert {name: stored[name] for name in in_log} == in_log
    assert in_log.keys() == {f"{channel}-1", f"{channel}-2"}
    assert repaired.moved[lost].offset == in_log[f"{channel}-1"]


def place_of(channel: str) -> Place:
    """The partition of a channel."""
    return INGESTED, murmur2_partition(channel.encode(), TOPICS[INGESTED].partitions)


async def write(api: Api, channel: str, number: int) -> httpx2.Response:
    """Publish an insight through the API."""
    event = {
        "insight_id": f"{channel}-{number}",
        "channel_id": channel,
        "ts": "2026-01-02T03:04:05Z",
        "text": f"n {number}",
    }
    return await api.post(f"/api/events/{INGESTED}", event)


async def read(api: Api, channel: str, number: int, position: str) -> httpx2.Response:
    """Read it back, no older than a position."""
    path = f"/api/insights/{channel}/{channel}-{number}"
    return await api.get(path, x_min_position=position, x_max_wait_ms="10000")


async def test_the_api_confirms_nothing_of_a_partition_that_lost_its_tail(
    stack: Stack, seeds: Seeds, api: Api, environment: dict[str, str]
):
    """Writes and positions of lost records are refused with the command; it makes the insights again, and reads are exact."""
    channel = fresh("cut")
    place = (INGESTED, murmur2_partition(channel.encode(), TOPICS[INGESTED].partitions))
    other = next(
        name
        for name in iter(lambda: fresh("whole"), "")
        if murmur2_partition(name.encode(), TOPICS[INGESTED].partitions) != place[1]
    )
    async with insights_sink(stack, seeds) as (context, _):
        positions = [(await write(api, channel, number)).json()["positions"][0] for number in range(10)]
        assert (await read(api, channel, 9, positions[9])).status_code == 200
    first = parse_position(positions[0])
    await asyncio.to_thread(lose_power, stack, {place: first.offset + 5})

    async with insights_sink(stack, seeds) as (context, consumer):
        await until(lambda: COMMAND in (consumer.degraded or ""), "the loss is reported")
        await until(lambda: _takes_writes(api, other), "Kafka is back for the API")
        refused = await write(api, channel, 10)
        assert (refused.status_code, COMMAND in refused.json()["detail"]) == (503, True)
        lost = await read(api, channel, 7, positions[7])
        assert (lost.status_code, COMMAND in lost.json()["detail"]) == (503, True)
        assert (await read(api, channel, 3, positions[3])).status_code == 200
        assert COMMAND in (await api.get("/readyz")).json()["degraded"]["log"]

        own = {**environment, "DATABASE_URL": seeds.url}
        [planned] = printed(await asyncio.to_thread(run, own, "repair-log", "--json"))
        assert (planned["lost"], planned["made_again"], planned["standing"]) == (5, 5, [])
        assert (await write(api, channel, 10)).status_code == 503  # a plan changes nothing
        [repaired] = printed(await asyncio.to_thread(run, own, "repair-log", "--execute", "--json"))
        assert list(repaired["moved"]) == positions[5:]

        await until(lambda: consumer.degraded is None, "the partition is read again")
        gone = await read(api, channel, 7, positions[7])
        assert (gone.status_code, gone.json()["type"]) == (
            410,
            "/problems/position-lost",
        )  # not `gone`: nothing was retracted
        moved = repaired["moved"][positions[7]]
        found = await read(api, channel, 7, moved)
        assert (found.status_code, found.json()["position"], found.json()["seq"]) == (200, moved, 8)
        fresh_write = await until(lambda: _accepted(api, channel, 10), "writes are taken again")
        assert (await read(api, channel, 10, fresh_write)).json()["seq"] == 11
        in_log = await asyncio.to_thread(_ids_in, context, channel, await context.admin.log_ranges([place]))
    assert in_log == {f"{channel}-{number}" for number in range(11)}


async def _takes_writes(api: Api, channel: str) -> bool:
    return (await write(api, channel, 0)).status_code == 202


async def _accepted(api: Api, channel: str, number: int) -> str | None:
    answer = await write(api, channel, number)
    return answer.json()["positions"][0] if answer.status_code == 202 else None


def _ids_in(context: ProcessContext, channel: str, spans: Mapping[Place, LogRange]) -> set[str]:
    """The insights of a channel in the log, by a reader that starts at its beginning."""
    reader = open_reader(context.client)
    try:
        records = [record for record in read_spans(reader, spans) if record.key == channel.encode()]
    finally:
        reader.close()
    return {context.codec.decode(INGESTED, record.value)["insight_id"] for record in records}
