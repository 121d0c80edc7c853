"""Many advances of channels, the rows that the agent alone makes of them, and the rows that a changelog holds."""

from __future__ import annotations

import structlog
from confluent_kafka import Consumer, Producer, TopicPartition

from highwater.connectors.kafka.changelogs import read_changelogs
from highwater.schemas.envelope import Headers, make_headers
from highwater.schemas.topics import PARTITIONS
from highwater.streams import relay_epochs
from highwater.streams.driver import Driver
from highwater.streams.restoring import Span
from tests.integration.agents import CODEC, partition_of

TOPIC = "feeds.channel-advanced"
BACKLOG, CHANNELS = 20_000, 4_000
# How often there is a bad event, and behind half of the backlog a record of a relay that was overtaken, whose head would show.
BAD_EVERY, _OVERTAKEN_EVERY, _BEYOND = 997, 101, 10_000_000


def _advance(number: int) -> tuple[str, bytes, Headers]:
    """Key, value and headers of one record. A third of a channel's records is older than the one before."""
    channel, turn = f"channel-{number * 7919 % CHANNELS}", number * 7919 // CHANNELS
    head = 3 + number - (CHANNELS * 2 if number % 3 == 0 else 0)
    is_overtaken = number > BACKLOG // 2 and number % _OVERTAKEN_EVERY == 0
    event = {
        "channel_id": channel,
        "head": _BEYOND if is_overtaken else max(0, head),
        "arrived_at": 1_700_000_000_000 + number * 31 % 1_000,
        "retractions": turn % 2,
    }
    headers = make_headers(event_id=str(number), event_type=TOPIC, source="outbox", now_ms=1, caused_by=None)
    epoch = 2 if number > BACKLOG // 3 and not is_overtaken else 1
    headers.append((relay_epochs.HEADER, relay_epochs.to_header(3, epoch)))
    return channel, b"\xff" if number % BAD_EVERY == 7 else CODEC.encode(TOPIC, event), headers


class Appending:
    """Appends the records, one range after the other."""

    def __init__(self, address: str) -> None:
        self.count = 0
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "compression.type": "lz4"})

    def more(self, count: int) -> None:
        """Append this many more, and wait for the broker."""
        for number in range(self.count, self.count + count):
            key, value, headers = _advance(number)
            self._producer.produce(TOPIC, value, key=key, partition=partition_of(key), headers=list(headers))
        assert self._producer.flush(60) == 0
        self.count += count


async def rows_alone(count: int) -> dict[bytes, bytes]:
    """The rows that the agent leaves that is given one record after the other."""
    driver = Driver("channels", codec=CODEC)
    driver.keeps_outputs = False
    with structlog.testing.capture_logs():  # records that are dead-lettered or skipped
        for number in range(count):
            key, value, headers = _advance(number)
            await driver.publish(TOPIC, value, key=key, partition=partition_of(key), headers=headers)
    return {key: row for _, key, row in driver.tables["channel_heads"].rows()}


def rows_in_changelog(address: str, changelog: str) -> dict[bytes, bytes]:
    """The rows that a worker would restore."""
    rows: dict[bytes, bytes | None] = {}
    reader = Consumer({"bootstrap.servers": address, "group.id": "ends"})
    places = [TopicPartition(changelog, p) for p in range(PARTITIONS)]
    ends = {(changelog, place.partition): reader.get_watermark_offsets(place, timeout=60)[1] for place in places}
    reader.close()
    left = {place: end for place, end in ends.items() if end}
    batches = read_changelogs({"bootstrap.servers": address}, {place: Span(0, end - 1) for place, end in left.items()})
    while left:
        batch = next(batches)
        rows.update((record.key() or b"", record.value()) for record in batch.records)
        for place, end in batch.ends.items():
            if end >= left.get(place, end):
                left.pop(place, None)
    batches.close()
    return {key: row for key, row in rows.items() if row is not None and not key.startswith(b"\0")}
