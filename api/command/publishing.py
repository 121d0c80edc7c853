"""Publishes events from a command: bounded, idempotent, counted by acknowledgement.

Invariant: `acknowledged` counts only what the broker confirmed; memory stays bounded at any file size. A
separate thread counts acknowledgements, because Ctrl-C is raised in the main thread at any point, and during the count
it would lose one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from highwater.api.command.command import CommandFailedError
from highwater.api.command.connection import kafka_client
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.producer import DELIVERY_MS_MAX, PARTITIONER, QUEUE_KIB_MAX
from highwater.connectors.kafka.registry import Registry
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import Headers, make_headers
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.topics import DEAD_LETTER_BYTES_MAX, TOPICS, Topic
from highwater.streams.clock import Clock, fresh_id, monotonic_seconds
from highwater.streams.settings import Settings

SOURCE = "/cli/publish"
# Files need throughput, not latency: 20 ms fills batches of a megabyte.
_LINGER_MS = 20
# Headers and framing of a record, generously; a value that leaves no room for them is refused here with its line
# number.
_RECORD_OVERHEAD_BYTES = 4_096
# A full queue empties as acknowledgements arrive; polled this often.
_FULL_QUEUE_SECONDS = 0.01
# How long the counting thread waits for an acknowledgement, and so how long the end may wait for the thread.
_COUNT_SECONDS = 0.05


class Publisher:
    """One producer and the outcome of its records."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._producer = Producer(
            {
                **client,
                "client.id": "highwater-publish",
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": PARTITIONER,
                "compression.type": "lz4",
                "linger.ms": _LINGER_MS,
                "delivery.timeout.ms": DELIVERY_MS_MAX,
                "message.max.bytes": DEAD_LETTER_BYTES_MAX,
                "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
            }
        )
        self._run_id = fresh_id()
        self._failure: KafkaError | None = None
        self._stamp = ("", 0)
        self._stamped: Headers = []
        self.handed_over = 0
        self.acknowledged = 0
        self.last: dict[tuple[str, int], int] = {}
        self._flushing = threading.Event()
        self._counting = threading.Thread(target=self._count, name="acknowledgements", daemon=True)
        self._counting.start()

    def _count(self) -> None:
        while not self._flushing.is_set():
            self._producer.poll(_COUNT_SECONDS)

    def publish_event(self, topic: Topic, key: str, value: bytes, now_ms: int) -> None:
        """Publish one event with CloudEvents headers.

        Raises:
            InvalidEventError: it is larger than the topic accepts.
            UnavailableError: Kafka did not acknowledge an earlier one.
        """
        if len(key) * 4 + len(value) + _RECORD_OVERHEAD_BYTES > topic.message_bytes_max:
            raise InvalidEventError("too_large", f"the event is larger than {topic.name} takes")
        if (topic.name, now_ms) != self._stamp:  # the same for all events of a millisecond, except the id
            self._stamp = (topic.name, now_ms)
            made = make_headers(event_id="", event_type=topic.name, source=SOURCE, now_ms=now_ms, caused_by=None)
            self._stamped = [header for header in made if header[0] != "ce_id"]
        event_id = f"{self._run_id}-{self.handed_over}".encode()
        self.publish_record(topic.name, key.encode(), value, [*self._stamped, ("ce_id", event_id)])

    def publish_record(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, *, partition: int = -1
    ) -> None:
        """Publish one record unchanged; waits while the queue is full.

        Raises:
            UnavailableError: Kafka did not acknowledge an earlier one.
        """
        while True:
            self._raise_failure()
            try:
                self._producer.produce(
                    topic, value, key, partition=partition, headers=headers, on_delivery=self._delivered
                )
            except BufferError:
                time.sleep(_FULL_QUEUE_SECONDS)
                continue
            except KafkaException as error:
                raise UnavailableError(f"Kafka refuses the record: {error.args[0].str()}") from error
            self.handed_over += 1
            return

    def flush(self) -> None:
        """Wait until all records are acknowledged; nothing can be published afterwards.

        Raises:
            UnavailableError: one was not acknowledged.
        """
        self._flushing.set()
        self._counting.join()
        self._producer.flush((DELIVERY_MS_MAX + 1_000) / 1000)
        self._raise_failure()
        if self.acknowledged < self.handed_over:
            raise UnavailableError(self._account("Kafka does not answer"))

    def positions(self) -> dict[str, str]:
        """Return the last acknowledged position of each partition."""
        return {str(place[1]): str(Position(*place, offset)) for place, offset in sorted(self.last.items())}

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        self.acknowledged += 1
        place = (message.topic(), message.partition())
        self.last[place] = max(self.last.get(place, -1), message.offset())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise UnavailableError(self._account(f"Kafka did not acknowledge: {self._failure.str()}"))

    def _account(self, what: str) -> str:
        return f"{what}; {self.acknowledged:,} of {self.handed_over:,} events were acknowledged"


async def codec_of(settings: Settings, names: Iterable[str]) -> Codec:
    """Return the codec of existing topics: for a missing topic the broker would create one with its defaults.

    Raises:
        CommandFailedError: the broker does not have one of them.
        UnavailableError: Kafka or the registry is unavailable.
    """
    wanted = [TOPICS[name] for name in names]
    present = await Admin(kafka_client(settings)).partition_counts()
    for topic in wanted:
        if topic.name not in present:
            raise CommandFailedError(f"{topic.name} is not on the broker; run `highwater init`")
    return await Registry(settings.registry_access()).codec(wanted)


class EventPublisher:
    """Publishes events of one topic with its schema and key."""

    def __init__(self, topic: Topic, publisher: Publisher, codec: Codec, clock: Clock) -> None:
        self._topic = topic
        self._publisher = publisher
        self._codec = codec
        self._clock = clock

    def __call__(self, event: Mapping[str, object], key: str) -> None:
        """Encode and publish one event.

        Raises:
            InvalidEventError: the event does not fit its schema or its topic.
        """
        value = self._codec.encode(self._topic.name, event)
        self._publisher.publish_event(self._topic, key, value, self._clock())


Pace = Callable[[], None]


def pace_of(rate: float | None) -> Pace:
    """Return a function to call before each event: it waits so that at most `rate` events a second pass; None = no limit."""
    if rate is None:
        return lambda: None
    started, passed = monotonic_seconds(), 0

    def pace() -> None:
        nonlocal passed
        time.sleep(max(0.0, started + passed / rate - monotonic_seconds()))
        passed += 1

    return pace
