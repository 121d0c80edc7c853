"""Failure made to happen: Redis emptied and stopped, processes killed and frozen, PostgreSQL away, state deleted."""

from __future__ import annotations

import collections
import threading
from typing import Any

import pytest
import redis
from confluent_kafka import Producer

from highwater.schemas.envelope import ms_from_iso
from tests.acceptance.feeds.test_feeds import INGESTED, heads, insights, rebuilt, sample
from tests.product import Product

pytestmark = pytest.mark.long

# The session of a sink's group membership is 10 s; a process frozen this long has been replaced or declared dead.
PAST_SESSION_SECONDS = 14


def bump(product: Product, user: str, channel: str) -> str:
    """Publish an insight, ask for a rebuild and return the ETag of the feed of the new version."""
    version = product.pending(user)["cluster_version"]
    product.publish(INGESTED, insights(channel, 1, first=heads(product, [channel])[channel]))
    product.until(lambda: product.pending(user)["pending"] == 1, "the insight is not counted")
    assert product.http.post(f"/api/users/{user}/rebuild").status_code == 202
    product.until(lambda: product.pending(user)["cluster_version"] == version + 1, "the version does not move")
    feed = product.until(
        lambda: (answer := product.get(f"/api/users/{user}/feed")).json()["cluster_version"] == version + 1 and answer,
        "the feed stays old",
    )
    return str(feed.headers["etag"])


@pytest.mark.requirement("R0.44")
def test_an_emptied_redis_never_gives_a_false_304(product: Product) -> None:
    """Five bumps, FLUSHALL, five bumps: every old ETag answers 200 (R0.44)."""
    product.publish(INGESTED, insights("flushed", 30))
    product.subscribe("flo", ["flushed"])
    rebuilt(product, "flo")
    etags = [bump(product, "flo", "flushed") for _ in range(5)]
    product.empty_redis()
    etags += [bump(product, "flo", "flushed") for _ in range(5)]
    assert len(set(etags)) == 10
    answers = [product.get("/api/users/flo/feed", If_None_Match=etag).status_code for etag in etags]
    assert answers == [200] * 9 + [304]


@pytest.mark.requirement("R0.42", "R0.43", "R0.44")
def test_redis_emptied_and_stopped_changes_no_truth(product: Product) -> None:
    """FLUSHALL, then Redis stopped: versions stay, rebuilds continue; after a restart, `dirty:channels` is rebuilt
    (R0.42-R0.44).
    """
    product.publish(INGESTED, insights("mirror", 60))
    product.subscribe("mia", ["mirror"])
    rebuilt(product, "mia")
    product.publish(INGESTED, insights("mirror", 5, first=60))
    product.until(lambda: product.pending("mia")["pending"] == 5, "not counted")
    before = product.pending("mia")
    product.empty_redis()
    after = product.pending("mia")
    assert (before["pending"], before["cluster_version"]) == (after["pending"], after["cluster_version"])

    with product.without_redis():
        after = product.pending("mia")
        assert (before["pending"], before["cluster_version"]) == (after["pending"], after["cluster_version"])
        assert product.get("/api/users/mia/feed").status_code == 200
        product.publish(INGESTED, insights("mirror", 30, first=65))
        product.until(
            lambda: product.pending("mia")["cluster_version"] > before["cluster_version"],
            "no rebuild without Redis",
            90,
        )
        product.until(lambda: product.pending("mia")["pending"] == 0, "pending stays above 0")
        version = product.pending("mia")["cluster_version"]
        assert version == before["cluster_version"] + 1
        worker = product.role_pid("worker")
        with product.frozen(worker):  # no tick takes the channel before it can be seen
            product.publish(INGESTED, insights("mirror", 3, first=95))
            product.parts.start_part("redis")
            product.until(lambda: is_dirty(product, "mirror"), "dirty:channels is not back", 60)
        product.until(lambda: not is_dirty(product, "mirror"), "dirty:channels is not cleared by a tick", 60)
    assert product.pending("mia")["cluster_version"] == version
    assert product.pending("mia")["pending"] == 3


def is_dirty(product: Product, channel: str) -> bool:
    """Whether the channel stands in `dirty:channels`."""
    try:
        with redis.Redis.from_url(product.environment["REDIS_URL"]) as client:
            return client.zscore("dirty:channels", channel) is not None
    except redis.ConnectionError:
        return False


def test_killed_processes_lose_and_double_nothing(product: Product) -> None:
    """Each process killed once, a sink frozen past its session: the end is that of an undisturbed run (issue, line 6)."""
    rows = [{**row, "insight_id": f"k-{row['insight_id']}", "channel_id": f"k/{row['channel_id']}"} for row in sample()]
    counts = collections.Counter(row["channel_id"] for row in rows)
    product.subscribe("survivor", sorted(counts))
    roles = [part["name"] for part in product.status()["parts"] if part.get("kind") == "role" and part["state"] == "up"]
    assert len(roles) >= 4
    chunks = [rows[i :: len(roles) + 1] for i in range(len(roles) + 1)]
    order: list[str] = []
    for role, chunk in zip(roles, chunks, strict=False):
        publishing = threading.Thread(target=publish, args=(product, chunk, order))
        publishing.start()
        product.kill(role)
        publishing.join(120)
    sink = product.role_pid("sinks")
    publishing = threading.Thread(target=publish, args=(product, chunks[-1], order))
    with product.frozen(sink):
        publishing.start()
        publishing.join(120)
        wait = threading.Event()
        wait.wait(PAST_SESSION_SECONDS)  # the fact under test is a process that sleeps past its session
    product.until_ready()
    product.until(lambda: heads(product, counts) == dict(counts), "heads differ from counts", 120)

    expected: dict[str, list[str]] = collections.defaultdict(list)
    home = {row["insight_id"]: row["channel_id"] for row in rows}
    for insight_id in order:
        expected[home[insight_id]].append(insight_id)
    stored: dict[str, list[str]] = collections.defaultdict(list)
    for row in product.sql(
        "SELECT channel_id, insight_id, seq FROM insights WHERE channel_id LIKE 'k/%' ORDER BY 1, 3"
    ):
        stored[row["channel_id"]].append(row["insight_id"])
        assert len(stored[row["channel_id"]]) == row["seq"]
    assert dict(expected) == dict(stored)
    held = product.sql("SELECT channel_id FROM subscriptions WHERE user_id = 'survivor' AND subscribed ORDER BY 1")
    assert sorted(counts) == sorted(row["channel_id"] for row in held)

    assert product.http.post("/api/users/survivor/rebuild").status_code == 202
    rebuilt(product, "survivor")
    product.until(lambda: not product.pending("survivor")["in_flight"], "left in flight")
    marks = product.sql("SELECT channel_id, last_seq FROM user_cluster_hwm WHERE user_id = 'survivor'")
    assert dict(counts) == {row["channel_id"]: row["last_seq"] for row in marks}
    versions = product.sql("SELECT cluster_version, hwm FROM user_clusters WHERE user_id = 'survivor' ORDER BY 1")
    numbers = [row["cluster_version"] for row in versions]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert product.sql("SELECT 1 FROM user_stats WHERE in_flight IS NOT NULL") == []


def publish(product: Product, rows: list[dict[str, Any]], order: list[str]) -> None:
    """Publish a chunk and remember its order."""
    product.publish(INGESTED, rows)
    order += [row["insight_id"] for row in rows]


@pytest.mark.requirement("R0.2")
def test_only_the_decision_worker_decides(product: Product) -> None:
    """With the decision worker stopped no request appears while reads continue; resumed, it decides (issue, line 7)."""
    product.publish(INGESTED, insights("judged", 60))
    product.subscribe("jude", ["judged"])
    rebuilt(product, "jude")
    starts = product.ends("feeds.rebuild-requested")
    with product.frozen(product.role_pid("worker")):
        product.publish(INGESTED, insights("judged", 40, first=60))
        product.until(lambda: product.pending("jude")["pending"] == 40, "not counted")
        assert product.get("/api/users/jude/feed").status_code == 200
        assert [m for m in product.records("feeds.rebuild-requested", starts) if m.key() == b"jude"] == []
    product.until(lambda: product.pending("jude")["pending"] == 0, "not rebuilt once the worker is back", 120)


def test_it_decides_with_postgresql_stopped(product: Product) -> None:
    """PostgreSQL away: `channel-advanced` still gives `channel-dirty`, `novelty` still gives `rebuild-requested` (line 7)."""
    product.publish(INGESTED, insights("offline", 30))
    product.subscribe("olga", ["offline"])
    rebuilt(product, "olga")
    codec, now = product.codec(), ms_from_iso("2026-11-20T00:00:00Z")
    producer = Producer(product.producer_config())
    starts = {topic: product.ends(topic) for topic in ("feeds.channel-dirty", "feeds.rebuild-requested")}
    product.parts.stop_part("database")
    try:
        advanced = {"channel_id": "offline", "head": 1_000, "arrived_at": now}
        producer.produce("feeds.channel-advanced", codec.encode("feeds.channel-advanced", advanced), "offline")
        novelty = {"heads": [{"channel_id": "offline", "head": 1_000, "users": ["olga"]}]}
        place = next(m.partition() for m in product.records("feeds.user-changed") if m.key() == b"olga")
        producer.produce("feeds.novelty", codec.encode("feeds.novelty", novelty), None, partition=place)
        assert producer.flush(15) == 0
        for topic, key in (("feeds.channel-dirty", b"offline"), ("feeds.rebuild-requested", b"olga")):
            product.until(
                lambda topic=topic, key=key: any(m.key() == key for m in product.records(topic, starts[topic])),
                f"no {topic} while PostgreSQL is away",
            )
    finally:
        product.parts.start_part("database")
    product.until_ready()
    # The worker's own numbers are PostgreSQL's: nothing new there, so the request is a skip and the version stays.
    product.until(lambda: not product.pending("olga")["in_flight"], "left in flight")
    assert product.pending("olga")["cluster_version"] == 1
    # Her head is beyond what is stored, so she would be requested at every tick of the tests after this one.
    assert product.http.delete("/api/users/olga/data").status_code == 202


def test_deleted_local_state_decides_the_same(product: Product) -> None:
    """The decision worker killed and its local state deleted: it recovers and decides as before (line 7)."""
    product.publish(INGESTED, insights("amnesia", 60))
    product.subscribe("amy", ["amnesia"])
    version = rebuilt(product, "amy")["cluster_version"]
    starts = product.ends("feeds.rebuild-requested")
    with product.frozen(product.role_pid("worker")):
        product.forget_decisions()
    product.kill("worker")
    product.until_ready()
    product.publish(INGESTED, insights("amnesia", 10, first=60))
    product.until(lambda: product.pending("amy")["pending"] == 10, "not counted")
    product.publish(INGESTED, insights("amnesia", 10, first=70))
    product.until(lambda: product.pending("amy")["cluster_version"] == version + 1, "no rebuild at N", 60)
    requests = [m for m in product.records("feeds.rebuild-requested", starts) if m.key() == b"amy"]
    assert len(requests) == 1


def test_a_broker_that_was_away_is_one_line_and_then_recovery(product: Product) -> None:
    """Kafka stopped: readiness reports it and reads continue; started again, every role recovers and nothing is lost."""
    product.publish(INGESTED, insights("outage", 60))
    product.subscribe("otto", ["outage"])
    version = rebuilt(product, "otto")["cluster_version"]
    product.parts.stop_part("kafka")
    try:
        product.until(lambda: not product.status()["ready"], "nobody notices", 90)
        assert product.get("/api/users/otto/feed").status_code == 200
        refused = product.http.post("/api/users/otto/activity")
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    finally:
        product.parts.start_part("kafka")
    product.until_ready(180)
    product.publish(INGESTED, insights("outage", 40, first=60))
    product.until(lambda: product.pending("otto")["cluster_version"] > version, "no rebuild after the outage", 120)
    product.until(lambda: product.pending("otto")["pending"] == 0, "pending stays above 0", 120)
