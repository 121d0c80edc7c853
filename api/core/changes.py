"""Changes as server-sent events: the tail of `cache.version-bumped`, resumable at any event.

Invariant: the id of an event is the log position of the whole stream, one next offset per partition (`0:12,1:5,…`), so
a client that reconnects with it misses nothing and receives nothing twice. Bumps that the log no longer holds are
reported as a `gap`. A stream ends soon after its key or session becomes invalid.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition

from highwater.api.core.auth import Principal
from highwater.api.core.errors import BadRequestError
from highwater.api.core.places import Places
from highwater.connectors.kafka.admin import Admin, LogRange
from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError, UnknownSchemaError
from highwater.schemas.json_events import event_to_json
from highwater.schemas.positions import parse_position
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

TOPIC = "cache.version-bumped"
# Each stream has a consumer and a thread of its own; more readers belong behind a service that fans out.
STREAMS_MAX = 32
HEARTBEAT_SECONDS = 15.0
# How soon a stream ends whose key or session was revoked: a key is looked up in memory, a session in Redis.
RECHECK_SECONDS = 5.0
# How soon a stream notices that its client has disconnected.
POLL_SECONDS = 0.5
RECORDS_MAX = 500

_VECTOR = re.compile(r"\d{1,4}:\d{1,18}(,\d{1,4}:\d{1,18})*")
_log = get_log("changes")


def parse_last_event_id(text: str) -> dict[int, int]:
    """The next offset of each partition in a `Last-Event-ID`; one position `topic/partition/offset` counts as well.

    Raises:
        BadRequestError: it has neither form.
    """
    if _VECTOR.fullmatch(text):
        places = {int(part.split(":")[0]): int(part.split(":")[1]) for part in text.split(",")}
    else:
        try:
            position = parse_position(text)
        except InvalidEventError as error:
            raise BadRequestError("Last-Event-ID does not come from this stream") from error
        if position.topic != TOPIC:
            raise BadRequestError(f"Last-Event-ID is not a position of {TOPIC}")
        places = {position.partition: position.offset + 1}
    if max(places) >= TOPICS[TOPIC].partitions:
        raise BadRequestError(f"Last-Event-ID names a partition that {TOPIC} does not have")
    return places


def event_id(places: Mapping[int, int]) -> str:
    """Return the event id for these next offsets."""
    return ",".join(f"{partition}:{places[partition]}" for partition in sorted(places))


class Bump(NamedTuple):
    """A record of the topic; `event` None: it cannot be read."""

    partition: int
    offset: int
    event: Mapping[str, Any] | None


class ChangeFeed:
    """Opens streams of changes."""

    def __init__(self, client: Mapping[str, str], admin: Admin) -> None:
        self._client = dict(client)
        self._admin = admin
        # One more than there are streams: the reader for the open pages of administrators (`api/pages/pushes.py`).
        self._threads = ThreadPoolExecutor(STREAMS_MAX + 1, thread_name_prefix="changes")
        self._places = Places("streams of changes are open", STREAMS_MAX)
        self._closing = False

    async def start_places(self, last_event_id: str | None, principal: Principal) -> tuple[dict[int, int], bool]:
        """Return where a stream begins, and whether bumps before it are lost.

        Raises:
            BadRequestError: the id is malformed, or past the end of the log.
            TooManyRequestsError: the caller or its organization has its share of streams.
            UnavailableError: Kafka is unavailable, or there are too many streams.
        """
        self._places.check(principal)
        given = parse_last_event_id(last_event_id) if last_event_id else {}
        places, has_gap = {}, False
        for partition, held in (await self._ranges()).items():
            wanted = given.get(partition, held.high)
            if wanted > held.high:
                raise BadRequestError("Last-Event-ID is past the end of the log")
            has_gap = has_gap or wanted < held.low
            places[partition] = max(wanted, held.low)
        return places, has_gap

    async def end_places(self) -> dict[int, int]:
        """Return the end of the log, per partition.

        Raises:
            UnavailableError: Kafka is unavailable.
        """
        return {partition: held.high for partition, held in (await self._ranges()).items()}

    async def _ranges(self) -> dict[int, LogRange]:
        partitions = range(TOPICS[TOPIC].partitions)
        ranges = await self._admin.log_ranges([(TOPIC, partition) for partition in partitions])
        return {partition: held for (_, partition), held in ranges.items()}

    async def stream(
        self,
        places: dict[int, int],
        has_gap: bool,
        codec: Codec,
        principal: Principal,
        is_visible: Callable[[str], bool],
        is_still_allowed: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events from these offsets until the client disconnects, loses access, or the process ends."""
        told = self._events(places, has_gap, codec, is_visible, is_still_allowed)
        with self._places.taken(principal):
            async with contextlib.aclosing(told) as events:
                async for event in events:
                    yield event

    async def _events(
        self,
        places: dict[int, int],
        has_gap: bool,
        codec: Codec,
        is_visible: Callable[[str], bool],
        is_still_allowed: Callable[[], Awaitable[bool]],
    ) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self.bumps(dict(places), codec)) as lists:
            yield f"id: {event_id(places)}\nretry: 1000\n\n".encode()
            if has_gap:
                yield f"id: {event_id(places)}\nevent: gap\ndata: {{}}\n\n".encode()
            sent_at = checked_at = monotonic_seconds()
            async for bumps in lists:
                if monotonic_seconds() - checked_at >= RECHECK_SECONDS:
                    checked_at = monotonic_seconds()
                    if not await is_still_allowed():
                        return
                for bump in bumps:
                    places[bump.partition] = bump.offset + 1
                    if bump.event is not None and is_visible(bump.event["key"]):
                        sent_at = monotonic_seconds()
                        yield _chunk(bump.event, bump, places)
                if monotonic_seconds() - sent_at >= HEARTBEAT_SECONDS:
                    sent_at = monotonic_seconds()
                    # The id also advances with bumps that this client may not see, so that it resumes near the end.
                    yield f": heartbeat\nid: {event_id(places)}\n\n".encode()

    async def bumps(self, places: Mapping[int, int], codec: Codec) -> AsyncGenerator[list[Bump], None]:
        """Yield the bumps from these offsets on, in one list per poll, which may be empty.

        It ends when the process stops or Kafka is unavailable.
        """
        if self._closing:
            return
        loop = asyncio.get_running_loop()
        consumer = self._consumer(places)
        try:
            while not self._closing:
                try:
                    records = await loop.run_in_executor(self._threads, consumer.consume, RECORDS_MAX, POLL_SECONDS)
                except KafkaException as error:
                    _log.warning("a stream of changes ends: Kafka is unavailable", reason=str(error))
                    return
                # librdkafka recovers from errors by itself; an unrecoverable one ends the stream with an exception.
                yield [_bump(record, codec) for record in records if record.error() is None]
        finally:
            self._threads.submit(consumer.close)

    def _consumer(self, places: Mapping[int, int]) -> Any:
        consumer = Consumer(
            {
                **self._client,
                "client.id": "highwater-changes",
                "group.id": "highwater-changes",  # the client requires a group id; nothing is ever committed to it
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.assign([TopicPartition(TOPIC, partition, offset) for partition, offset in places.items()])
        return consumer

    def end(self) -> None:
        """Let every stream end at its next turn."""
        self._closing = True

    async def close(self) -> None:
        """End every stream and wait for its thread."""
        self.end()
        await asyncio.to_thread(self._threads.shutdown)


def _bump(record: Any, codec: Codec) -> Bump:
    partition, offset = record.partition(), record.offset()
    try:
        return Bump(partition, offset, codec.decode(TOPIC, record.value()))
    except (InvalidEventError, UnknownSchemaError) as error:
        _log.warning("a version bump cannot be read", position=f"{partition}/{offset}", reason=str(error))
        return Bump(partition, offset, None)


def _chunk(event: Mapping[str, Any], bump: Bump, places: Mapping[int, int]) -> bytes:
    position = f"{TOPIC}/{bump.partition}/{bump.offset}"
    data = orjson.dumps({**event_to_json(TOPIC, event), "position": position})
    return b"id: %s\nevent: version\ndata: %s\n\n" % (event_id(places).encode(), data)
