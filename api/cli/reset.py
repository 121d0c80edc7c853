"""`highwater reset`: sets the position that a group reads from next. A dry run without `--execute`.

`connectors/kafka/resetting.py` decides what changes and when it is refused, as for the API.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table, say
from highwater.schemas.envelope import iso_from_ms

if TYPE_CHECKING:
    from highwater.connectors.kafka.resetting import Chosen, ResetPlan, Target
    from highwater.streams.settings import Settings


@click.command(cls=Command)
@click.argument("group")
@click.option(
    "--to",
    "to",
    required=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="Where to continue reading; TIME is ISO 8601, or an age such as -1h.",
)
@click.option("--topic", "topics", multiple=True, help="Only this topic (may be repeated).")
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one (may be repeated)."
)
@click.option("--execute/--dry-run", default=False, help="Apply the reset, or only show it (the default).")
@json_option
def reset(
    group: str, to: str, topics: tuple[str, ...], partitions: tuple[int, ...], execute: bool, as_json: bool
) -> None:
    """Set the position that GROUP reads from next.

    Stop its members first, unless GROUP has stopped every given partition because of bad events: such a partition
    resumes at the new offset. GROUP may also be a consumer group of another application.
    """
    from highwater.connectors.kafka.resetting import Chosen, parse_target
    from highwater.streams.clock import ProductClock

    try:
        target = parse_target(to, ProductClock()())
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{to!r} is neither earliest, latest, an offset nor a time", click.get_current_context(), param_hint="--to"
        ) from error
    settings = stack_settings("kafka", "database", *(["schema_registry"] if execute else []))
    if partitions and len(topics) != 1:
        raise click.UsageError("--partition needs exactly one --topic", click.get_current_context())
    chosen = Chosen(topics, partitions)
    named = " ".join([group, *topics, *map(str, partitions), "to", to])
    with recorded(settings, "reset", named) if execute else nullcontext():
        plan = asyncio.run(_reset(settings, group, target, chosen, execute=execute))
    if as_json:
        rows = [{"topic": s.topic, "partition": s.partition, "before": s.before, "after": s.after} for s in plan.steps]
        print_json({"group": group, "executed": execute, "live_members": plan.members, "partitions": rows})
        return
    shown = [(s.topic, s.partition, "-" if s.before is None else s.before, s.after) for s in plan.steps]
    print_table(["topic", "partition", "now", "then"], shown, right=["partition", "now", "then"])
    when = f" (records from {iso_from_ms(target.value)} on)" if target.kind == "time" else ""
    if execute:
        say(f"{group} continues from there{when}")
    else:
        hint = f"; stop its live members ({plan.members}) first" if plan.members else ""
        say(f"dry run{when}: nothing was changed; --execute applies it{hint}")


async def _reset(settings: Settings, group: str, target: Target, chosen: Chosen, *, execute: bool) -> ResetPlan:
    """Plan, and apply."""
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.resetting import (
        GroupRunningError,
        NoSuchGroupError,
        NotReadError,
        OffsetsRefusedError,
        apply_reset,
        plan_reset,
    )

    client = kafka_client(settings)
    async with database(settings) as pool:
        try:
            plan = await plan_reset(Admin(client), client, pool, group, target, chosen)
        except (NoSuchGroupError, NotReadError) as error:
            raise click.UsageError(str(error), click.get_current_context(silent=True)) from error
        if execute:
            try:
                await apply_reset(client, pool, plan)
            except (GroupRunningError, NotReadError, OffsetsRefusedError) as error:
                raise CommandFailedError(str(error)) from error
    return plan
