"""`highwater dlq`: dead letters with reason, origin and original bytes; sent again, or deleted.

Law: what is sent again is the original key, bytes and headers, into the partition it came from; nothing is deleted
without being told to.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from api.cli.command import CommandFailedError, Group, TopicArgument, json_option
from api.cli.connection import kafka_client, stack_settings
from api.cli.terminal import confirm, print_json, print_table, printable
from schemas.envelope import Headers, header, iso_from_ms
from schemas.errors import InvalidEventError
from schemas.positions import Position, parse_position
from schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, Topic, dead_letter_topic

if TYPE_CHECKING:
    from connectors.kafka.admin import LogRange
    from connectors.kafka.records import Record

HEADER_PREFIX = "dlq_"
REDRIVEN_FROM = "dlq_redriven_from"
# What one listing reads per topic; a topic with more is the sign of a broken producer, not something to read through.
_LISTED_MAX = 10_000
_TOPIC = TopicArgument(dead_letters=True)


@click.group(cls=Group)
def dlq() -> None:
    """Dead letters: list, show, redrive, drop. TOPIC is the topic they came from (or its .dlq)."""


def dead_letters_of(topic: Topic) -> Topic:
    """The dead-letter topic meant by either name."""
    return topic if topic.name.endswith(DEAD_LETTER_SUFFIX) else dead_letter_topic(topic)


def origin_of(record: Record) -> Position | None:
    """Where a dead letter came from; None when its header is missing or malformed."""
    text = header(record.headers, "dlq_origin")
    try:
        return None if text is None else parse_position(text)
    except InvalidEventError:
        return None


def letter_document(record: Record) -> dict[str, Any]:
    """A dead letter as JSON, its value left out."""
    origin = origin_of(record)
    return {
        "position": str(record.position),
        "arrived_at": iso_from_ms(record.arrived_ms),
        "reason": header(record.headers, "dlq_reason"),
        "detail": header(record.headers, "dlq_detail"),
        "origin": None if origin is None else str(origin),
        "group": header(record.headers, "dlq_group"),
        "key": None if record.key is None else record.key.decode("utf-8", "backslashreplace"),
    }


def redriven_headers(record: Record) -> Headers:
    """The original headers, and where it was sent again from."""
    kept = [(name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)]
    return [*kept, (REDRIVEN_FROM, str(record.position).encode())]


@dlq.command("list")
@click.argument("topic", type=_TOPIC, required=False)
@json_option
def list_letters(topic: Topic | None, as_json: bool) -> None:
    """List the dead letters of TOPIC, or count those of every topic."""
    client = kafka_client(stack_settings("kafka"))
    if topic is not None:
        letters = [letter_document(record) for record in _read(client, [dead_letters_of(topic)], latest=_LISTED_MAX)]
        if as_json:
            print_json(letters)
            return
        rows = [(d["position"], d["arrived_at"], d["reason"], d["origin"], d["group"], d["detail"]) for d in letters]
        print_table(["position", "arrived", "reason", "origin", "group", "detail"], rows)
        return
    _print_summary(_summary(client), as_json=as_json)


def _summary(client: Mapping[str, str]) -> list[dict[str, Any]]:
    topics = [dead_letter_topic(topic) for topic in TOPICS.values()]
    counts = {place[0]: held.high - held.low for place, held in _ranges(client, topics).items()}
    reasons: dict[str, Counter[str]] = {}
    arrived: dict[str, list[int]] = {}
    for record in _read(client, [topic for topic in topics if counts.get(topic.name)], latest=_LISTED_MAX):
        reasons.setdefault(record.topic, Counter())[header(record.headers, "dlq_reason") or "unknown"] += 1
        arrived.setdefault(record.topic, []).append(record.arrived_ms)
    return [
        {
            "topic": name.removesuffix(DEAD_LETTER_SUFFIX),
            "count": count,
            "reasons": dict(reasons.get(name, Counter()).most_common()),
            "latest_at": iso_from_ms(max(arrived[name])) if name in arrived else None,
        }
        for name, count in counts.items()
        if count
    ]


def _print_summary(summary: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
    elif not summary:
        click.echo("no dead letters")
    else:
        rows = [
            (d["topic"], d["count"], ", ".join(f"{name} ({n})" for name, n in d["reasons"].items()), d["latest_at"])
            for d in summary
        ]
        print_table(["topic", "dead letters", "reasons", "latest"], rows, right=["dead letters"])


@dlq.command()
@click.argument("topic", type=_TOPIC)
@click.option("--offset", type=click.IntRange(min=0), help="Only the dead letter at this offset.")
@click.option("-n", "count", type=click.IntRange(1, _LISTED_MAX), default=10, show_default=True, help="The latest N.")
@json_option
def show(topic: Topic, offset: int | None, count: int, as_json: bool) -> None:
    """Show dead letters whole: headers, decoded value where there is one, and the original bytes."""
    from api.cli.reading import Decoder
    from connectors.kafka.registry import Registry

    settings = stack_settings("kafka", "schema_registry")
    letters = dead_letters_of(topic)
    decoder = asyncio.run(Decoder.of(letters.name, Registry(settings.schema_registry)))
    found = False
    for record in _read(kafka_client(settings), [letters], latest=count, only=offset):
        found = True
        raw = None if record.value is None else base64.b64encode(record.value).decode()
        document = {**decoder.shown(record), **letter_document(record), "bytes_base64": raw}
        if as_json:
            print_json(document)
        else:
            _print_letter(document)
    if not found:
        raise CommandFailedError(f"{letters.name} holds no dead letter{'' if offset is None else f' at {offset}'}")


def _print_letter(document: dict[str, Any]) -> None:
    import orjson

    for name in ("position", "arrived_at", "reason", "detail", "origin", "group", "key"):
        click.echo(printable(f"{name:<12}{document[name]}"))
    for name, value in document["headers"].items():
        if not name.startswith(HEADER_PREFIX):
            click.echo(printable(f"{'header':<12}{name}={value}"))
    if "value" in document:
        click.echo(printable(f"{'value':<12}{orjson.dumps(document['value']).decode()}"))
    else:
        click.echo(printable(f"{'undecodable':<12}{document['undecodable']}"))
    click.echo(f"{'base64':<12}{document['bytes_base64']}\n")


@dlq.command()
@click.argument("topic", type=_TOPIC)
@click.option("--offset", "offsets", type=click.IntRange(min=0), multiple=True, help="Only this one (may be repeated).")
@click.option("--reason", help="Only those with this reason.")
@json_option
def redrive(topic: Topic, offsets: tuple[int, ...], reason: str | None, as_json: bool) -> None:
    """Send dead letters to the topic they came from once more, as they were; they also stay where they are."""
    from api.cli.publishing import Publisher

    client = kafka_client(stack_settings("kafka"))
    letters = dead_letters_of(topic)
    partitions = _partitions(client)
    publisher = Publisher(client)
    without_origin = 0
    for record in _read(client, [letters]):
        if offsets and record.offset not in offsets:
            continue
        if reason is not None and header(record.headers, "dlq_reason") != reason:
            continue
        origin = origin_of(record)
        if origin is None or origin.topic not in TOPICS:
            without_origin += 1
            continue
        # Into the partition it came from, whichever partitioner had put it there: its key's order is that partition's.
        partition = origin.partition if origin.partition < partitions.get(origin.topic, 0) else -1
        publisher.publish_record(origin.topic, record.key, record.value, redriven_headers(record), partition=partition)
    publisher.flush()
    if as_json:
        print_json({"redriven": publisher.acknowledged, "without_origin": without_origin})
    else:
        click.echo(f"sent {publisher.acknowledged:,} dead letters of {letters.name} again")
    if without_origin:
        raise CommandFailedError(
            f"{without_origin:,} dead letters do not say where they came from; `highwater dlq show`"
        )


@dlq.command()
@click.argument("topic", type=_TOPIC)
@click.option(
    "--up-to", type=click.IntRange(min=0), help="The last offset to delete; all that are there now if not given."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def drop(topic: Topic, up_to: int | None, yes: bool, as_json: bool) -> None:
    """Delete the dead letters of TOPIC up to and including an offset."""
    client = kafka_client(stack_settings("kafka"))
    letters = dead_letters_of(topic)
    ranges = _ranges(client, [letters])
    # The end is fixed before the question, so that what arrives meanwhile is not deleted unseen.
    ends = {place: held.high if up_to is None else min(held.high, up_to + 1) for place, held in ranges.items()}
    ends = {place: end for place, end in ends.items() if end > ranges[place].low}
    count = sum(end - ranges[place].low for place, end in ends.items())
    if count:
        confirm(f"Delete {count:,} dead letters of {letters.name}?", assume_yes=yes)
        _delete(client, ends)
    if as_json:
        print_json({"dropped": count})
    else:
        click.echo(f"deleted {count:,} dead letters of {letters.name}")


def _delete(client: Mapping[str, str], ends: Mapping[tuple[str, int], int]) -> None:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    from api.cli.groups import REQUEST_SECONDS
    from api.cli.reading import kafka_error

    asked = [TopicPartition(*place, end) for place, end in ends.items()]
    admin = AdminClient(dict(client))  # kept: with the client gone, its futures would never be resolved
    try:
        for future in admin.delete_records(asked, request_timeout=REQUEST_SECONDS).values():
            future.result(2 * REQUEST_SECONDS)
    except KafkaException as error:
        raise kafka_error(error) from error


def _ranges(client: Mapping[str, str], topics: list[Topic]) -> dict[tuple[str, int], LogRange]:
    from api.cli.reading import log_ranges_of
    from connectors.kafka.admin import Admin

    return asyncio.run(log_ranges_of(Admin(client), [topic.name for topic in topics]))


def _partitions(client: Mapping[str, str]) -> dict[str, int]:
    from connectors.kafka.admin import Admin

    return asyncio.run(Admin(client).partition_counts())


def _read(
    client: Mapping[str, str], topics: list[Topic], *, latest: int | None = None, only: int | None = None
) -> Iterator[Record]:
    """Dead letters in order: all, the latest of each partition, or the one at an offset."""
    from api.cli.reading import open_reader, read_spans
    from connectors.kafka.admin import LogRange

    spans = {}
    for place, held in _ranges(client, topics).items():
        if only is not None:
            spans[place] = LogRange(max(held.low, only), min(held.high, only + 1))
        else:
            spans[place] = LogRange(held.low if latest is None else max(held.low, held.high - latest), held.high)
    reader = open_reader(client)
    try:
        yield from read_spans(reader, spans)
    finally:
        reader.close()
