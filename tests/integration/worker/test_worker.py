"""The worker against a real broker: events in, decisions out, through restarts, poison and lost state."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from highwater.deploy.local.stack import Addresses, LocalStack
from highwater.schemas.envelope import caused_by, header
from highwater.schemas.topics import PARTITIONS
from tests.integration.agents import (
    CODEC,
    CONSUMED,
    TICK_SECONDS,
    Answer,
    Kafka,
    Worker,
    empty,
    partition_of,
    until,
    until_caught_up,
)
from tests.integration.worker import backlog

# As long as an answer of the broker may take in one test.
ANSWER_SECONDS = 2.0


@pytest.fixture
def kafka(request: pytest.FixtureRequest, parts: Addresses) -> Iterator[Kafka]:
    """The other roles; made after the topics are."""
    request.getfixturevalue("lone" if "lone" in request.fixturenames else "worker")
    with contextlib.closing(Kafka(str(parts.kafka))) as roles:
        yield roles


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """A user of one test alone."""
    return f"user-{request.node.name}-{uuid.uuid4().hex[:8]}"


def subscribed(kafka: Kafka, worker: Worker, user: str, *channels: str, **changes: Any) -> None:
    """An active user with subscriptions, and a request answered long enough ago to count as clustered just now."""
    kafka.changed(user, 1, subscribed=list(channels), last_active_at=worker.now(), **changes)


def the(answers: Callable[[], list[Answer]], count: int) -> list[Answer]:
    """This many answers; more of them are a fault."""
    found = until(lambda: found if len(found := answers()) >= count else None, f"{count} answers")
    assert len(found) == count
    return found


def clustered(worker: Worker, kafka: Kafka, user: str) -> tuple[Answer, dict[str, int]]:
    """The first request of a user (never clustered is due at once), with an empty mark to answer it by."""
    (first,) = the(lambda: kafka.requests(user), 1)
    return first, {}


# Tests with workers of their own come first, since no other may run beside the one that the rest share.
@pytest.fixture
def lone(parts: Addresses, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Workers of one test alone, not started yet."""
    empty(str(parts.kafka))
    made: list[Worker] = []

    def make(**given: Any) -> Worker:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Worker(str(parts.kafka), folder, **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.requirement("R0.29")
def test_a_tick_tells_no_more_channels_than_its_cap(kafka: Kafka, user: str, lone: Callable[..., Worker]) -> None:
    """If many channels are dirty each tick publishes at most the cap, the oldest of a partition first, and in the end all."""
    lone(settings={"HIGHWATER_MAX_DIRTY_CHANNELS_PER_TICK": "3"}).start()
    names = [f"{user}-{number}" for number in range(60)]
    for number, name in enumerate(names):
        kafka.advanced(name, 1, arrived_at=1_000_000 - number)
    ours = set(names)

    def all_told() -> list[Answer] | None:
        found = [a for a in kafka.dirty() if a.event["channel_id"] in ours]
        return found if len({a.event["channel_id"] for a in found}) == len(ours) else None

    answers = until(all_told, "all told")
    per_tick: dict[int, int] = {}
    for answer in answers:
        per_tick[answer.event["tick"]] = per_tick.get(answer.event["tick"], 0) + 1
    assert max(per_tick.values()) <= 3
    for partition in range(PARTITIONS):
        since = [a.event["dirty_since"] for a in answers if a.partition == partition]
        told_before_all_came = 3  # the first may be published before an older one arrives
        assert since[told_before_all_came:] == sorted(since[told_before_all_came:])


def test_killed_and_robbed_of_its_state_it_decides_the_same(
    kafka: Kafka, user: str, lone: Callable[..., Worker]
) -> None:
    """After SIGKILL and the loss of all local state, marks, cooldowns and flights are as they were."""
    worker = lone().start()
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    kafka.novelty(user, a=3)
    kafka.advanced(user, 7)
    the(lambda: kafka.dirty(user), 1)
    worker.until_committed(*kafka.requests(user), *kafka.dirty(user))
    assert worker.end(signal.SIGKILL) == -signal.SIGKILL
    worker.lose_state()
    worker.start()
    worker.after_ticks(3)
    assert len(kafka.requests(user)) == 1
    assert len(kafka.dirty(user)) == 1
    worker.move_clock(601)
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("novelty", 3)


def test_rows_by_name_and_by_position_follow_each_other(kafka: Kafka, user: str, lone: Callable[..., Worker]) -> None:
    """A worker of the next release restores what this one wrote, and this one what that wrote: nothing is decided twice."""
    worker = lone().start()
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    for count, names in enumerate(({"HIGHWATER_TEST_NAMED_ROWS": "1"}, {}), start=1):
        kafka.advanced(user, 7 * count)
        the(lambda count=count: kafka.dirty(user), count)
        worker.until_committed(*kafka.requests(user), *kafka.dirty(user))
        worker.end(signal.SIGKILL)
        worker.lose_state()
        worker.settings = names
        worker.start()
        worker.after_ticks(2)
        assert (len(kafka.requests(user)), len(kafka.dirty(user))) == (1, count)
    kafka.novelty(user, a=14)
    worker.move_clock(601)
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("novelty", 14)


def test_killed_while_it_restores_it_continues_and_decides_the_same(
    kafka: Kafka, user: str, lone: Callable[..., Worker], tmp_path: Path
) -> None:
    """It says how much it restores while it does; killed then, it reads the rest after its next start and repeats no decision."""
    hold = tmp_path / "hold"
    worker = lone(settings={"HIGHWATER_TEST_HOLD_RESTORING": str(hold)}).start()
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    kafka.advanced(user, 7)
    the(lambda: kafka.dirty(user), 1)
    worker.until_committed(*kafka.requests(user), *kafka.dirty(user))
    worker.end(signal.SIGKILL)
    worker.lose_state()
    kafka.fill_heads(worker.app_id, 20_000)
    hold.touch()
    worker.launch()
    until(lambda: "records to go, about " in (worker.ready() or {}).get("tables", ""), "it says how much is left")
    worker.end(signal.SIGKILL)
    hold.unlink()
    worker.start()
    *_, broken_off, continued = worker.restorations()
    assert broken_off > 20_000
    assert broken_off > continued > 0
    worker.after_ticks(3)
    assert (len(kafka.requests(user)), len(kafka.dirty(user))) == (1, 1)
    kafka.advanced(user, 8)
    assert [answer.event["head"] for answer in the(lambda: kafka.dirty(user), 2)] == [7, 8]


def test_tables_that_were_left_for_long_are_restored_from_the_beginning(
    kafka: Kafka, lone: Callable[..., Worker]
) -> None:
    """Their missing rows are older than the log keeps deletions: they are emptied and read again, and no decision is repeated."""
    worker = lone().start()
    long_ago_ms = time.time_ns() // 1_000_000 - 20 * 3_600_000
    for rows in (1_000, 2_000):  # the rows of the stores, and the missing ones
        worker.end(signal.SIGTERM)
        kafka.fill_heads(worker.app_id, rows, at_ms=long_ago_ms)
        worker.start()
    assert worker.log().count("stores_outlived") == 1
    assert worker.restorations() == [1_000, 2_000, 3_000]
    filled = "filled-7"
    kafka.advanced(filled, 1)
    worker.after_ticks(3)
    assert kafka.dirty(filled) == []
    kafka.advanced(filled, 2)
    assert [answer.event["head"] for answer in the(lambda: kafka.dirty(filled), 1)] == [2]


def test_partitions_that_move_while_they_are_restored_are_given_up(
    kafka: Kafka, user: str, lone: Callable[..., Worker], tmp_path: Path
) -> None:
    """A second worker joins while the first restores: that ends at once, each restores its share, and all is decided once."""
    hold = tmp_path / "hold"
    one = lone(settings={"HIGHWATER_TEST_HOLD_RESTORING": str(hold)}).start()
    names = [f"{user}-{number}" for number in range(16)]
    for name in names:
        kafka.advanced(name, 7)
    until(lambda: all(map(kafka.dirty, names)), "all told")
    one.after_ticks(2)
    one.end(signal.SIGKILL)
    one.lose_state()
    kafka.fill_heads(one.app_id, 20_000)
    hold.touch()
    one.launch()
    until(lambda: "restoring" in (one.ready() or {}).get("tables", ""), "it restores")
    other = lone(app_id=one.app_id).start()
    assert "restoration_stopped" in one.log()
    hold.unlink()
    until(lambda: one.ready() == {}, "the first is ready as well")
    one.after_ticks(1)
    other.after_ticks(1)
    assert [len(kafka.dirty(name)) for name in names] == [1] * len(names)
    for name in names:
        kafka.advanced(name, 8)
    for name in names:
        assert [answer.event["head"] for answer in the(lambda name=name: kafka.dirty(name), 2)] == [7, 8]


async def test_a_backlog_is_folded_through_a_kill_and_a_rebalance(
    parts: Addresses, kafka: Kafka, lone: Callable[..., Worker]
) -> None:
    """Rows are byte by byte those of one event after the other, all is committed, bad events are
    dead-lettered, no lag is left.
    """
    address = str(parts.kafka)
    one = lone(settings={"HIGHWATER_TICK_SECONDS": "10000000"})  # no tick, which would change rows
    records = backlog.Appending(address)
    records.more(backlog.BACKLOG)

    def consumed(worker: Worker) -> float:
        return 0.0 if worker.ready() is None else worker.metric_of("highwater_events_consumed_total", backlog.TOPIC)

    one.launch()
    until(lambda: consumed(one) > 0, "some are folded")
    one.end(signal.SIGKILL)
    one.launch()
    until(lambda: consumed(one) > 0, "some are folded again")
    other = lone(app_id=one.app_id, settings=one.settings)
    other.launch()

    def have_moved() -> bool:
        records.more(20)
        return other.ready() == {} and one.ready() == {} and consumed(other) > 0

    until(have_moved, "partitions have moved while records came")
    until_caught_up(address, one.app_id, backlog.TOPIC)
    expected = await backlog.rows_alone(records.count)
    assert len(expected) == backlog.CHANNELS
    assert backlog.rows_in_changelog(address, f"{one.app_id}-channel_heads-changelog") == expected
    assert len(kafka.dead_letters(backlog.TOPIC)) >= records.count // backlog.BAD_EVERY
    for worker in (one, other):
        lag = partial(worker.metric_of, "highwater_lag_events", backlog.TOPIC)
        until(lambda lag=lag: lag() == 0, "no lag is left")
        assert worker.end(signal.SIGTERM) == 0
    until_caught_up(address, one.app_id, backlog.TOPIC)


def test_it_waits_for_a_broker_that_is_silent_for_longer_than_an_answer_may_take(
    kafka: Kafka, user: str, lone: Callable[..., Worker], own_stack: LocalStack
) -> None:
    """Ticks and rows in transit are sent again until the broker accepts them, each once; the worker does not end."""
    worker = lone(settings={"HIGHWATER_TEST_ANSWER_SECONDS": str(ANSWER_SECONDS)}).start()
    kafka.advanced(user, 5)
    the(lambda: kafka.dirty(user), 1)
    broker = own_stack.process("kafka").pid
    assert broker is not None
    os.kill(broker, signal.SIGSTOP)
    try:
        until(lambda: "kafka" in (worker.ready() or {}), "the worker says that the broker is silent")
        threading.Event().wait(3 * ANSWER_SECONDS)  # the fact under test is a silence of this length
    finally:
        os.kill(broker, signal.SIGCONT)
    until(lambda: worker.ready() == {}, "ready again")
    worker.after_ticks(2)
    kafka.advanced(user, 6)
    assert [answer.event["head"] for answer in the(lambda: kafka.dirty(user), 2)] == [5, 6]
    assert worker.log().count('"event": "worker_failed"') == 0


def test_another_worker_takes_over(parts: Addresses, kafka: Kafka, user: str, lone: Callable[..., Worker]) -> None:
    """One of two workers is killed: the other serves all partitions, and no decision is lost or made twice."""
    one = lone().start()
    other = lone(app_id=one.app_id).start()
    users = [f"{user}-{number}" for number in range(16)]
    for name in users:
        subscribed(kafka, one, name, "a")
    for name in users:
        the(lambda name=name: kafka.requests(name), 1)
    one.end(signal.SIGKILL)
    for name in users:
        kafka.finished(kafka.requests(name)[0], {}, last_clustered_at=other.now())
        kafka.novelty(name, a=5)
    # Topics have no order among themselves: the clock moves on once the new owner has dealt with the answers.
    until_caught_up(str(parts.kafka), one.app_id, "feeds.rebuild-finished", "feeds.novelty")
    other.move_clock(700)
    for name in users:
        assert the(lambda name=name: kafka.requests(name), 2)[1].event["pending"] == 5


def test_sigterm_ends_it_in_order(lone: Callable[..., Worker]) -> None:
    """SIGTERM is a clean stop, exit code 0, and the next start follows without a long wait."""
    worker = lone().start()
    started = time.monotonic()
    assert worker.end(signal.SIGTERM) == 0
    assert time.monotonic() - started < 20
    started = time.monotonic()
    worker.start()
    assert time.monotonic() - started < 40


def test_a_clock_that_is_an_hour_ahead_holds_nothing_up(kafka: Kafka, user: str, lone: Callable[..., Worker]) -> None:
    """Ticks of the future are refused and reported, the broker's time is taken meanwhile, and one taken before is overruled."""
    worker = lone(settings={"HIGHWATER_TEST_CLOCK_AHEAD_SECONDS": "3600"}).start()
    kafka.advanced(user, 5)
    (told,) = the(lambda: kafka.dirty(user), 1)
    assert abs(told.event["now"] - worker.now()) < 120_000
    assert worker.metric("highwater_ticks_refused_total") > 0
    assert "the clock of this machine is 3600 s ahead" in worker.degraded()["clock"]
    assert worker.log().count('"clocks_differ"') == 1
    worker.move_clock(3600)  # only the offset claims that it is right: these ticks are accepted
    worker.after_ticks(int(2 / TICK_SECONDS))  # the offset is read once a second
    worker.move_clock(-3600)
    until(lambda: "time_overruled" in worker.log(), "the next tick overrules them")
    kafka.advanced(user, 6)
    _, later = the(lambda: kafka.dirty(user), 2)
    assert abs(later.event["now"] - worker.now()) < 120_000


@pytest.mark.requirement("R0.28")
def test_an_advance_is_told_at_the_next_tick(worker: Worker, kafka: Kafka, user: str) -> None:
    """An advanced channel is published once, with its head, the time of its first advance and the tick that caused it."""
    kafka.advanced(user, 5, arrived_at=worker.now() - 10)
    (told,) = the(lambda: kafka.dirty(user), 1)
    assert told.event["head"] == 5
    cause = caused_by(told.headers)
    assert cause is not None
    assert (cause.topic, cause.partition) == ("streams.tick", partition_of(user))
    kafka.advanced(user, 5)
    kafka.advanced(user, 4)
    worker.after_ticks(3)
    assert len(kafka.dirty(user)) == 1
    kafka.advanced(user, 6)
    assert [a.event["head"] for a in the(lambda: kafka.dirty(user), 2)] == [5, 6]


def test_novelty_leads_to_a_request_with_its_inputs(worker: Worker, kafka: Kafka, user: str) -> None:
    """Enough novelty for an active subscriber is requested at the next tick, with all the decision was made from."""
    active_at = worker.now()
    kafka.novelty(user, a=4)  # ahead of the subscription: it counts once that is known
    kafka.changed(user, 1, subscribed=["a"], last_active_at=active_at, plan="pro")
    (request,) = the(lambda: kafka.requests(user), 1)
    tick = caused_by(request.headers)
    assert request.event["tick_position"] == str(tick)
    assert header(request.headers, "ce_id") == f"{tick}#feeds.rebuild-requested#{user}"
    expected = {
        "user_id": user,
        "forced": False,
        "trigger": "time",  # never clustered, and 4 is below the 20 of pro
        "pending": 4,
        "plan": "pro",
        "last_active_at": active_at,
        "last_clustered_at": None,
        "last_enqueued_at": None,
    }
    assert {key: request.event[key] for key in expected} == expected
    assert request.partition == partition_of(user)


@pytest.mark.requirement("R0.29")
def test_two_channels_lead_to_one_request(worker: Worker, kafka: Kafka, user: str) -> None:
    """A user reached through several channels is evaluated once, on the sum."""
    subscribed(kafka, worker, user, "a", "b")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    worker.move_clock(700)
    kafka.novelty(user, a=2, b=2)
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("novelty", 4)
    worker.after_ticks(3)
    assert len(kafka.requests(user)) == 2


@pytest.mark.requirement("R0.30")
def test_the_end_of_a_cooldown_is_revisited_without_another_event(worker: Worker, kafka: Kafka, user: str) -> None:
    """A user held back by the cooldown alone is requested when it ends, without further events of the user."""
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_clustered_at=worker.now())
    kafka.novelty(user, a=3)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    worker.move_clock(601)
    _, second = the(lambda: kafka.requests(user), 2)
    assert second.event["trigger"] == "novelty"
    assert second.event["planned_at"] - second.event["last_enqueued_at"] >= 600_000


@pytest.mark.requirement("R0.6", "R0.31")
def test_time_triggers_again_after_a_check(worker: Worker, kafka: Kafka, user: str) -> None:
    """With little novelty the time since the last check counts, with any result of that check."""
    subscribed(kafka, worker, user, "a")
    kafka.finished(*clustered(worker, kafka, user), last_checked_at=worker.now())
    kafka.novelty(user, a=1)
    worker.move_clock(7000)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    worker.move_clock(300)
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("time", 1)


def test_an_unsubscribed_channel_does_not_count(worker: Worker, kafka: Kafka, user: str) -> None:
    """Novelty of a channel that was left is not pending, and counts again from its mark when it is joined again."""
    subscribed(kafka, worker, user, "a", "b", plan="eager")
    first, _ = clustered(worker, kafka, user)
    kafka.changed(user, 2, unsubscribed=["b"])
    kafka.finished(first, {"a": 0, "b": 1}, last_clustered_at=worker.now())
    kafka.novelty(user, a=1, b=9)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    kafka.changed(user, 3, subscribed=["b"])
    _, second = the(lambda: kafka.requests(user), 2)
    assert second.event["pending"] == 9  # 1 of a, 8 of b


def test_an_answer_clears_the_way_for_the_next_request(worker: Worker, kafka: Kafka, user: str) -> None:
    """In flight nothing more is requested; the answer moves the marks and what came meanwhile is requested."""
    subscribed(kafka, worker, user, "a", plan="eager")
    kafka.novelty(user, a=3)
    first, _ = clustered(worker, kafka, user)
    kafka.novelty(user, a=10)
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1
    kafka.finished(first, {"a": 3}, last_clustered_at=worker.now())
    _, second = the(lambda: kafka.requests(user), 2)
    assert (second.event["trigger"], second.event["pending"]) == ("novelty", 7)


@pytest.mark.requirement("R0.27")
def test_a_request_without_answer_is_repeated_after_its_deadline(worker: Worker, kafka: Kafka, user: str) -> None:
    """A lost answer holds a user back until the deadline of the request and no longer."""
    subscribed(kafka, worker, user, "a", plan="eager")
    kafka.novelty(user, a=3)
    clustered(worker, kafka, user)
    worker.move_clock(280)  # the deadline is after 300 s
    worker.after_ticks(6)
    assert len(kafka.requests(user)) == 1
    worker.move_clock(30)
    the(lambda: kafka.requests(user), 2)


def test_a_demand_ignores_activity_and_cooldown(worker: Worker, kafka: Kafka, user: str) -> None:
    """An operator's demand is served for an inactive user, once."""
    kafka.changed(user, 1, subscribed=["a"])
    kafka.changed(user, 2, rebuild_demanded=True)
    (request,) = the(lambda: kafka.requests(user), 1)
    assert request.event["trigger"] == "manual"
    kafka.finished(request, {}, last_clustered_at=worker.now())
    worker.after_ticks(4)
    assert len(kafka.requests(user)) == 1


def test_an_erased_user_is_not_brought_back(worker: Worker, kafka: Kafka, user: str) -> None:
    """After an erasure neither novelty nor an older change leads to a request; a newer one does."""
    kafka.changed(user, 4, subscribed=["a"])
    kafka.changed(user, 5, erased=True)
    kafka.changed(user, 3, subscribed=["a"], last_active_at=worker.now())
    kafka.novelty(user, a=50)
    worker.after_ticks(4)
    assert kafka.requests(user) == []
    kafka.changed(user, 6, subscribed=["a"], last_active_at=worker.now())
    (request,) = the(lambda: kafka.requests(user), 1)
    assert request.event["pending"] == 0


@pytest.mark.parametrize("topic", CONSUMED)
@pytest.mark.parametrize("garbage", [b"", b"\xff garbage", b"\0\0\0\0\x01\xff\xff\xff", None, b"\0\0\1\0\0x"])
def test_garbage_is_dead_lettered_and_the_stream_goes_on(
    worker: Worker, kafka: Kafka, user: str, topic: str, garbage: bytes | None
) -> None:
    """Bytes that are no event go to the dead-letter topic as they came, with origin and reason."""
    before = len(kafka.dead_letters(topic))
    kafka.send_bytes(topic, garbage, key=b"k", headers=[("ce_id", b"from-outside")], partition=3)
    letter = until(lambda: kafka.dead_letters(topic)[before:], "a dead letter")[0]
    assert (letter.key(), letter.value()) == (b"k", garbage)
    assert header(letter.headers(), "ce_id") == "from-outside"
    assert (header(letter.headers(), "dlq_origin") or "").startswith(f"{topic}/3/")
    assert header(letter.headers(), "dlq_group") == worker.app_id
    assert header(letter.headers(), "dlq_reason") in {"empty_value", "not_wire_format", "not_avro", "unknown_schema"}
    kafka.advanced(user, 1)
    the(lambda: kafka.dirty(user), 1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(worker: Worker, kafka: Kafka, user: str, codec: str, parts: Addresses) -> None:
    """A batch of any compression reaches the agent: a missing codec must not silence the worker."""
    producer = Producer(
        {
            "bootstrap.servers": str(parts.kafka),
            "compression.type": codec,
            "partitioner": "murmur2_random",
            "linger.ms": 50,
        }
    )
    for head in range(1, 101):
        event = {"channel_id": user, "head": head, "arrived_at": 1}
        producer.produce("feeds.channel-advanced", CODEC.encode("feeds.channel-advanced", event), key=user.encode())
    assert producer.flush(10) == 0
    until(lambda: [a for a in kafka.dirty(user) if a.event["head"] == 100], "the last head of the batch")
