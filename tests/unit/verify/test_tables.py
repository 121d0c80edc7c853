"""Tables against the log: for any order in which a worker read its topics, and any number of kills, only the planted
faults differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random  # noqa: TID251 (seeded: the same days every time)
from typing import Any

import orjson
import pytest

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.records import Record
from highwater.connectors.verify import tables
from highwater.connectors.verify.report import Checked
from highwater.schemas.topics import TOPICS
from highwater.streams.driver import Delivered, Driver
from highwater.streams.feeds.state import decode_user, encode_user
from highwater.streams.settings import read_settings

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
TICK_MS = 30_000
SETTINGS = read_settings({})


@dataclass
class Log:
    """Records by topic and partition, made by a day of events; the broker's time grows."""

    seed: int
    places: dict[tuple[str, int], list[Record]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.codec = Driver("users").codec
        self.at = NOON

    def add(self, topic: str, event: dict[str, Any], partition: int | None = None) -> None:
        """Append an event."""
        self.at += self.random.randint(0, 400)
        key = TOPICS[topic].key_of(event) if TOPICS[topic].key else ""
        place = topic, Driver.partition_of(key, topic) if partition is None else partition
        records = self.places.setdefault(place, [])
        records.append(Record(*place, len(records), self.at, key.encode(), self.codec.encode(topic, event), []))

    def ends(self) -> dict[tuple[str, int], LogRange]:
        """The ends of the log."""
        return {place: LogRange(0, len(records)) for place, records in self.places.items()}

    def in_order(self, spans: dict[tuple[str, int], LogRange]) -> list[Record]:
        """Records of spans by the broker's time."""
        found = [r for place, span in spans.items() for r in self.places[place][span.low : span.high]]
        return sorted(found, key=lambda record: (record.arrived_ms, record.topic, record.partition))

    async def read(self, spans: dict[tuple[str, int], LogRange]) -> AsyncIterator[Record]:
        """The same, as a verification reads it."""
        for record in self.in_order(spans):
            yield record


def day(seed: int) -> Log:
    """Some of every event that the agents read, among it users who are erased and return."""
    log = Log(seed)
    pick = log.random
    users, channels = [f"u{n}" for n in range(6)], [f"c{n}" for n in range(4)]
    heads, revisions, seasons, usage = dict.fromkeys(channels, 0), dict.fromkeys(users, 0), 0, 0
    for step in range(160):
        user, channel = pick.choice(users), pick.choice(channels)
        match pick.randint(0, 7):
            case 0:
                heads[channel] += pick.randint(1, 300)
                log.add("feeds.channel-advanced", {"channel_id": channel, "head": heads[channel], "arrived_at": log.at})
            case 1 | 2:
                revisions[user] += 1
                erased = pick.random() < 0.1
                event = {
                    "user_id": user, "revision": revisions[user], "plan": None if erased else "pro",
                    "last_active_at": None if erased else log.at, "subscribed": [] if erased else [channel],
                    "unsubscribed": [], "rebuild_demanded": pick.random() < 0.2, "rebuild_forced": False, "erased": erased,
                }  # fmt: skip
                log.add("feeds.user-changed", event)
            case 3:
                event = {"heads": [{"channel_id": channel, "head": heads[channel], "users": [user]}]}
                log.add("feeds.novelty", event, partition=Driver.partition_of(user))
            case 4:
                event = {
                    "user_id": user, "request_position": f"feeds.rebuild-requested/0/{step}", "outcome": "rebuilt", "reason": "",
                    "cluster_version": step, "hwm": {channel: heads[channel]}, "last_clustered_at": log.at,
                    "last_checked_at": None, "finished_at": log.at,
                }  # fmt: skip
                log.add("feeds.rebuild-finished", event)
            case 5:
                seasons += 1
                event = {
                    "match_id": f"m{step % 5}", "season": "s", "changed": ["schedule"], "kickoff": NOON, "status": "scheduled",
                    "state": "scheduled", "home": "A", "away": "B", "former_teams": [], "home_goals": None, "away_goals": None,
                    "finalized_at": None, "revision": seasons,
                }  # fmt: skip
                log.add("league.match-changed", event)
            case 6:
                usage += 1
                event = {
                    "organization_id": "o", "period": "2026-11", "seq": usage, "job_id": f"j{usage}", "presentations": 1,
                    "slides": 3, "tokens": 5, "cost_cents": 7, "at": log.at, "kind": "generation",
                }  # fmt: skip
                known = set(log.codec.field_names("jobs.usage-recorded"))
                log.add("jobs.usage-recorded", {name: value for name, value in event.items() if name in known})
            case 7:
                log.add("chunks.queries-served", {"ns": "n", "queries": 3, "since": log.at, "at": log.at})
        if step % 12 == 0:
            log.at += TICK_MS
            for partition in range(8):
                log.add("streams.tick", {"number": log.at // TICK_MS, "now": log.at}, partition=partition)
    return log


async def lived(log: Log, seed: int) -> Driver:
    """A worker that reads the topics of a partition in any order, is killed, and reads the uncommitted events again."""
    pick, driver = Random(seed), Driver()
    at = dict.fromkeys(log.places, 0)
    committed = dict(at)
    kills = 3
    while open_places := sorted(place for place, records in log.places.items() if at[place] < len(records)):
        place = pick.choice(open_places)
        for record in log.places[place][at[place] : at[place] + pick.randint(1, 6)]:
            await driver.deliver(delivered(record))
            at[place] += 1
        if pick.random() < 0.05:
            committed = dict(at)
        if kills and pick.random() < 0.02:
            kills -= 1
            at = dict(committed)
            driver.restart()
    return driver


def delivered(record: Record) -> Delivered:
    """The record as an agent reads it."""
    place = record.topic, record.partition, record.offset
    return Delivered(*place, record.key, record.value, record.headers, record.arrived_ms / 1000)


async def compared(log: Log, worker: Driver, committed: dict[tuple[str, int], int] | None = None) -> list[Checked]:
    """The result of `verify` for the worker's tables."""
    spans = log.ends()
    done = {place: span.high for place, span in spans.items()} if committed is None else committed
    live = {name: {(p, key): row for p, key, row in table.rows()} for name, table in worker.tables.items()}
    driver = Driver()
    shadow = await tables.shadow_of(driver, log.read, tables.Ends(done, spans))
    return [tables.compare(name, shadow, live[name], {}, driver) for name in driver.tables]


def differences(checked: list[Checked]) -> list[Any]:
    """All that differ."""
    return [(one.name, difference) for one in checked for difference in one.differences]


@pytest.mark.parametrize("seed", range(12))
async def test_order_and_kills_make_no_difference(seed: int):
    """The compared state is a function of the log."""
    log = day(seed)
    for life in range(3):
        found = await compared(log, await lived(log, seed * 100 + life))
        assert differences(found) == []
    assert sum(one.compared for one in found) > 20


async def test_a_changed_row_is_found_with_its_event():
    """A mark that no event gave: the user, the field, both values, and the last event of the row."""
    log = day(1)
    worker = await lived(log, 1)
    partition, key, row = next(
        (p, k, r) for p, k, r in worker.tables["users"].rows()
        if decode_user(r).is_known and not decode_user(r).erased_revision and decode_user(r).channels
    )  # fmt: skip
    user = decode_user(row)
    channel = min(user.channels)
    user.channels[channel].head += 1
    worker.tables["users"].partitions[partition][key] = encode_user(user)
    ((name, difference),) = differences(await compared(log, worker))
    assert (name, difference.key, difference.field) == ("users", key.decode(), f"channels.{channel}.head")
    assert difference.found == difference.expected + 1
    assert difference.position.split("/")[0] in {"feeds.user-changed", "feeds.novelty", "feeds.rebuild-finished"}


async def test_a_row_too_many_and_a_row_too_few_are_found():
    """One that no event made, and one that is gone."""
    log = day(2)
    worker = await lived(log, 2)
    heads = worker.tables["channel_heads"].partitions
    heads.setdefault(0, {})[b"nobody"] = orjson.dumps([4, None])
    gone = next(key for rows in heads.values() for key in rows if key != b"nobody")
    for rows in heads.values():
        rows.pop(gone, None)
    found = {d.key: (d.expected, d.found) for _, d in differences(await compared(log, worker))}
    assert found["nobody"][0] is None
    assert found[gone.decode()][1] is None


async def test_a_row_in_motion_is_counted_not_judged():
    """A worker that is behind shows rows as they were before: neither a difference nor silence."""
    log = day(3)
    behind = Driver()
    done = {place: span.high // 2 for place, span in log.ends().items()}
    for record in log.in_order({place: LogRange(0, upto) for place, upto in done.items()}):
        await behind.deliver(delivered(record))
    found = await compared(log, behind, done)
    assert differences(found) == []


async def test_a_log_without_its_beginning_is_said_per_table():
    """Tables of a topic that lost events are not compared and say which; the others are, and ticks may be gone."""
    log = day(4)
    spans = log.ends()
    spans["feeds.channel-advanced", 0] = LogRange(3, 9)
    spans["streams.tick", 0] = LogRange(5, 9)
    truncated = tables.truncated_topics(spans)
    driver = Driver()
    found = {name: tables.compare(name, tables.Shadow(), {}, truncated, driver) for name in driver.tables}
    why = "the log of feeds.channel-advanced/0 no longer has its first 3 events"
    assert {name: one.skipped for name, one in found.items() if one.skipped} == {"channel_heads": why}


async def test_every_table_has_its_rule():
    """A table of the worker without a rule of comparison would be left out silently."""
    assert set(Driver().tables) == set(tables.ROWS)
    await asyncio.sleep(0)


def test_a_topic_with_a_hole_or_without_its_beginning_is_not_compared():
    """A hole counts only in these partitions."""
    spans = {("a", 0): LogRange(3, 9), ("b", 0): LogRange(0, 9), ("c", 0): LogRange(0, 9)}
    holes = {("b", 0): "the log of b/0 lost 1 record", ("c", 1): "the log of c/1 lost 1 record"}
    assert tables.incomplete(spans, holes) == {
        "a": "the log of a no longer has its beginning",
        "b": "the log of b/0 lost 1 record",
    }
