"""Resting: idle consumers stop fetching, and one doorbell of their process waits for all of them.

A fetch that finds nothing costs broker and client about a millisecond of processor time, one of all partitions of a
process several, and each consumer makes two a second. A longer wait would delay busy consumers: librdkafka has one
fetch at a broker at a time, so a partition whose queue was full when the fetch began waits for its end, and the wait
time is fixed when a client is created. The doorbell is never busy, so it may wait. It has two bells: a quick one, which
new waiters join within moments, and a patient one for those that have rested for long, so that an idle process makes
one fetch in ten seconds.

Invariant: a consumer stops fetching only after a fetch of the quick bell includes its partitions, and leaves that bell
only after one of the patient bell does. It resumes as soon as a record exists, or when its rest has lasted
`_REST_SECONDS_MAX`, even if the doorbell failed. Only the consumer itself reads, stores and commits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from highwater.connectors.kafka.positions import Place
from highwater.streams.clock import monotonic_seconds
from highwater.streams.telemetry import get_log

# After this long without a record a consumer asks the doorbell to wait for it.
_RESTS_AFTER_SECONDS = 5.0
# How long a fetch of the quick bell waits at the broker, and one of the patient bell. A consumer that joins during a
# fetch is in the next one, and does not rely on it until then.
_FETCH_WAIT_MS, _PATIENT_WAIT_MS = 1_000, 10_000
# How soon a bell's thread notices a new waiter, or that it should end.
_POLL_SECONDS = 0.5
# A consumer continues to fetch for this long: by then its partitions are in the quick bell's next fetch, and topics
# that the bell did not know have been requested.
_COVERED_SECONDS = 4.0
# It waits for the quick bell for this long, with seconds to spare: its partitions are in the patient bell's next fetch, and
# topics that the bell did not know in the one after that, since a broker answers a client's requests one after the other.
_TAKEN_OVER_SECONDS = 26.0
# Below the ten minutes after which a broker closes idle connections.
_REST_SECONDS_MAX = 480.0
# A consumer that fetched for this long after a rest and found nothing rests again.
_GLANCE_SECONDS = 2.0
# A bell without waiters checks its connections this often.
_NOBODY_SECONDS = 60.0
# The doorbell needs to know that there is a record, not its contents; a broker sends at least one batch.
_FETCH_BYTES_MAX = 1_024
# A partition of which the client has read a record is at none of the assigned offsets.
_BEHIND = -1
_OFFSET_MAX = 2**63 - 1
# How often a consumer that has stopped fetching polls: it notices a rebalance within this.
_SLEEP_SECONDS = 1.0
# Its thread polls alone for this long before the event loop gets a turn, which costs more than a poll.
_TURN_SECONDS = 5.0


_log = get_log("doorbell")


class _Waiting(NamedTuple):
    """A waiter: its next offset in each partition, and what wakes it."""

    places: Mapping[Place, int]
    ring: Callable[[], None]


class Doorbell:
    """Waits for all resting consumers of a process: a quick bell, and a patient one that relieves it."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._quick, self._patient = _Bell(client, "doorbell", _FETCH_WAIT_MS), _Bell(client, "bell", _PATIENT_WAIT_MS)

    def wait(self, who: object, places: Mapping[Place, int], ring: Callable[[], None]) -> None:
        """Call `ring`, in a thread of the doorbell, when one of these partitions has a record at or after its offset."""
        self._quick.wait(who, places, ring)
        self._patient.wait(who, places, ring)

    def take_over(self, who: object) -> None:
        """Move a waiter of more than `_TAKEN_OVER_SECONDS` to the patient bell alone."""
        self._quick.leave(who)

    def leave(self, who: object) -> None:
        """Stop waiting; `ring` is not called once this has returned."""
        self._quick.leave(who)
        self._patient.leave(who)

    def close(self) -> None:
        """End; nobody is woken any more."""
        self._patient.begin_to_close()
        self._quick.close()
        self._patient.close()


class _Bell:
    """Waits for the first record of any partition of its waiters. Its client is used only by its own thread."""

    def __init__(self, client: Mapping[str, str], name: str, fetch_wait_ms: int) -> None:
        self._client = client
        self._name = name
        self._fetch_wait_ms = fetch_wait_ms
        self._lock = threading.Lock()
        self._waiting: dict[object, _Waiting] = {}
        self._assigned: dict[Place, int] = {}  # the client's assignment, with the offsets; only the thread uses it
        self._has_changed = False  # the waiters changed since the client was updated
        self._thread: threading.Thread | None = None
        self._has_work = threading.Event()  # there is a waiter, or it is closed
        self._is_closed = threading.Event()

    def wait(self, who: object, places: Mapping[Place, int], ring: Callable[[], None]) -> None:
        """Call `ring` once, in the doorbell's thread, when one of these partitions has a record at or after its offset."""
        with self._lock:
            self._waiting[who] = _Waiting(dict(places), ring)
            self._has_changed = True
            self._has_work.set()
            if self._thread is None and not self._is_closed.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def leave(self, who: object) -> None:
        """Stop waiting; `ring` is not called once this has returned."""
        with self._lock:
            if self._waiting.pop(who, None) is not None:
                self._has_changed = True

    def begin_to_close(self) -> None:
        """Let the thread end, without waiting for it."""
        with self._lock:
            self._is_closed.set()
            self._has_work.set()

    def close(self) -> None:
        """End; nobody is woken any more."""
        self.begin_to_close()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        self._assigned = {}
        try:
            with contextlib.closing(self._opened()) as consumer:
                while not self._is_closed.is_set():
                    self._has_work.wait(_NOBODY_SECONDS)
                    self._assign(consumer)
                    message = consumer.poll(_POLL_SECONDS)
                    if message is not None:
                        self._hear(message)
        except KafkaException as error:
            _log.error("doorbell_failed", error=str(error), effect="consumers fetch by themselves until it runs again")
        finally:
            self._wake_all()

    def _opened(self) -> Consumer:
        return Consumer(
            {
                **self._client,
                "client.id": f"highwater-{self._name}",
                "group.id": "highwater-doorbell",  # of which it is not a member: librdkafka requires a name
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # A topic that was recreated, or has lost its oldest or its latest records, is reported; that wakes its
                # reader.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": self._fetch_wait_ms,
                "fetch.message.max.bytes": _FETCH_BYTES_MAX,
                # The queue is that of all partitions: if the first record filled it, no other partition would be in the next
                # fetch, which may wait for ten seconds.
                "queued.min.messages": 1_000,
                "logger": logging.getLogger("librdkafka"),
            }
        )

    def _assign(self, consumer: Consumer) -> None:
        """Wait for exactly the current waiters. A fetch in progress continues, and ends at the first record of earlier ones.

        Partitions that stay are left alone: one that is assigned again is started again, and a fetch that begins while they are
        started, one after the other, waits only for those already started.
        """
        with self._lock:
            if not self._has_changed:
                return
            self._has_changed = False
            if not self._waiting and not self._is_closed.is_set():
                self._has_work.clear()
            wanted: dict[Place, int] = {}
            for one in self._waiting.values():
                for place, offset in one.places.items():
                    wanted[place] = min(offset, wanted.get(place, offset))
        gone = [place for place, offset in self._assigned.items() if wanted.get(place) != offset]
        new = [(place, offset) for place, offset in wanted.items() if self._assigned.get(place) != offset]
        self._assigned = wanted
        if gone:
            consumer.incremental_unassign([TopicPartition(*place) for place in gone])
        if new:
            consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in new])

    def _wake_all(self) -> None:
        """Wake all: nobody may wait for a doorbell that does not run; the next waiter starts it again."""
        with self._lock:
            for one in self._waiting.values():
                one.ring()
            self._waiting.clear()
            self._thread = None

    def _hear(self, message: Message) -> None:
        """Wake those who wait for a record, or for a place that the log does not have: they find out why.

        Other errors are not reported: resting consumers have connections of their own.
        """
        error, place = message.error(), (str(message.topic()), message.partition() or 0)
        if error is None:
            self._wake(place, message.offset() or 0)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - librdkafka's own name for it
            self._wake(place, _OFFSET_MAX)

    def _wake(self, place: Place, offset: int) -> None:
        if place in self._assigned:
            self._assigned[place] = _BEHIND  # the next waiter there may wait for this very record
        with self._lock:
            woken = [
                waiter for waiter, one in self._waiting.items() if place in one.places and one.places[place] <= offset
            ]
            for waiter in woken:
                self._waiting.pop(waiter).ring()
            self._has_changed = self._has_changed or bool(woken)


class Rest:
    """The resting of one consumer. Called in the consumer's thread, except for `begin_with` and `break_off`."""

    def __init__(self, doorbell: Doorbell | None) -> None:
        """`doorbell` None: the consumer keeps fetching, and only polls less often."""
        self._doorbell = doorbell
        self._paused: list[TopicPartition] = []
        self._awake_at = 0.0
        self._waits_since: float | None = None
        self._rung = threading.Event()
        self._is_over = False

    def begin_with(self, consumer: Consumer, now_seconds: float) -> None:
        """Begin with a new consumer; it is awake."""
        self._consumer, self._paused, self._waits_since, self._awake_at = consumer, [], None, now_seconds
        self._is_over = False

    def break_off(self) -> None:
        """Stop: waiting calls in the consumer's thread return, and none waits again."""
        self._is_over = True
        self._rung.set()

    @property
    def is_fetching(self) -> bool:
        """Return whether the consumer fetches by itself."""
        return not self._paused

    def is_quiet(self, now_seconds: float) -> bool:
        """Return whether nothing has come for a while."""
        return self._waits_since is not None or now_seconds - self._awake_at > _RESTS_AFTER_SECONDS

    def poll(self, is_calm: Callable[[], bool]) -> Message | None:
        """Poll a consumer that does not fetch until it is woken, a poll returns something, or the event loop needs a
        turn.

        It gets one after `_TURN_SECONDS`, and after each poll while the consumer is not calm.
        """
        until = monotonic_seconds() + _TURN_SECONDS
        while True:
            message = self._consumer.poll(0)
            if message is not None or self.is_fetching or self._is_over:
                return message
            is_woken = self._rung.wait(_SLEEP_SECONDS)
            if is_woken or not is_calm() or monotonic_seconds() > until:
                return None

    def step(self, now_seconds: float, following: Mapping[Place, int]) -> None:
        """Begin to rest, stop fetching, or end the rest, as due; `following`: the next offset in each partition."""
        if self._doorbell is None:
            return
        if self._waits_since is None:
            if following and self.is_quiet(now_seconds):
                self._waits_since, self._places = now_seconds, [TopicPartition(*place) for place in following]
                self._rung.clear()
                self._doorbell.wait(self, following, self._rung.set)
        elif self._rung.is_set():
            self.end(now_seconds)
        elif now_seconds - self._waits_since > _REST_SECONDS_MAX:
            self.end(now_seconds - _RESTS_AFTER_SECONDS + _GLANCE_SECONDS)
        elif self.is_fetching:
            if now_seconds - self._waits_since > _COVERED_SECONDS:
                self._paused = self._places
                self._consumer.pause(self._paused)
        elif now_seconds - self._waits_since > _TAKEN_OVER_SECONDS:
            self._doorbell.take_over(self)

    def end(self, now_seconds: float) -> None:
        """End the rest: the consumer fetches by itself, and is not woken."""
        self._awake_at = now_seconds
        if self._waits_since is None or self._doorbell is None:
            return
        self._waits_since = None
        self._doorbell.leave(self)
        paused, self._paused = self._paused, []
        if paused:
            with contextlib.suppress(KafkaException):  # they were revoked; their next owner resumes them
                self._consumer.resume(paused)
