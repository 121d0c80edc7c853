"""What a table keeps of decisions at ticks: without an event it is a difference, and a restarted worker has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from highwater.connectors.kafka.records import Record
from highwater.connectors.recovery.undecided import settled
from highwater.connectors.verify.kept import KEPT, kept_differences, note_decisions
from highwater.schemas.topics import TOPICS
from highwater.streams.chunks import completion
from highwater.streams.driver import Driver
from highwater.streams.feeds.dirty import Channel, encode_channel
from highwater.streams.feeds.state import decode_user, encode_user
from highwater.streams.jobs import usage
from tests.unit.chunks.test_completion import progress

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
HOUR = 3_600_000


class Listening(Driver):
    """A driver of which everything that a log would hold is noted: what it is given and what it sends."""

    def __init__(self, *agents: str) -> None:
        self.notes: dict[Any, Any] = {}
        super().__init__(*agents)
        self.on_sent = lambda sent: self._note(*sent.position, sent.key, sent.value)

    def _note(self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        if value is not None:
            record = Record(topic, partition, offset, NOON, key, value, [])
            note_decisions(self.notes, record, self.codec.decode(topic, value))

    async def deliver(self, record: Any) -> None:
        """Note it, and let the agents deal with it."""
        self._note(record.topic, record.partition, record.offset, record.key, record.value)
        await super().deliver(record)

    def differences(self, table: str, **changes: bytes) -> dict[str, Any]:
        """The differences of a table's rows, the last one's bytes replaced by `row` if given."""
        rows = [(key, changes.get("row", row)) for _, key, row in self.tables[table].rows()]
        return {one.field: one for key, row in rows for one in kept_differences(self.notes, table, key, row)}


async def test_a_channel_is_clean_when_it_was_told_and_dirty_since_an_advance():
    """Both ways round, before and after a tick."""
    driver = Listening("channels")
    await driver.publish("feeds.channel-advanced", {"channel_id": "c1", "head": 3, "arrived_at": NOON})
    assert driver.differences("channel_heads") == {}
    clean = driver.differences("channel_heads", row=encode_channel(Channel(3, None)))
    assert clean["dirty_since"].found is None
    other = driver.differences("channel_heads", row=encode_channel(Channel(3, NOON + 1)))
    assert other["dirty_since"].found == NOON + 1
    await driver.tick(NOON)
    assert driver.differences("channel_heads") == {}
    again = settled(driver.notes, "channel_heads", b"c1", encode_channel(Channel(3, None, 1)))
    assert driver.differences("channel_heads", row=again) == {}
    ahead = driver.differences("channel_heads", row=encode_channel(Channel(4, None)))
    assert ahead["dirty_since"].position.startswith("feeds.channel-dirty/")


async def test_a_user_names_a_request_that_was_made_and_its_time():
    """Another offset, or another time, has no event."""
    driver = Listening("users")
    event = {
        "user_id": "u1", "revision": 1, "plan": "free", "last_active_at": NOON, "subscribed": ["c1"], "unsubscribed": [],
        "rebuild_demanded": True, "rebuild_forced": False, "erased": False,
    }  # fmt: skip
    await driver.publish("feeds.user-changed", event)
    assert driver.differences("users") == {}
    await driver.tick(NOON)
    assert driver.differences("users") == {}
    user = decode_user(driver.row("users", "u1"))
    assert user.requested_offset >= 0
    user.last_enqueued_at = NOON - 1
    late = driver.differences("users", row=encode_user(user))["last_enqueued_at"]
    assert (late.expected, late.found) == (NOON, NOON - 1)
    assert late.position.startswith("feeds.rebuild-requested/")
    user.requested_offset += 1
    assert driver.differences("users", row=encode_user(user))["requested_offset"].found == user.requested_offset


async def test_a_request_that_the_machine_failed_keeps_the_time_of_the_one_before():
    """The delayed answer reports it; another time, or that of the request itself, has no event."""
    driver = Listening("users")
    event = {
        "user_id": "u1", "revision": 1, "plan": "free", "last_active_at": NOON, "subscribed": ["c1"], "unsubscribed": [],
        "rebuild_demanded": True, "rebuild_forced": False, "erased": False,
    }  # fmt: skip
    await driver.publish("feeds.user-changed", event)
    await driver.tick(NOON)
    offset = decode_user(driver.row("users", "u1")).requested_offset
    answer = {
        "user_id": "u1", "request_position": f"feeds.rebuild-requested/{driver.partition_of('u1')}/{offset}",
        "outcome": "delayed", "reason": "no progress", "cluster_version": 0, "hwm": {}, "last_clustered_at": None,
        "last_checked_at": None, "finished_at": NOON, "last_enqueued_at": NOON - HOUR, "demanded_revision": 1,
    }  # fmt: skip
    await driver.publish("feeds.rebuild-finished", answer)
    assert driver.differences("users") == {}
    user = decode_user(driver.row("users", "u1"))
    user.last_enqueued_at = NOON
    found = driver.differences("users", row=encode_user(user))["last_enqueued_at"]
    assert (found.expected, found.found) == (NOON - HOUR, NOON)
    assert found.position.startswith("feeds.rebuild-finished/")


async def test_an_ingest_that_ended_was_decided():
    """At that time, by an event."""
    driver = Listening("ingests")
    await driver.publish("chunks.ingest-progressed", progress(3))
    assert driver.differences("ingest_manifest") == {}
    (row,) = [completion.decode_row(row) for _, _, row in driver.tables["ingest_manifest"].rows()]
    assert row is not None
    assert row.decided_ms is not None
    planted = completion.encode_row(replace(row, decided_ms=row.decided_ms + 1))
    assert driver.differences("ingest_manifest", row=planted)["decided_ms"].position.startswith(
        "chunks.ingest-decided/"
    )


async def test_usage_with_nothing_left_to_tell_was_told():
    """Up to its number."""
    driver = Listening("usage")
    event = {
        "organization_id": "o", "period": "2026-11", "seq": 1, "job_id": "j1", "presentations": 1, "slides": 3, "tokens": 5,
        "cost_cents": 7, "at": NOON, "kind": "generation",
    }  # fmt: skip
    known = set(driver.codec.field_names("jobs.usage-recorded"))
    await driver.publish("jobs.usage-recorded", {name: value for name, value in event.items() if name in known})
    assert driver.differences("usage") == {}
    (row,) = [usage.decode_row(row) for _, _, row in driver.tables["usage"].rows()]
    assert row is not None
    untold = driver.differences("usage", row=usage.encode_row(replace(row, since_ms=None)))
    assert untold["since_ms"].expected == "a time: totals were published up to 0 of 1"
    await driver.tick(NOON)
    await driver.tick(NOON + HOUR)
    assert [told["upto_seq"] for told in driver.sent("jobs.usage-flushed")] == [1]
    assert driver.differences("usage") == {}


def test_a_row_that_cannot_be_read_is_left_to_the_comparison_of_rows():
    """It is a difference there, whole."""
    assert [one for table in KEPT for one in kept_differences({}, table, b"k", b"\xff")] == []


def test_what_tells_is_of_the_catalogue_and_of_tables_that_there_are():
    """So that none is left out by a name that changed."""
    assert {topic for kept in KEPT.values() for topic in kept.topics} <= set(TOPICS)
    assert set(KEPT) <= set(Driver().tables)
