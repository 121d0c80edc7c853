"""A backtest over a real log: the recorded history is read back, and the live policy asks for what happened."""

from __future__ import annotations

import asyncio
from typing import Any

from highwater.connectors.feeds.histories import (
    partition_of,
    read_arrivals,
    read_recorded,
    read_span,
    replay_live,
    replay_other,
)
from highwater.connectors.kafka.finding import Finder
from highwater.connectors.kafka.producer import PARTITIONER
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.pool import open_pool
from highwater.schemas.positions import Position
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import ProductClock, to_ms
from highwater.streams.feeds.backtest import Costs
from highwater.streams.feeds.policy import load_policy
from tests.integration.api_server import Seeds
from tests.integration.connecting import fresh, send
from tests.integration.databases import make_database

# Ticks of a time of their own: what other tests left in the log is not of it.
NOW_MS = 4_000_000_000_000


async def test_a_recorded_history_is_asked_for_again(stack) -> None:
    """The requests of a user's time, none missing and none beside them; another policy asks for others."""
    codec = await Registry(stack.settings().schema_registry).codec(tuple(TOPICS.values()))
    user, channel = fresh("user"), fresh("channel")
    partition = partition_of(user)

    def add(topic: str, key: str | None, value: dict[str, Any], **place: int) -> Position:
        record = (None if key is None else key.encode(), codec.encode(topic, value), [])
        return send(stack.kafka, topic, [(*record, *place.values())], partitioner=PARTITIONER)[0]

    def tick(number: int) -> Position:
        now_ms = NOW_MS + number * 30_000
        event = {"number": number, "now": now_ms, "clock_offset_ms": now_ms - ProductClock()()}  # as of a rehearsal
        return add("streams.tick", None, event, partition=partition)

    def requested(number: int, at: Position, trigger: str, pending: int, **more: Any) -> Position:
        value = {
            "user_id": user, "trigger": trigger, "forced": False, "planned_at": NOW_MS + number * 30_000,
            "tick_position": str(at), "pending": pending, "plan": "pro", "last_active_at": NOW_MS,
            "last_clustered_at": None, "last_checked_at": None, "last_enqueued_at": None,
            "policy_hash": load_policy().hash, **more,
        }  # fmt: skip
        return add("feeds.rebuild-requested", user, value)

    changed = {
        "user_id": user, "revision": 1, "plan": "pro", "last_active_at": NOW_MS, "subscribed": [channel], "unsubscribed": [],
        "rebuild_demanded": False, "rebuild_forced": False, "erased": False,
    }  # fmt: skip
    add("feeds.user-changed", user, changed)
    add("feeds.channel-advanced", channel, {"channel_id": channel, "head": 25, "arrived_at": 1_700_000_000_000})
    heads = {"heads": [{"channel_id": channel, "head": 25, "users": [user]}]}
    add("feeds.novelty", None, heads, partition=partition)
    await asyncio.sleep(0.01)  # the broker's time is of milliseconds, and the tick is to come after them
    request = requested(1, tick(1), "novelty", 25)
    finished = {
        "user_id": user, "request_position": str(request), "outcome": "rebuilt", "reason": "", "cluster_version": 1,
        "hwm": {channel: 25}, "last_clustered_at": NOW_MS + 30_100, "last_checked_at": None, "finished_at": NOW_MS,
    }  # fmt: skip
    add("feeds.rebuild-finished", user, finished)
    await asyncio.sleep(0.01)
    tick(2)
    finder = Finder(stack.settings().kafka_client(), codec)
    try:
        recorded = await asyncio.to_thread(read_recorded, finder, NOW_MS, NOW_MS + 90_000)
    finally:
        finder.close()
    assert [key for key in recorded.asked if key[0] == user] == [(user, NOW_MS + 30_000)]
    report, comparison = replay_live(load_policy(), recorded, Costs())
    assert [one for one in (*comparison.missing, *comparison.extra) if one.user_id == user] == []
    assert comparison.other_policy == 0
    assert report.tally.rebuilds >= 1
    assert replay_other(load_policy(), recorded, Costs()).tally.requests


async def test_insights_are_read_by_either_time(stack) -> None:
    """The producer's time, or the arrival."""
    seeds = Seeds(await make_database(stack.database, "backtest_test"))
    async with await open_pool(seeds.url, size_max=2) as pool:
        assert await read_span(pool, by_arrival=False) is None
        await seeds.channel("c", 3)
        await seeds.run("UPDATE insights SET arrived_at = ts + interval '1 day'")
        (row,) = await seeds.run("SELECT min(ts) AS ts FROM insights")
        ts_ms = to_ms(row["ts"])
        assert await read_span(pool, by_arrival=True) == (ts_ms + 86_400_000, ts_ms + 86_400_000)
        found = await read_arrivals(pool, ts_ms, ts_ms + 1, by_arrival=False)
        assert (found.at_ms.tolist(), found.channel_ids) == ([ts_ms] * 3, ("c",) * 3)
        assert len((await read_arrivals(pool, ts_ms, ts_ms + 1, by_arrival=True)).at_ms) == 0
