"""Topics on the broker: made from the catalogue, compared with it, never altered silently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from highwater.connectors.kafka.refusal import unavailable
from highwater.schemas.errors import CatalogueMismatchError, UnavailableError
from highwater.schemas.topics import Topic

# A broker that has just started takes a few seconds; one that needs longer is reported as away.
REQUEST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets a partition holds: `low` is the first, `high` one past the last."""

    low: int
    high: int


class Admin:
    """What is asked of the broker about topics. Calls block in librdkafka, so each runs in a thread."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self._admin = AdminClient({**client, "client.id": "highwater-admin", "logger": logging.getLogger("librdkafka")})

    async def ensure_topics(self, topics: Iterable[Topic], *, replication_factor: int) -> list[str]:
        """Create what is missing and return its names.

        Raises:
            CatalogueMismatchError: a topic differs from the catalogue; the message lists every difference.
            UnavailableError: the broker does not answer.
        """
        return await asyncio.to_thread(self._ensure_topics, list(topics), replication_factor)

    def _ensure_topics(self, topics: list[Topic], replication_factor: int) -> list[str]:
        try:
            existing = self._admin.list_topics(timeout=REQUEST_SECONDS).topics
            missing = [topic for topic in topics if topic.name not in existing]
            new = [
                NewTopic(topic.name, topic.partitions, replication_factor, config=topic.config()) for topic in missing
            ]
            for name, future in (self._admin.create_topics(new) if new else {}).items():
                self._created(name, future)
            differences = self._differences([topic for topic in topics if topic.name in existing], existing)
        except KafkaException as error:
            raise unavailable(self._client, "Kafka does not answer", error) from error
        if differences:
            raise CatalogueMismatchError("topics differ from the catalogue: " + "; ".join(differences))
        return [topic.name for topic in missing]

    @staticmethod
    def _created(name: str, future: object) -> None:
        try:
            future.result(REQUEST_SECONDS)  # type: ignore[attr-defined]
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # two processes may start at once
                raise UnavailableError(f"topic {name} cannot be created: {error.args[0].str()}") from error

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
        """The broker's id of each topic: another id means another topic under the same name.

        Raises:
            UnavailableError: the broker does not answer, or a topic is not there.
        """
        return await asyncio.to_thread(self._topic_ids, list(names))

    def _topic_ids(self, names: list[str]) -> dict[str, str]:
        try:
            futures = self._admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
            return {name: str(future.result(REQUEST_SECONDS).topic_id) for name, future in futures.items()}
        except KafkaException as error:
            raise unavailable(self._client, "Kafka does not describe its topics", error) from error

    async def log_ranges(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogRange]:
        """First and one-past-last offset of each partition.

        Raises:
            UnavailableError: the broker does not answer, or a partition is not there.
        """
        return await asyncio.to_thread(self._log_ranges, list(partitions))

    def _log_ranges(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], LogRange]:
        def offsets(spec: OffsetSpec) -> dict[tuple[str, int], int]:
            asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
            futures = self._admin.list_offsets(asked, request_timeout=REQUEST_SECONDS)
            return {(tp.topic, tp.partition): future.result(REQUEST_SECONDS).offset for tp, future in futures.items()}

        try:
            low, high = offsets(OffsetSpec.earliest()), offsets(OffsetSpec.latest())
        except KafkaException as error:
            raise unavailable(self._client, "Kafka does not list offsets", error) from error
        return {key: LogRange(low[key], high[key]) for key in partitions}

    async def partition_counts(self) -> dict[str, int]:
        """Partitions of every topic on the broker.

        Raises:
            UnavailableError: the broker does not answer.
        """
        return await asyncio.to_thread(self._partition_counts)

    def _partition_counts(self) -> dict[str, int]:
        try:
            metadata = self._admin.list_topics(timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise unavailable(self._client, "Kafka does not answer", error) from error
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}
