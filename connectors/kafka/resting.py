"""Rest: consumers to which nothing comes stop fetching, and one doorbell of their process waits for all of them.

A fetch that finds nothing costs broker and client about a millisecond of processor time, and each consumer makes two a second.
A longer wait would hold up whoever is busy: librdkafka has one fetch at a broker at a time, so a partition whose queue was full
when the fetch began waits for its end, and the wait is fixed when a client is built. The doorbell is never busy, so it may wait.

Law: a consumer stops fetching only after the doorbell's fetch has taken its partitions in, and resumes as soon as a record is
there, or when its rest has lasted `_REST_SECONDS_MAX`, whatever became of the doorbell. What is read, stored and committed is
the consumer's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from highwater.connectors.kafka.positions import Place
from highwater.connectors.patience import pause_unless
from highwater.streams.telemetry import get_log

# After so long without a record a consumer asks the doorbell to wait for it.
_RESTS_AFTER_SECONDS = 10.0
# How long the doorbell's fetch waits at the broker. What joins while one waits is in the next, so a record can wait so long for a
# doorbell that has just changed: less than the 2 s that a read with a position waits.
_FETCH_WAIT_MS = 1_000
# How soon the doorbell's thread sees that somebody else waits, or that it is to end.
_POLL_SECONDS = 0.5
# A consumer goes on fetching for so long: its partitions are in the doorbell's next fetch, and topics that the doorbell did not
# know are asked for first.
_COVERED_SECONDS = 6.0
# Below the ten minutes after which a broker closes connections that nobody uses.
_REST_SECONDS_MAX = 240.0
# The doorbell needs to know that there is a record, not what is in it; a broker sends one batch at least.
_FETCH_BYTES_MAX = 1_024
# How often a consumer that has stopped fetching polls: it hears of a rebalance within this.
_SLEEP_SECONDS = 1.0


_log = get_log("doorbell")


class _Waiting(NamedTuple):
    """Who waits: the offset that it reads next in each partition, and what wakes it."""

    places: Mapping[Place, int]
    ring: Callable[[], None]


class Doorbell:
    """Waits for the first record of any partition of those who rest. Its client is used by its own thread alone."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiting: dict[object, _Waiting] = {}
        self._has_changed = False  # who waits, since the client was told
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def wait(self, who: object, places: Mapping[Place, int], ring: Callable[[], None]) -> None:
        """Call `ring` once, in the doorbell's thread, when one of these partitions has a record at its offset or behind it."""
        with self._lock:
            self._waiting[who] = _Waiting(dict(places), ring)
            self._has_changed = True
            if self._thread is None and not self._is_closed.is_set():
                self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)
                self._thread.start()

    def leave(self, who: object) -> None:
        """Wait no longer; `ring` is not called once this has returned."""
        with self._lock:
            if self._waiting.pop(who, None) is not None:
                self._has_changed = True

    def close(self) -> None:
        """End; nobody is woken any more."""
        with self._lock:
            self._is_closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            with contextlib.closing(self._opened()) as consumer:
                while not self._is_closed.is_set():
                    self._assign(consumer)
                    message = consumer.poll(_POLL_SECONDS)
                    # An error is not for the doorbell to tell of: those who rest have connections of their own.
                    if message is not None and message.error() is None:
                        self._wake((str(message.topic()), message.partition() or 0), message.offset() or 0)
        except KafkaException as error:
            _log.error("doorbell_failed", error=str(error), effect="consumers fetch by themselves until it runs again")
        finally:
            self._wake_all()

    def _opened(self) -> Consumer:
        return Consumer(
            {
                **self._client,
                "client.id": "highwater-doorbell",
                "group.id": "highwater-doorbell",  # of which it is no member: librdkafka asks for a name
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Of a topic that was created again, or has lost its oldest records, what there is; that wakes its reader.
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
                "fetch.message.max.bytes": _FETCH_BYTES_MAX,
                "queued.min.messages": 1,
                "logger": logging.getLogger("librdkafka"),
            }
        )

    def _assign(self, consumer: Consumer) -> None:
        """Wait for exactly those who wait now. A fetch under way goes on, and ends at the first record of those before."""
        with self._lock:
            if not self._has_changed:
                return
            self._has_changed = False
            first: dict[Place, int] = {}
            for one in self._waiting.values():
                for place, offset in one.places.items():
                    first[place] = min(offset, first.get(place, offset))
        consumer.assign([TopicPartition(*place, offset) for place, offset in first.items()])

    def _wake_all(self) -> None:
        """Nobody sleeps behind a doorbell that does not run; whoever rests next starts it again."""
        with self._lock:
            for one in self._waiting.values():
                one.ring()
            self._waiting.clear()
            self._thread = None

    def _wake(self, place: Place, offset: int) -> None:
        with self._lock:
            woken = [who for who, one in self._waiting.items() if one.places.get(place, offset + 1) <= offset]
            for who in woken:
                self._waiting.pop(who).ring()
            self._has_changed = self._has_changed or bool(woken)


class Rest:
    """The rest of one consumer. `step` and `end` are called in the consumer's thread, the others in its event loop."""

    def __init__(self, doorbell: Doorbell | None) -> None:
        """`doorbell` None: the consumer goes on fetching, and only polls less often."""
        self._doorbell = doorbell
        self._paused: list[TopicPartition] = []
        self._awake_at = 0.0
        self._waits_since: float | None = None

    def begin_with(self, consumer: Consumer, now_seconds: float) -> None:
        """Take a consumer that has just been built; it is awake."""
        self._consumer, self._paused, self._waits_since, self._awake_at = consumer, [], None, now_seconds
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    @property
    def is_fetching(self) -> bool:
        """Whether the consumer fetches by itself."""
        return not self._paused

    def is_quiet(self, now_seconds: float) -> bool:
        """Whether nothing has come for a while."""
        return self._waits_since is not None or now_seconds - self._awake_at > _RESTS_AFTER_SECONDS

    async def sleep(self, stop: asyncio.Event) -> None:
        """Of a consumer that does not fetch: until it is woken, or polls again to hear what its group does."""
        if not self.is_fetching:
            await pause_unless(stop, self._rung, _SLEEP_SECONDS)

    def step(self, now_seconds: float, following: Mapping[Place, int]) -> None:
        """Begin to rest, stop fetching, or end the rest, as it is time; `following`: the offset read next in each partition."""
        if self._doorbell is None:
            return
        if self._waits_since is None:
            if following and self.is_quiet(now_seconds):
                self._waits_since, self._places = now_seconds, [TopicPartition(*place) for place in following]
                self._rung.clear()
                self._doorbell.wait(self, following, self._ring)
        elif self._rung.is_set() or now_seconds - self._waits_since > _REST_SECONDS_MAX:
            self.end(now_seconds)
        elif self.is_fetching and now_seconds - self._waits_since > _COVERED_SECONDS:
            self._paused = self._places
            self._consumer.pause(self._paused)

    def end(self, now_seconds: float) -> None:
        """The consumer is awake: it fetches by itself, and nobody wakes it."""
        self._awake_at = now_seconds
        if self._waits_since is None or self._doorbell is None:
            return
        self._waits_since = None
        self._doorbell.leave(self)
        paused, self._paused = self._paused, []
        if paused:
            with contextlib.suppress(KafkaException):  # they were taken away; whoever gets them resumes them
                self._consumer.resume(paused)

    def _ring(self) -> None:
        self._loop.call_soon_threadsafe(self._rung.set)
