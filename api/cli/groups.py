"""`highwater groups`: lists consumer groups, or shows one with its members and positions; also those of other applications."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from highwater.api.command.command import Command, json_option, nearest
from highwater.api.command.terminal import print_json, print_table, say
from highwater.streams.wording import counted


@click.command(cls=Command)
@click.argument("group", required=False)
@json_option
def groups(group: str | None, as_json: bool) -> None:
    """List the consumer groups, or show GROUP: members, and lag by partition.

    GROUP is a name of `highwater lag`, or the name in Kafka of any other group. `highwater reset` sets where it reads next.
    """
    if group is None:
        found = asyncio.run(_all())
        if as_json:
            print_json(found)
            return
        rows = [(one["group"], one["state"], _lag(one["lag"]), _origin(one)) for one in found]
        print_table(["group", "state in Kafka", "events behind", ""], rows, right=["events behind"])
        return
    document = asyncio.run(_one(group))
    if as_json:
        print_json(document)
        return
    _print_group(document)


async def _all() -> list[Any]:
    from highwater.api.broker.groups import all_groups
    from highwater.api.cli.sources import broker_sources

    async with broker_sources() as sources:
        return list(await all_groups(sources))


async def _one(group: str) -> Mapping[str, Any]:
    from highwater.api.broker.groups import all_groups, one_group
    from highwater.api.cli.sources import broker_sources
    from highwater.api.core.errors import NotFoundError

    async with broker_sources() as sources:
        try:
            return await one_group(sources, group)
        except NotFoundError as error:
            known = [one["group"] for one in await all_groups(sources)]
            hint = nearest(group, known) or "; `highwater groups` lists them"
            raise click.UsageError(f"{error}{hint}", click.get_current_context(silent=True)) from error


def _lag(events: int | None) -> str:
    return "-" if events is None else f"{events:,}"


def _origin(one: Mapping[str, Any]) -> str:
    return "" if one["is_catalogued"] else "not in the catalogue"


def _print_group(one: Mapping[str, Any]) -> None:
    say(f"{one['group']}: {one['state']}, {_lag(one['lag'])} events behind, {counted(len(one['members']), 'member')}")
    facts = [("name in Kafka", one["kafka_group"]), ("coordinator", one["coordinator"] or "-")]
    print_table(["", ""], [*facts, ("assignment", one["assignor"] or "-")])
    columns = ["topic", "partition", "reads from", "end", "behind", "member"]
    rows = [
        (
            part["topic"],
            part["partition"],
            "-" if part["next"] is None else part["next"],
            part["end"],
            part["lag"],
            part["stopped"] or part["member"] or "-",
        )
        for part in one["partitions"]
    ]
    print_table(columns, rows, right=["partition", "reads from", "end", "behind"])
    without = sum(part["next"] is None for part in one["partitions"])
    if without and one["auto_offset_reset"] == "unknown":
        say(
            f"{counted(without, 'partition')} without a commit, counted from the first record;"
            " a consumer with auto.offset.reset=latest skips what was written before it starts"
        )
