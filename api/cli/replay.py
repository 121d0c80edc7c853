"""`highwater replay`: writes a chosen range of a topic's records to a file, a pipe or another topic.

Invariant: it reads up to the ends that the topic had when it began, outside every consumer group.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from highwater.api.command.command import Command, CommandFailedError, TopicArgument, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.missing_topics import missing_error, missing_topic
from highwater.api.command.terminal import Bar, output_file, print_json, progress, say, warn
from highwater.connectors.replay.arrow_alone import without_pandas
from highwater.schemas.topics import Topic, foreign_topic
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from highwater.connectors.kafka.records import Record
    from highwater.connectors.replay.decoding import Decoded, Decoder
    from highwater.connectors.replay.running import Chooser
    from highwater.connectors.replay.selection import Bound, Ranges
    from highwater.connectors.replay.shares import Share
    from highwater.connectors.replay.subject import Subject
    from highwater.connectors.replay.task import Task
    from highwater.streams.settings import Settings

# The names of `connectors.replay.writers.FORMATS`, repeated so that --help does not load them.
_FORMATS = ("jsonl", "csv", "parquet", "avro")
_SUFFIXES = {".json": "jsonl", ".ndjson": "jsonl", ".pq": "parquet"}
# Updating a bar for every record costs more than the record.
_SHOWN_EVERY = 100
_TOPIC = TopicArgument(dead_letters=True, foreign=True)
_SPEEDS = {"1x": 1.0, "10x": 10.0, "max": None}


@click.command(cls=Command)
@click.argument("topic", type=_TOPIC)
@click.option(
    "--from", "begin", metavar="WHERE", help="First record: offset, PARTITION/OFFSET, time, age (7d, -1h), earliest."
)
@click.option("--to", "end", metavar="WHERE", help="Where to stop, exclusive [default: the current end].")
@click.option(
    "--where",
    "condition",
    metavar="CEL",
    help="Only matching records, e.g. 'value.channel_id == \"git\" && has(value.url)'.",
)
@click.option("--key", metavar="KEY", help="Only records with this key.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after the first N records by arrival.",
)
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), help="Output format [default: by file name, else jsonl]."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Output file [default: `-`, standard output].")
@click.option(
    "--into", metavar="TOPIC", help="Publish the records to this topic, with their original times in headers."
)
@click.option(
    "--speed",
    type=click.Choice(tuple(_SPEEDS)),
    default="max",
    show_default=True,
    help="Publishing speed; only with --into.",
)
@click.option("--i-know", is_flag=True, help="Allow --into a topic that the product itself reads.")
@json_option
def replay(
    topic: Topic,
    begin: str | None,
    end: str | None,
    condition: str | None,
    key: str | None,
    limit: int | None,
    kind: str | None,
    output: Path | None,
    into: str | None,
    speed: str,
    i_know: bool,
    as_json: bool,
) -> None:
    """Write all records of TOPIC to a file or pipe (JSONL, CSV, Parquet, Avro), or publish them to another topic.

    A topic of another application is read as Avro where the registry has the schema, else as JSON or text.

    The condition is a CEL expression over key, value, headers, time, topic, partition and offset. Records of a key are
    found in any partition. An age may have a minus sign.
    """
    if into is not None and (output is not None or kind is not None):
        raise click.UsageError("--into excludes --output and --format", click.get_current_context())
    output = None if output is None or str(output) == "-" else output
    kind = kind or _format_of(output)
    if into is None and output is None and kind in ("parquet", "avro") and sys.stdout.isatty():
        raise click.UsageError(f"a terminal cannot show {kind}; use --output FILE", click.get_current_context())
    settings = stack_settings("kafka", "schema_registry")
    with without_pandas(), conditions_shown():
        meant = _Replay(settings, topic, begin, end)
        meant.choose(condition, key, limit)
        told = meant.write(kind, output) if into is None else meant.publish(into, _SPEEDS[speed], i_know=i_know)
    if output is not None or into is not None:
        _tell(told, as_json=as_json)


def _format_of(output: Path | None) -> str:
    suffix = "" if output is None else output.suffix.lower()
    found = _SUFFIXES.get(suffix, suffix.removeprefix("."))
    return found if found in _FORMATS else "jsonl"


def _tell(told: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(told)
    else:
        say(printable(f"replayed {told['written']:,} of {told['read']:,} records of {told['topic']} to {told['to']}"))


class _Replay:
    """One topic, the selection, and the progress of reading."""

    def __init__(self, settings: Settings, topic: Topic, begin: str | None, end: str | None) -> None:
        from highwater.connectors.replay.counts import Counts

        self._settings = settings
        self._topic = topic
        self._client = kafka_client(settings)
        bounds = self._bound(begin), self._bound(end)
        self._spans = self._select(*bounds)
        self._counts = Counts()

    def choose(self, condition: str | None, key: str | None, limit: int | None) -> None:
        """Set the selection besides from and to."""
        self._condition = condition
        self._key = None if key is None else key.encode("utf-8", "surrogateescape")
        self._limit = limit

    @cached_property
    def _subject(self) -> Subject:
        from highwater.connectors.replay.subject import Subject

        return Subject.fetch(self._topic, self._settings.registry_access())

    @cached_property
    def _decoder(self) -> Decoder:
        from highwater.connectors.replay.decoding import Decoder
        from highwater.connectors.replay.foreign import decoder_of

        registry = self._settings.registry_access()
        return Decoder(self._subject) if self._topic.is_catalogued else decoder_of(self._topic, registry)

    @cached_property
    def _chooser(self) -> Chooser:
        from highwater.connectors.replay.running import Chooser

        return Chooser(self._topic.name, self._decoder, self._counts, key=self._key, condition=self._condition)

    def _bound(self, text: str | None) -> Bound | None:
        from highwater.connectors.replay.selection import InvalidSelectionError, parse_bound
        from highwater.streams.clock import ProductClock

        if text is None:
            return None
        try:
            return parse_bound(text, topic=self._topic.name, now_ms=ProductClock(self._settings.clock_file)())
        except InvalidSelectionError as error:
            raise click.UsageError(str(error), click.get_current_context()) from error

    def _select(self, begin: Bound | None, end: Bound | None) -> Ranges:
        from highwater.connectors.replay.spans import fetch_ranges, fetch_spans, open_transactions

        name = self._topic.name
        ranges = fetch_ranges(self._client, name)
        if not ranges:
            raise missing_topic(self._topic, self._client)
        for sentence in open_transactions(name, ranges):
            warn(f"highwater: {sentence}")
        return fetch_spans(self._client, name, ranges, begin, end)

    @property
    def _total(self) -> int:
        return sum(span.high - span.low for span in self._spans.values())

    def write(self, kind: str, output: Path | None) -> dict[str, Any]:
        """Write to a file, or to standard output."""
        from highwater.connectors.replay.output import whole_file

        shown = "standard output" if output is None else str(output)
        if output is None:
            self._write_to(output_file(), kind)
            sys.stdout.buffer.flush()
        else:
            try:
                with whole_file(output) as file:
                    self._write_to(file, kind)
            except KeyboardInterrupt:
                warn(f"highwater: interrupted; {shown} was not written")
                raise
            except OSError as error:
                raise CommandFailedError(f"{shown} was not written: {error.strerror or error}") from error
        return self._told(shown)

    def _write_to(self, file: BinaryIO, kind: str) -> None:
        shares = self._shares(kind)
        with progress(self._topic.name, self._total) as bar:
            if len(shares) == 1:
                self._write_alone(file, kind, bar)
                return
            from highwater.connectors.replay.parts import write_in_parts

            def tasks() -> list[Task]:
                from highwater.connectors.replay.task import Task

                known = (self._client, self._settings.registry_access(), self._topic, self._subject.versions)
                return [Task(*known, share, self._key, self._condition, kind) for share in shares]

            write_in_parts(kind, len(shares), tasks, file, self._counts, bar.update)

    def _shares(self, kind: str) -> list[dict[int, Share]]:
        """Return the partitions of each process; an order over all partitions needs a single process."""
        from highwater.connectors.replay.shares import KINDS, shares_of

        is_divisible = kind in KINDS and self._limit is None and self._topic.is_catalogued
        return shares_of(self._spans, len(os.sched_getaffinity(0)) if is_divisible else 1)

    def _write_alone(self, file: BinaryIO, kind: str, bar: Bar) -> None:
        from highwater.connectors.replay.consumer import open_reader
        from highwater.connectors.replay.running import write_batches
        from highwater.connectors.replay.writers import writer_of

        with writer_of(kind, file, self._decoder) as writer, _reader(open_reader(self._client)) as reader:
            write_batches(self._decoded(reader), writer, self._counts, bar.update)

    def _decoded(self, reader: Consumer) -> Iterator[Decoded]:
        """Yield the selected records: in order within each partition, or with a limit in order of arrival."""
        from highwater.connectors.replay.reading import in_batches, read_batches

        name = self._topic.name
        if self._limit is None:
            yield from map(self._chooser.decoded, read_batches(reader, name, self._spans))
        else:
            yield from map(self._decoder.decode, in_batches(name, self._in_time(reader)))

    def _in_time(self, reader: Consumer) -> Iterator[Record]:
        from highwater.connectors.replay.reading import read_in_time

        records = read_in_time(reader, self._topic.name, self._spans, self._chooser.undecoded)
        return itertools.islice(records, self._limit)

    def publish(self, into: str, speed: float | None, *, i_know: bool) -> dict[str, Any]:
        """Publish to another topic, each record when it is due.

        Raises:
            RefusedError: the product would process the records.
            click.UsageError: there is no such topic.
        """
        from highwater.api.command.publishing import Publisher
        from highwater.connectors.kafka.admin import Admin
        from highwater.connectors.replay.into import Pace, check_target, copy_of

        check_target(self._topic, into, i_know=i_know)
        counts = asyncio.run(Admin(self._client).partition_counts())
        if into not in counts:
            raise missing_error(foreign_topic(into), counts)
        publisher, pace = Publisher(self._client), Pace(speed)
        try:
            with progress(f"{self._topic.name} to {into}", self._total) as bar:
                for record in self._chosen(in_time=speed is not None):
                    pace.wait(record.arrived_ms)
                    copy = copy_of(record, counts[into], counts[self._topic.name])
                    publisher.publish_record(into, copy.key, copy.value, copy.headers, partition=copy.partition)
                    if publisher.handed_over % _SHOWN_EVERY == 0:
                        bar.update(self._counts.read)
            publisher.flush()
        except KeyboardInterrupt:
            publisher.flush()
            warn(
                f"highwater: interrupted; {counted(publisher.acknowledged, 'record was', 'records were')} published to {into}"
            )
            raise
        self._counts.written = publisher.acknowledged
        return self._told(into)

    def _chosen(self, *, in_time: bool) -> Iterator[Record]:
        from highwater.connectors.replay.consumer import open_reader
        from highwater.connectors.replay.reading import read_batches

        with _reader(open_reader(self._client)) as reader:
            if in_time or self._limit is not None:
                yield from self._in_time(reader)
            else:
                for batch in read_batches(reader, self._topic.name, self._spans):
                    yield from self._chooser.undecoded(batch).records()

    def _told(self, to: str) -> dict[str, Any]:
        if self._counts.unanswered:
            warn(
                f"highwater: --where could not be evaluated for {counted(self._counts.unanswered, 'record')}, which were left out"
                f" (the first: {self._counts.first_failure})"
            )
        if self._counts.undecodable:
            warn(
                f"highwater: {counted(self._counts.undecodable, 'value')} could not be decoded; the bytes were written"
            )
        return {
            "topic": self._topic.name,
            "to": to,
            "read": self._counts.read,
            "written": self._counts.written,
            "undecodable": self._counts.undecodable,
            "without_answer": self._counts.unanswered,
            "spans": {str(partition): [span.low, span.high] for partition, span in sorted(self._spans.items())},
        }


@contextlib.contextmanager
def _reader(consumer: Consumer) -> Iterator[Consumer]:
    try:
        yield consumer
    finally:
        consumer.close()


@contextlib.contextmanager
def conditions_shown() -> Iterator[None]:
    """Print an invalid condition with a caret under the error."""
    from highwater.connectors.replay.where_error import WhereError

    try:
        yield
    except WhereError as error:
        say("\n".join(printable(line) for line in error.pointer().splitlines()), err=True)
        raise click.UsageError(str(error), click.get_current_context()) from error
