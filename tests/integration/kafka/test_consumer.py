"""The consumer framework on real parts: after any failure, an event's effect is stored once and nothing is left out."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs

from highwater.connectors.kafka import admin as admin_module
from highwater.connectors.kafka import consumer
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.outbox import Relay
from highwater.connectors.kafka.producer import AsyncProducer
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.schemas.errors import UnavailableError
from tests.conftest import Stack
from tests.integration.children import SESSION_MS
from tests.integration.commands import run
from tests.integration.connecting import Reader, fresh, running, until
from tests.integration.databases import allow_restarted
from tests.integration.kafka.making import Case, names
from tests.integration.kafka.tally import Tally, own_topic


@pytest.fixture
def quick_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that are found dead after two seconds."""
    monkeypatch.setattr(consumer, "SESSION_MS", SESSION_MS)


@pytest.fixture
async def case(stack: Stack, context: ProcessContext) -> AsyncIterator[Case]:
    """A topic of two partitions and a group of the test's own."""
    topic = fresh("test.consumer")
    async with own_topic(context, topic) as made:
        yield Case(stack, made, topic)


def once(act: Callable[[], object]) -> Callable[[Sequence[Event]], object]:
    """A hook that acts in the first batch only."""
    done = []

    async def hook(_: Sequence[Event]) -> None:
        if not done:
            done.append(1)
            await asyncio.to_thread(act)

    return hook


async def test_effects_and_positions_are_one_transaction(case: Case):
    """Positions match the stored effects: each partition is one past its last event."""
    placed = case.send(names(300, "a"), 0) + case.send(names(20, "b"), 1)
    async with running(case.consumer()):
        await case.all_stored(names(300, "a") + names(20, "b"))
    assert {place.partition: place.offset + 1 for place in placed} == await case.positions()


class Planned(Tally):
    """Notes how its statements are planned: by the number of events of the batch."""

    def __init__(self, group: str, topic: str) -> None:
        super().__init__(group, (topic,), batch_max=100)
        self.modes: set[tuple[bool, str]] = set()

    async def apply(self, tx: Any, events: Sequence[Event], prepared: None) -> Sequence[DeadLetter]:
        """Ask, and store."""
        self.modes.add((len(events) >= 64, await tx.fetchval("SHOW plan_cache_mode")))
        return await super().apply(tx, events, prepared)


async def test_statements_of_a_large_batch_are_planned_for_what_tables_hold_now(case: Case):
    """One planned while its table was empty would read all of a table that has grown since, for each of the batch's ids."""
    case.send(names(1_000, "many"), 0)
    planned = Planned(case.group, case.topic)
    async with running(BatchConsumer(planned, case.context)):
        await case.all_stored(names(1_000, "many"))
        case.send(names(5, "few"), 0)
        await case.all_stored(names(1_000, "many") + names(5, "few"))
    assert planned.modes == {(True, "force_custom_plan"), (False, "auto")}


async def test_a_failed_apply_moves_nothing(case: Case):
    """An apply that fails for want of a part leaves neither rows nor positions, and the batch is repeated whole."""
    seen: list[dict[int, int]] = []

    async def fail(_: Sequence[Event]) -> None:
        seen.append(await case.positions())
        if len(seen) == 1:
            raise UnavailableError("for a moment")

    case.send(names(10), 0)
    async with running(case.consumer(on_apply=fail)):
        await case.all_stored(names(10))
    assert seen[:2] == [{0: 0, 1: 0}, {0: 0, 1: 0}]


@pytest.mark.parametrize("where", ["on_prepare", "on_apply"])
async def test_a_kill_before_the_commit_stores_once(case: Case, tmp_path: Path, where: str, quick_session: None):
    """A process that is killed while it holds a batch, also with its rows written, leaves all to the next one."""
    case.send(names(30))
    with case.child(tmp_path / "child", where) as process:
        await until((tmp_path / "child" / "held").exists, "the child holds a batch")
        process.kill()
        process.wait()
        assert await case.stored() == []
        async with running(case.consumer()):
            await case.all_stored(names(30))


async def test_a_cancelled_consumer_leaves_its_batch_to_the_next(case: Case):
    """Cancelling a consumer in the middle of a batch stores nothing of it, and the next stores it once."""
    held = asyncio.Event()

    async def hold(_: Sequence[Event]) -> None:
        held.set()
        await asyncio.Event().wait()

    case.send(names(5), 0)
    task = asyncio.create_task(case.consumer(on_apply=hold).run(asyncio.Event()))
    await asyncio.wait_for(held.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await case.stored() == []
    async with running(case.consumer()):
        await case.all_stored(names(5))


async def test_a_zombie_is_fenced(case: Case, tmp_path: Path, quick_session: None):
    """A process stopped past its session and resumed finds its batch void: another has stored it, and nothing doubles."""
    case.send(names(30))
    with case.child(tmp_path / "child", "on_prepare") as process:
        await until((tmp_path / "child" / "held").exists, "the child holds a batch")
        process.send_signal(signal.SIGSTOP)
        async with running(case.consumer()):
            await case.all_stored(names(30))
            (tmp_path / "child" / "go").touch()
            process.send_signal(signal.SIGCONT)
            log = tmp_path / "child" / "log"
            await until(lambda: b"batch_fenced" in log.read_bytes() or process.poll() is not None, "fenced")
            case.send(names(30, "later"))
            await case.all_stored(names(30) + names(30, "later"))
        assert process.poll() is None


async def test_a_rebalance_hands_over(case: Case, quick_session: None):
    """Members that come and go while events flow leave each event stored once, and both members have worked."""
    expected: list[str] = []
    async with running(case.consumer(who="first", batch_max=7)):
        for turn in range(3):
            batch = names(200, f"t{turn}-")
            for partition in (0, 1):
                case.send(batch[partition::2], partition)
            second = case.consumer(who="second", batch_max=7)
            async with running(second):
                await until(lambda second=second: second.problem is None, "the second member has joined")
                late = names(20, f"late{turn}-")
                for partition in (0, 1):
                    case.send(late[partition::2], partition)
                expected += batch + late
                await case.all_stored(expected)
    rows = await case.context.pool.fetch('SELECT DISTINCT who FROM tally WHERE "group" = $1', case.group)
    assert {"first", "second"} == {row["who"] for row in rows}


async def test_a_long_batch_keeps_its_membership(case: Case, quick_session: None):
    """A batch that takes longer than the session is neither fenced nor repeated, since the poll continues beside it."""

    async def long(events: Sequence[Event]) -> None:
        if events[0].value["user_id"] == "n0000":
            await asyncio.sleep(1.5 * SESSION_MS / 1000)

    tally = case.tally(on_prepare=long)
    case.send(names(10), 0)
    with capture_logs() as logs:
        async with running(BatchConsumer(tally, case.context)):
            await case.all_stored(names(10))
            case.send(names(10, "x"), 0)
            await case.all_stored(names(10) + names(10, "x"))
    assert sum(tally.batches) == 20
    assert [entry for entry in logs if entry["event"] == "batch_fenced"] == []


async def test_a_rebalance_during_a_long_batch_loses_nothing(
    case: Case, quick_session: None, monkeypatch: pytest.MonkeyPatch
):
    """Another member joins while a batch takes long: the records read before and after it are stored once."""
    monkeypatch.setattr(consumer, "_HAND_OVER_SECONDS", 0.2)
    joined = asyncio.Event()

    async def long(events: Sequence[Event]) -> None:
        if events[0].value["user_id"].startswith("slow"):
            await joined.wait()

    for partition in (0, 1):
        case.send(names(20, f"slow{partition}-"), partition)
        case.send(names(100, f"more{partition}-"), partition)
    first = case.tally(who="first", batch_max=20, on_prepare=long)
    members = [BatchConsumer(first, case.context), case.consumer(who="second")]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(members[0].run(stop))]
    try:
        await until(lambda: first.batches, "the first holds a batch")
        tasks.append(asyncio.create_task(members[1].run(stop)))
        await until(lambda: members[1].problem is None, "the second has joined", 40)
        joined.set()
        wanted = [name for p in (0, 1) for name in (*names(20, f"slow{p}-"), *names(100, f"more{p}-"))]
        await case.all_stored(wanted)
        case.send(names(10, "after"))
        await case.all_stored(wanted + names(10, "after"))
    finally:
        joined.set()
        stop.set()
        await asyncio.gather(*tasks)


async def test_a_batch_that_ends_while_partitions_are_assigned_holds_up_nobody(
    case: Case, quick_session: None, monkeypatch: pytest.MonkeyPatch
):
    """A long batch is stored while the consumer's thread waits in a rebalance for the loop, which continues to run.

    The client has every thread but the one that polls wait for the end of its callback, also for an asynchronous commit.
    """
    monkeypatch.setattr(consumer, "_HAND_OVER_SECONDS", 0.2)
    loading, moved, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Waiting(BatchConsumer):
        """Its second assignment waits for the test, which knows when a batch has been dealt with."""

        async def _moved(self, *arguments: Any) -> None:
            await super()._moved(*arguments)
            moved.set()

        async def _load(self, places: Any) -> Any:
            if self._has_joined:
                loading.set()
                await go.wait()
            return await super()._load(places)

    async def long(_: Sequence[Event]) -> None:
        await loading.wait()

    async def later(_: Sequence[Event]) -> None:
        await go.wait()  # else it may store the events of the partition that it gets first

    for partition in (0, 1):
        case.send(names(10, f"p{partition}-"), partition)
    held = case.tally(on_prepare=long)
    members = [Waiting(held, case.context), BatchConsumer(case.tally(who="second", on_prepare=later), case.context)]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(members[0].run(stop))]
    try:
        await until(lambda: held.batches, "the first holds a batch", 60)
        tasks.append(asyncio.create_task(members[1].run(stop)))
        await until(loading.is_set, "the first is assigned again", 60)
        await until(moved.is_set, "its batch is stored", 60)
        go.set()
        await case.all_stored([name for p in (0, 1) for name in names(10, f"p{p}-")])
    finally:
        loading.set()
        go.set()
        stop.set()
        await asyncio.gather(*tasks)


async def test_postgresql_stopped_in_the_middle_of_a_batch(case: Case):
    """PostgreSQL goes away under an open transaction: one clear line, unready, and afterwards all stored once."""
    case.send(names(50), 0)
    stopping = once(lambda: case.stack.local.stop_part("database"))
    member = case.consumer(on_apply=stopping)
    stop = asyncio.Event()
    try:
        with capture_logs() as logs:
            task = asyncio.create_task(member.run(stop))
            await until(lambda: member.problem and "PostgreSQL is unavailable" in member.problem, "it says so")
            await asyncio.to_thread(case.stack.local.start_part, "database")
            await until(lambda: member.problem and "not compared with the log" in member.problem, "nobody compared it")
            await allow_restarted(case.stack.database)
            await case.all_stored(names(50))
            await until(lambda: member.problem is None, "ready again")
    finally:
        if not case.stack.local.process("database").is_alive():
            await asyncio.to_thread(case.stack.local.start_part, "database")
            await allow_restarted(case.stack.database)
        stop.set()
        await task
    paused = [entry for entry in logs if entry["event"] == "consumer_paused"]
    assert 1 <= len(paused) <= 3, paused
    assert all("PostgreSQL" in entry["reason"] for entry in paused)


async def test_kafka_stopped_and_started(case: Case):
    """Kafka stops and restarts: the consumer is unready in between and stores later events."""
    case.send(names(10), 0)
    member = case.consumer()
    async with running(member):
        await case.all_stored(names(10))
        try:
            await asyncio.to_thread(case.stack.local.stop_part, "kafka")
            await until(lambda: member.problem is not None, "it says so")
            assert "Kafka" in (member.problem or "")
        finally:
            await asyncio.to_thread(case.stack.local.start_part, "kafka")
        case.send(names(10, "b"), 1)
        await case.all_stored(names(10) + names(10, "b"))
        await until(lambda: member.problem is None, "ready again")


async def test_one_bad_event_is_found_in_its_batch(case: Case):
    """An event that the handler fails on is dead-lettered alone, with reason and origin; those around it are stored."""

    async def fail(events: Sequence[Event]) -> None:
        if any(e.value["user_id"] == "n0007" for e in events):
            raise ZeroDivisionError("n0007")

    placed = case.send(names(20), 0)
    producer = AsyncProducer(case.context.client, client_id="test")
    relay = Relay(case.stack.database, producer)
    with Reader(case.stack.kafka, case.topic + ".dlq") as reader:
        async with running(case.consumer(on_prepare=fail), relay):
            await case.all_stored([name for name in names(20) if name != "n0007"])
            (letter,) = await reader.until(lambda _: True, 1, "a dead letter")
        await producer.close()
    headers = dict(letter.headers())
    assert headers["dlq_reason"] == b"handler_failed"
    assert str(placed[7]).encode() == headers["dlq_origin"]
    assert headers["dlq_detail"] == b"ZeroDivisionError('n0007')"
    assert len(reader.messages) == 1


async def test_a_cancelled_statement_is_no_fault_of_an_event(case: Case):
    """An operator cancels the sink's statement, which waits for a lock: nothing is dead-lettered or split, all is stored once."""
    tally = case.tally(batch_max=50)
    member = BatchConsumer(tally, case.context)
    backend: list[int] = []
    pool = case.context.pool
    with capture_logs() as logs:
        async with pool.acquire() as holder, pool.acquire() as operator, running(member):
            lock = holder.transaction()
            await lock.start()
            await holder.execute("LOCK TABLE tally IN EXCLUSIVE MODE")
            case.send(names(50), 0)
            for _ in range(2):  # also the attempt that follows
                await until(lambda: waiting(operator, backend), "the sink waits for the lock", 20)
                assert await operator.fetchval("SELECT pg_cancel_backend($1)", backend.pop())
            await until(lambda: "57014" in (member.problem or ""), "it says so")
            case.send(names(100, "later"), 0)
            await lock.rollback()
            await case.all_stored(names(50) + names(100, "later"))
            await until(lambda: member.problem is None, "ready again")
    assert await case.dead() == []
    assert [entry["event"] for entry in logs if entry["event"] in {"batch_split", "event_failed"}] == []
    assert (len(set(tally.batches[:2])), max(tally.batches)) == (1, 50)  # repeated whole, and as large as before


async def waiting(operator: Any, found: list[int]) -> bool:
    """Whether a session waits for a lock on the tally; its process goes to `found`."""
    found[:] = [
        row["pid"]
        for row in await operator.fetch(
            "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'tally'::regclass AND pid <> pg_backend_pid()"
        )
    ]
    return bool(found)


async def test_around_a_bad_event_batches_stay_large(case: Case):
    """A bad event is found by halves: it costs some dozen batches, not one for each event around it."""

    async def fail(events: Sequence[Event]) -> None:
        if any(event.value["user_id"] == "n0150" for event in events):
            raise ZeroDivisionError

    tally = case.tally(batch_max=256, on_prepare=fail)
    case.send(names(256), 0)
    with capture_logs() as logs:  # a traceback an event
        async with running(BatchConsumer(tally, case.context)):
            await case.all_stored([name for name in names(256) if name != "n0150"])
            await until(case.dead, "it is dead-lettered")
            case.send(names(100, "later"), 0)
            await case.all_stored([name for name in names(256) if name != "n0150"] + names(100, "later"))
    assert len(tally.batches) < 40, tally.batches
    assert len([entry for entry in logs if entry["event"] == "batch_split"]) == 1


async def test_a_dead_letter_is_the_original_and_says_why(case: Case):
    """Key, bytes and headers are as they came; reason, detail, origin and group stand beside them."""
    (place,) = case.send_raw([b"not avro"], 1)
    producer = AsyncProducer(case.context.client, client_id="test")
    with Reader(case.stack.kafka, case.topic + ".dlq") as reader:
        async with running(case.consumer(), Relay(case.stack.database, producer)):
            (letter,) = await reader.until(lambda _: True, 1, "a dead letter")
        await producer.close()
    headers = dict(letter.headers())
    assert (letter.key(), letter.value(), headers["h"]) == (b"k", b"not avro", b"1")
    assert {
        "dlq_reason": b"not_wire_format",
        "dlq_detail": b"the value does not start with magic byte 0 and a schema id",
        "dlq_origin": str(place).encode(),
        "dlq_group": case.group.encode(),
    } == {name: headers[name] for name in ("dlq_reason", "dlq_detail", "dlq_origin", "dlq_group")}
    assert {"dlq_time", "ce_id"} <= headers.keys()


async def test_the_breaker_stops_one_partition(case: Case):
    """Past the ratio a partition stops where its bad run begins; of that run nothing is stored, and the other is read on."""
    case.send(names(3), 0)
    case.send_raw([b"poison"] * 150, 0)
    member = case.consumer(batch_max=1000)
    with capture_logs() as logs:
        async with running(member):
            await until(lambda: member.degraded, "it stops")
            case.send(names(20, "b"), 1)
            await case.all_stored(names(3) + names(20, "b"))
            assert member.problem is None
    assert f"highwater dlq park {case.group} {case.topic} --partition 0" in logged(logs, "partition_stopped")["reason"]
    assert await case.positions() == {0: 3 + len(await case.dead()), 1: 20}


def logged(logs: Sequence[Any], name: str) -> Any:
    """The one entry of a name."""
    (found,) = [entry for entry in logs if entry["event"] == name]
    return found


async def test_a_handler_that_fails_on_everything_stops_partition_by_partition(case: Case):
    """A batch that is split event by event stops a partition at its hundredth failure, and only there."""

    async def fail(events: Sequence[Event]) -> None:
        if any(event.record.partition == 0 for event in events):
            raise ZeroDivisionError

    case.send(names(120), 0)
    case.send(names(20, "b"), 1)
    member = case.consumer(on_prepare=fail)
    with capture_logs():  # a traceback an event
        async with running(member):
            await until(lambda: member.degraded, "it stops")
            await case.all_stored(names(20, "b"))
    assert (await case.positions(), len(await case.dead())) == ({0: 99, 1: 20}, 99)


async def test_a_recreated_topic_stops_the_consumer(
    case: Case, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """A topic that was deleted and recreated ends its consumer with one line, rather than being read at old positions. The
    command in the line keeps every row and continues with the new events.
    """
    monkeypatch.setattr(consumer, "TOPIC_IDS_SECONDS", 0.5)
    monkeypatch.setattr(admin_module, "TOPIC_IDS_SECONDS", 0.5)
    case.send(names(10), 0)
    admin = AdminClient({"bootstrap.servers": case.stack.kafka})
    member = case.consumer()
    stop = asyncio.Event()
    with capture_logs() as logs:
        task = asyncio.create_task(member.run(stop))
        await case.all_stored(names(10))
        for future in admin.delete_topics([case.topic]).values():
            future.result(10)
        await until(lambda: case.topic not in admin.list_topics(timeout=10).topics, "it is gone")
        for future in admin.create_topics([NewTopic(case.topic, 2, 1)]).values():
            future.result(10)
        await until(lambda: (member.problem or "").startswith("stopped"), "it stops")
    assert "deleted and recreated" in (member.problem or "")
    assert len([entry for entry in logs if entry["event"] == "consumer_stopped"]) == 1
    assert names(10) == await case.stored()
    stop.set()
    await task
    case.send(names(5, "b"), 0)
    (command,) = re.findall(r"`highwater ([^`]+)`", member.problem or "")
    done = await asyncio.to_thread(run, environment, *command.split())
    assert done.returncode == 0, done.stderr
    async with running(case.consumer()):
        await case.all_stored(names(10) + names(5, "b"))


async def test_a_topic_recreated_while_the_group_was_away_is_not_read(case: Case):
    """A group that returns to another topic of the same name stops, with what to run."""
    case.send(names(10), 0)
    async with running(case.consumer()):
        await case.all_stored(names(10))
    await case.context.pool.execute("UPDATE positions SET topic_id = 'earlier' WHERE \"group\" = $1", case.group)
    member = case.consumer()
    stop = asyncio.Event()
    task = asyncio.create_task(member.run(stop))
    await until(lambda: (member.problem or "").startswith("stopped"), "it stops")
    assert f"highwater reset {case.group} --to earliest --topic {case.topic} --execute" in (member.problem or "")
    stop.set()
    await task


async def test_more_members_than_partitions(case: Case):
    """A member without a partition is ready and idle."""
    case.send(names(10))
    members = [case.consumer() for _ in range(3)]
    async with running(*members):
        await case.all_stored(names(10))
        assert [member.problem for member in members] == [None, None, None]
