"""`highwater publish`: publishes JSON lines to a topic, validated by its schema; a bad line is reported and skipped."""

from __future__ import annotations

import asyncio
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import FAILED, INTERRUPTED, Command, CommandFailedError, TopicArgument, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.terminal import Bar, print_json, progress, say, warn
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.topics import Topic
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.api.command.publishing import Publisher
    from highwater.streams.settings import Settings

# Bad lines are printed one by one up to this many, so that they do not scroll important lines away.
BAD_LINES_SHOWN = 5
_BAR_EVERY_LINES = 500
# Their events erase users, or change permissions.
_PRIVILEGED = frozenset({"feeds.user-erased", "jobs.plan-changed", "jobs.role-changed"})


@dataclass(slots=True)
class Rejects:
    """The bad lines: the first few are printed, all are counted and, on request, written to a file."""

    file: IO[bytes] | None
    count: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, number: int, data: bytes | None, error: InvalidEventError) -> None:
        """Report a bad line."""
        self.count += 1
        if self.count <= BAD_LINES_SHOWN:
            warn(f"line {number}: {error} [{error.reason}]")
        if self.file is not None and data is not None:
            self.file.write(data if data.endswith(b"\n") else data + b"\n")

    def conclude(self) -> None:
        """Print how many more there were."""
        if self.count > BAD_LINES_SHOWN:
            warn(f"… and {counted(self.count - BAD_LINES_SHOWN, 'more bad line')}")


@click.command(cls=Command)
@click.argument("topic", type=TopicArgument(dead_letters=False))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of events per second.")
@click.option("--rebase-to", metavar="now|TIME", help="Shift all times so that the last one is this time.")
@click.option("--key-field", help="Field to use as the key instead of the topic's own.")
@click.option("--rejects", type=click.Path(dir_okay=False, path_type=Path), help="Write bad lines to this file.")
@json_option
def publish(
    topic: Topic,
    file: Path,
    rate: float | None,
    rebase_to: str | None,
    key_field: str | None,
    rejects: Path | None,
    as_json: bool,
) -> None:
    """Publish JSON lines (FILE, `-` for standard input, gzip read) to TOPIC.

    A line is an event, or a record that `highwater replay` wrote. Each is checked against the topic's schema; a bad one
    is reported with its number and skipped, and the exit status is then 1.
    """
    from highwater.streams.clock import ProductClock, monotonic_seconds

    if rejects is not None and file != Path("-") and rejects.exists() and rejects.samefile(file):
        raise click.UsageError("--rejects names the input file itself", click.get_current_context())
    settings = stack_settings("kafka", "schema_registry")
    clock = ProductClock(settings.clock_file)
    target_ms = _target_ms(topic, rebase_to, clock())
    key = _key_field(topic, key_field)
    with ExitStack() as resources:
        if topic.name in _PRIVILEGED:
            resources.enter_context(recorded(settings, "publish", topic.name))
        kept = Rejects(resources.enter_context(rejects.open("wb")) if rejects else None)
        source = resources.enter_context(_source(file, rereadable=target_ms is not None))
        run = _Run(settings, topic, key, source, kept, clock)
        shift_ms = 0 if target_ms is None else run.shift_to(target_ms)
        started = monotonic_seconds()
        publisher, interrupted = run.publish(shift_ms, rate)
        seconds = monotonic_seconds() - started
    kept.conclude()
    _conclude(topic, publisher, kept.count, seconds, interrupted=interrupted, as_json=as_json)


def _conclude(
    topic: Topic, publisher: Publisher, rejected: int, seconds: float, *, interrupted: bool, as_json: bool
) -> None:
    context = click.get_current_context()
    published = publisher.acknowledged
    if as_json:
        print_json({"published": published, "rejected": rejected, "positions": publisher.positions()})
    elif interrupted:
        warn(f"interrupted: {published:,} of {publisher.handed_over:,} events handed over were acknowledged")
    else:
        rejections = f", {rejected:,} rejected" if rejected else ""
        per_second = published / seconds if seconds > 0 else 0.0
        say(f"published {counted(published, 'event')} to {topic.name} ({per_second:,.0f}/s){rejections}")
        for position in publisher.positions().values():
            say(f"  {position}")
    if interrupted:
        context.exit(INTERRUPTED)
    if rejected:
        context.exit(FAILED)


class _Run:
    """The publishing of one file to one topic."""

    def __init__(
        self, settings: Settings, topic: Topic, key_field: str, source: _Source, rejects: Rejects, clock: Any
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._key_field = key_field
        self._source = source
        self._rejects = rejects
        self._clock = clock

    def shift_to(self, target_ms: int) -> int:
        """Return the shift that moves the file's last time to the target; bad lines do not count."""
        from highwater.api.command.lines import latest_ms

        with progress("reading", self._source.bytes_total) as bar:
            dimensions = self._settings.embedding_dimensions
            latest = latest_ms(self._topic.name, lambda: self._lines(bar), embedding_dimensions=dimensions)
        return 0 if latest is None else target_ms - latest

    def publish(self, shift_ms: int, rate: float | None) -> tuple[Publisher, bool]:
        """Publish every good line; return the publisher and whether Ctrl-C ended it early."""
        from highwater.api.command.lines import event_of, key_of
        from highwater.api.command.publishing import EventPublisher, Publisher, codec_of, pace_of

        codec = asyncio.run(codec_of(self._settings, [self._topic.name]))
        publisher = Publisher(kafka_client(self._settings))
        hand_over = EventPublisher(self._topic, publisher, codec, self._clock)
        pace = pace_of(rate)
        interrupted = False
        try:
            with progress("publishing", self._source.bytes_total) as bar:
                for line in self._lines(bar):
                    try:
                        event = event_of(
                            self._topic.name,
                            line,
                            shift_ms=shift_ms,
                            embedding_dimensions=self._settings.embedding_dimensions,
                        )
                        key = key_of(event, self._key_field)
                        pace()
                        hand_over(event, key)
                    except InvalidEventError as error:
                        self._rejects.add(line.number, line.data, error)
        except KeyboardInterrupt:
            interrupted = True  # records in flight are still acknowledged; a second Ctrl-C ends that too
        except (OSError, EOFError) as error:
            publisher.flush()
            raise CommandFailedError(
                f"the file cannot be read completely: {error}; "
                f"{counted(publisher.acknowledged, 'event was', 'events were')} published"
            ) from error
        publisher.flush()
        return publisher, interrupted

    def _lines(self, bar: Bar) -> Iterator[Any]:
        from highwater.api.command.lines import decompressed, iter_lines

        for count, line in enumerate(iter_lines(decompressed(self._source.rewound()))):
            if count % _BAR_EVERY_LINES == 0:
                bar.update(self._source.bytes_read())
            yield line


class _Source:
    """Bytes that can be read from their beginning, once or, on request, again."""

    def __init__(self, stream: IO[bytes], bytes_total: int | None, *, seekable: bool) -> None:
        self._stream = stream
        self._seekable = seekable
        self.bytes_total = bytes_total

    def rewound(self) -> IO[bytes]:
        """Return the stream at its beginning."""
        if self._seekable:
            self._stream.seek(0)
        return self._stream

    def bytes_read(self) -> int:
        """Return how far it was read; unknown for a pipe."""
        return self._stream.tell() if self._seekable else 0


@contextmanager
def _source(file: Path, *, rereadable: bool) -> Iterator[_Source]:
    """Yield the file, or standard input; input that cannot be read twice is copied first if necessary."""
    with ExitStack() as resources:
        dash = file == Path("-")
        stream: IO[bytes] = sys.stdin.buffer if dash else resources.enter_context(file.open("rb"))
        status = None if dash else file.stat()
        if status is not None and stat.S_ISREG(status.st_mode):
            yield _Source(stream, status.st_size, seekable=True)
        elif rereadable:
            spool = resources.enter_context(tempfile.TemporaryFile())
            while chunk := stream.read(1 << 20):
                spool.write(chunk)
            yield _Source(spool, spool.tell(), seekable=True)
        else:
            yield _Source(stream, None, seekable=False)


def _target_ms(topic: Topic, rebase_to: str | None, now_ms: int) -> int | None:
    from highwater.api.command.lines import anchor_field
    from highwater.schemas.envelope import ms_from_iso

    if rebase_to is None:
        return None
    context = click.get_current_context()
    if anchor_field(topic.name) is None:
        raise click.UsageError(f"events of {topic.name} carry no time that could be moved", context)
    if rebase_to == "now":
        return now_ms
    try:
        return ms_from_iso(rebase_to)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--rebase-to {rebase_to!r} is neither `now` nor an ISO 8601 time", context) from error


def _key_field(topic: Topic, given: str | None) -> str:
    import json

    from highwater.schemas.avro_files import schema_text

    context = click.get_current_context()
    fields = {field["name"]: field["type"] for field in json.loads(schema_text(topic.schema))["fields"]}
    if given is not None and fields.get(given) not in ("string", ["null", "string"]):
        texts = ", ".join(name for name, kind in fields.items() if kind in ("string", ["null", "string"]))
        raise click.UsageError(f"--key-field {given!r} is not a text field of {topic.name}; there are {texts}", context)
    name = given or topic.key
    if not name:
        raise click.UsageError(f"{topic.name} has no key field and is written only by the system", context)
    return name
