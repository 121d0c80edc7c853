"""`highwater import openfootball`: imports a season of football into topics.

Invariant: what is published depends only on the file and the options, so an import can be repeated at any time. Matches
are acknowledged before the first result is published: a consumer that reads a result first has to wait for its match.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from highwater.api.command.command import FAILED, INTERRUPTED, Command, CommandFailedError, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.terminal import print_json, progress, say, warn
from highwater.schemas.errors import InvalidEventError
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.connectors.sources.openfootball import Season
    from highwater.streams.settings import Settings

# Bad entries are printed one by one up to this many, so that they do not scroll important lines away.
FAULTS_SHOWN = 5
# A season is a tenth of a megabyte; a file is read completely, and one that unpacks to more than this is something
# else.
FILE_BYTES_MAX = 64 << 20
_BAR_EVERY_EVENTS = 100


@dataclass(slots=True)
class Published:
    """The acknowledged records, by topic, with the last position of each partition."""

    counts: dict[str, int] = field(default_factory=dict)
    positions: list[str] = field(default_factory=list)
    is_interrupted: bool = False


@click.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--season", required=True, metavar="ID", help="The season's id, for example 2018-19_en.1.")
@click.option(
    "--as-of", metavar="TIME", help="Do not publish results of matches that ended after this time (ISO 8601)."
)
@click.option(
    "--timezone", default="UTC", show_default=True, metavar="NAME", help="Time zone of the file's local times."
)
@json_option
def openfootball(file: Path, season: str, as_of: str | None, timezone: str, as_json: bool) -> None:
    """Publish a season of openfootball (FILE, JSON, `-` for standard input, gzip read).

    Every match goes to league.match-scheduled, every result to league.match-finalized. A bad entry is reported with its
    number and skipped, and the exit status is then 1. Importing a file twice changes nothing.
    """
    from highwater.connectors.sources.openfootball import parse_season

    _check_season(season)
    zone, as_of_ms = _zone(timezone), _as_of_ms(as_of)
    try:
        found = parse_season(_read(file), season, zone=zone, as_of_ms=as_of_ms)
    except InvalidEventError as error:
        raise CommandFailedError(f"{file}: {error}") from error
    published = publish_season(stack_settings("kafka", "schema_registry"), found)
    _report(found)
    _conclude(season, found, published, as_json=as_json)


def publish_season(settings: Settings, season: Season) -> Published:
    """Publish every match, and once those are acknowledged every result.

    Raises:
        CommandFailedError: the topics are not on the broker.
        UnavailableError: Kafka or the registry became unavailable; publishing the season again does not change what is
            stored.
    """
    from highwater.api.command.publishing import codec_of
    from highwater.connectors.sources.openfootball import FINALIZED, SCHEDULED

    codec = asyncio.run(codec_of(settings, (SCHEDULED, FINALIZED)))
    published = Published()
    for name, events in ((SCHEDULED, season.schedule()), (FINALIZED, season.results())):
        if published.is_interrupted:
            break
        _publish(settings, codec, name, [event for _, event in events], published)
    return published


def _publish(
    settings: Settings, codec: Any, name: str, events: Sequence[Mapping[str, Any]], published: Published
) -> None:
    """Publish one topic's events and wait for the acknowledgements, even after Ctrl-C."""
    from highwater.api.command.publishing import EventPublisher, Publisher
    from highwater.schemas.topics import TOPICS
    from highwater.streams.clock import ProductClock

    topic = TOPICS[name]
    publisher = Publisher(kafka_client(settings))
    hand_over = EventPublisher(topic, publisher, codec, ProductClock(settings.clock_file))
    try:
        with progress(f"publishing {name}", len(events)) as bar:
            for done, event in enumerate(events):
                if done % _BAR_EVERY_EVENTS == 0:
                    bar.update(done)
                hand_over(event, event[topic.key])
    except KeyboardInterrupt:
        published.is_interrupted = True  # records in flight are still acknowledged; a second Ctrl-C ends that too
    publisher.flush()
    published.counts[name] = publisher.acknowledged
    published.positions += publisher.positions().values()


def _report(found: Season) -> None:
    """Print the bad entries and the repeated ones."""
    for number, why in found.faults[:FAULTS_SHOWN]:
        warn(f"match {number}: {why}")
    if len(found.faults) > FAULTS_SHOWN:
        warn(f"… and {counted(len(found.faults) - FAULTS_SHOWN, 'more bad match', 'more bad matches')}")
    if found.repeated:
        others = f" and {len(found.repeated) - 1:,} more" if len(found.repeated) > 1 else ""
        warn(
            f"match {found.repeated[0]}{others} repeats an earlier one with the same teams and round; the last one counts"
        )
    for number, why in found.left_out[:FAULTS_SHOWN]:
        warn(f"match {number}: {why}")
    if len(found.left_out) > FAULTS_SHOWN:
        warn(
            f"… and {counted(len(found.left_out) - FAULTS_SHOWN, 'more match', 'more matches')} without a part of its score"
        )


def _conclude(season: str, found: Season, published: Published, *, as_json: bool) -> None:
    from highwater.connectors.sources.openfootball import FINALIZED, SCHEDULED

    scheduled, finalized = (published.counts.get(name, 0) for name in (SCHEDULED, FINALIZED))
    rejected = len(found.faults)
    if as_json:
        print_json(
            {
                "season": season,
                "matches": found.entries,
                "scheduled": scheduled,
                "finalized": finalized,
                "rejected": rejected,
                "positions": published.positions,
            }
        )
    elif published.is_interrupted:
        warn(f"interrupted: {counted(scheduled, 'match', 'matches')} and {counted(finalized, 'result')} were published")
    else:
        rejections = f", {rejected:,} rejected" if rejected else ""
        say(f"imported {season}: {counted(scheduled, 'match', 'matches')}, {counted(finalized, 'result')}{rejections}")
        for position in published.positions:
            say(f"  {position}")
    if published.is_interrupted:
        click.get_current_context().exit(INTERRUPTED)
    if rejected:
        click.get_current_context().exit(FAILED)


def _read(file: Path) -> bytes:
    """Return the file, unpacked.

    Raises:
        CommandFailedError: it cannot be read, or is larger than any season.
    """
    from highwater.api.command.lines import decompressed

    def unpacked(stream: IO[bytes]) -> bytes:
        return decompressed(stream).read(FILE_BYTES_MAX + 1)

    try:
        if file == Path("-"):
            data = unpacked(sys.stdin.buffer)
        else:
            with file.open("rb") as stream:
                data = unpacked(stream)
    except (OSError, EOFError, zlib.error) as error:
        raise CommandFailedError(f"{file} cannot be read completely: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise CommandFailedError(
            f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB; a season of openfootball is smaller"
        )
    return data


def _check_season(season: str) -> None:
    from highwater.streams.checks import check_name
    from highwater.streams.league.validation import NAME_BYTES_MAX

    try:
        check_name("season", season, NAME_BYTES_MAX)
    except InvalidEventError as error:
        raise click.UsageError(f"--season: {error}", click.get_current_context()) from error


def _zone(name: str) -> tzinfo:
    """Return the zone with that name. UTC needs no database of zones, which a small image may lack."""
    import zoneinfo

    if name.upper() == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise click.UsageError(
            f"--timezone {name!r} is not a time zone such as Europe/London", click.get_current_context()
        ) from error


def _as_of_ms(value: str | None) -> int | None:
    from highwater.schemas.envelope import ms_from_iso

    try:
        return None if value is None else ms_from_iso(value)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--as-of {value!r} is not an ISO 8601 time", click.get_current_context()) from error
