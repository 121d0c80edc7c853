"""Topics and groups over HTTP, against a real broker and registry: those of the catalogue, and those of others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from highwater.connectors.kafka import groups
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.connectors.kafka.groups import kafka_group_of
from highwater.connectors.kafka.reading import open_reader, read_spans
from highwater.connectors.kafka.resetting import Chosen, GroupRunningError, apply_reset, parse_target, plan_reset
from tests.conftest import Stack
from tests.integration.api_server import Api, Seeds, wait_until
from tests.integration.broker.making import COUNT
from tests.integration.commands import run
from tests.integration.connecting import fresh

KEYS = "admin:root-key,viewer:eye-key,viewer:ann-key:ann"
INSIGHTS = "feeds.insight-ingested"


async def test_a_topic_of_the_catalogue_is_described(guarded: Api) -> None:
    """Its declaration, copies, offsets, bytes on disk, the settings that are its own, its readers and its schema."""
    found = (await guarded.get(f"/api/topics/{INSIGHTS}", "eye-key")).json()
    assert (found["subsystem"], found["kind"], found["is_catalogued"]) == ("feeds", "events", True)
    assert found["takes_events"] is True
    assert [one["group"] for one in found["groups"] if one["is_catalogued"]] == ["insights"]
    assert [(one["leader"], one["replicas"], one["in_sync"]) for one in found["partitions"]] == [(1, [1], [1])] * 8
    assert all(one["size_bytes"] is not None for one in found["partitions"])
    own = {one["name"]: one for one in found["config"] if not one["is_default"]}
    assert own["message.timestamp.type"]["value"] == own["message.timestamp.type"]["expected"] == "LogAppendTime"
    assert "flush.ms" not in own
    assert found["schema"]["subject"] == f"{INSIGHTS}-value"
    assert found["schema"]["compatibility"] == "FULL_TRANSITIVE"
    assert found["schema"]["versions"][0]["version"] == 1


async def test_a_topic_of_others_is_described_and_listed(guarded: Api, foreign: str) -> None:
    """With its events, its bytes and the lag of a group that the catalogue does not have."""
    found = (await guarded.get(f"/api/topics/{foreign}", "eye-key")).json()
    assert (found["subsystem"], found["is_catalogued"], found["takes_events"]) == ("other", False, False)
    (partition,) = found["partitions"]
    assert (partition["first"], partition["next"], found["events"]) == (0, COUNT, COUNT)
    assert partition["size_bytes"] > 0
    assert [one["name"] for one in found["config"] if not one["is_default"]] == ["retention.ms"]
    assert found["groups"] == [{"group": foreign, "kafka_group": foreign, "is_catalogued": False, "lag": COUNT - 2}]
    assert found["schema"] is None
    listed = (await guarded.get("/api/topics", "eye-key")).json()["topics"]
    kinds: dict[str, Any] = {one["topic"]: (one["subsystem"], one["kind"]) for one in listed}
    assert kinds[foreign] == ("other", "events")
    assert kinds[f"{INSIGHTS}.dlq"] == ("feeds", "dead letters")
    assert kinds["__consumer_offsets"] == ("other", "internal")


def test_one_read_serves_all_groups_that_wait_at_one_record(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrivals by place: the first record at or after each; two places in a partition are two reads, for any number of groups."""
    topic = fresh("lags")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": stack.kafka})
    for number in range(6):
        producer.produce(topic, b"x", partition=number % 2, timestamp=1_000 + number)
    assert producer.flush(30) == 0
    unread = [((topic, 0), LogRange(low, 3)) for low in (0, 0, 2, 1, 0)] + [((topic, 1), LogRange(1, 3))] * 3
    reads = []
    monkeypatch.setattr(groups, "read_spans", lambda *args, **more: reads.append(1) or read_spans(*args, **more))
    reader = open_reader(stack.settings().kafka_client(), fetch_bytes=64 * 1024)
    try:
        found = groups._first_arrivals(reader, unread)
    finally:
        reader.close()
        admin.delete_topics([topic])[topic].result(30)
    assert found == {
        ((topic, 0), 0): 1_000, ((topic, 0), 1): 1_002, ((topic, 0), 2): 1_004, ((topic, 1), 1): 1_003,
    }  # fmt: skip
    assert len(reads) == 3


async def test_what_is_not_there_and_who_may_not(guarded: Api, foreign: str) -> None:
    """404 names the topic; a key that is bound to a user reads none."""
    missing = await guarded.get("/api/topics/no-such-topic", "eye-key")
    assert (missing.status_code, missing.json()["detail"]) == (404, "there is no topic 'no-such-topic' on the broker")
    for path in ("/api/topics", f"/api/topics/{foreign}"):
        assert (await guarded.get(path, "ann-key")).status_code == 403


@contextlib.contextmanager
def a_member(stack: Stack, group: str, topic: str | None = None) -> Iterator[None]:
    """A member of a group, which has its partitions of a topic (of the same name by default) and commits nothing."""
    options = {"bootstrap.servers": str(stack.kafka), "group.id": group, "client.id": "reader"}
    consumer = Consumer({**options, "enable.auto.commit": False})
    consumer.subscribe([topic or group])

    def has_partitions() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    try:
        wait_until(has_partitions, "the member has its partition")
        yield
    finally:
        consumer.close()


async def test_a_group_of_others_is_reset(guarded: Api, stack: Stack, foreign: str) -> None:
    """The plan changes nothing; a viewer may not execute it; an admin's is refused while a member lives, and is recorded."""
    path = f"/api/groups/{foreign}"
    found = (await guarded.get(path, "eye-key")).json()
    assert (found["state"], found["is_catalogued"], found["lag"], found["members"]) == ("empty", False, COUNT - 2, [])
    planned = (await guarded.get(f"{path}/reset", "eye-key", params={"to": "earliest"})).json()
    change = {"topic": foreign, "partition": 0, "before": 2, "after": 0}
    assert planned == {"group": foreign, "executed": False, "live_members": 0, "partitions": [change]}
    assert (await guarded.post(f"{path}/reset", {"to": "earliest"}, "eye-key")).status_code == 403
    assert (await guarded.get(path, "eye-key")).json()["partitions"][0]["next"] == 2
    with a_member(stack, foreign):
        refused = await guarded.post(f"{path}/reset", {"to": "earliest"}, "root-key")
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            f"{foreign} has live members (1); stop them, then reset",
        )
        (member,) = (await guarded.get(path, "eye-key")).json()["members"]
        assert (member["host"], member["assignment"]) == ("127.0.0.1", [{"topic": foreign, "partition": 0}])
        assert (await guarded.get(path, "eye-key")).json()["partitions"][0]["member"] == "reader"
    assert (await guarded.get(path, "eye-key")).json()["partitions"][0]["next"] == 2
    done = await guarded.post(f"{path}/reset", {"to": "earliest"}, "root-key")
    assert (done.status_code, done.json()["partitions"]) == (200, [change])
    assert (await guarded.get(path, "eye-key")).json()["lag"] == COUNT


async def test_partitions_without_a_commit_count(guarded: Api, stack: Stack, seeds: Seeds) -> None:
    """A group has a place in every partition of its topics: lag and reset include those where it has committed nothing."""
    name, client = fresh("half-read"), {"bootstrap.servers": str(stack.kafka)}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
    producer = Producer(client)
    for number in range(9):
        producer.produce(name, b"x", partition=number % 3)
    producer.flush(30)
    consumer = Consumer({**client, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(name, 1, 2)], asynchronous=False)
    consumer.close()
    found = (await guarded.get(f"/api/groups/{name}", "eye-key")).json()
    assert [(one["next"], one["lag"]) for one in found["partitions"]] == [(None, 3), (2, 1), (None, 3)]
    assert (found["lag"], found["auto_offset_reset"]) == (7, "unknown")
    listed = {one["group"]: one["lag"] for one in (await guarded.get("/api/groups", "eye-key")).json()["groups"]}
    readers = (await guarded.get(f"/api/topics/{name}", "eye-key")).json()["groups"]
    assert (listed[name], [one["lag"] for one in readers]) == (7, [7])
    assert "2 partitions without a commit" in run(stack.environment(DATABASE_URL=seeds.url), "groups", name).stdout
    where = {"to": "latest", "topic": name, "partition": 2}
    plan = (await guarded.get(f"/api/groups/{name}/reset", "eye-key", params=where)).json()
    assert plan["partitions"] == [{"topic": name, "partition": 2, "before": None, "after": 3}]
    done = (await guarded.post(f"/api/groups/{name}/reset", {"to": "earliest"}, "root-key")).json()
    assert [(one["before"], one["after"]) for one in done["partitions"]] == [(None, 0), (2, 0), (None, 0)]
    after = (await guarded.get(f"/api/groups/{name}", "eye-key")).json()
    assert [one["next"] for one in after["partitions"]] == [0, 0, 0]
    admin.delete_topics([name])[name].result(30)


async def test_a_group_that_starts_after_the_plan_keeps_its_positions(stack: Stack, seeds: Seeds) -> None:
    """Kafka refuses the offsets of a group with members, so the table keeps its positions too; without members both change."""
    group, topic = "views", "jobs.view-recorded"
    client = {"bootstrap.servers": str(stack.kafka), "log_level": "4"}
    async with asyncpg.create_pool(seeds.url, min_size=1, max_size=2) as pool:
        before = await _positions(pool, group)
        plan = await plan_reset(Admin(client), client, pool, group, parse_target("latest", 0), Chosen([topic]))
        assert plan.members == 0
        with a_member(stack, kafka_group_of(group), topic):
            with pytest.raises(GroupRunningError, match="by now"):
                await apply_reset(client, pool, plan)
            assert await _positions(pool, group) == before
        await apply_reset(client, pool, plan)
        assert await _positions(pool, group) == {(one.topic, one.partition): one.after for one in plan.steps}


async def _positions(pool: Any, group: str) -> dict[tuple[str, int], int]:
    rows = await pool.fetch('SELECT topic, partition, next FROM positions WHERE "group" = $1', group)
    return {(row["topic"], row["partition"]): row["next"] for row in rows}
