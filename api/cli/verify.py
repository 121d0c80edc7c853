"""`highwater verify`: checks whether the stored state and the decisions follow from the log. Exit 1 on a difference.

Invariant: it changes nothing live. It reads the log outside any group, and its sinks write to a separate database.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from highwater.api.command.command import DONE, FAILED, Command, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table, say, warn
from highwater.streams.printable import printable
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.connectors.verify.report import Report
    from highwater.streams.settings import Settings

_PARTS = ("tables", "models", "decisions", "effects")


@click.command(cls=Command)
@click.option(
    "--only",
    "parts",
    multiple=True,
    type=click.Choice(_PARTS),
    help="Only this part (may be repeated): tables of the agents, read models, decisions, effects.",
)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Give up on a part after this many seconds (1800).",
)
@click.option("--excluded", "shows_excluded", is_flag=True, help="Explain what is not compared, and why.")
@json_option
@click.pass_context
def verify(
    ctx: click.Context, parts: tuple[str, ...], seconds: float | None, shows_excluded: bool, as_json: bool
) -> None:
    """Compare what is stored and decided with the log.

    Read models are rebuilt in a separate database, highwater_verify, which the role of DATABASE_URL must be allowed to create;
    it is dropped at the end. Nothing live is changed.
    """
    from highwater.streams.telemetry import configure_logging

    settings = stack_settings("kafka", "schema_registry", "database")
    # Sinks and agents log what they refuse, as they did when it was new.
    configure_logging("error", settings.log_format)
    found = asyncio.run(run_verification(settings, parts or _PARTS, is_quiet=as_json, seconds=seconds))
    if as_json:
        print_json(found.as_json())
    else:
        _print(found, shows_excluded=shows_excluded)
    ctx.exit(FAILED if found.differences else DONE)


async def run_verification(
    settings: Settings, parts: tuple[str, ...], *, is_quiet: bool, seconds: float | None = None
) -> Report:
    """Verify these parts on the running stack."""
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.handler import ProcessContext
    from highwater.connectors.kafka.registry import Registry
    from highwater.connectors.verify.run import verify as run
    from highwater.connectors.verify.time_limits import PART_SECONDS_MAX, TimeLimit
    from highwater.streams.clock import ProductClock

    client = kafka_client(settings)
    registry = Registry(settings.registry_access())
    codec = await registry.codec()
    await Admin(client).require_partitions()
    async with database(settings) as pool:
        clock = ProductClock(settings.clock_file)
        context = ProcessContext(pool, client, Admin(client), registry, codec, clock)
        time_limit = TimeLimit(seconds or PART_SECONDS_MAX)
        return await run(context, settings, parts=parts, say=_ignore if is_quiet else _say, time_limit=time_limit)


def _say(part: str) -> None:
    warn(f"verifying {part}")


def _ignore(_part: str) -> None:
    """Do nothing: the output is for a program."""


def _print(found: Report, *, shows_excluded: bool) -> None:
    rows = [
        (
            one.part,
            one.name,
            f"{one.compared:,}",
            f"{one.differences_count:,}",
            f"{sum(one.left_out.values()):,}",
            f"{one.moved:,}",
            one.skipped or "",
        )
        for one in found.checked
    ]
    numbers = ["compared", "differ", "left open", "moving"]
    print_table(["part", "of", *numbers, ""], rows, right=numbers)
    for checked, one in found.listed():
        shown = one.as_json()
        at = "" if one.position is None else f" (starts at {one.position})"
        say(
            printable(
                f"{checked.part} {checked.name} {one.key}: {one.field} is {shown['found']}, "
                f"the log says {shown['expected']}{at}"
            )
        )
    for checked in found.checked:
        for why, count in checked.left_out.items():
            say(printable(f"left open, {checked.name}: {count:,} {why}"))
    for name, fields in found.excluded.items():
        if shows_excluded:
            for what, why in fields.items():
                say(f"not compared, {name}: {what}: {why}")
        else:
            say(f"not compared, {name}: {'; '.join(fields)}")
    say(f"{found.compared:,} compared, {counted(found.differences, 'difference')}")
