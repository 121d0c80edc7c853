"""Records of an overtaken relay: recognized by their epochs, in consumers and in agents, also after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.connectors.kafka.consumer import without_overtaken
from highwater.connectors.kafka.records import Record
from highwater.schemas.envelope import make_headers
from highwater.streams import relay_epochs
from highwater.streams.driver import Delivered, Driver
from highwater.streams.relay_epochs import Epoch, Stamp

TOPIC = "feeds.channel-advanced"


def record(offset: int, epoch: int, *, shard: int = 3, topic: str = TOPIC) -> Record:
    """A record of a relay."""
    headers = [("ce_id", b"1"), (relay_epochs.HEADER, relay_epochs.to_header(shard, epoch))]
    return Record(topic, 0, offset, 1, b"k", b"v", headers)


def offsets(records: list[Record], held: Any = None) -> list[int]:
    """Which of the records are dealt with."""
    return [one.offset for one in without_overtaken(records, held or {})[0]]


def test_old_records_behind_new_ones_are_passed_over():
    """This holds per shard and partition, and only behind the first record of a higher epoch."""
    log = [record(0, 5), record(1, 5), record(2, 8), record(3, 5), record(4, 5, shard=4), record(5, 8)]
    assert offsets(log) == [0, 1, 2, 4, 5]
    assert without_overtaken(log, {})[1] == {(TOPIC, 0): {3: Epoch(8, 2), 4: Epoch(5, 4)}}


def test_what_was_stored_before_a_restart_still_counts():
    """The epochs are stored with the positions."""
    assert offsets([record(7, 5), record(8, 8)], {(TOPIC, 0): {3: Epoch(8, 2)}}) == [8]


def test_what_is_read_again_is_dealt_with_again():
    """A position that went back (a reset, a redelivery, a recreated topic) lies before the remembered epoch."""
    assert offsets([record(0, 5), record(2, 8), record(3, 5)], {(TOPIC, 0): {3: Epoch(8, 2)}}) == [0, 2]


def test_nobody_outside_can_have_records_passed_over():
    """In topics that others than the outbox write alone the header means nothing, nor does one that cannot be read."""
    assert relay_epochs.stamp_of("feeds.plan-changed", [(relay_epochs.HEADER, b"3/99")]) is None
    assert [
        relay_epochs.stamp_of(TOPIC, [(relay_epochs.HEADER, value)])
        for value in (b"3/8", b"", b"3", b"3/", b"/8", b"-3/8", b"3/8/1", b"3/" + b"9" * 30, None)
    ] == [Stamp(3, 8), *[None] * 8]
    assert relay_epochs.stamp_of(TOPIC, {relay_epochs.HEADER: b"3/8"}) == Stamp(3, 8)
    assert relay_epochs.stamp_of(TOPIC, None) is None


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_agent_passes_over_what_was_overtaken(restarts: bool):
    """An agent deals with a row of the next relay and not with the old one's behind it, in another worker as well."""
    driver = Driver("channels")
    heads: list[tuple[int, int]] = []
    for offset, (head, epoch) in enumerate([(1, 5), (2, 8), (9, 5), (3, 8)]):
        value = driver.codec.encode(TOPIC, {"channel_id": "c", "head": head, "arrived_at": 1, "retractions": 0})
        headers = make_headers(event_id="1", event_type=TOPIC, source="x", now_ms=1, caused_by=None)
        headers.append((relay_epochs.HEADER, relay_epochs.to_header(3, epoch)))
        if restarts:
            driver.restart()
        await driver.deliver(Delivered(TOPIC, 0, offset, b"c", value, headers))
        await driver.tick(60_000 * (offset + 1))
        heads = [told["head"] for told in driver.sent("feeds.channel-dirty")]
    assert heads == [1, 2, 3]
