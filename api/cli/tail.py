"""`highwater tail`: prints the latest records of a topic, decoded, and then new ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import Command, TopicArgument, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.missing_topics import missing_topic
from highwater.api.command.terminal import print_json, say, warn
from highwater.schemas.topics import Topic
from highwater.streams.printable import printable

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from highwater.connectors.kafka.admin import LogRange
    from highwater.connectors.kafka.records import Record

_RECORDS_DEFAULT = 10
# Held in memory to be sorted; --from-beginning streams more.
_RECORDS_MAX = 100_000
# How much further back a partition is read that has fewer records than offsets.
_FURTHER = 4

_TOPIC = TopicArgument(dead_letters=True, foreign=True)

Show = Callable[["Record"], None]


@click.command(cls=Command)
@click.argument("topic", type=_TOPIC)
@click.option("-n", "count", type=click.IntRange(0, _RECORDS_MAX), help="Start with the latest N records (default 10).")
@click.option("--follow/--no-follow", default=True, help="Follow new records (the default), or end.")
@click.option("--from-beginning", is_flag=True, help="Start with the first record.")
@json_option
def tail(topic: Topic, count: int | None, follow: bool, from_beginning: bool, as_json: bool) -> None:
    """Show the latest records of TOPIC with position, key, headers and decoded value."""
    from highwater.connectors.kafka.reading import Decoder, open_reader, read_spans
    from highwater.connectors.kafka.registry import Registry
    from highwater.connectors.replay.spans import fetch_ranges, open_transactions

    if from_beginning and count is not None:
        raise click.UsageError("-n and --from-beginning exclude each other", click.get_current_context())
    settings = stack_settings("kafka", "schema_registry")
    client = kafka_client(settings)
    decoder = asyncio.run(Decoder.of(topic.name, Registry(settings.registry_access())))
    held = fetch_ranges(client, topic.name)
    if not held:
        raise missing_topic(topic, client)
    ranges = {(topic.name, partition): one for partition, one in held.items()}
    wanted = _RECORDS_DEFAULT if count is None else count

    def show(record: Record) -> None:
        document = decoder.shown(record)
        if as_json:
            print_json(document)
        else:
            _print_record(document)

    if not any(held.low < held.high for held in ranges.values()):
        warn(f"{topic.name} has no records")
    for sentence in open_transactions(topic.name, held):
        warn(f"highwater: {sentence}")
    reader = open_reader(client)
    try:
        for record in read_spans(reader, ranges) if from_beginning else _latest(reader, ranges, wanted):
            show(record)
        if follow:
            _follow(reader, {place: r.high for place, r in ranges.items()}, show)
    finally:
        reader.close()


def _latest(reader: Consumer, ranges: Mapping[tuple[str, int], LogRange], count: int) -> list[Record]:
    """The latest records of a topic, in order of arrival: they are among the latest of each partition."""
    from highwater.connectors.kafka.admin import LogRange
    from highwater.connectors.kafka.reading import read_spans

    if not count:
        return []
    # Offsets are not records: markers of transactions and records that were aborted or compacted have some, too. So each
    # partition is read from further back until it has given enough.
    found: dict[tuple[str, int], deque[Record]] = {}
    wanted, width = {place: r for place, r in ranges.items() if r.low < r.high}, count
    while wanted:
        spans = {place: LogRange(max(r.low, r.high - width), r.high) for place, r in wanted.items()}
        found |= {place: deque(maxlen=count) for place in spans}
        for record in read_spans(reader, spans):
            found[record.topic, record.partition].append(record)
        wanted = {place: r for place, r in wanted.items() if len(found[place]) < count and spans[place].low > r.low}
        width *= _FURTHER
    latest = (record for records in found.values() for record in records)
    return sorted(latest, key=lambda record: (record.arrived_ms, record.position))[-count:]


def _follow(reader: Consumer, begin: dict[tuple[str, int], int], show: Show) -> None:
    from confluent_kafka import TopicPartition

    from highwater.connectors.kafka.reading import is_end
    from highwater.connectors.kafka.records import record_of

    reader.assign([TopicPartition(*place, offset) for place, offset in begin.items()])
    while True:
        # Wait while the broker is unavailable: a follower wants to continue after its recovery.
        message = reader.poll(0.2)
        if message is not None and not is_end(message):
            show(record_of(message))


def _print_record(document: dict[str, Any]) -> None:
    from highwater.schemas.exact_json import write_json

    headers = " ".join(f"{name}={value}" for name, value in document["headers"].items())
    say(printable(f"{document['position']}  {document['timestamp']}  key={document['key']}  {headers}"))
    if "value" in document:
        say(printable(f"  {write_json(document['value']).decode()}"))
    else:
        say(printable(f"  undecodable: {document['undecodable']}; base64 {document['bytes_base64']}"))
