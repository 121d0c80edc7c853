"""`highwater lag`: shows the lag of every consumer, in events and in seconds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from highwater.api.command.command import Command, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table

if TYPE_CHECKING:
    from highwater.connectors.kafka.groups import GroupLag
    from highwater.streams.settings import Settings


@click.command(cls=Command)
@click.option("--partitions", is_flag=True, help="Show one line per partition.")
@json_option
def lag(partitions: bool, as_json: bool) -> None:
    """Show the lag of every consumer."""
    found = asyncio.run(gather_lags(stack_settings("kafka", "database")))
    if as_json:
        print_json([group.document() for group in found])
        return
    if partitions:
        rows = [
            (g.group, s.topic, s.partition, "-" if s.next is None else s.next, s.range.high, s.events)
            for g in found
            for s in g.standings
        ]
        columns = ["group", "topic", "partition", "next", "end", "events"]
        print_table(columns, rows, right=["partition", "next", "end", "events"])
        return
    summary = [
        (g.group, f"{g.events:,}", "-" if g.seconds is None else f"{g.seconds:,.1f}", g.problem or "") for g in found
    ]
    print_table(["group", "events behind", "seconds behind", ""], summary, right=["events behind", "seconds behind"])


async def gather_lags(settings: Settings) -> list[GroupLag]:
    """Return the lag of every consumer."""
    from highwater.connectors.kafka.groups import lags

    async with database(settings) as pool:
        return await lags(kafka_client(settings), pool)
