"""Owns topics as tables: the decoded records of a selection, in batches of constant memory or as one table.

Invariants: the ends are fixed before the first record is read, and no offsets of consumer groups change. An event's
fields are columns with their own names and types; columns about the record have names that begin with `_`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaException, TopicPartition

from highwater.connectors.kafka.admin import REQUEST_SECONDS, LogRange
from highwater.connectors.replay.decoding import Decoded, Decoder
from highwater.connectors.replay.reading import (
    Batch,
    batch_of_records,
    in_batches,
    offsets_at,
    open_reader,
    read_batches,
    read_in_time,
)
from highwater.connectors.replay.selection import Bound, parse_bound, select
from highwater.connectors.replay.subject import Subject
from highwater.connectors.replay.table import table_of
from highwater.connectors.replay.where import Where
from highwater.schemas.errors import UnavailableError
from highwater.schemas.positions import Position
from highwater.schemas.topics import Topic
from highwater.streams.access import RegistryAccess

Moment = str | int | datetime | timedelta | Position

# Names that no field of an event has.
_OF_THE_LOG = {
    "_partition": "partition",
    "_offset": "offset",
    "_arrived_at": "timestamp",
    "_key": "key",
    "_headers": "headers",
    "_undecodable": "undecodable",
    "_bytes": "bytes",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected records of a topic: `start` and `end` as in `replay --from` and `--to`, or a datetime, an age, a position."""

    topic: Topic
    start: Moment | None = None
    end: Moment | None = None
    where: str | None = None
    key: str | None = None
    limit: int | None = None


def text_of(moment: Moment) -> str:
    """Return a bound as `--from` and `--to` accept it; a datetime without a zone counts as UTC."""
    if isinstance(moment, timedelta):
        return f"{round(moment.total_seconds() * 1000)}ms"
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
    return str(moment).removeprefix("-")  # "-1h" means one hour ago, as in the command


def topic_batches(
    client: Mapping[str, str], schema_registry: RegistryAccess | None, selection: Selection, now_ms: int
) -> Iterator[pa.Table]:
    """Yield the records of a selection in batches: ordered within each partition; with a limit, in order of arrival.

    Every table has the same columns. A separate thread reads, so that this also works where an event loop runs, as in
    notebooks.

    Raises:
        InvalidSelectionError: a bound is invalid, or not in the topic.
        UnavailableError: Kafka or the registry is unavailable.
    """
    with ThreadPoolExecutor(1, "highwater-read") as thread:
        reading = _read(client, schema_registry, selection, now_ms)
        try:
            while (table := thread.submit(next, reading, None).result()) is not None:
                yield table
        finally:
            thread.submit(reading.close).result()


def in_order(table: pa.Table) -> pa.Table:
    """Sort records by arrival, then partition and offset."""
    by = [("_arrived_at", "ascending"), ("_partition", "ascending"), ("_offset", "ascending")]
    return table.take(pc.sort_indices(table, by))


def _read(
    client: Mapping[str, str], schema_registry: RegistryAccess | None, selection: Selection, now_ms: int
) -> Generator[pa.Table, None, None]:
    """Yield tables; the first is empty, so that there is always one with the columns."""
    name = selection.topic.name
    begin, end = (None if text is None else _bound(text, name, now_ms) for text in (selection.start, selection.end))
    decoder = Decoder(Subject.fetch(selection.topic, schema_registry))
    where = None if selection.where is None else Where(selection.where, decoder.arrow_type, name)
    if where is not None:
        where.require_condition()

    def chosen(batch: Batch) -> Decoded:
        found = decoder.decode(_of_key(batch, selection.key))
        return found if where is None else found.only(where.kept(found))

    yield _flat(table_of(decoder.decode(batch_of_records(name, []))))
    consumer = open_reader(client)
    try:
        held = _ranges(consumer, name)
        spans = select(begin, end, held, lambda ms: offsets_at(consumer, name, list(held), ms), topic=name)
        left = selection.limit
        in_time = None if left is None else read_in_time(consumer, name, spans, lambda batch: chosen(batch).batch)
        for batch in read_batches(consumer, name, spans) if in_time is None else in_batches(name, in_time):
            found = chosen(batch)
            if left is not None:
                found = found.only(range(min(left, len(found))))
                left -= len(found)
            if len(found):
                yield _flat(table_of(found))
            if left == 0:
                return
    finally:
        consumer.close()


def _bound(moment: Moment, topic: str, now_ms: int) -> Bound:
    return parse_bound(text_of(moment), topic=topic, now_ms=now_ms)


def _ranges(consumer: Consumer, topic: str) -> dict[int, LogRange]:
    """Return the current offsets of each partition.

    Raises:
        UnavailableError: the broker does not answer, or has no such topic.
    """
    try:
        known = consumer.list_topics(topic, timeout=REQUEST_SECONDS).topics[topic]
        if known.error is not None:
            raise UnavailableError(f"{topic} is not on the broker; run `highwater init`")
        return {
            partition: LogRange(*consumer.get_watermark_offsets(TopicPartition(topic, partition), REQUEST_SECONDS))
            for partition in known.partitions
        }
    except KafkaException as error:
        raise UnavailableError(f"Kafka does not answer: {error.args[0].str()}") from error


def _of_key(batch: Batch, key: str | None) -> Batch:
    if key is None:
        return batch
    wanted = key.encode()
    return batch.only([place for place, one in enumerate(batch.keys) if one == wanted])


def _flat(table: pa.Table) -> pa.Table:
    """Return the event's fields as columns, then the columns about the record."""
    value = table.column("value").combine_chunks()
    # `flatten` gives null to the fields of a null event; `field` would give the values stored there.
    fields = dict(zip([field.name for field in value.type], value.flatten(), strict=True))
    return pa.table({**fields, **{name: table.column(column) for name, column in _OF_THE_LOG.items()}})
