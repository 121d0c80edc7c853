"""`highwater backup` and `highwater restore`: store what only the database holds, and restore it together with the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import Command, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, say, warn
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.connectors.backup.catching_up import Restored
    from highwater.connectors.backup.manifest import Manifest
    from highwater.connectors.kafka.handler import ProcessContext
    from highwater.streams.settings import Settings

# Ten million events at the 5,000 per second that the sinks store on two cores.
_SECONDS = 3_600.0


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@json_option
def backup(folder: Path, as_json: bool) -> None:
    """Write a backup of the database and of the registry's schemas to DIR.

    Roles may keep running: the database is read in one snapshot with its log positions. The log itself is
    kept by Kafka. DIR then holds everything that users stored: protect it as you protect the database.
    """
    settings = stack_settings("kafka", "schema_registry", "database")
    with recorded(settings, "backup", str(folder.absolute())):
        manifest = asyncio.run(_back_up(settings, folder))
    rows, size = sum(one["rows"] for one in manifest["tables"]), sum(one["file"]["bytes"] for one in manifest["tables"])
    if as_json:
        print_json(
            {
                "folder": str(folder), "taken_at": manifest["taken_at"], "tables": len(manifest["tables"]), "rows": rows,
                "bytes": size, "schemas": len(manifest["registry"]), "blobs": manifest["blobs"],
            }
        )  # fmt: skip
        return
    say(
        f"{folder}: {counted(rows, 'row')} of {counted(len(manifest['tables']), 'table')}, "
        f"{counted(manifest['blobs']['count'], 'blob')}, "
        f"{len(manifest['registry'])} schemas, {size:,} bytes; taken at {manifest['taken_at']}"
    )


@click.command(cls=Command)
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--from-log", "is_from_log", is_flag=True, help="Rebuild the database from the log alone, without a backup."
)
@click.option("--force", "is_forced", is_flag=True, help="Replace everything in the database.")
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=_SECONDS,
    help=f"Give up after this many seconds ({_SECONDS:.0f}); the database is then unusable until a restore completes.",
)
@json_option
def restore(folder: Path | None, is_from_log: bool, is_forced: bool, seconds: float, as_json: bool) -> None:
    """Restore the database from DIR, or with --from-log from the log alone, up to the end of the log.

    Every role must be stopped, the API too. Results that the log has (charges, alerts, ends of runs and jobs, versions) are
    restored from it, so nothing is paid or sent again; users who were erased after the backup are erased. Then start the roles;
    `highwater verify` compares the database with the log.
    """
    if (folder is None) != is_from_log:
        raise click.UsageError("name a backup's DIR, or --from-log", click.get_current_context())
    from highwater.streams.telemetry import configure_logging

    settings = stack_settings("kafka", "schema_registry", "database")
    # Sinks log what they refuse, as they did when it was new.
    configure_logging("error", settings.log_format)
    note: Callable[[str], None] = _ignore if as_json else warn
    schemas = 0 if folder is None else asyncio.run(_restore_schemas(settings, folder))
    with recorded(settings, "restore", "--from-log" if folder is None else str(folder.absolute())):
        found = asyncio.run(run_restore(settings, folder, note, is_forced=is_forced, seconds=seconds))
    if as_json:
        print_json(
            {
                "taken_at": found.taken_at, "rows": found.rows, "schemas_registered": schemas, "events": found.events,
                "versions_renewed": found.renewed, "loaded": found.counts,
            }
        )  # fmt: skip
        return
    loaded = ", ".join(f"{count:,} {what}" for what, count in found.counts.items() if count) or "nothing"
    begun = "from the log alone" if found.taken_at is None else f"{found.rows:,} rows of a backup of {found.taken_at}"
    say(
        f"restored: {begun}; {counted(found.events, 'event')} of the log replayed; taken over from it: {loaded}; "
        f"{counted(found.renewed, 'version')} renewed. Start the roles, then run `highwater verify`"
    )


def _ignore(_text: str) -> None:
    """Do nothing: the output is for a program."""


async def _back_up(settings: Settings, folder: Path) -> Manifest:
    from highwater.connectors.backup.taking import back_up

    async with database(settings) as pool:
        return await back_up(await _context(settings, pool), settings, folder, _product())


async def run_restore(
    settings: Settings, folder: Path | None, say: Callable[[str], None], *, is_forced: bool, seconds: float
) -> Restored:
    """Restore from a folder, or from the log alone (None), with the services of the settings."""
    from highwater.connectors.backup.restoring import Restore
    from highwater.connectors.postgres.pool import open_pool
    from highwater.connectors.verify.time_limits import TimeLimit

    # A sink prepares on one connection and stores on another, while a third reads what waits.
    async with await open_pool(settings.database, size_max=4, admit=None) as pool:
        context = await _context(settings, pool)
        return await Restore(context, settings, TimeLimit(seconds, unfinished="did not end"), say).run(
            folder, is_forced=is_forced
        )


async def _restore_schemas(settings: Settings, folder: Path) -> int:
    from highwater.connectors.backup.restoring import checked_manifest, restore_schemas
    from highwater.connectors.kafka.registry import Registry

    return await restore_schemas(Registry(settings.registry_access()), checked_manifest(folder))


async def _context(settings: Settings, pool: object) -> ProcessContext:
    import asyncpg

    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.handler import ProcessContext
    from highwater.connectors.kafka.registry import Registry
    from highwater.streams.clock import ProductClock

    assert isinstance(pool, asyncpg.Pool)
    client = kafka_client(settings)
    registry = Registry(settings.registry_access())
    return ProcessContext(
        pool, client, Admin(client), registry, await registry.codec(), ProductClock(settings.clock_file)
    )


def _product() -> str:
    from importlib.metadata import version

    return version("highwater")
