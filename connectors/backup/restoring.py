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

from collections.abc import Callable
from pathlib import Path
from typing import Any

from highwater.connectors.backup.catching_up import NO_RESULTS, CatchUp, LogNow, Restored, log_now
from highwater.connectors.backup.manifest import (
    BackupError,
    Manifest,
    check_files,
    check_migrations,
    places_ahead,
    read_manifest,
)
from highwater.connectors.backup.statements import QUERIES
from highwater.connectors.backup.tables import copy_in
from highwater.connectors.backup.taking import own_connection
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.positions import Place
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.migrate import known_migrations, migrate
from highwater.connectors.postgres.pool import reading
from highwater.connectors.verify.time_limits import TimeLimit
from highwater.schemas.topics import TOPICS
from highwater.streams.clock import to_datetime
from highwater.streams.settings import Settings

# Other connections that are allowed while a database is replaced: read-only commands.
_LOOKERS = frozenset({"highwater backup", "highwater verify"})


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
            await CatchUp(self._context, self._settings, self._time_limit, self._say).run(log, starts, found)
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


def _starts(manifest: Manifest | None, log: LogNow) -> dict[Place, int]:
    """Return from where the log is read for results.

    Raises:
        BackupError: the log does not hold what follows the backup, or has lost its beginning.
    """
    if manifest is None:
        gone = sorted({topic for (topic, _), span in log.ranges.items() if span.low > 0 and topic not in NO_RESULTS})
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
        if topic in NO_RESULTS or topic.endswith(".dlq") or not end:
            continue
        if span is None or span.high < end:
            at = "is not on the broker" if span is None else f"ends at {span.high}"
            raise BackupError(f"the backup does not fit this log: {topic}/{partition} had {end} records, it {at}")
        if span.low > end:
            raise BackupError(
                f"the log of {topic}/{partition} begins at {span.low}: events after the backup were removed"
            )
    return ends
