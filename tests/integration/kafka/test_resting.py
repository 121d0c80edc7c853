"""Consumers at rest: none of them fetches, and each is woken by the first record of what it reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from highwater.connectors.kafka import resting
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.resting import Doorbell
from tests.conftest import Stack
from tests.integration.connecting import fresh, running, until
from tests.integration.kafka.making import Case, names
from tests.integration.kafka.tally import own_topic


@pytest.fixture
async def drowsy(stack: Stack, context: ProcessContext, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    """A topic of two partitions and a group of the test's own, and a doorbell for its consumers, which rest soon."""
    monkeypatch.setattr(resting, "_RESTS_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(resting, "_FETCH_WAIT_MS", 300)
    monkeypatch.setattr(resting, "_PATIENT_WAIT_MS", 600)
    monkeypatch.setattr(resting, "_POLL_SECONDS", 0.1)
    monkeypatch.setattr(resting, "_COVERED_SECONDS", 0.5)
    monkeypatch.setattr(resting, "_TAKEN_OVER_SECONDS", 2.0)
    monkeypatch.setattr(resting, "_SLEEP_SECONDS", 0.2)
    monkeypatch.setattr(resting, "_TURN_SECONDS", 0.5)
    topic, doorbell = fresh("test.resting"), Doorbell(context.client)
    async with own_topic(context, topic) as made:
        try:
            yield Case(stack, replace(made, doorbell=doorbell), topic)
        finally:
            await asyncio.to_thread(doorbell.close)


async def asleep(*members: BatchConsumer) -> None:
    """Wait until these have stopped fetching."""
    await until(lambda: not any(member.is_fetching for member in members), "they rest")


async def test_the_first_record_ends_a_rest(drowsy: Case):
    """Again and again, in any partition; the rest itself would last minutes."""
    member, sent = drowsy.consumer(), []
    async with running(member):
        for turn in range(8):
            await asleep(member)
            sent += names(3, f"t{turn}-")
            drowsy.send(sent[-3:], turn % 2)
            await drowsy.all_stored(sent)


async def test_one_who_rests_for_long_is_woken_by_the_patient_bell(drowsy: Case, monkeypatch: pytest.MonkeyPatch):
    """Repeatedly: the quick bell has released it, and the rest itself would last minutes."""
    taken_over, take_over = asyncio.Event(), Doorbell.take_over
    loop, member, sent = asyncio.get_running_loop(), drowsy.consumer(), []

    def noted(self: Doorbell, who: object) -> None:
        take_over(self, who)
        loop.call_soon_threadsafe(taken_over.set)

    monkeypatch.setattr(Doorbell, "take_over", noted)
    async with running(member):
        for turn in range(4):
            await asleep(member)
            taken_over.clear()
            await asyncio.wait_for(taken_over.wait(), 60)
            sent += names(3, f"t{turn}-")
            drowsy.send(sent[-3:], turn % 2)
            await drowsy.all_stored(sent)


async def test_a_doorbell_wakes_all_who_read_a_topic_and_nobody_else(drowsy: Case):
    """Two groups of one topic are woken; a third, of another topic, keeps resting."""
    other, elsewhere = replace(drowsy, group=fresh("tally")), replace(drowsy, group=fresh("tally"))
    members = [drowsy.consumer(), other.consumer()]
    aside = elsewhere.consumer()
    aside.handler.topics = ("feeds.user-active",)
    async with running(*members, aside):
        await asleep(*members, aside)
        drowsy.send(names(5), 0)
        await drowsy.all_stored(names(5))
        await other.all_stored(names(5))
        assert not aside.is_fetching


async def test_the_record_of_one_delays_nobody_elses(stack: Stack, context: ProcessContext):
    """While a fetch of the bell waits ten seconds at the broker, each of those who wait is woken at once, one after the other.

    One fetch may begin while the first partitions are started, and waits for those alone: only one of the six may be late.
    """
    topic, rung = fresh("test.bell"), [threading.Event() for _ in range(6)]
    bell = resting._Bell(context.client, "patient", 10_000)
    producer, late = Producer({"bootstrap.servers": stack.kafka}), list[int]()
    async with own_topic(context, topic, 4 * len(rung)):
        try:
            for number, ring in enumerate(rung):
                bell.wait(number, {(topic, 4 * number + place): 0 for place in range(4)}, ring.set)
            for number, ring in enumerate(rung):
                producer.produce(topic, b"v", partition=4 * number)
                producer.flush()
                if not await asyncio.to_thread(ring.wait, 5.0):
                    late.append(number)
                    assert await asyncio.to_thread(ring.wait, 60.0), f"{number} is woken"
            assert len(late) <= 1
        finally:
            await asyncio.to_thread(bell.close)


async def test_a_rest_ends_by_itself(drowsy: Case, monkeypatch: pytest.MonkeyPatch):
    """With any state of the doorbell: a record is found when the time of the rest is over."""
    monkeypatch.setattr(resting._Bell, "_wake", lambda *_: None)
    monkeypatch.setattr(resting, "_REST_SECONDS_MAX", 2.0)
    member = drowsy.consumer()
    async with running(member):
        await asleep(member)
        drowsy.send(names(4), 1)
        await drowsy.all_stored(names(4))


async def test_a_doorbell_that_cannot_wait_lets_everybody_fetch(drowsy: Case):
    """A client that takes none of its settings wakes who relies on it at once; the rest itself would last minutes."""
    deaf = Doorbell({**drowsy.context.client, "security.protocol": "none"})
    member = replace(drowsy, context=replace(drowsy.context, doorbell=deaf)).consumer()
    try:
        async with running(member):
            for turn in range(3):
                drowsy.send(names(2, f"t{turn}-"), 0)
                await drowsy.all_stored([name for t in range(turn + 1) for name in names(2, f"t{t}-")])
                await asyncio.sleep(1.0)  # longer than the records before a rest
    finally:
        await asyncio.to_thread(deaf.close)


async def test_partitions_move_between_members_at_rest(drowsy: Case):
    """One that rests gives half of its partitions to a newcomer and takes them back; each event is stored once."""
    first, second = drowsy.consumer(), drowsy.consumer()
    async with running(first):
        await asleep(first)
        async with running(second):
            await until(lambda: len(first.readings) == len(second.readings) == 1, "they share")
            await asleep(first, second)
            drowsy.send(names(6, "a"), 0)
            drowsy.send(names(6, "b"), 1)
            await drowsy.all_stored(names(6, "a") + names(6, "b"))
            await asleep(first, second)
        await until(lambda: len(first.readings) == 2, "the first has both again")
        await asleep(first)
        drowsy.send(names(6, "c"), 0)
        drowsy.send(names(6, "d"), 1)
        await drowsy.all_stored([name for prefix in "abcd" for name in names(6, prefix)])


async def test_a_consumer_at_rest_stops_at_once(drowsy: Case, monkeypatch: pytest.MonkeyPatch):
    """A stop does not wait for the next poll, which would come in ten minutes."""
    monkeypatch.setattr(resting, "_SLEEP_SECONDS", 600.0)
    member = drowsy.consumer()
    async with asyncio.timeout(120), running(member):
        await asleep(member)
