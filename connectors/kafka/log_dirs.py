"""How many bytes partitions take on the disks of their brokers.

librdkafka has no such request (DescribeLogDirs, KIP-113), so aiokafka's client sends it, with the same access as all
others. Each broker knows only its own disks, so each is queried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Int64, Schema, String

from highwater.schemas.errors import UnavailableError
from highwater.streams.access import KafkaAccess

# A broker keeps sizes in memory: it answers for all its partitions within milliseconds.
ANSWER_SECONDS = 5.0
_API_KEY, _VERSION = 35, 1


class Replica(NamedTuple):
    """One replica of a partition."""

    topic: str
    partition: int
    broker: int


class _Answer(Response):  # type: ignore[misc] # aiokafka has no types
    API_KEY = _API_KEY
    API_VERSION = _VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("log_dir", String("utf-8")),
                (
                    "topics",
                    Array(
                        ("name", String("utf-8")),
                        (
                            "partitions",
                            Array(
                                ("partition_index", Int32),
                                ("partition_size", Int64),
                                ("offset_lag", Int64),
                                ("is_future_key", Boolean),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )


class _Question(RequestStruct):  # type: ignore[misc] # as above
    API_KEY = _API_KEY
    API_VERSION = _VERSION
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(("topics", Array(("name", String("utf-8")), ("partitions", Array(Int32)))))


class _DescribeLogDirs(Request[_Question]):  # type: ignore[misc] # as above
    API_KEY = _API_KEY

    def __init__(self, topics: list[tuple[str, list[int]]] | None) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_Question]) -> _Question:
        """Build the request in the one version that brokers of 2.0 to 4.x know."""
        return request_struct_class(self._topics)


async def replica_bytes(
    client: Mapping[str, str], partitions: Mapping[str, Sequence[int]] | None = None
) -> dict[Replica, int]:
    """Return the bytes of every replica of these partitions by topic; None: of all topics. Replicas on brokers that are
    down are left out.

    Raises:
        UnavailableError: no broker answers.
    """
    asked = None if partitions is None else [(topic, list(numbers)) for topic, numbers in partitions.items()]
    kafka = AIOKafkaClient(
        **KafkaAccess.of_client(client).aiokafka(),
        client_id="highwater-sizes",
        request_timeout_ms=int(ANSWER_SECONDS * 1000),
    )
    try:
        await kafka.bootstrap()
        brokers = [node.nodeId for node in kafka.cluster.brokers()]
        answers = await asyncio.gather(
            *(kafka.send(broker, _DescribeLogDirs(asked)) for broker in brokers), return_exceptions=True
        )
    except (KafkaError, OSError) as error:
        raise UnavailableError(f"Kafka does not report sizes: {error or type(error).__name__}") from error
    finally:
        await kafka.close()
    found: dict[Replica, int] = {}
    failed: list[KafkaError] = []
    for broker, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, KafkaError):
            failed.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found |= sizes_of(broker, answer)
    if failed and len(failed) == len(brokers):
        raise UnavailableError(f"Kafka does not report sizes: {failed[0] or type(failed[0]).__name__}")
    return found


def sizes_of(broker: int, answer: Any) -> dict[Replica, int]:
    """Return the bytes by replica in the answer of one broker; a replica that moves to another disk counts once."""
    return {
        Replica(topic, partition, broker): size
        for _error, _folder, topics in answer.results
        for topic, partitions in topics
        for partition, size, _lag, is_future in partitions
        if not is_future
    }
