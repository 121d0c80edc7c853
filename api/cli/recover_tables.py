"""`highwater recover-tables`: rebuilds rows that a changelog lost, from the events. Exit 1 if that is not possible.

Invariant: it writes nothing if no changelog lost its beginning, and nothing while a worker runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table, say
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from highwater.connectors.recovery.tables import Recovered
    from highwater.streams.settings import Settings

# A killed worker remains a member for 6 s; one that its supervisor restarts is a member for some seconds, then not for
# up to 30 s. A working one remains.
_LOOK_SECONDS = 0.5
_STOPPED_LOOKS_MAX = 120


@click.command("recover-tables", cls=Command)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Give up after this many seconds (1800).",
)
@click.option(
    "--recreate",
    "is_recreating",
    is_flag=True,
    help="Also delete, create and fill changelogs that have another number of partitions than the topics.",
)
@json_option
def recover_tables(seconds: float | None, is_recreating: bool, as_json: bool) -> None:
    """Rebuild the rows of the worker's tables whose changelogs lost their beginning.

    A worker refuses to decide on such tables. Stop all workers first. The rows are rebuilt from the events, so their topics
    must be complete; if they are not, nothing is changed.
    """
    from highwater.streams.telemetry import configure_logging

    settings = stack_settings("kafka", "schema_registry", "database")
    configure_logging("error", settings.log_format)
    with recorded(settings, "recover-tables", "recreate" if is_recreating else ""):
        found = asyncio.run(run_recovery(settings, seconds=seconds, is_recreating=is_recreating))
    if as_json:
        partitions = [
            {"table": one.table, "partition": one.partition, "log_start": one.log_start, "rows": one.rows}
            for one in found
        ]
        print_json({"recovered": partitions})
        return
    if not found:
        say("every changelog has its beginning or was completed since; nothing to do")
        return
    rows = [(one.table, str(one.partition), f"{one.log_start:,}", f"{one.rows:,}") for one in found]
    print_table(
        ["table", "partition", "begins at", "rows written"], rows, right=["partition", "begins at", "rows written"]
    )


async def _until_stopped(client: Mapping[str, str]) -> None:
    """Wait until no worker is a member: one that refuses its tables is restarted repeatedly, and ends each time."""
    from highwater.connectors.kafka.resetting import live_members
    from highwater.streams.agents import GROUP

    for _ in range(_STOPPED_LOOKS_MAX):
        members = await live_members(client, GROUP)
        if not members:
            return
        await asyncio.sleep(_LOOK_SECONDS)
    raise CommandFailedError(
        f"{counted(members, 'worker runs; stop it', 'workers run; stop them')}, then recover their tables"
    )


async def run_recovery(
    settings: Settings, *, seconds: float | None = None, is_recreating: bool = False
) -> list[Recovered]:
    """Recover the tables of a stack whose workers are stopped.

    Raises:
        CommandFailedError: a worker runs.
    """
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.handler import ProcessContext
    from highwater.connectors.kafka.registry import Registry
    from highwater.connectors.recovery.tables import PART
    from highwater.connectors.recovery.tables import recover_tables as recover
    from highwater.connectors.verify.time_limits import PART_SECONDS_MAX, TimeLimit
    from highwater.streams.clock import ProductClock

    client = kafka_client(settings)
    await _until_stopped(client)
    registry = Registry(settings.registry_access())
    codec = await registry.codec()
    await Admin(client).require_partitions()
    time_limit = TimeLimit(seconds or PART_SECONDS_MAX, unfinished="were not recovered")
    async with database(settings) as pool, time_limit.part(PART):
        context = ProcessContext(pool, client, Admin(client), registry, codec, ProductClock(settings.clock_file))
        return await recover(context, settings, time_limit, is_recreating=is_recreating)
