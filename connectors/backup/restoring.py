"""`highwater restore`: turns a backup and the log, or the log alone, into a database from which roles can continue.

Invariant: everything is checked before anything is changed. From then on a row in `restore_progress` keeps `connect`
from working on the database until the restore has ended; an interrupted one is repeated with `--force`. The steps:

1. the rows of the backup, by the migrations that it names, then the newer migrations;
2. numbers above those of the log (`results.raise_numbers`);
3. the sinks from the backup's positions to the log's ends (`replaying.py`), erasures among them;
4. results of the log: jobs, runs, charges, alerts, rebuilds; then controls of runs and uses of tokens, which depend on
   them;
5. versions above those that were published (`versions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from highwater.connectors.alerts.opening import open_channels
from highwater.connectors.backup.manifest import (
    BackupError,
    Manifest,
    check_files,
    check_migrations,
    places_ahead,
    read_manifest,
)
from highwater.connectors.backup.recorded import read_results
from highwater.connectors.backup.replaying import FIRST, NEXT, THEN, Replay
from highwater.connectors.backup.results import Results
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.backup.tables import copy_in
from highwater.connectors.backup.taking import own_connection
from highwater.connectors.backup.versions import renew_versions
from highwater.connectors.kafka.admin import LogRange
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.records import Record
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.migrate import known_migrations, migrate
from highwater.connectors.postgres.pool import reading, transaction
from highwater.connectors.verify.log import read_in_order
from highwater.connectors.verify.notes import notes_on_disk
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.topics import TOPICS, all_topics
from highwater.streams.clock import to_datetime
from highwater.streams.settings import Settings

# Other connections that are allowed while a database is replaced: read-only commands.
_LOOKERS = frozenset({"highwater backup", "highwater verify"})
# Not results: ticks are the clock, and the other two record actions of people.
_NO_RESULTS = frozenset({"streams.tick", "streams.dead-letter-handled", "security.action-recorded"})


@dataclass(slots=True)
class Restored:
    """The outcome of a restore. `counts`: what was loaded from the log; `taken_at`: of the backup, None from the log alone."""

    taken_at: str | None
    rows: int = 0
    events: int = 0
    renewed: int = 0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogNow:
    """The catalogue's topics as the broker has them now."""

    topic_ids: Mapping[str, str]
    ranges: Mapping[Place, LogRange]

    def of(self, topics: Collection[str]) -> dict[Place, LogRange]:
        """Return the partitions of some topics."""
        return {place: found for place, found in self.ranges.items() if place[0] in topics}


async def log_now(context: ProcessContext) -> LogNow:
    """Query the broker.

    Raises:
        UnavailableError: it does not answer.
    """
    counts = await context.admin.partition_counts()
    names = sorted(topic.name for topic in all_topics() if topic.name in counts)
    places = [(name, partition) for name in names for partition in range(counts[name])]
    return LogNow(await context.admin.topic_ids(names), await context.admin.log_ranges(places))


def result_topics() -> list[str]:
    """Return the topics that report results, and those of dead letters."""
    own = [topic.name for topic in TOPICS.values() if not topic.outsider and topic.name not in _NO_RESULTS]
    return own + [topic.dead_letter for topic in TOPICS.values()]


def checked_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder with a complete backup that this version can restore.

    Raises:
        BackupError: the folder has none.
    """
    manifest = read_manifest(folder)
    check_migrations(manifest, known_migrations())
    check_files(folder, manifest)
    return manifest


async def restore_schemas(registry: Registry, manifest: Manifest) -> int:
    """Register the schemas under the ids that the log's records carry; return how many were missing.

    This comes first: the records of a restore need a schema as well.

    Raises:
        BackupError: the registry has, or assigned, another id for one of them.
    """
    registered = 0
    for one in manifest["registry"]:
        topic = TOPICS.get(one["topic"])
        if topic is None:
            continue
        if one["schema_id"] in {schema_id for _, schema_id, _ in await registry.versions_of(topic)}:
            continue
        given = await registry.register_text(topic, one["schema"])
        registered += 1
        if given != one["schema_id"]:
            raise BackupError(
                f"the registry has {topic.subject} under id {given}, records of the log carry {one['schema_id']}: "
                "this is another registry, restore the data of the one that the log was written with; nothing was changed"
            )
    return registered


class Restore:
    """One restore, from a backup's folder or from the log alone (`folder` None)."""

    def __init__(
        self, context: ProcessContext, settings: Settings, time_limit: TimeLimit, say: Callable[[str], None]
    ) -> None:
        self._context = context
        self._settings = settings
        self._time_limit = time_limit
        self._say = say

    async def run(self, folder: Path | None, *, is_forced: bool) -> Restored:
        """Check, then restore.

        Raises:
            BackupError: the backup, the log or the database does not meet the conditions; nothing was changed.
            UnavailableError: a service does not answer, or the time has run out.
        """
        async with self._time_limit.part("the restore"):
            self._say("checking")
            manifest = None if folder is None else checked_manifest(folder)
            log = await log_now(self._context)
            starts = _starts(manifest, log)
            found = Restored(None if manifest is None else manifest["taken_at"])
            async with own_connection(self._settings, "highwater restore") as connection:
                await self._check_target(connection, is_forced=is_forced)
                await self._fill(connection, folder, manifest, found)
            await self._catch_up(log, starts, found)
            await self._context.pool.execute(QUERIES["end_restore"])
        return found

    # -- checks ----------------------------------------------------------------------------------------------------------

    async def _check_target(self, connection: Any, *, is_forced: bool) -> None:
        async with reading(self._context.pool) as own:
            rows = await connection.fetch(QUERIES["other_sessions"], [own.get_server_pid()])
        others = [row for row in rows if row["application_name"] not in _LOOKERS]
        if others:
            named = ", ".join(f"{row['count']} of {row['application_name'] or 'an unnamed program'}" for row in others)
            raise BackupError(
                f"the database is in use ({named} connected): stop every role, API included, then restore"
            )
        is_made = await connection.fetchval(QUERIES["has_positions"])
        if not is_forced and is_made and await connection.fetchval(QUERIES["is_read_into"]):
            raise BackupError("the database is not empty; --force replaces its content")

    # -- the backup ------------------------------------------------------------------------------------------------------

    async def _fill(self, connection: Any, folder: Path | None, manifest: Manifest | None, found: Restored) -> None:
        source = "the log" if manifest is None else f"a backup of {manifest['taken_at']}"
        self._say(f"filling the database from {source}" if manifest else "making an empty database")
        await connection.execute(QUERIES["drop_own"])
        names = None if manifest is None else [name for name, _ in manifest["migrations"]]
        await migrate(self._context.pool, names)
        now = to_datetime(self._context.clock())
        await connection.execute(QUERIES["begin_restore"], now, source)
        if manifest is not None and folder is not None:
            async with connection.transaction():
                found.rows = await copy_in(connection, folder, manifest["tables"], manifest["sequences"])
            await migrate(self._context.pool)

    # -- the log ---------------------------------------------------------------------------------------------------------

    async def _catch_up(self, log: LogNow, starts: Mapping[Place, int], found: Restored) -> None:
        context, now_ms = self._context, self._context.clock()
        self._say("reading what the log has as a result")
        with notes_on_disk() as notes:
            spans = {
                place: LogRange(max(span.low, starts.get(place, span.low)), span.high)
                for place, span in log.of(result_topics()).items()
            }
            told = await read_results(context, spans, notes, self._time_limit)
            results = Results(told, context.codec, now_ms)
            async with transaction(context.pool) as tx:
                await results.raise_numbers(tx)
            async with AsyncExitStack() as resources:
                replay = Replay(context, self._settings, told, self._time_limit)
                await replay.open(resources)
                self._say("replaying the sinks")
                await self._replay(replay, FIRST, log)
                await self._replay(replay, NEXT, log)
                channels = [channel.name for channel in open_channels(self._settings, context.clock)]
                async with transaction(context.pool) as tx:
                    await results.load_jobs(tx)
                    await results.load_runs(tx)
                    await results.load_charges(tx)
                    await results.load_alerts(tx, channels)
                    await results.load_ingests(tx)
                await self._replay_controls(replay, results, log)
                await self._replay(replay, THEN[1:], log)
            async with transaction(context.pool) as tx:
                await results.load_rebuilds(tx)
                found.renewed = await renew_versions(tx, context.codec, told, replay.bumped, now_ms)
            found.events, found.counts = replay.events, results.loaded.counts

    async def _replay_controls(self, replay: Replay, results: Results, log: LogNow) -> None:
        """Replay controls one by one: the outcome of a run that one restarted must be known before the next is applied."""
        (name, *_) = THEN
        spans = await self._spans(replay, (name,), log)
        async for record in read_in_order(self._context.client, spans, self._time_limit):
            await replay.run((name,), _only(record), log.topic_ids)
            async with transaction(self._context.pool) as tx:
                await results.load_runs(tx)

    async def _replay(self, replay: Replay, names: Sequence[str], log: LogNow) -> None:
        spans = await self._spans(replay, names, log)
        if names == NEXT:
            # Plans are read too; their own sink continues from its position.
            spans |= await self._spans_of("organizations", ("jobs.plan-changed",), log)
        await replay.run(names, read_in_order(self._context.client, spans, self._time_limit), log.topic_ids)

    async def _spans(self, replay: Replay, names: Sequence[str], log: LogNow) -> dict[Place, LogRange]:
        found: dict[Place, LogRange] = {}
        for name in names:
            found |= await self._spans_of(name, replay.topics_of(name), log)
        return found

    async def _spans_of(self, group: str, topics: Sequence[str], log: LogNow) -> dict[Place, LogRange]:
        """Return the offsets from a group's positions to the ends; a partition that an operator has to resume is skipped."""
        async with transaction(self._context.pool) as tx:
            rows = [row for row in await tx.fetch(QUERIES["backup_positions"]) if row["group"] == group]
            stopped = {
                (r["topic"], r["partition"]) for r in await tx.fetch(QUERIES["stopped_places"]) if r["group"] == group
            }
        next_ = {(row["topic"], row["partition"]): row["next"] for row in rows}
        return {
            place: replace(span, low=max(span.low, next_.get(place, span.low)))
            for place, span in log.of(topics).items()
            if place not in stopped
        }


async def _only(record: Record) -> Any:
    yield record


def _starts(manifest: Manifest | None, log: LogNow) -> dict[Place, int]:
    """Return from where the log is read for results.

    Raises:
        BackupError: the log does not hold what follows the backup, or has lost its beginning.
    """
    if manifest is None:
        gone = sorted({topic for (topic, _), span in log.ranges.items() if span.low > 0 and topic not in _NO_RESULTS})
        if gone:
            raise BackupError(
                f"the log of {', '.join(gone)} no longer has its beginning; restore a backup that covers it"
            )
        return {}
    held = {place: (span.low, span.high) for place, span in log.ranges.items()}
    ahead = places_ahead(manifest, log.topic_ids, held)
    if ahead:
        raise BackupError(f"the backup does not fit this log: {ahead[0].why} ({ahead[0].position})")
    ends = {
        (topic, partition): end for topic, at in manifest["topics"].items() for partition, end in enumerate(at["ends"])
    }
    for (topic, partition), end in sorted(ends.items()):
        span = log.ranges.get((topic, partition))
        if topic in _NO_RESULTS or topic.endswith(".dlq") or not end:
            continue
        if span is None or span.high < end:
            at = "is not on the broker" if span is None else f"ends at {span.high}"
            raise BackupError(f"the backup does not fit this log: {topic}/{partition} had {end} records, it {at}")
        if span.low > end:
            raise BackupError(
                f"the log of {topic}/{partition} begins at {span.low}: events after the backup were removed"
            )
    return ends
