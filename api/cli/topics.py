"""`highwater topics` and `describe`: the catalogue, and beside it what the broker says now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import Command, TopicArgument, json_option
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table
from highwater.schemas.topics import DAY_MS, DEAD_LETTER_SUFFIX, TOPICS, Topic, all_topics

if TYPE_CHECKING:
    from highwater.streams.settings import Settings


def catalogued(topic: Topic) -> dict[str, Any]:
    """A topic as the catalogue has it."""
    return {
        "topic": topic.name,
        "key": topic.key or None,
        "schema": topic.schema or None,
        "partitions": topic.partitions,
        "retention_ms": topic.retention_ms,
        "producers": list(topic.producers),
        "consumers": list(topic.consumers),
        "outsider": topic.outsider,
        "about": topic.about,
    }


def retention(topic: Topic) -> str:
    """How long events are kept, for people."""
    return "for ever" if topic.retention_ms < 0 else f"{topic.retention_ms / DAY_MS:g} days"


@click.command(cls=Command)
@click.option("--dead-letters", is_flag=True, help="Also list dead-letter topics.")
@json_option
def topics(dead_letters: bool, as_json: bool) -> None:
    """List the topics with key, schema, partitions, producers and consumers."""
    listed = list(all_topics() if dead_letters else TOPICS.values())
    if as_json:
        print_json([catalogued(topic) for topic in listed])
        return
    rows = [
        (t.name, t.key or "-", t.schema or "-", t.partitions, ", ".join(t.producers), ", ".join(t.consumers))
        for t in listed
    ]
    print_table(["topic", "key", "schema", "partitions", "producers", "consumers"], rows, right=["partitions"])


@click.command(cls=Command)
@click.argument("topic", type=TopicArgument(dead_letters=True))
@json_option
def describe(topic: Topic, as_json: bool) -> None:
    """Show one topic: its contract and its current state on the broker."""
    settings = stack_settings("kafka")
    live = asyncio.run(_live(settings, topic))
    document = {**catalogued(topic), "config": topic.config(), "fields": fields_of(topic), "live": live}
    if as_json:
        print_json(document)
        return
    _print_topic(topic, live)


def fields_of(topic: Topic) -> list[dict[str, Any]]:
    """The fields of a topic's events with what their schema says of each."""
    import json

    from highwater.schemas.avro_files import schema_text

    if not topic.schema:
        return []
    found = []
    for field in json.loads(schema_text(topic.schema))["fields"]:
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        named = [kind.get("logicalType", kind["type"]) if isinstance(kind, dict) else kind for kind in kinds]
        text = " or ".join(str(kind) for kind in named if kind != "null")
        found.append(
            {"name": field["name"], "type": text, "optional": "default" in field, "about": field.get("doc", "")}
        )
    return found


async def _live(settings: Settings, topic: Topic) -> dict[str, Any] | None:
    """What the broker has; None when the topic is not there."""
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.reading import log_ranges_of
    from highwater.schemas.errors import CatalogueMismatchError

    admin = Admin(kafka_client(settings))
    ranges = await log_ranges_of(admin, [topic.name])
    if not ranges:
        return None
    differences: list[str] = []
    try:
        # It is there, so this creates nothing; it only compares.
        await admin.ensure_topics([topic], replication_factor=settings.replication_factor)
    except CatalogueMismatchError as error:
        differences = str(error).partition(": ")[2].split("; ")
    offsets = {str(partition): {"low": r.low, "high": r.high} for (_, partition), r in sorted(ranges.items())}
    return {
        "topic_id": (await admin.topic_ids([topic.name]))[topic.name],
        "partitions": offsets,
        "events": sum(r.high - r.low for r in ranges.values()),
        "differences": differences,
    }


def _print_topic(topic: Topic, live: dict[str, Any] | None) -> None:
    click.echo(f"{topic.name}: {topic.about}")
    facts = [
        ("key", topic.key or "none"),
        ("schema", topic.schema or f"original bytes of {topic.name.removesuffix(DEAD_LETTER_SUFFIX)}"),
        ("partitions", topic.partitions),
        ("kept", retention(topic)),
        ("producers", ", ".join(topic.producers)),
        ("consumers", ", ".join(topic.consumers)),
    ]
    print_table(["", ""], facts)
    if fields_of(topic):
        rows = [(f["name"], f["type"], "optional" if f["optional"] else "", f["about"]) for f in fields_of(topic)]
        print_table(["field", "type", "", "about"], rows)
    if live is None:
        click.echo("the broker does not have it; run `highwater init`")
        return
    click.echo(f"{live['events']:,} events")
    held = [(partition, offsets["low"], offsets["high"]) for partition, offsets in live["partitions"].items()]
    print_table(["partition", "first", "next"], held, right=["partition", "first", "next"])
    for difference in live["differences"]:
        click.echo(f"differs: {difference}")
