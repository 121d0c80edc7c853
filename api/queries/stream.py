"""The outcomes of queries, pushed to their users' sockets: one consumer per process at the end of
`queries.pipeline-stage`.

Invariants. A push goes only to its own user's sockets. Its id is the event's position in the log, so a socket that
reconnects with the last id it received misses nothing and gets nothing twice. While Kafka or PostgreSQL is unavailable
nothing is skipped: records that were read wait for their answers, and the others wait in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from highwater.api.core.audience import Audience, fail
from highwater.api.core.sockets import TRY_AGAIN_LATER, EndingError
from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.queries.read_model import Answer
from highwater.connectors.waiting import retry_until_available
from highwater.schemas.codec import Codec
from highwater.schemas.errors import HighwaterError, InvalidEventError, UnavailableError, UnknownSchemaError
from highwater.schemas.queries import PIPELINE_STAGE
from highwater.schemas.topics import TOPICS
from highwater.streams.queries.states import Status
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import get_log

TOPIC = PIPELINE_STAGE
# An idle socket holds some 60 KiB; with a thousand of them, a process of this size still has most of its memory.
SOCKETS_MAX = 1_000
# Messages that wait for one reader: an answer has at most 2,000 tokens (R1.24), some 8 KiB, so half a megabyte.
WAITING_MAX = 64
# The relay repeats at most what it was publishing when it died; few of those are ends of runs of one user.
TOLD_MAX = 64
# Reads of the past at once: each holds a thread and a consumer, and reads a partition at the speed of the disk.
CATCH_UPS_MAX = 4

_RECORDS_MAX = 1_000
_POLL_SECONDS = 0.2
# How long a reader of the past may block others that wait for its place among `CATCH_UPS_MAX`.
_ROOM_SECONDS_MAX = 10.0
_TOO_SLOW = "reads too slowly; resume after the last id"
_log = get_log("sockets")


class RawRecord(NamedTuple):
    """A record before decoding: most belong to other users, and are not decoded."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Ended(NamedTuple):
    """A run that has ended, and the position of that event."""

    offset: int
    request_id: str
    user_id: str
    status: str
    error: str | None


class Subscriber:
    """One socket from the hub's view. During catch-up it gets no live pushes, and notes that there were some."""

    def __init__(self, user_id: str, partition: int, next_offset: int, *, is_live: bool) -> None:
        self.user_id = user_id
        self.partition = partition
        self.next_offset = next_offset
        self.is_live = is_live
        self.has_missed = False
        self.waiting: asyncio.Queue[str] = asyncio.Queue(WAITING_MAX)
        self.closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._told: deque[str] = deque(maxlen=TOLD_MAX)

    def offer(self, ended: Ended, text: str) -> None:
        """Add a live push. If there is no room, the socket is closed: it can reconnect with the last id that it received."""
        if not self.is_live:
            self.has_missed = True
            return
        if self.closed.done() or ended.offset < self.next_offset or ended.request_id in self._told:
            return
        self.next_offset = ended.offset + 1
        try:
            self.waiting.put_nowait(text)
        except asyncio.QueueFull:
            self.close(TRY_AGAIN_LATER, _TOO_SLOW)
            return
        self._told.append(ended.request_id)

    async def put(self, ended: Ended, text: str) -> None:
        """Add a push of the past; it waits for room, but not forever."""
        if self.closed.done() or ended.request_id in self._told:
            return
        try:
            await asyncio.wait_for(self.waiting.put(text), _ROOM_SECONDS_MAX)
        except TimeoutError:
            self.close(TRY_AGAIN_LATER, _TOO_SLOW)
            return
        self._told.append(ended.request_id)

    def offer_delta(self, request_id: str, text: str) -> bool:
        """Add a piece of an answer; return whether it counts as sent. Half of the room is for answers, so it may have
        to wait for more.
        """
        if self.closed.done() or request_id in self._told:
            return True
        if self.waiting.qsize() >= WAITING_MAX // 2:
            return False
        self.waiting.put_nowait(text)
        return True

    def close(self, code: int, reason: str) -> None:
        """Close the socket with this code; the first call counts."""
        if not self.closed.done():
            self.closed.set_result((code, reason))


def partition_of(user_id: str) -> int:
    """Return the partition that contains a user's runs."""
    return murmur2_partition(user_id.encode(), TOPICS[TOPIC].partitions)


def push_text(ended: Ended, partition: int, answers: Mapping[str, Answer]) -> str | None:
    """Return the message about an ended run; None if its answer is gone, or belongs to another user."""
    message = {"request_id": ended.request_id, "id": f"{TOPIC}/{partition}/{ended.offset}"}
    if ended.status == Status.FAILED:
        return orjson.dumps(message | {"status": "failed", "error": ended.error or ""}).decode()
    answer = answers.get(ended.request_id)
    if answer is None or answer.user_id != ended.user_id:
        return None
    return orjson.dumps(message | {"status": "completed", "answer": answer.text}).decode()


class QueryHub:
    """Reads the log once for every socket of the process."""

    def __init__(
        self,
        client: Mapping[str, str],
        admin: Admin,
        codec: Callable[[], Codec],
        learn: Callable[[Codec, int], Awaitable[None]],
        read_answers: Callable[[Sequence[str]], Awaitable[Mapping[str, Answer]]],
    ) -> None:
        self._client = dict(client)
        self._admin = admin
        self._codec = codec
        self._learn = learn
        self._read_answers = read_answers
        self._users: dict[bytes, set[Subscriber]] = {}
        # The next unsent offset of each partition; empty: there are no listeners and nothing is read.
        self._places: dict[int, int] = {}
        self._known: Codec | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sockets")
        self._past_threads = ThreadPoolExecutor(CATCH_UPS_MAX, thread_name_prefix="sockets-past")
        self._catching_up = asyncio.Semaphore(CATCH_UPS_MAX)
        self.audience = Audience("sockets are open", SOCKETS_MAX)

    # -- sockets that come and go -------------------------------------------------------------------------------------

    async def join(self, user_id: str, *, is_live: bool = True) -> Subscriber:
        """Register a user's socket for runs that end from now on; one that has to catch up first is not live.

        Raises:
            UnavailableError: Kafka or the registry is unavailable, so the current end of the log is unknown.
            EndingError: the server stops.
        """
        async with self._starting:
            if self._task is None:
                await self._start()
            if self.audience.is_ending:
                raise EndingError
            partition = partition_of(user_id)
            subscriber = Subscriber(user_id, partition, self._places[partition], is_live=is_live)
            self._users.setdefault(user_id.encode(), set()).add(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a socket; with the last one the reading ends."""
        key = subscriber.user_id.encode()
        of_user = self._users.get(key, set())
        of_user.discard(subscriber)
        if not of_user:
            self._users.pop(key, None)
        if not self._users and self._task is not None:
            self._task.cancel()
            self._task = None

    def _subscribers(self) -> Iterator[Subscriber]:
        return (subscriber for of_user in self._users.values() for subscriber in of_user)

    def place_of(self, subscriber: Subscriber) -> str | None:
        """Return the id after which a socket that has read everything would resume; None at the beginning of the log."""
        offset = self._places.get(subscriber.partition, 0) - 1
        return f"{TOPIC}/{subscriber.partition}/{offset}" if offset >= 0 else None

    async def end(self) -> None:
        """Close every socket, and wait a moment until the clients are notified."""
        await self.audience.end(self._subscribers())

    async def close(self) -> None:
        """Stop reading."""
        self.audience.is_ending = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for threads in (self._thread, self._past_threads):
            await asyncio.to_thread(threads.shutdown)

    # -- the live end of the log --------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._known = self._codec()  # if unavailable, it is reported now and not when the first run ends
        partitions = range(TOPICS[TOPIC].partitions)
        ranges = await self._admin.log_ranges([(TOPIC, partition) for partition in partitions])
        self._places = {partition: held.high for (_, partition), held in ranges.items()}
        self._task = asyncio.create_task(self._run(), name="query-sockets")

    async def _run(self) -> None:
        try:
            while True:
                await self._follow()
        except Exception as error:  # noqa: BLE001 - after any error, a socket that gets nothing more must not stay open
            _log.error("the sockets are closed: their consumer failed", error=repr(error), exc_info=True)
            self._task = None
            fail(self._subscribers())

    async def _follow(self) -> None:
        """Read and push, until Kafka's client is permanently broken and a new one is needed."""
        loop = asyncio.get_running_loop()
        consumer = self.reader_at(self._places)
        try:
            while True:
                records = await loop.run_in_executor(self._thread, poll, consumer)
                if records:
                    await self._tell(records)
        except KafkaException as error:
            _log.warning("the sockets' consumer is reopened", reason=str(error))
            await asyncio.sleep(_POLL_SECONDS)
        finally:
            _release(self._thread, consumer)

    def reader_at(self, places: Mapping[int, int]) -> Any:
        """Return a consumer at these positions; it joins no group and commits nothing."""
        consumer = Consumer(
            {
                **self._client,
                "client.id": "highwater-sockets",
                "group.id": "highwater-sockets",  # required by the client
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                # Records waiting here while PostgreSQL is unavailable; the rest waits in the log.
                "queued.max.messages.kbytes": 4 * 1024,
                "logger": logging.getLogger("librdkafka"),
            }
        )
        consumer.assign([TopicPartition(TOPIC, partition, offset) for partition, offset in places.items()])
        return consumer

    async def _tell(self, records: Sequence[RawRecord]) -> None:
        """Push ended runs once all their answers are known, so that sockets that join meanwhile get them too."""
        known: dict[int, Ended | None] = {}
        answers: dict[str, Answer] = {}
        while True:
            fresh = [n for n, record in enumerate(records) if n not in known and record.key in self._users]
            if not fresh:
                break
            for n in fresh:
                known[n] = await self.ended_of(records[n])
            answers |= await self.answers_of([ended for n in fresh if (ended := known[n]) is not None])
        # No await from here on: a socket that joins finds all of these records either before or after its place.
        for n, record in enumerate(records):
            self._places[record.partition] = record.offset + 1
            ended = known.get(n)
            text = None if ended is None else push_text(ended, record.partition, answers)
            if ended is not None and text is not None:
                for subscriber in list(self._users.get(ended.user_id.encode(), ())):
                    subscriber.offer(ended, text)

    async def ended_of(self, record: RawRecord) -> Ended | None:
        """Return the end of a run in a record; None for any other record."""
        codec = self._known
        assert codec is not None  # nothing is read before `_start`
        while True:
            try:
                event = codec.decode(TOPIC, record.value)
            except InvalidEventError as error:
                _log.warning("cannot be read", position=f"{record.partition}/{record.offset}", reason=str(error))
                return None
            except UnknownSchemaError as error:
                if not await self._learned(codec, error.schema_id):
                    return None
                continue
            if event["status"] not in (Status.COMPLETED, Status.FAILED):
                return None
            return Ended(record.offset, event["id"], event["user_id"], event["status"], event["error"])

    async def _learned(self, codec: Codec, schema_id: int) -> bool:
        """Return whether the registry has a schema that is new here; wait for the registry while it is unavailable."""
        try:
            await retry_until_available(lambda: self._learn(codec, schema_id))
        except UnknownSchemaError:
            return False
        return True

    async def answers_of(self, ended: Sequence[Ended]) -> Mapping[str, Answer]:
        """Return the answers of completed runs, by one statement; wait for PostgreSQL while it is unavailable."""
        wanted = sorted({one.request_id for one in ended if one.status == Status.COMPLETED})
        attempt = 0
        while wanted:
            attempt += 1
            try:
                return await self._read_answers(wanted)
            except UnavailableError as error:
                if attempt == 1:
                    _log.warning("pushes wait for their answers", reason=str(error))
                await asyncio.sleep(unavailable_seconds(attempt))
        return {}

    # -- the past of one user -----------------------------------------------------------------------------------------

    async def catch_up(self, subscriber: Subscriber, after: int) -> None:
        """Send a socket the runs that ended after an offset, then continue live. Live pushes meanwhile are read again
        here.

        Raises:
            ResumeError: the offset is past the end of the log.
        """
        subscriber.is_live = False
        async with self._catching_up:
            start = await self._first_held(subscriber, after)
            while True:
                end = self._places[subscriber.partition]
                subscriber.has_missed = False
                await self._replay(subscriber, start, end)
                start = max(start, end)
                if not subscriber.has_missed:
                    break
            # No await since then, so the next live push is at or after `start`.
            subscriber.next_offset = start
            subscriber.is_live = True

    async def _first_held(self, subscriber: Subscriber, after: int) -> int:
        """Return where to begin; report a gap if the log no longer contains the next events."""
        place = (TOPIC, subscriber.partition)
        held = (await retry_until_available(lambda: self._admin.log_ranges([place])))[place]
        if after >= held.high:
            raise ResumeError
        if after + 1 < held.low:
            gap = {"type": "gap", "id": f"{TOPIC}/{subscriber.partition}/{held.low - 1}"}
            await subscriber.waiting.put(orjson.dumps(gap).decode())
        return max(after + 1, held.low)

    async def _replay(self, subscriber: Subscriber, start: int, end: int) -> None:
        """Send the runs of one user that ended within [start, end)."""
        if start >= end:
            return
        loop, key = asyncio.get_running_loop(), subscriber.user_id.encode()
        consumer = self.reader_at({subscriber.partition: start})
        try:
            while start < end:
                records, start = await loop.run_in_executor(self._past_threads, poll_of, consumer, key, start, end)
                found = [ended for record in records if (ended := await self.ended_of(record)) is not None]
                answers = await self.answers_of(found)
                for ended in found:
                    text = push_text(ended, subscriber.partition, answers)
                    if text is not None:
                        await subscriber.put(ended, text)
        finally:
            _release(self._past_threads, consumer)


class ResumeError(HighwaterError):
    """The id is past the end of the log. Resume with one that this server issued."""


def poll(consumer: Any) -> list[RawRecord]:
    """Return the fetched records; the client's own messages (such as an unavailable broker) are not records."""
    return [_seen(message) for message in _messages(consumer) if message.error() is None]


def poll_of(consumer: Any, key: bytes, start: int, end: int) -> tuple[list[RawRecord], int]:
    """Return the fetched records of one key before `end`, and the next offset to read."""
    found, reached = [], start
    for message in _messages(consumer):
        if message.error() is None:
            reached = message.offset() + 1
            if message.key() == key and message.offset() < end:
                found.append(_seen(message))
        elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name for it
            reached = max(reached, message.offset())
    return found, reached


def _messages(consumer: Any) -> list[Any]:
    """Wait a moment for the first message; return it with those that follow at once."""
    first = consumer.poll(_POLL_SECONDS)
    return [] if first is None else [first, *consumer.consume(_RECORDS_MAX - 1, 0)]


def _seen(message: Any) -> RawRecord:
    return RawRecord(message.partition(), message.offset(), message.key(), message.value())


def _release(threads: ThreadPoolExecutor, consumer: Any) -> None:
    """Close a consumer in its own thread, after a read in progress; during shutdown there may be no thread any more."""
    with contextlib.suppress(RuntimeError):
        threads.submit(consumer.close)
