"""Publishing: one producer per process, idempotent, acks=all, murmur2, so that all our clients agree on a key's partition."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.positions import Place
from highwater.schemas.errors import InvalidEventError, UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.topics import DEAD_LETTER_BYTES_MAX
from highwater.streams.telemetry import get_log

# librdkafka's default is CRC32; Java, aiokafka and Faust use murmur2 (of 200 keys on 8 partitions only 15 agree).
PARTITIONER = "murmur2_random"
# How long a record may wait for its acknowledgement before Kafka is reported as unavailable. Not less: a lost broker is
# declared dead after its session of 9 s and its partitions get other leaders, 11.5 s after the kill in
# tests/integration/deploy/test_three_brokers.py; giving up before that would turn each such loss into refused writes.
# Only the first writes of an outage wait this long: then the check of Kafka (api/core/services.py) knows, and others
# are refused at once.
DELIVERY_MS_MAX = 15_000
# Records queued in the client; beyond it `publish` waits, so memory stays bounded.
QUEUE_KIB_MAX = 64 * 1024
# A delivery report ends a poll; `close` waits for its end. The client also wakes this often in a longer poll, to handle
# signals.
_POLL_SECONDS = 0.2

_log = get_log("producer")


class AcceptedRecord(Position):
    """The position of a record that the broker accepted, and the broker's time of it (log append), in ms since 1970."""

    arrived_ms: int


def accepted(topic: str, partition: int, offset: int, arrived_ms: int) -> AcceptedRecord:
    """Return an accepted record."""
    taken = AcceptedRecord(topic, partition, offset)
    taken.arrived_ms = arrived_ms
    return taken


def _outcome(error: KafkaError | None, message: Message) -> AcceptedRecord | UnavailableError | InvalidEventError:
    if error is not None:
        return _as_error(error)
    return accepted(message.topic(), message.partition(), message.offset(), message.timestamp()[1])


class AsyncProducer:
    """librdkafka's producer under asyncio: each record's future resolves to its position."""

    def __init__(
        self,
        client: Mapping[str, str],
        *,
        client_id: str,
        linger_ms: int = 1,
        on_given_again: Callable[[Place, LogRange, Mapping[Place, int]], None] | None = None,
    ) -> None:
        """`on_given_again` is called when a log gives an offset a second time: with the range from it to one past the highest,
        and one past the highest offset of every partition that this producer wrote to.
        """
        self._settings = {
            **client,
            "client.id": client_id,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": PARTITIONER,
            "compression.type": "lz4",
            "linger.ms": linger_ms,
            "delivery.timeout.ms": DELIVERY_MS_MAX,
            "message.max.bytes": DEAD_LETTER_BYTES_MAX,
            "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
            "logger": logging.getLogger("librdkafka"),
        }
        self._producer = Producer(self._settings)
        self._loop = asyncio.get_running_loop()
        self._given: dict[Place, int] = {}  # one past the highest offset of each partition
        self._on_given_again = on_given_again
        self._closing = False
        self._polling = self._loop.run_in_executor(None, self._poll)

    def _poll(self) -> None:
        while not self._closing:
            try:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                self._replace(error.args[0])

    def _replace(self, error: KafkaError) -> None:
        """Use another client after an error that this one does not survive: a broker that lost the tail of a log has also lost
        the sequence numbers of its producers. Records that were not acknowledged are refused.
        """
        _log.warning("producer_replaced", reason=error.str())
        ended, self._producer = self._producer, Producer(self._settings)
        ended.purge()
        with contextlib.suppress(KafkaException):  # it repeats its error with the reports
            ended.poll(0)
        with contextlib.suppress(KafkaException):
            ended.flush(_POLL_SECONDS)

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | str | None,
        headers: Any = None,
        partition: int | None = None,
    ) -> asyncio.Future[AcceptedRecord]:
        """Queue a record; the future resolves to its position and time once the broker has acknowledged it.

        The future raises `UnavailableError` when Kafka did not acknowledge in time, or gave an offset a second time.

        Raises:
            InvalidEventError: the record is larger than the topic accepts.
        """
        future: asyncio.Future[AcceptedRecord] = self._loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._loop.call_soon_threadsafe(self._resolve, future, error, message)

        place = {} if partition is None else {"partition": partition}
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=delivered, **place)
            except BufferError:
                await asyncio.sleep(0.01)  # the queue is full: the poll thread empties it as acknowledgements arrive
                continue
            except KafkaException as error:
                raise _as_error(error.args[0]) from error
            return future

    def _resolve(self, future: asyncio.Future[AcceptedRecord], error: KafkaError | None, message: Message) -> None:
        outcome = _outcome(error, message)
        if isinstance(outcome, AcceptedRecord) and self._is_given_again(outcome):
            outcome = UnavailableError(
                f"{message.topic()}/{message.partition()} gave offset {message.offset()} a second time, so Kafka lost its"
                " tail; see `highwater doctor`. The event may be published again when the partition is repaired"
            )
        if future.done():
            return
        if isinstance(outcome, AcceptedRecord):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def _is_given_again(self, taken: AcceptedRecord) -> bool:
        """Return whether the log lost its tail (or was recreated) since this process wrote to it last."""
        place = (taken.topic, taken.partition)
        given = self._given.get(place, 0)
        self._given[place] = max(given, taken.offset + 1)
        is_again = 0 <= taken.offset < given
        if is_again and self._on_given_again is not None:
            self._on_given_again(place, LogRange(taken.offset, given), dict(self._given))
        return is_again

    async def publish(
        self, topic: str, value: bytes | None, *, key: bytes | str | None, headers: Any = None
    ) -> AcceptedRecord:
        """Publish one record and wait for its position.

        Raises:
            UnavailableError: Kafka did not acknowledge in time.
            InvalidEventError: the record is larger than the topic accepts.
        """
        return await (await self.enqueue(topic, value, key=key, headers=headers))

    async def close(self) -> None:
        """Wait for what is in progress (bounded by the delivery limit), then stop."""
        await asyncio.to_thread(self._producer.flush, DELIVERY_MS_MAX / 1000)
        self._closing = True
        await self._polling


def _as_error(error: KafkaError) -> UnavailableError | InvalidEventError:
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return InvalidEventError("too_large", "the event is larger than its topic takes")
    return UnavailableError(f"Kafka did not take the event: {error.str()}")
