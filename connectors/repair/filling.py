"""Fills a partition up, so that none of its offsets is given a second time.

The records that fill it are those of transactions that are aborted: a reader at `read_committed`, the default of librdkafka,
does not get them, and a reader that asks for uncommitted records gets records without a value, with a header that says what they
are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaException, Producer

from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.refusal import unavailable

HEADER = "filler"
# Compacted topics refuse records without a key.
_KEY = b"filler"
_ANSWER_SECONDS = 30.0
# Records of one transaction, a megabyte or so; each transaction ends with a marker that takes an offset, too.
_RECORDS_MAX = 10_000


def batches(count: int) -> list[int]:
    """Return the numbers of records of the transactions that take at least `count` offsets: at most one more than that."""
    found = []
    while count > 0:
        found.append(min(max(count - 1, 1), _RECORDS_MAX))
        count -= found[-1] + 1
    return found


def taken(count: int) -> int:
    """Return how many offsets `fill_up` takes for at least `count`, with the markers."""
    return sum(records + 1 for records in batches(count))


def fill_up(client: Mapping[str, str], place: Place, count: int) -> None:
    """Let the log of a partition take `count` offsets, or one more. Blocks; the last marker may come later.

    Raises:
        UnavailableError: Kafka does not answer, or refuses transactions.
    """
    topic, partition = place
    producer = Producer(
        {
            **client,
            "client.id": "highwater-repair-log",
            "transactional.id": f"highwater-repair-log-{topic}-{partition}",
            "logger": logging.getLogger("librdkafka"),
        }
    )
    headers = [(HEADER, b"a position that was given before its record was lost")]
    try:
        producer.init_transactions(_ANSWER_SECONDS)
        for records in batches(count):
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(topic, None, _KEY, partition=partition, headers=headers)
            producer.flush(_ANSWER_SECONDS)
            producer.abort_transaction(_ANSWER_SECONDS)
    except KafkaException as error:
        raise unavailable(client, f"{topic}/{partition} cannot be filled: {error.args[0].str()}") from error
