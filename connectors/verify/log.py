"""The log as a verification reads it: by assignment, outside any group, from the first offset to an end that was fixed before.

The law: records come in the order of the broker's time, those of a partition in the order of their offsets, and memory is bounded
by what the partitions that are behind keep waiting.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Self

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.kafka.admin import REQUEST_SECONDS, LogRange
from connectors.kafka.records import Record, record_of
from connectors.stores.positions import Place
from schemas.errors import UnavailableError
from schemas.topics import DEAD_LETTER_BYTES_MAX

# A broker that sends nothing for this long, though it said that there is more, is away.
_SILENCE_SECONDS = 15.0
# A read that is not full waits so long.
_POLL_SECONDS = 0.05
_TAKEN_MAX = 1_000
# Records of a partition that wait for others: above it is paused, and read on below a quarter.
_WAITING_MAX = 4_000


def open_reader(client: Mapping[str, str]) -> Consumer:
    """A consumer that joins no group and commits nothing."""
    return Consumer(
        {
            **client,
            "client.id": "highwater-verify",
            "group.id": "highwater-verify",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": DEAD_LETTER_BYTES_MAX,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 32 * 1024,
        }
    )


def read_all(client: Mapping[str, str], spans: Mapping[Place, LogRange]) -> Iterator[Record]:
    """Every record of each partition's span, as they come.

    Raises:
        UnavailableError: the broker went away.
    """
    with _Reading(client, spans) as reading:
        while reading.ends:
            yield from reading.take()


def read_in_order(client: Mapping[str, str], spans: Mapping[Place, LogRange]) -> Iterator[Record]:
    """Every record of each partition's span, by the broker's time.

    Raises:
        UnavailableError: the broker went away.
    """
    with _Reading(client, spans) as reading:
        waiting: dict[Place, deque[Record]] = {place: deque() for place in reading.ends}
        heads: list[tuple[int, str, int]] = []
        silent = set(reading.ends)  # of these nothing waits; who is first is not known before each has said something
        while silent or heads:
            while silent & reading.ends.keys():
                for record in reading.take():
                    place = record.topic, record.partition
                    waiting[place].append(record)
                    if place in silent:
                        silent.discard(place)
                        heapq.heappush(heads, (record.arrived_ms, *place))
                    if len(waiting[place]) >= _WAITING_MAX:
                        reading.pause(place)
            silent.clear()
            if not heads:
                return
            _, topic, partition = heapq.heappop(heads)
            queue = waiting[topic, partition]
            yield queue.popleft()
            if queue:
                heapq.heappush(heads, (queue[0].arrived_ms, topic, partition))
            elif (topic, partition) in reading.ends:
                silent.add((topic, partition))
            if len(queue) < _WAITING_MAX // 4:
                reading.resume((topic, partition))


class _Reading:
    """A consumer and the ends that it has not reached."""

    def __init__(self, client: Mapping[str, str], spans: Mapping[Place, LogRange]) -> None:
        self.ends = {place: span.high for place, span in spans.items() if span.low < span.high}
        self._starts = {place: spans[place].low for place in self.ends}
        self._client = client
        self._paused: set[Place] = set()
        self._silent_polls = 0

    def __enter__(self) -> Self:
        self._consumer = open_reader(self._client)
        self._consumer.assign([TopicPartition(*place, low) for place, low in self._starts.items()])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def take(self) -> list[Record]:
        """What has come, within the spans."""
        messages = self._consumer.consume(_TAKEN_MAX, _POLL_SECONDS)
        self._silent_polls = 0 if messages else self._silent_polls + 1
        if self._silent_polls * _POLL_SECONDS > _SILENCE_SECONDS:
            raise UnavailableError(f"Kafka sent nothing for {_SILENCE_SECONDS:.0f} s")
        found = []
        for message in messages:
            place = message.topic(), message.partition()
            if _is_end(message):
                self.ends.pop(place, None)
            elif place in self.ends:
                if message.offset() < self.ends[place]:
                    found.append(record_of(message))
                if message.offset() + 1 >= self.ends[place]:
                    del self.ends[place]
                    self._consumer.pause([TopicPartition(*place)])
        return found

    def pause(self, place: Place) -> None:
        """Read a partition no further for now."""
        if place in self.ends and place not in self._paused:
            self._paused.add(place)
            self._consumer.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        """Read on."""
        if place in self._paused:
            self._paused.discard(place)
            if place in self.ends:
                self._consumer.resume([TopicPartition(*place)])


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name for it
        return True
    raise UnavailableError(f"Kafka: {error.str()}")


def committed_offsets(client: Mapping[str, Any], group: str) -> dict[Place, int]:
    """The offsets that a group has committed in Kafka.

    Raises:
        UnavailableError: the broker does not answer.
    """
    try:
        admin = AdminClient({**client, "client.id": "highwater-verify"})
        asked = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_SECONDS
        )
        found = asked[group].result(REQUEST_SECONDS)
    except KafkaException as error:
        raise UnavailableError(f"Kafka does not tell offsets: {error.args[0].str()}") from error
    return {(at.topic, at.partition): at.offset for at in found.topic_partitions if at.offset >= 0}
