"""`highwater dlq park`: moves the bad events of a stopped partition to the dead letters, and its consumer continues.

Invariant: the consumer itself dead-letters them, in the transactions that move its position, so the good events among
them are stored and none is lost; the end is fixed when the command starts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from highwater.api.command.actions import recorded
from highwater.api.command.command import Command, CommandFailedError, json_option
from highwater.api.command.connection import database, kafka_client, stack_settings
from highwater.api.command.terminal import print_json, say
from highwater.api.dead_letters.cli_letters import LETTER_TOPIC
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, Topic

if TYPE_CHECKING:
    from highwater.connectors.kafka.stopped import Parked
    from highwater.streams.settings import Settings

# A consumer checks once a second and stores a batch in less; a run of a hundred thousand events takes longer and
# continues alone.
_WAIT_SECONDS = 30.0


@click.command(cls=Command)
@click.argument("group")
@click.argument("topic", type=LETTER_TOPIC)
@click.option("--partition", type=click.IntRange(min=0), required=True, help="The stopped partition.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=_WAIT_SECONDS,
    show_default=True,
    help="How many seconds to wait until GROUP has processed them.",
)
@json_option
def park(group: str, topic: Topic, partition: int, wait_seconds: float, as_json: bool) -> None:
    """Dead-letter the bad events of a partition of TOPIC that GROUP has stopped reading, and resume it.

    Applies to the events now in the partition: good ones are processed, bad ones become dead letters. If later
    ones are mostly bad as well, the partition stops again. `highwater status` lists stopped partitions; `highwater reset`
    with --partition passes over events without a dead letter.
    """
    settings = stack_settings("kafka", "schema_registry", "database")
    name = topic.name.removesuffix(DEAD_LETTER_SUFFIX)
    with recorded(settings, "dlq park", f"{group} {name}/{partition}"):
        parked = asyncio.run(_park(settings, group, (name, partition), wait_seconds))
    if as_json:
        print_json(parked.document())
        return
    place = f"{name}/{partition}"
    if parked.is_done:
        say(f"{group} has passed {place} up to offset {parked.until} and continues; see `highwater dlq list {name}`")
    else:
        say(f"{group} resumes {place} from offset {parked.next}; up to {parked.until} bad events are dead-lettered")


async def _park(settings: Settings, group: str, place: tuple[str, int], wait_seconds: float) -> Parked:
    from highwater.connectors.kafka import stopped
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.groups import own_name
    from highwater.streams.clock import monotonic_seconds

    name = own_name(group)
    async with database(settings) as pool:
        if not any((one.group, one.place) == (name, place) for one in await stopped.all_stopped(pool)):
            raise CommandFailedError(
                f"{name} has not stopped {place[0]}/{place[1]}; `highwater status` and `highwater lag` list stopped partitions"
            )
        ranges = await Admin(kafka_client(settings)).log_ranges([place])
        parked = await stopped.park(pool, name, place, ranges[place].high)
        deadline = monotonic_seconds() + wait_seconds
        while not parked.is_done and monotonic_seconds() < deadline:
            await asyncio.sleep(stopped.LOOK_SECONDS / 5)
            parked = await stopped.parked(pool, parked)
        return parked
