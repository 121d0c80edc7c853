"""Publishes the events of write requests: validates them, produces them with acks=all and returns their positions.

Invariant: all events of a request are validated before the first one is produced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from highwater.api.core.freshness import WRITE_WAIT_MS, PositionWatcher, group_of
from highwater.api.core.log_state import LogState
from highwater.api.core.overload import Overload
from highwater.api.core.parts import Part
from highwater.api.core.tracing import Publishing
from highwater.connectors.kafka.producer import AcceptedRecord, AsyncProducer
from highwater.schemas.codec import Codec
from highwater.schemas.envelope import make_headers
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.topic_names import EventT, TopicName
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import Clock, fresh_id
from highwater.streams.telemetry import get_log
from highwater.streams.validation import check_event

SOURCE = "/api"
_log = get_log("api")


class NotTakenError(UnavailableError):
    """Kafka did not accept all events. Send them again; those in `positions` were accepted, and repeats change nothing."""

    def __init__(self, message: str, positions: Sequence[str]) -> None:
        super().__init__(message)
        self.members: dict[str, Any] = {"positions": list(positions)}


class Positions(BaseModel):
    """The log positions of a write's events; send them as `X-Min-Position` to read a state that includes them."""

    positions: list[str]


class Publisher:
    """Produces events of outsider topics on behalf of requests."""

    def __init__(
        self,
        producer: Part[AsyncProducer],
        codec: Part[Codec],
        watcher: PositionWatcher,
        clock: Clock,
        embedding_dimensions: int,
        log_state: LogState,
        overload: Overload | None = None,
    ) -> None:
        self._producer = producer
        self._codec = codec
        self._watcher = watcher
        self._clock = clock
        self._dimensions = embedding_dimensions
        self._log_state = log_state
        self._overload = overload

    def encode(self, topic: str, event: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the key and value of an event.

        Raises:
            InvalidEventError: it breaks a rule; names the field.
            UnavailableError: the registry was never reached, so the schema's id is unknown.
        """
        check_event(topic, event, embedding_dimensions=self._dimensions)
        return TOPICS[topic].key_of(event), self._codec.require().encode(topic, event)

    def encode_unjudged(self, topic: str, event: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the key and value of an event that its sink validates; only what its schema cannot represent is
        refused.

        Raises:
            InvalidEventError: it does not fit its schema.
            UnavailableError: the registry was never reached, so the schema's id is unknown.
        """
        return TOPICS[topic].key_of(event), self._codec.require().encode(topic, event)

    async def publish(
        self, topic: str, encoded: Sequence[tuple[str, bytes]], *, sink_wait_ms: int = WRITE_WAIT_MS
    ) -> list[str]:
        """Produce encoded events in order, wait for the broker, and up to `sink_wait_ms` for their sink.

        Raises:
            TooManyRequestsError: the backlog is too large; nothing was accepted.
            NotTakenError: the broker did not acknowledge all; lists the acknowledged ones.
        """
        if self._overload is not None:
            self._overload.admit(topic)
        return await self._publish(topic, encoded, sink_wait_ms)

    async def _publish(self, topic: str, encoded: Sequence[tuple[str, bytes]], sink_wait_ms: int) -> list[str]:
        taken = await self._produce(topic, encoded)
        await self._give_the_sink_a_moment(taken, sink_wait_ms)
        return [str(position) for position in taken]

    async def _produce(self, topic: str, encoded: Sequence[tuple[str, bytes]]) -> list[AcceptedRecord]:
        producer = self._producer.require()
        await self._log_state.refuse_writes(topic, [key for key, _ in encoded])
        now_ms = self._clock()
        acks = []
        publishing = Publishing(topic)
        for event_key, value in encoded:
            headers = make_headers(event_id=fresh_id(), event_type=topic, source=SOURCE, now_ms=now_ms, caused_by=None)
            headers += publishing.headers
            acks.append(await producer.enqueue(topic, value, key=event_key, headers=headers))
        outcomes = await asyncio.gather(*acks, return_exceptions=True)
        taken = [outcome for outcome in outcomes if isinstance(outcome, AcceptedRecord)]
        publishing.ended(taken, len(encoded))
        failed = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
        if isinstance(failed, HighwaterError) and len(encoded) == 1:
            raise failed
        if failed is not None:
            raise NotTakenError(str(failed), [str(position) for position in taken]) from failed
        return taken

    async def one(self, topic: str, event: Mapping[str, Any], *, sink_wait_ms: int = WRITE_WAIT_MS) -> list[str]:
        """Validate and produce one event; returns its position in a list, as answers have it."""
        return await self.publish(topic, [self.encode(topic, event)], sink_wait_ms=sink_wait_ms)

    async def taken(self, topic: str, event: Mapping[str, Any]) -> AcceptedRecord:
        """Validate and produce one event that the caller itself acts on; returns its position with the broker's time."""
        return (await self._produce(topic, [self.encode(topic, event)]))[0]

    async def commands(
        self, topic: str, events: Sequence[Mapping[str, Any]], *, sink_wait_ms: int = WRITE_WAIT_MS
    ) -> list[str]:
        """Produce events that the API itself creates, of a topic that no outsider writes; returns their positions in
        order.
        """
        encoded = [self.encode_unjudged(topic, event) for event in events]
        return await self._publish(topic, encoded, sink_wait_ms)

    async def record(self, topic: TopicName[EventT], event: EventT) -> None:
        """Produce one event that none of our consumers reads, and wait for the broker.

        Raises:
            UnavailableError: Kafka did not accept it.
        """
        await self._produce(topic, [self.encode_unjudged(topic, event)])

    async def _give_the_sink_a_moment(self, positions: Sequence[Position], wait_ms: int) -> None:
        wanted: dict[tuple[str, str, int], int] = {}
        for topic, partition, offset in positions:
            place = (group_of(topic), topic, partition)
            wanted[place] = max(offset, wanted.get(place, -1))
        try:
            await self._watcher.wait(wanted, wait_ms)
        except UnavailableError as error:
            # The write is durable; a client that reads with its position learns when it is visible.
            _log.debug("the sink was not waited for", reason=str(error))
