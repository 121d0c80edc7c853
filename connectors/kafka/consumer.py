"""The consumer framework: every sink, worker and materializer is a `Handler` run by a `BatchConsumer`.

Invariant: the effects of a batch, its dead letters and its positions are one transaction. In every case (a kill, a
rebalance, an unavailable store, a process paused beyond its session), an event's effect is stored once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from highwater.connectors.kafka import outbox, positions, truncation
from highwater.connectors.kafka.admin import TOPIC_IDS_SECONDS, LogRange
from highwater.connectors.kafka.backlog import Reading
from highwater.connectors.kafka.chains import begin_batch, end_batch
from highwater.connectors.kafka.failures import Following, after_failure, is_refusal
from highwater.connectors.kafka.handler import Handler, ProcessContext
from highwater.connectors.kafka.linger import Linger
from highwater.connectors.kafka.positions import Epochs, Move, Place, Stored
from highwater.connectors.kafka.preparing import Ahead, Preparation, PreparedBatch
from highwater.connectors.kafka.records import DeadLetter, Record, dead_letter_row, record_of
from highwater.connectors.kafka.resting import Rest
from highwater.connectors.kafka.statements import QUERIES
from highwater.connectors.kafka.stopped import PartitionGuard, PartitionsStoppedError, Stopped, without
from highwater.connectors.postgres.pool import CONFLICT, transaction
from highwater.connectors.waiting import pause
from highwater.schemas.errors import (
    FencedError,
    TopicRecreatedError,
    UnavailableError,
)
from highwater.streams import relay_epochs
from highwater.streams.relay_epochs import Epoch
from highwater.streams.retry import unavailable_seconds
from highwater.streams.telemetry import (
    BATCH_RETRIES,
    BATCH_SECONDS,
    BATCHES_FENCED,
    CONSUMER_UP,
    EVENTS_CONSUMED,
    EVENTS_DEAD_LETTERED,
    RECORDS_OVERTAKEN,
    get_log,
)

# A member without a heartbeat for this long is replaced; a shorter time would mistake a busy machine for a dead one.
SESSION_MS = 10_000
# Records queued in the client, per consumer: limits memory, and holds several batches.
QUEUE_KIB_MAX = 32 * 1024
# One hot partition must not delay the others: all share one first-in-first-out queue, so the size of a fetch from one
# partition, and the prefetch, is how long the others wait. The broker sends a larger record alone.
FETCH_BYTES_MAX = 256 * 1024
QUEUED_BATCHES = 2
# How long a poll waits for a first record, which ends it; records that follow at once are taken with it. A consumer
# that stops, or whose partition is resumed, waits for the end of its poll: slightly longer after an idle time, since
# each poll takes processor time, and an idle stack has 27 consumers (`resting.py`).
_POLL_SECONDS, _RESTING_POLL_SECONDS = 0.1, 1.0
# Fetched records arrive within this; `linger.py` decides whether to wait for more.
_AT_HAND_SECONDS = 0.001
# While a batch takes longer than this its partitions are paused, so that polling continues without reading ahead.
_PAUSE_AFTER_SECONDS = 1.0
# After this many events statements are planned again for the current size of their tables; each plan costs a tenth of a
# millisecond.
_PLANNED_ANEW_MIN = 64
# How long a rebalance waits for the batch in progress; the fence makes it safe to continue without it.
_HAND_OVER_SECONDS = 5.0
# How often a resting consumer compares its topics: a recreated topic is found at the latest when its first record
# comes.
_RESTING_TOPIC_IDS_SECONDS = 30.0
# The state at the start of every consumer; not worth a log line.
_STARTING, _JOINING = "starting", "joining its group"
_OVERTAKEN = (
    "a relay of the outbox hung and published them after another had taken its shard over and published them as well"
)
# A loop that has not turned for this long hangs.
_HEARTBEAT_SECONDS = 60.0


class BatchConsumer:
    """Reads a handler's topics in batches until it is stopped."""

    def __init__(self, handler: Handler[Any, Any], context: ProcessContext) -> None:
        self._handler = handler
        self._context = context
        self._preparation = Preparation(handler, context)
        self._ahead: asyncio.Task[Ahead] | None = None  # the next batch, read while this one is stored
        self._ready: PreparedBatch | None = None  # what was prepared for the current batch
        self._owned: list[Place] = []  # what the group has assigned, stopped partitions included
        self._next: dict[Place, int] = {}  # of partitions that are read
        self._held_back: dict[Place, int] = {}  # of stopped partitions
        self._uncommitted: dict[Place, int] = {}  # stored, and not committed to the group yet
        self._in_hand: dict[Place, int] = {}  # the arrival of the first record of the current batch
        self._epochs: dict[Place, dict[int, Epoch]] = {}  # of relays, as stored with the positions
        self._topic_ids: dict[str, str] = {}
        self._has_joined = False
        self._caught_up_ms: int | None = None  # of the database, when the positions were read
        self._assignments = 0  # counts them, so that a change during a poll is detected
        self._has_strayed = False  # records were read and not stored: read again from the stored position
        self._doubted: set[Place] = set()  # partitions whose log does not continue at our position
        self._before: dict[
            Place, int
        ] = {}  # the leader epoch of the record before our position, until it was read again
        self._is_ending = False
        self._is_said = False
        self._idle = threading.Event()
        self._idle.set()
        self._log = get_log(handler.group)
        self._guard = PartitionGuard(handler.group, self._log)
        self._turned_at = 0.0
        self._rest = Rest(context.doorbell)
        self._linger = Linger(handler.linger_seconds)
        self._checked_at = 0.0
        self._problem: str | None = _STARTING
        self._is_ready_without = False  # whether the rest of the process works despite the problem
        self.group = handler.group

    @property
    def handler(self) -> Handler[Any, Any]:
        """Return the handler of its events."""
        return self._handler

    @property
    def is_fetching(self) -> bool:
        """Return whether it fetches by itself; a resting consumer is woken (`resting.py`)."""
        return self._rest.is_fetching

    @property
    def problem(self) -> str | None:
        """Return why this consumer is not ready; None if it is."""
        if self._problem is None and asyncio.get_running_loop().time() - self._turned_at > _HEARTBEAT_SECONDS:
            return f"has not polled for {_HEARTBEAT_SECONDS:.0f} s"
        return None if self._is_ready_without else self._problem

    @property
    def degraded(self) -> str | None:
        """Return which partitions are stopped while others are read, with the commands that resume them; or what it waits for."""
        waits_for = self._problem if self._is_ready_without else None
        return "; ".join(text for text in (waits_for, self._guard.degraded) if text is not None) or None

    @property
    def readings(self) -> Mapping[Place, Reading]:
        """Return its place in each partition that it holds."""
        in_hand, is_resting = self._in_hand, not self.is_fetching
        return {
            place: Reading(next_, in_hand.get(place), is_resting)
            for place, next_ in (*self._held_back.items(), *self._next.items())
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set. A recreated topic ends it, unready, with one log line."""
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.group)
        # As at the first start, if it runs again after an error: it continues from the stored positions.
        self._owned, self._next, self._held_back, self._has_joined, self._is_ending = [], {}, {}, False, False
        self._uncommitted = {}
        self._problem = _STARTING
        ending = asyncio.ensure_future(self._break_off_at(stop))
        try:
            await self._start(stop)
            while not stop.is_set():
                await self._turn(stop)
        except TopicRecreatedError as error:
            self._set_problem(f"stopped: {error}")
            self._log.error("consumer_stopped", reason=str(error))
            await stop.wait()
        finally:
            self._is_ending = True
            ending.cancel()
            self._rest.break_off()
            await self._drop_ahead()
            CONSUMER_UP.labels(self.group).set(0)
            with contextlib.suppress(AttributeError, RuntimeError):  # never started, or closed already
                await self._in_thread(self._close)
            self._thread.shutdown(wait=False)

    async def _break_off_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._rest.break_off()

    # -- starting, and assignments ----------------------------------------------------------------------------------

    async def _start(self, stop: asyncio.Event) -> None:
        attempt = 0
        while not stop.is_set():
            try:
                self._topic_ids = await self._context.admin.topic_ids(self._handler.topics)
                break
            except UnavailableError as error:
                attempt += 1
                await self._pause(error, attempt, stop)
        self._consumer = Consumer(
            {
                **self._context.client,
                "group.id": f"highwater-{self.group}",
                "client.id": f"highwater-{self.group}",
                "enable.auto.commit": False,
                # Positions are in PostgreSQL; one that the log does not have is reported instead of replaced by another.
                "auto.offset.reset": "error",
                "partition.assignment.strategy": "roundrobin",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS // 3,  # a larger share is not advised
                "queued.max.messages.kbytes": QUEUE_KIB_MAX,
                "fetch.queue.backoff.ms": 5,  # the default waits a second when the queue is full
                "fetch.message.max.bytes": FETCH_BYTES_MAX,
                "queued.min.messages": QUEUED_BATCHES * self._handler.batch_max,
                "error_cb": self._on_error,
                "logger": logging.getLogger("librdkafka"),
            }
        )
        self._rest.begin_with(self._consumer, self._loop.time())
        self._consumer.subscribe(
            list(self._handler.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's own name for it
            self._loop.call_soon_threadsafe(self._set_problem, f"Kafka is unavailable: {error.str()}")

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Handle an assignment. Runs in the consumer's thread, which waits here for the event loop to read the positions."""
        self._rest.end(self._loop.time())
        places = [(p.topic, p.partition) for p in partitions]
        loaded, epochs = asyncio.run_coroutine_threadsafe(self._load(places), self._loop).result()
        self._owned, self._epochs = places, epochs
        self._next = {place: stored.next for place, stored in loaded.items()}
        self._before = {place: epoch for place, (_, epoch) in loaded.items() if epoch is not None}
        self._has_joined, self._has_strayed = True, False
        self._assignments += 1
        # From the record before the position on, if its epoch is known: librdkafka compares epochs when the leader changes
        # while it reads, and not of a position that a member of a group is assigned.
        assigned = [TopicPartition(*place, next_ - (place in self._before)) for place, next_ in self._next.items()]
        self._consumer.assign(assigned)
        # librdkafka keeps a partition paused over its reassignment. None may be paused here: what `_poll_paused` reads
        # of them is read again afterwards.
        self._consumer.resume(assigned)

    async def _load(self, places: list[Place]) -> tuple[dict[Place, Stored], dict[Place, dict[int, Epoch]]]:
        attempt = 0
        while not (self._stop.is_set() or self._is_ending):
            self._caught_up_ms = self._context.caught_up_ms()
            try:
                self._topic_ids = await self._context.admin.topic_ids(self._handler.topics)
                ranges = await self._context.admin.log_ranges(places)
                lows = {place: found.low for place, found in ranges.items()}
                async with transaction(self._context.pool) as tx:
                    stored = await positions.load(tx, self.group, places, topic_ids=self._topic_ids, lows=lows)
                    suspected = self._suspected(stored, ranges)
                    if suspected:
                        stored |= await positions.hold(tx, self.group, suspected, lows=lows)
                        lost = await self._lost({place: stored[place] for place in suspected})
                        await truncation.note(tx, self.group, lost, self._context.clock())
                    found = await self._guard.load(tx, {place: one.next for place, one in stored.items()})
                    epochs = await positions.load_epochs(tx, self.group)
            except (UnavailableError, *CONFLICT) as error:
                attempt += 1
                await self._pause(error, attempt, self._stop)
                continue
            self._held_back = {place: one.next for place, one in stored.items() if place not in found}
            self._log.info("partitions_assigned", count=len(found))
            # A doubt that is not confirmed came from an epoch that this broker does not know; the next record has one.
            doubted, self._doubted = self._doubted, set()
            read = {place: Stored(next_) if place in doubted else stored[place] for place, next_ in found.items()}
            return read, epochs
        return {}, {}

    def _suspected(self, stored: Mapping[Place, Stored], ranges: Mapping[Place, LogRange]) -> set[Place]:
        """Return the partitions whose log may have lost records that this group has stored."""
        nexts = {place: one.next for place, one in stored.items()}
        ends = {place: span.high for place, span in ranges.items()}
        return {*truncation.beyond_end(nexts, ends), *(self._doubted & stored.keys())}

    async def _lost(self, held: Mapping[Place, Stored]) -> list[tuple[Place, int, int]]:
        """Return which of these partitions have lost records, with the first of them.

        The positions are held, and the ends are read now: a repair that came before has moved both, and one that comes later
        closes what is noted here. Without this order its partition was stopped again after it.
        """
        spans = await self._context.admin.log_ranges(held)
        ends = truncation.beyond_end(
            {place: one.next for place, one in held.items()}, {place: span.high for place, span in spans.items()}
        )
        for place in self._doubted & held.keys():
            one, span = held[place], spans[place]
            ends[place] = await asyncio.to_thread(truncation.kept_end, self._context.client, place, one, span)
        return [(place, end, held[place].next) for place, end in ends.items() if end < held[place].next]

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._idle.wait(_HAND_OVER_SECONDS)
        self._commit()
        self._on_lost(self._consumer, partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._rest.end(self._loop.time())
        self._owned, self._next, self._held_back, self._uncommitted, self._before = [], {}, {}, {}, {}
        self._assignments += 1
        self._consumer.unassign()
        self._loop.call_soon_threadsafe(self._guard.release)
        self._loop.call_soon_threadsafe(self._log.info, "partitions_revoked")

    # -- one turn: poll, process, advance ----------------------------------------------------------------------------

    async def _turn(self, stop: asyncio.Event) -> None:
        with contextlib.suppress(UnavailableError):  # a stopped partition waits for its operator slightly longer
            if await self._guard.has_changed(self._context.pool, self._loop.time()):
                self._has_strayed = True
        if self._has_gone_back():
            self._has_strayed = True
        if self._has_strayed:
            await self._drop_ahead()
            await self._read_from_stored()
        records = await self._read_next()
        self._turned_at = self._loop.time()
        interval = _RESTING_TOPIC_IDS_SECONDS if not (records or self._rest.is_fetching) else TOPIC_IDS_SECONDS
        if self._has_joined and self._turned_at - self._checked_at > interval:
            self._checked_at = self._turned_at
            with contextlib.suppress(UnavailableError):  # not the time to check
                self._compare_topics(await self._context.admin.topic_ids_lately(self._handler.topics))
        if not records:
            if self._problem is not None:
                await self._look_again()
            return
        if self._handler.gather_seconds:
            records = await self._gather(records, stop)
        self._idle.clear()
        self._in_hand = {(record.topic, record.partition): record.arrived_ms for record in reversed(records)}
        try:
            work = asyncio.ensure_future(self._process(records, stop))
            work.add_done_callback(lambda _: self._idle.set())  # a rebalance no longer waits
            if self._handler.prepares_ahead:
                self._ahead = asyncio.ensure_future(self._read_ahead())
            await self._while_polling(work)
        finally:
            self._ready = None
            self._in_hand = {}
            self._idle.set()

    async def _read_next(self) -> list[Record]:
        """Return records that were read ahead, or that arrive within a poll. A rebalance or a failed batch voids what
        was read ahead.
        """
        task, self._ahead = self._ahead, None
        if task is not None:
            ahead = await task
            if ahead.records and not self._has_strayed and ahead.assignments == self._assignments:
                self._ready = ahead.ready
                return ahead.records
        return [] if self._has_strayed else await self._in_thread(self._poll)

    async def _read_ahead(self) -> Ahead:
        """Poll for the next batch and prepare it. Nothing else polls meanwhile unless the current batch takes long."""
        records, assignments = await self._in_thread(lambda: (self._poll(), self._assignments))
        return Ahead(records, assignments, await self._preparation.make_ahead(records) if records else None)

    async def _drop_ahead(self) -> None:
        task, self._ahead = self._ahead, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is not None:
                self._log.warning("read_ahead_failed", reason=repr(task.exception())[:300])

    async def _gather(self, records: list[Record], stop: asyncio.Event) -> list[Record]:
        """Read more until the handler's time has passed since the first records came. A rebalance voids them.

        No batch is in progress meanwhile, so a rebalance need not wait: unstored records are read again from the stored
        position.
        """
        assignments = self._assignments
        until = self._loop.time() + self._handler.gather_seconds
        while len(records) < self._handler.batch_max and self._loop.time() < until and not stop.is_set():
            records += await self._in_thread(self._read_on, self._handler.batch_max - len(records))
            self._turned_at = self._loop.time()
            if assignments != self._assignments:
                self._has_strayed = True
                return []
        return records

    def _read_on(self, count: int) -> list[Record]:
        return self._records(self._consumer.consume(count, timeout=_POLL_SECONDS))

    def _close(self) -> None:
        self._rest.end(self._loop.time())
        self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        """Commit to the group what is stored: only for lag tools, since PostgreSQL holds the truth.

        In the consumer's thread, as every call of the client: a call makes other threads wait until a poll has ended,
        and a poll ends only after its callback, which waits for the loop. From the loop's own thread this would
        deadlock.
        """
        offsets = []
        with contextlib.suppress(KeyError):  # one by one: the loop adds to them meanwhile
            while True:
                place, following = self._uncommitted.popitem()
                offsets.append(TopicPartition(*place, following))
        if offsets:
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def _poll(self) -> list[Record]:
        self._commit()
        now = self._loop.time()
        self._rest.step(now, self._next)
        if self._rest.is_fetching:
            first = self._consumer.poll(_RESTING_POLL_SECONDS if self._rest.is_quiet(now) else _POLL_SECONDS)
        else:
            first = self._rest.poll(self._is_calm)
        if first is None:
            return []
        now = self._loop.time()
        self._rest.end(now)
        assignments = self._assignments
        messages = [first]
        if self._handler.batch_max > 1:
            messages += self._consumer.consume(self._handler.batch_max - 1, timeout=_AT_HAND_SECONDS)
            wait_seconds = self._linger.wait_seconds(len(messages), now)
            if wait_seconds and len(messages) < self._handler.batch_max:
                messages += self._consumer.consume(self._handler.batch_max - len(messages), timeout=wait_seconds)
        self._linger.note(len(messages), self._loop.time())
        if assignments != self._assignments:
            # A rebalance came between them: it is unknown which were read under the old assignment.
            self._has_strayed = True
            return []
        return self._records(messages)

    def _records(self, messages: Sequence[Message]) -> list[Record]:
        read = [message for message in messages if not self._is_error(message)]
        if self._before:
            read = [message for message in read if not self._is_before(message)]
        # All are read again once it is known whether the log continues where it was read.
        if self._doubted:
            return []
        # A group that was behind a repaired loss reads the copies of what others wrote in its place, as all groups do.
        records = map(record_of, read)
        return [one for one in records if not self._guard.is_replaced((one.topic, one.partition), one.offset)]

    def _is_before(self, message: Message) -> bool:
        """Return whether this is the record before our position, and compare the leader epoch that it had."""
        place = (str(message.topic()), message.partition() or 0)
        epoch = self._before.pop(place, None)
        if epoch is None or (message.offset() or 0) >= self._next[place]:
            return False  # a compacted log may not have it any more
        if message.leader_epoch() != epoch:
            self._doubted.add(place)
            self._has_strayed = True
        return True

    def _is_calm(self) -> bool:
        """Return whether the event loop has nothing to check every second: no problem and no stopped partition."""
        return self._problem is None and not self._guard.holds_back and not self._has_gone_back()

    def _has_gone_back(self) -> bool:
        """Return whether the database has gone back since the positions were read."""
        return self._has_joined and self._caught_up_ms != self._context.caught_up_ms()

    def _is_error(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.fatal():
            raise KafkaException(error)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - librdkafka's own name for it
            # The log does not continue where this partition is read: it lost its beginning (retention) or its tail.
            self._doubted.add((str(message.topic()), message.partition() or 0))
            self._has_strayed = True
            return True
        self._loop.call_soon_threadsafe(self._set_problem, f"Kafka: {error.str()}")
        return True

    async def _look_again(self) -> None:
        """Ask the broker for an offset before an idle consumer with a problem becomes ready again."""

        def ask() -> str | None:
            if not self._has_joined:
                return _JOINING
            try:
                assigned = self._consumer.assignment()
                if assigned:
                    self._consumer.get_watermark_offsets(assigned[0], timeout=2.0, cached=False)
                else:
                    self._consumer.list_topics(self._handler.topics[0], timeout=2.0)
            except KafkaException as error:
                return f"Kafka is unavailable: {error.args[0].str()}"
            return None

        problem = await self._in_thread(ask)
        if problem is None:
            try:
                await self._check_topics()
            except UnavailableError as error:
                problem = str(error)
        self._set_problem(problem)

    async def _check_topics(self) -> None:
        """Check whether the topics are still those that were assigned."""
        self._compare_topics(await self._context.admin.topic_ids(self._handler.topics))

    def _compare_topics(self, found: Mapping[str, str]) -> None:
        for topic, topic_id in found.items():
            if topic_id != self._topic_ids[topic]:
                raise positions.recreated(self.group, topic)

    async def _while_polling(self, work: asyncio.Task[None]) -> None:
        """Wait for a batch. While one takes long its partitions are paused and polling continues (max.poll.interval)."""
        try:
            await asyncio.wait({work}, timeout=_PAUSE_AFTER_SECONDS)
            if not work.done():
                await self._in_thread(self._pause_all)
                while not work.done():
                    await self._in_thread(self._poll_paused)
                    self._turned_at = self._loop.time()
                    await asyncio.wait({work}, timeout=0.5)
                await self._in_thread(self._resume_all)
            await work
        finally:
            if not work.done():  # cancelled, or the poll failed: an abandoned batch would keep its locks
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def _pause_all(self) -> None:
        self._consumer.pause(self._consumer.assignment())

    def _resume_all(self) -> None:
        self._consumer.resume(self._consumer.assignment())

    def _poll_paused(self) -> None:
        message = self._consumer.poll(0.1)
        if message is not None and not self._is_error(message):
            self._has_strayed = True  # read while nobody can process it

    async def _process(self, records: list[Record], stop: asyncio.Event, *, is_part: bool = False) -> None:
        """Store a batch; repeat it while a service is unavailable; find and dead-letter an event that breaks the
        handler.

        Faults outside the data (`after_failure`) are repeated without end: no event is dead-lettered for them.
        `is_part`: whether the records are part of a split batch.
        """
        attempt = refusals = 0
        failed: DeadLetter | None = None
        while not stop.is_set():
            held = self._next
            if any((record.topic, record.partition) not in held for record in records):
                self._has_strayed = True  # reassigned while this batch waited
                return
            try:
                records = await self._not_stored(records, held)
                if not records:
                    return
                with BATCH_SECONDS.labels(self.group).time():
                    await self._store(records, held, failed)
            except FencedError as error:
                BATCHES_FENCED.labels(self.group).inc()
                self._log.warning("batch_fenced", reason=str(error))
                self._has_strayed = True
            except TopicRecreatedError:
                raise
            except Exception as error:
                refusals += is_refusal(error)
                following = after_failure(error, events=len(records), refusals=refusals)
                if following is Following.REPEAT:
                    attempt += 1
                    BATCH_RETRIES.labels(self.group).inc()
                    await self._pause(error, attempt, stop)
                    continue
                if failed is not None:
                    raise  # not even its dead letter can be stored
                if following is Following.SPLIT:
                    await self._by_halves(records, error, stop, is_part=is_part)
                    return
                self._log.error("event_failed", position=str(records[0].position), exc_info=error)
                failed = DeadLetter(records[0], "handler_failed", repr(error))
                continue
            self._set_problem(None)
            return

    async def _not_stored(self, records: list[Record], held_positions: Mapping[Place, int]) -> list[Record]:
        """Return the records from the stored positions on; earlier ones were stored, unless they are of another topic."""
        left = [record for record in records if record.offset >= held_positions[record.topic, record.partition]]
        if len(left) < len(records):
            await self._check_topics()
        return left

    async def _by_halves(self, records: list[Record], error: Exception, stop: asyncio.Event, *, is_part: bool) -> None:
        """Try a batch that the handler refuses in halves, down to the event at fault; the events around it stay in
        batches.

        One bad event among 5,000 costs some 25 transactions instead of 5,000.
        """
        if not is_part:
            self._log.warning("batch_split", events=len(records), reason=repr(error)[:300])
        assignments, middle = self._assignments, len(records) // 2
        for half in (records[:middle], records[middle:]):
            await self._process(half, stop, is_part=True)
            if self._has_strayed or assignments != self._assignments:
                self._has_strayed = True  # this half may not be stored, so the next must not be
                return

    async def _store(
        self, records: list[Record], held_positions: Mapping[Place, int], failed: DeadLetter | None
    ) -> None:
        """Store a batch; for a partition with too many bad events only the events before the first bad one, and its stop."""
        stops: list[Stopped] = []
        while True:
            try:
                await self._store_once(records, held_positions, failed, stops)
            except PartitionsStoppedError as error:
                stops += error.stops
                # Afterwards everything is read again from the stored positions, except for stopped partitions.
                records, failed, self._has_strayed = without(records, error.stops), None, True
                continue
            return

    async def _store_once(
        self,
        records: list[Record],
        held_positions: Mapping[Place, int],
        failed: DeadLetter | None,
        stops: Sequence[Stopped],
    ) -> None:
        # Read before the first await: a position that another consumer moves meanwhile must not be moved from there.
        moves = self._moves(records, held_positions)
        current, raised = without_overtaken(records, self._epochs)
        batch = begin_batch(self.group, current)
        _, events, dead, prepared = PreparedBatch([], [], [failed], None) if failed else await self._made_ready(current)
        try:
            async with transaction(self._context.pool) as tx:
                if len(events) >= _PLANNED_ANEW_MIN:
                    await tx.execute(QUERIES["plan_anew"])
                await positions.advance(tx, self.group, moves)
                await positions.raise_epochs(tx, self.group, raised)
                if events:
                    dead = [*dead, *await self._handler.apply(tx, events, prepared)]
                now_ms = self._context.clock()
                counts = self._guard.check(records, dead, now_ms)
                await self._guard.store(tx, stops, moves, held_positions)
                await outbox.add(tx, [dead_letter_row(letter, group=self.group, now_ms=now_ms) for letter in dead])
        finally:
            if events:
                await self._handler.settle(prepared)
        end_batch(self.group, batch)
        self._guard.record(counts)
        self._guard.moved(moves)
        for place, epochs in raised.items():
            self._epochs.setdefault(place, {}).update(epochs)
        if len(current) < len(records):
            RECORDS_OVERTAKEN.labels(self.group).inc(len(records) - len(current))
            self._log.warning("records_overtaken", count=len(records) - len(current), reason=_OVERTAKEN)
        await self._moved(moves, records, dead)

    async def _made_ready(self, records: list[Record]) -> PreparedBatch:
        """Return what was prepared for exactly these records, once; a second attempt prepares them again."""
        ready, self._ready = self._ready, None
        if ready is not None and ready.records == records:
            return ready
        return await self._preparation.make(records)

    def _moves(self, records: list[Record], held_positions: Mapping[Place, int]) -> list[Move]:
        last = {(record.topic, record.partition): record for record in records}
        return [
            Move(*place, self._topic_ids[record.topic], held_positions[place], record.offset + 1, record.leader_epoch)
            for place, record in last.items()
        ]

    async def _moved(self, moves: list[Move], records: list[Record], dead: Sequence[DeadLetter]) -> None:
        for move in moves:
            if (move.topic, move.partition) in self._next:
                self._next[move.topic, move.partition] = self._uncommitted[move.topic, move.partition] = move.next
        for topic, count in Counter([record.topic for record in records]).items():
            EVENTS_CONSUMED.labels(self.group, topic).inc(count)
        for letter in dead:
            EVENTS_DEAD_LETTERED.labels(self.group, letter.record.topic, letter.reason).inc()
            self._log.warning(
                "dead_lettered", position=str(letter.record.position), reason=letter.reason, detail=letter.detail[:200]
            )

    async def _read_from_stored(self) -> None:
        """Continue from the stored positions, in the partitions that are still ours (the next poll shows this)."""

        def again() -> None:
            self._has_strayed = False
            if self._owned:
                self._on_assign(self._consumer, [TopicPartition(*place) for place in self._owned])

        await self._in_thread(again)

    # -- small things ------------------------------------------------------------------------------------------------

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _pause(self, error: Exception, attempt: int, stop: asyncio.Event) -> None:
        self._set_problem(str(error), is_ready_without=getattr(error, "is_ready_without", False))
        await pause(stop, unavailable_seconds(attempt))

    def _set_problem(self, problem: str | None, *, is_ready_without: bool = False) -> None:
        """Remember why this consumer does not continue, and log it once when it changes."""
        self._is_ready_without = is_ready_without
        if problem == self._problem:
            return
        if problem is None:
            self._log.info("consumer_running")
            self._is_said = False
        elif not self._is_said and problem not in (_STARTING, _JOINING):
            self._log.warning("consumer_paused", reason=problem)
            self._is_said = True
        self._problem = problem
        CONSUMER_UP.labels(self.group).set(0 if problem else 1)


def without_overtaken(records: Sequence[Record], epochs: Epochs) -> tuple[list[Record], dict[Place, dict[int, Epoch]]]:
    """Return the records without those of relays that were overtaken, and the epochs to store with them."""
    if not any(map(relay_epochs.is_stamped, {record.topic for record in records})):
        return list(records), {}
    current: list[Record] = []
    raised: dict[Place, dict[int, Epoch]] = {}
    for record in records:
        stamp = relay_epochs.stamp_of(record.topic, record.headers)
        if stamp is not None:
            place = record.topic, record.partition
            known = raised.get(place, {}).get(stamp.shard) or epochs.get(place, {}).get(stamp.shard)
            if relay_epochs.is_overtaken(known, stamp, record.offset):
                continue
            epoch = relay_epochs.raised(known, stamp, record.offset)
            if epoch is not None:
                raised.setdefault(place, {})[stamp.shard] = epoch
        current.append(record)
    return current, raised


def not_ready(consumers: Sequence[Any]) -> dict[str, str]:
    """Return what is not ready among consumers and relays, by group."""
    return {consumer.group: consumer.problem for consumer in consumers if consumer.problem is not None}


def degraded(consumers: Sequence[Any]) -> dict[str, str]:
    """Return what works only in part, by group: consumers with stopped partitions."""
    found = {consumer.group: getattr(consumer, "degraded", None) for consumer in consumers}
    return {group: text for group, text in found.items() if text is not None}
