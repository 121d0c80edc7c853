"""Topics on the broker: created from the catalogue, compared with it, never changed silently."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from highwater.connectors.kafka.refusal import unavailable
from highwater.schemas.errors import CatalogueMismatchError
from highwater.schemas.topics import Topic, keyed_partitions, partitions_refusal
from highwater.streams.clock import monotonic_seconds

# A broker that has just started takes a few seconds; one that needs longer is reported as unavailable.
REQUEST_SECONDS = 10.0
# All topics in one request: 40 with their partitions take a second, and over ten seconds on a machine that others keep busy.
CREATION_SECONDS = 60.0
# Errors of a partition just after its broker restarted or lost the lead: they last a second or two, until the client
# refreshes its metadata.
_PASSING = frozenset(
    {
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
    }
)
_AGAIN_SECONDS = 0.2
# A topic may be deleted and recreated between two reads; the ids of all topics are requested this often.
TOPIC_IDS_SECONDS = 5.0


class LogEnd(NamedTuple):
    """One past the last offset of a partition, and the epoch of its leader; None if the broker does not say."""

    offset: int
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets of a partition: `low` is the first, `high` one past the last.

    `open`: how many offsets after `high` belong to an open transaction or follow the first of one. A reader of committed
    records gets them when it has ended. Only `readable_ranges` sets it.
    """

    low: int
    high: int
    open: int = 0


def missing_replicas(name: str, replicas: Collection[int], expected: int) -> str | None:
    """Return the message for a topic whose partitions have these numbers of replicas; None if each has enough.

    Kafka adds no replicas by itself: a topic that was created with one replica, before the setting was raised, is lost
    with its broker.
    """
    fewest = min(replicas, default=expected)
    if fewest >= expected:
        return None
    return (
        f"{name} has partitions with {fewest} of {expected} replicas (HIGHWATER_REPLICATION_FACTOR);"
        " kafka-reassign-partitions.sh adds them"
    )


def _replicas(topic: TopicMetadata) -> list[int]:
    """Return the number of replicas of each partition, including those on brokers that are down."""
    return [len(partition.replicas) for partition in topic.partitions.values()]


def listed(future: Future[ListOffsetsResultInfo]) -> ListOffsetsResultInfo:
    """Return the answer to a request for an offset. Blocks.

    Raises:
        KafkaException: the broker refuses it.
        TimeoutError: its broker did not answer, of which librdkafka reports no error, but an offset of -1001.
    """
    found = future.result(2 * REQUEST_SECONDS)  # the request has its own limit
    if found.offset == OFFSET_INVALID:
        raise TimeoutError
    return found


class Admin:
    """Administers and inspects topics. Calls block in librdkafka, so each runs in a thread.

    A client that got no answer is replaced: after a silent broker reported no controller, librdkafka's client waits for
    one and sends nothing for minutes ("Failed while waiting for controller"), long after the broker has recovered.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self._replacing = threading.Lock()
        self._admin = self._opened()
        self._asking_for_ids = asyncio.Lock()
        self._followed: set[str] = set()
        self._ids: dict[str, str] = {}
        self._ids_at = float("-inf")

    @property
    def client(self) -> Mapping[str, str]:
        """Return the settings of a client of these brokers."""
        return self._client

    def _opened(self) -> AdminClient:
        return AdminClient({**self._client, "client.id": "highwater-admin", "logger": logging.getLogger("librdkafka")})

    @contextmanager
    def asking(self, what: str, seconds: float = REQUEST_SECONDS) -> Iterator[AdminClient]:
        """Yield a client; its errors become an `UnavailableError` that begins with `what` (its futures raise the
        built-in `TimeoutError`, after `seconds`). Blocks.
        """
        used = self._admin  # kept until the call has ended, even if another call replaces it meanwhile
        try:
            yield used
        except KafkaException as error:
            if error.args[0].code() < 0:  # librdkafka's own errors: an answering broker has codes from 0 on
                self._replace(used)
            raise unavailable(self._client, f"{what}: {error.args[0].str()}") from error
        except TimeoutError as error:
            self._replace(used)
            raise unavailable(self._client, f"{what} within {seconds:g} s") from error

    def _replace(self, used: AdminClient) -> None:
        with self._replacing:
            if self._admin is used:
                self._admin = self._opened()

    async def ensure_topics(self, topics: Iterable[Topic], *, replication_factor: int) -> list[str]:
        """Create what is missing and return its names.

        Raises:
            CatalogueMismatchError: a topic differs from the catalogue, or has fewer replicas than `replication_factor`; the
                message lists every difference.
            UnavailableError: the broker does not answer.
        """
        return await asyncio.to_thread(self._ensure_topics, list(topics), replication_factor)

    def _ensure_topics(self, topics: list[Topic], replication_factor: int) -> list[str]:
        with self.asking("Kafka does not answer"):
            existing = self._admin.list_topics(timeout=REQUEST_SECONDS).topics
            # Before anything is created: otherwise a new topic could have another partition count than the existing
            # ones.
            refusal = partitions_refusal(
                {name: len(topic.partitions) for name, topic in existing.items()}, keyed_partitions()
            )
            if refusal is not None:
                raise CatalogueMismatchError(refusal)
            missing = [topic for topic in topics if topic.name not in existing]
            new = [
                NewTopic(topic.name, topic.partitions, replication_factor, config=topic.config()) for topic in missing
            ]
            made = self._admin.create_topics(new, request_timeout=CREATION_SECONDS) if new else {}
            for name, future in made.items():
                self._created(name, future)
            there = [topic for topic in topics if topic.name in existing]
            differences = self._differences(there, existing)
            differences += filter(
                None,
                (missing_replicas(topic.name, _replicas(existing[topic.name]), replication_factor) for topic in there),
            )
        if differences:
            raise CatalogueMismatchError("topics differ from the catalogue: " + "; ".join(differences))
        return [topic.name for topic in missing]

    def _created(self, name: str, future: object) -> None:
        with self.asking(f"topic {name} cannot be created", CREATION_SECONDS):
            try:
                future.result(CREATION_SECONDS)  # type: ignore[attr-defined]
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # two processes may start at once
                    raise

    def _differences(self, topics: list[Topic], existing: Mapping[str, object]) -> list[str]:
        resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
        found = {
            resource.name: future.result(REQUEST_SECONDS)
            for resource, future in (self._admin.describe_configs(resources) if resources else {}).items()
        }
        differences = []
        for topic in topics:
            partitions = len(existing[topic.name].partitions)  # type: ignore[attr-defined]
            if partitions != topic.partitions:
                differences.append(f"{topic.name} has {partitions} partitions, the catalogue says {topic.partitions}")
            for key, wanted in topic.config().items():
                seen = found[topic.name][key].value
                if seen != wanted:
                    differences.append(f"{topic.name} has {key}={seen}, the catalogue says {wanted}")
        return differences

    async def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the broker's id of each topic: another id means another topic under the same name.

        Raises:
            UnavailableError: the broker does not answer, or a topic does not exist.
        """
        return await asyncio.to_thread(self._topic_ids, list(names))

    async def topic_ids_lately(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of the existing ones among these topics, at most `TOPIC_IDS_SECONDS` old.

        Concurrent callers share one request for all their topics.

        Raises:
            UnavailableError: the broker does not answer.
        """
        async with self._asking_for_ids:
            is_known = self._followed.issuperset(names)
            self._followed.update(names)
            if not is_known or monotonic_seconds() - self._ids_at > TOPIC_IDS_SECONDS:
                self._ids = await asyncio.to_thread(self._topic_ids, sorted(self._followed), must_exist=False)
                self._ids_at = monotonic_seconds()
            return {name: self._ids[name] for name in names if name in self._ids}

    def _topic_ids(self, names: list[str], *, must_exist: bool = True) -> dict[str, str]:
        with self.asking("Kafka does not describe its topics"):
            futures = self._admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
            found = {}
            for name, future in futures.items():
                try:
                    found[name] = str(future.result(REQUEST_SECONDS).topic_id)
                except KafkaException as error:
                    if must_exist or error.args[0].code() < 0:  # below 0: an error of the client, not of the broker
                        raise
        return found

    async def log_ranges(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogRange]:
        """Return the first and one-past-last offset of each partition.

        Raises:
            UnavailableError: the broker does not answer, or a partition does not exist.
        """
        return await asyncio.to_thread(self._log_ranges, list(partitions))

    async def readable_ranges(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogRange]:
        """Return the same up to what a reader of committed records can read now; errors as of `log_ranges`."""
        return await asyncio.to_thread(self._readable_ranges, list(partitions))

    async def log_ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return one past the last offset of each partition.

        Raises:
            UnavailableError: the broker does not answer, or a partition does not exist.
        """
        return await asyncio.to_thread(self._log_ends, list(partitions))

    async def log_ends_led(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogEnd]:
        """Return the end of each partition that has a leader which answers now.

        Raises:
            UnavailableError: the broker does not answer.
        """
        return await asyncio.to_thread(self._log_ends_led, list(partitions))

    def _log_ends_led(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], LogEnd]:
        found: dict[tuple[str, int], LogEnd] = {}
        with self.asking("Kafka does not list offsets"):
            asked = {TopicPartition(topic, partition): OffsetSpec.latest() for topic, partition in partitions}
            for tp, future in self._admin.list_offsets(asked, request_timeout=REQUEST_SECONDS).items():
                try:
                    end = listed(future)
                    found[tp.topic, tp.partition] = LogEnd(end.offset, end.leader_epoch)
                except TimeoutError:
                    continue
                except KafkaException as error:
                    if error.args[0].name() not in _PASSING:
                        raise
        return found

    def _log_ends(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        with self.asking("Kafka does not list offsets"):
            return self._offsets(partitions, OffsetSpec.latest())

    def _log_ranges(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], LogRange]:
        with self.asking("Kafka does not list offsets"):
            low = self._offsets(partitions, OffsetSpec.earliest())
            high = self._offsets(partitions, OffsetSpec.latest())
        return {key: LogRange(low[key], high[key]) for key in partitions}

    def _readable_ranges(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], LogRange]:
        with self.asking("Kafka does not list offsets"):
            # The stable end first: one that is read later may lie beyond an end that is read before.
            stable = self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
            whole = self._log_ranges(partitions)
        return {
            key: LogRange(one.low, max(one.low, stable[key]), max(0, one.high - max(one.low, stable[key])))
            for key, one in whole.items()
        }

    def _offsets(
        self,
        partitions: list[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], int]:
        """Read offsets; retries temporary errors within the time limit of a request."""
        asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        for _ in range(int(REQUEST_SECONDS / _AGAIN_SECONDS)):
            futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=REQUEST_SECONDS)
            try:
                return {(tp.topic, tp.partition): listed(future).offset for tp, future in futures.items()}
            except KafkaException as error:
                if error.args[0].name() not in _PASSING:
                    raise
                time.sleep(_AGAIN_SECONDS)
        raise TimeoutError

    async def require_partitions(self) -> None:
        """Refuse to continue if topics have another number of partitions than this process expects.

        Raises:
            CatalogueMismatchError: they do; a key would be in another partition than its producers expect.
            UnavailableError: the broker does not answer.
        """
        refusal = partitions_refusal(await self.partition_counts(), keyed_partitions())
        if refusal is not None:
            raise CatalogueMismatchError(refusal)

    async def partition_counts(self, only: str | None = None) -> dict[str, int]:
        """Return the partitions of every topic on the broker, or of one if it exists.

        Raises:
            UnavailableError: the broker does not answer.
        """
        return await asyncio.to_thread(self._partition_counts, only)

    def _partition_counts(self, only: str | None) -> dict[str, int]:
        with self.asking("Kafka does not answer"):
            metadata = self._admin.list_topics(only, timeout=REQUEST_SECONDS)
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}
