"""What came of queries, pushed to their users' sockets: one consumer a process at the end of `queries.pipeline-stage`.

Laws. A push is told to its own user's sockets alone. Its id is the place of the event in the log, so a socket that comes back
with the last id it saw misses nothing and is told nothing twice. With Kafka or PostgreSQL away nothing is skipped: what is read
waits for its answer, and what is not read waits in the log.
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
from highwater.connectors.patience import retry_until_available
from highwater.connectors.queries.read_model import Answer
from highwater.schemas.codec import Codec
from highwater.schemas.errors import HighwaterError, InvalidEventError, UnavailableError, UnknownSchemaError
from highwater.schemas.queries import PIPELINE_STAGE
from highwater.schemas.topics import TOPICS
from highwater.streams.queries.states import Status
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import get_log

TOPIC = PIPELINE_STAGE
# An idle socket holds some 60 KiB; a thousand of them leave a process of this size the most of its memory.
SOCKETS_MAX = 1_000
# Messages that wait for one reader: an answer has at most 2,000 tokens (R1.24), some 8 KiB, so half a megabyte.
WAITING_MAX = 64
# The relay repeats at most what it had under way when it died; of one user few of those are ends of runs.
TOLD_MAX = 64
# Reads of the past at once: each holds a thread and a consumer, and reads a partition at the speed of the disk.
CATCH_UPS_MAX = 4

_RECORDS_MAX = 1_000
_POLL_SECONDS = 0.2
# How long a reader of the past may make the others wait for its place among `CATCH_UPS_MAX`.
_ROOM_SECONDS_MAX = 10.0
_TOO_SLOW = "reads too slowly; resume after the last id"
_log = get_log("sockets")


class Seen(NamedTuple):
    """A record as it is looked through: most are somebody else's, and are not decoded."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Ended(NamedTuple):
    """A run that has ended, and where the log says so."""

    offset: int
    request_id: str
    user_id: str
    status: str
    error: str | None


class Subscriber:
    """One socket as the hub sees it. While it catches up it takes no live pushes, and remembers that there were some."""

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
        """A live push. One that finds no room ends the socket: it can come back with the last id that it saw."""
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
        """A push of the past; it waits for room, but not for ever."""
        if self.closed.done() or ended.request_id in self._told:
            return
        try:
            await asyncio.wait_for(self.waiting.put(text), _ROOM_SECONDS_MAX)
        except TimeoutError:
            self.close(TRY_AGAIN_LATER, _TOO_SLOW)
            return
        self._told.append(ended.request_id)

    def offer_delta(self, request_id: str, text: str) -> bool:
        """A piece of an answer; whether it counts as told. Half of the room is the answers', so it may have to wait for more."""
        if self.closed.done() or request_id in self._told:
            return True
        if self.waiting.qsize() >= WAITING_MAX // 2:
            return False
        self.waiting.put_nowait(text)
        return True

    def close(self, code: int, reason: str) -> None:
        """Have the socket closed; the first word counts."""
        if not self.closed.done():
            self.closed.set_result((code, reason))


def partition_of(user_id: str) -> int:
    """The partition that holds a user's runs."""
    return murmur2_partition(user_id.encode(), TOPICS[TOPIC].partitions)


def push_text(ended: Ended, partition: int, answers: Mapping[str, Answer]) -> str | None:
    """The message of a run that has ended; None for one whose answer is gone, or is another user's."""
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
        # The next offset of each partition that is not told yet; empty: nobody listens and nothing is read.
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
        """Tell a user from now on of runs that end; one that is to catch up first is not live. What ends after this is told.

        Raises:
            UnavailableError: Kafka or the registry is away, so that it is not known where now is.
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
        """The socket has gone; with the last one the reading ends."""
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
        """The id after which a socket that has read everything would resume; None at the beginning of the log."""
        offset = self._places.get(subscriber.partition, 0) - 1
        return f"{TOPIC}/{subscriber.partition}/{offset}" if offset >= 0 else None

    async def end(self) -> None:
        """Close every socket, and wait a moment for them to have been told."""
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
        self._known = self._codec()  # away, it is said now and not when the first run ends
        partitions = range(TOPICS[TOPIC].partitions)
        ranges = await self._admin.log_ranges([(TOPIC, partition) for partition in partitions])
        self._places = {partition: held.high for (_, partition), held in ranges.items()}
        self._task = asyncio.create_task(self._run(), name="query-sockets")

    async def _run(self) -> None:
        try:
            while True:
                await self._follow()
        except Exception as error:  # noqa: BLE001 - whatever it was, a socket that is told nothing more must not stay open
            _log.error("the sockets are closed: their consumer failed", error=repr(error), exc_info=True)
            self._task = None
            fail(self._subscribers())

    async def _follow(self) -> None:
        """Read and tell, until Kafka's client is broken for good and another one is needed."""
        loop = asyncio.get_running_loop()
        consumer = self.reader_at(self._places)
        try:
            while True:
                records = await loop.run_in_executor(self._thread, poll, consumer)
                if records:
                    await self._tell(records)
        except KafkaException as error:
            _log.warning("the sockets' consumer is opened anew", reason=str(error))
            await asyncio.sleep(_POLL_SECONDS)
        finally:
            _release(self._thread, consumer)

    def reader_at(self, places: Mapping[int, int]) -> Any:
        """A consumer of these places; it joins no group and commits nothing."""
        consumer = Consumer(
            {
                **self._client,
                "client.id": "highwater-sockets",
                "group.id": "highwater-sockets",  # the client wants one
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                # What waits here while PostgreSQL is away; the rest waits in the log.
                "queued.max.messages.kbytes": 4 * 1024,
                "logger": logging.getLogger("librdkafka"),
            }
        )
        consumer.assign([TopicPartition(TOPIC, partition, offset) for partition, offset in places.items()])
        return consumer

    async def _tell(self, records: Sequence[Seen]) -> None:
        """Push what ended to those who are there once all of it is known, so that who comes meanwhile is told too."""
        known: dict[int, Ended | None] = {}
        answers: dict[str, Answer] = {}
        while True:
            fresh = [n for n, record in enumerate(records) if n not in known and record.key in self._users]
            if not fresh:
                break
            for n in fresh:
                known[n] = await self.ended_of(records[n])
            answers |= await self.answers_of([ended for n in fresh if (ended := known[n]) is not None])
        # From here on nothing is awaited: who joins finds all of these records before or behind its place.
        for n, record in enumerate(records):
            self._places[record.partition] = record.offset + 1
            ended = known.get(n)
            text = None if ended is None else push_text(ended, record.partition, answers)
            if ended is not None and text is not None:
                for subscriber in list(self._users.get(ended.user_id.encode(), ())):
                    subscriber.offer(ended, text)

    async def ended_of(self, record: Seen) -> Ended | None:
        """The end of a run that a record tells of; None for any other record."""
        codec = self._known
        assert codec is not None  # nobody reads before `_start`
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
        """Whether the registry knows a schema that is new here; while it is away, its word is waited for."""
        try:
            await retry_until_available(lambda: self._learn(codec, schema_id))
        except UnknownSchemaError:
            return False
        return True

    async def answers_of(self, ended: Sequence[Ended]) -> Mapping[str, Answer]:
        """The answers of those that were completed, by one statement; while PostgreSQL is away they are waited for."""
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
        """Tell a socket what ended after an offset, then let it go on live. Live pushes of meanwhile are read again here.

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
            # Nothing was awaited since, so what the live end tells next is at or behind `start`.
            subscriber.next_offset = start
            subscriber.is_live = True

    async def _first_held(self, subscriber: Subscriber, after: int) -> int:
        """Where to begin; tells a gap when the log no longer holds what came next."""
        place = (TOPIC, subscriber.partition)
        held = (await retry_until_available(lambda: self._admin.log_ranges([place])))[place]
        if after >= held.high:
            raise ResumeError
        if after + 1 < held.low:
            gap = {"type": "gap", "id": f"{TOPIC}/{subscriber.partition}/{held.low - 1}"}
            await subscriber.waiting.put(orjson.dumps(gap).decode())
        return max(after + 1, held.low)

    async def _replay(self, subscriber: Subscriber, start: int, end: int) -> None:
        """Tell what of one user ended within [start, end)."""
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


def poll(consumer: Any) -> list[Seen]:
    """What has come; what the client says of itself (a broker that is away) is no record."""
    return [_seen(message) for message in _messages(consumer) if message.error() is None]


def poll_of(consumer: Any, key: bytes, start: int, end: int) -> tuple[list[Seen], int]:
    """The records of one key before `end` among what has come, and the next offset to look at."""
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
    """Waits a moment for the first; what follows at once is taken with it."""
    first = consumer.poll(_POLL_SECONDS)
    return [] if first is None else [first, *consumer.consume(_RECORDS_MAX - 1, 0)]


def _seen(message: Any) -> Seen:
    return Seen(message.partition(), message.offset(), message.key(), message.value())


def _release(threads: ThreadPoolExecutor, consumer: Any) -> None:
    """Close a consumer where it was read, behind a read that is under way; at the very end there may be no thread any more."""
    with contextlib.suppress(RuntimeError):
        threads.submit(consumer.close)
