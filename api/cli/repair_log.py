"""`highwater repair-log`: repairs partitions whose log lost its tail. Without `--execute` it only says what it would do.

Invariant: it changes nothing if no partition lost its tail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import Command, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table, say
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highwater.connectors.repair.repairing import Plan, Repaired
    from highwater.streams.settings import Settings

_AFTERWARDS = """\
The positions of lost records answer 410 from now on; recreated records have new ones, and a header `republished_from`.
Consumers continue within a second. `highwater verify` compares the state with the log."""


@click.command("repair-log", cls=Command)
@click.option("--execute", is_flag=True, help="Repair; without it, only show what would be done.")
@json_option
def repair_log(execute: bool, as_json: bool) -> None:
    """Repair partitions whose log lost its tail.

    Kafka loses its latest records if a single broker loses power, or if a replica that is behind becomes the leader. Highwater
    then stops these partitions. The repair fills each one up to the last position that was read, so that no position is given
    twice, and publishes again what the state still has.
    """
    from highwater.streams.telemetry import configure_logging

    settings = stack_settings("kafka", "schema_registry", "database")
    configure_logging("error", settings.log_format)
    if not execute:
        plans, _ = asyncio.run(run_repair(settings, is_executed=False))
        _show(plans, as_json=as_json)
        if plans and not as_json:
            say("Nothing was changed; --execute repairs these partitions.")
        return
    with recorded(settings, "repair-log", ""):
        plans, repaired = asyncio.run(run_repair(settings, is_executed=True))
    if as_json:
        print_json([one.document() for one in repaired])
        return
    _show(plans, as_json=False)
    for one in repaired:
        place = f"{one.plan.loss.topic}/{one.plan.loss.partition}"
        say(f"{place}: filled up to offset {one.filled_to}, {counted(len(one.moved), 'record')} at new positions")
    if repaired:
        say(_AFTERWARDS)


def _show(plans: Sequence[Plan], *, as_json: bool) -> None:
    if as_json:
        print_json([plan.document() for plan in plans])
        return
    if not plans:
        say("no partition lost its tail; nothing to do")
        return
    rows = [
        (
            f"{plan.loss.topic}/{plan.loss.partition}",
            f"{plan.loss.end_offset} to {plan.given - 1}",
            f"{plan.lost:,}",
            f"{len(plan.remade):,}",
            f"{len(plan.standing):,}",
        )
        for plan in plans
    ]
    columns = ["partition", "lost offsets", "lost", "recreated", "written there since"]
    print_table(columns, rows, right=columns[2:])
    for topic in dict.fromkeys(plan.loss.topic for plan in plans):
        left_out = next(plan.left_out for plan in plans if plan.loss.topic == topic)
        say(f"{topic}, cannot be recreated: {left_out}")
    for plan in plans:
        for record in plan.standing:
            say(f"{record.position} was written where a lost record stood; it is published again at a new position")


async def run_repair(settings: Settings, *, is_executed: bool) -> tuple[list[Plan], list[Repaired]]:
    """Plan the repair of every partition that lost its tail, and execute it.

    Raises:
        UnavailableError: Kafka or PostgreSQL does not answer; repeat it.
    """
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.handler import ProcessContext
    from highwater.connectors.kafka.registry import Registry
    from highwater.connectors.repair.repairing import plan_repairs, repair
    from highwater.connectors.slices import REMAKES
    from highwater.streams.clock import ProductClock

    client = kafka_client(settings)
    registry = Registry(settings.registry_access())
    codec = await registry.codec()
    await Admin(client).require_partitions()
    async with database(settings) as pool:
        context = ProcessContext(pool, client, Admin(client), registry, codec, ProductClock(settings.clock_file))
        plans = await plan_repairs(context, REMAKES)
        return plans, [await repair(context, REMAKES, plan) for plan in plans] if is_executed else []
