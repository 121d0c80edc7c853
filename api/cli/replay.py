"""`highwater replay`: a topic's records, from and to where one likes, into a file, a pipe or another topic.

Law: it reads to the ends that the topic had when it began, outside every consumer group.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from api.cli.command import Command, CommandFailedError, TopicArgument, json_option
from api.cli.connection import kafka_client, stack_settings
from api.cli.terminal import print_json, printable, progress, warn
from schemas.topics import Topic

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from connectors.kafka.admin import LogRange
    from connectors.kafka.records import Record
    from connectors.replay.decoding import Decoder
    from connectors.replay.selection import Ranges
    from connectors.replay.where import Where
    from streams.settings import Settings

# The names of `connectors.replay.writers.FORMATS`, repeated so that --help need not load them.
_FORMATS = ("jsonl", "csv", "parquet", "avro")
_SUFFIXES = {".json": "jsonl", ".ndjson": "jsonl", ".pq": "parquet"}
# A bar that is told of every single record costs more than the record.
_SHOWN_EVERY = 100
_SPEEDS = {"1x": 1.0, "10x": 10.0, "max": None}


@click.command(cls=Command)
@click.argument("topic", type=TopicArgument(dead_letters=True))
@click.option(
    "--from", "begin", metavar="WHERE", help="First record: offset, PARTITION/OFFSET, time, age (7d), earliest."
)
@click.option(
    "--to", "end", metavar="WHERE", help="Where to stop, itself not included (default: the end as it is now)."
)
@click.option(
    "--where", "condition", metavar="CEL", help="Only these, e.g. 'value.channel_id == \"git\" && has(value.url)'."
)
@click.option("--format", "kind", type=click.Choice(_FORMATS), help="Default: by the file's name, else jsonl.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file; `-`, the default, is standard output.")
@click.option("--into", metavar="TOPIC", help="Publish them to this topic instead, with their times in headers.")
@click.option("--speed", type=click.Choice(tuple(_SPEEDS)), default="max", show_default=True, help="Of --into.")
@click.option("--i-know", is_flag=True, help="With --into: a topic whose records the product acts upon.")
@json_option
def replay(
    topic: Topic,
    begin: str | None,
    end: str | None,
    condition: str | None,
    kind: str | None,
    output: Path | None,
    into: str | None,
    speed: str,
    i_know: bool,
    as_json: bool,
) -> None:
    """Write all records of TOPIC to a file or pipe (JSONL, CSV, Parquet, Avro), or publish them to another topic.

    The condition may look at key, value, headers, time, topic, partition and offset, in the language CEL.
    """
    if into is not None and (output is not None or kind is not None):
        raise click.UsageError("--into excludes --output and --format", click.get_current_context())
    output = None if output is None or str(output) == "-" else output
    kind = kind or _format_of(output)
    if into is None and output is None and kind in ("parquet", "avro") and sys.stdout.isatty():
        raise click.UsageError(f"a terminal cannot show {kind}; say --output FILE", click.get_current_context())
    settings = stack_settings("kafka", "schema_registry")
    with _ended_by_signals():
        meant = _Replay(settings, topic, condition, begin, end)
        told = meant.write(kind, output) if into is None else meant.publish(into, _SPEEDS[speed], i_know=i_know)
    if output is not None or into is not None:
        _tell(told, as_json=as_json)


def _format_of(output: Path | None) -> str:
    suffix = "" if output is None else output.suffix.lower()
    found = _SUFFIXES.get(suffix, suffix.removeprefix("."))
    return found if found in _FORMATS else "jsonl"


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A request to end is like Ctrl-C, so that no part of a file stays."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(told: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(told)
    else:
        click.echo(
            printable(f"replayed {told['written']:,} of {told['read']:,} records of {told['topic']} to {told['to']}")
        )


class _Replay:
    """One topic, what of it is meant, and how far it is read."""

    def __init__(
        self, settings: Settings, topic: Topic, condition: str | None, begin: str | None, end: str | None
    ) -> None:
        from connectors.replay.decoding import Decoder
        from connectors.replay.running import Counts
        from connectors.replay.subject import Subject

        self._settings = settings
        self._topic = topic
        self._client = kafka_client(settings)
        self._decoder: Decoder = Decoder(Subject.fetch(topic, settings.schema_registry))
        self._where = _condition(condition, self._decoder, topic)
        self._spans = self._select(begin, end)
        self._counts = Counts()

    def _select(self, begin: str | None, end: str | None) -> Ranges:
        from api.cli.reading import log_ranges_of
        from connectors.kafka.admin import Admin
        from connectors.replay.reading import offsets_at, open_reader
        from connectors.replay.selection import InvalidSelectionError, parse_bound, select
        from streams.clock import ProductClock

        now_ms = ProductClock(self._settings.clock_file)()
        name = self._topic.name
        try:
            first = None if begin is None else parse_bound(begin, topic=name, now_ms=now_ms)
            last = None if end is None else parse_bound(end, topic=name, now_ms=now_ms)
        except InvalidSelectionError as error:
            raise click.UsageError(str(error), click.get_current_context()) from error
        found = asyncio.run(log_ranges_of(Admin(self._client), [name]))
        ranges: dict[int, LogRange] = {partition: held for (_, partition), held in found.items()}
        if not ranges:
            raise CommandFailedError(f"{name} is not on the broker; run `highwater init`")
        with _reader(open_reader(self._client)) as reader:
            return select(first, last, ranges, lambda ms: offsets_at(reader, name, list(ranges), ms), topic=name)

    @property
    def _total(self) -> int:
        return sum(span.high - span.low for span in self._spans.values())

    def write(self, kind: str, output: Path | None) -> dict[str, Any]:
        """Write to a file, or to standard output."""
        from connectors.replay.output import whole_file

        shown = "standard output" if output is None else str(output)
        if output is None:
            self._write_to(sys.stdout.buffer, kind)
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
        from connectors.replay.reading import open_reader, read_batches
        from connectors.replay.running import write_batches
        from connectors.replay.writers import writer_of

        with (
            writer_of(kind, file, self._decoder) as writer,
            progress(self._topic.name, self._total) as bar,
            _reader(open_reader(self._client)) as reader,
        ):
            batches = read_batches(reader, self._topic.name, self._spans)
            write_batches(batches, self._decoder, self._where, writer, self._counts, bar.update)

    def publish(self, into: str, speed: float | None, *, i_know: bool) -> dict[str, Any]:
        """Publish to another topic, each record when it is due.

        Raises:
            RefusedError: the product would act upon them.
            CommandFailedError: there is no such topic.
        """
        from api.cli.publishing import Publisher
        from connectors.kafka.admin import Admin
        from connectors.replay.into import Pace, check_target, copy_of

        check_target(self._topic, into, i_know=i_know)
        counts = asyncio.run(Admin(self._client).partition_counts())
        if into not in counts:
            raise CommandFailedError(f"there is no topic {into!r} on the broker")
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
            warn(f"highwater: interrupted; {publisher.acknowledged:,} records were published to {into}")
            raise
        self._counts.written = publisher.acknowledged
        return self._told(into)

    def _chosen(self, *, in_time: bool) -> Iterator[Record]:
        from connectors.replay.reading import open_reader, read_batches, read_in_time
        from connectors.replay.running import chooser

        keep = chooser(self._decoder, self._where, self._counts)
        with _reader(open_reader(self._client)) as reader:
            if in_time:
                yield from read_in_time(reader, self._topic.name, self._spans, keep)
            else:
                for batch in read_batches(reader, self._topic.name, self._spans):
                    yield from keep(batch).records()

    def _told(self, to: str) -> dict[str, Any]:
        if self._where is not None and self._where.failed:
            warn(
                f"highwater: --where has no answer for {self._where.failed:,} records, which were left out"
                f" (the first: {self._where.first_failure})"
            )
        if self._counts.undecodable:
            warn(f"highwater: {self._counts.undecodable:,} records are no events; their bytes were written")
        return {
            "topic": self._topic.name,
            "to": to,
            "read": self._counts.read,
            "written": self._counts.written,
            "undecodable": self._counts.undecodable,
            "without_answer": 0 if self._where is None else self._where.failed,
            "spans": {str(partition): [span.low, span.high] for partition, span in sorted(self._spans.items())},
        }


@contextlib.contextmanager
def _reader(consumer: Consumer) -> Iterator[Consumer]:
    try:
        yield consumer
    finally:
        consumer.close()


def _condition(text: str | None, decoder: Decoder, topic: Topic) -> Where | None:
    """The condition of `--where`; one that cannot be read is shown with a caret under the spot."""
    from connectors.replay.where import Where, WhereError

    if text is None:
        return None
    try:
        return Where(text, decoder.arrow_type, topic.name)
    except WhereError as error:
        click.echo("\n".join(printable(line) for line in error.pointer().splitlines()), err=True)
        raise click.UsageError(str(error), click.get_current_context()) from error
