"""`highwater topics` and `describe`: the catalogue, with the current state on the broker, also for topics of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from highwater.api.command.command import Command, TopicArgument, json_option, nearest
from highwater.api.command.connection import kafka_client, stack_settings
from highwater.api.command.terminal import print_json, print_table, say
from highwater.schemas.topics import DAY_MS, DEAD_LETTER_SUFFIX, TOPICS, Topic, all_topics
from highwater.streams.wording import counted

if TYPE_CHECKING:
    from highwater.streams.settings import Settings


def catalogued(topic: Topic) -> dict[str, Any]:
    """Return a topic as the catalogue has it."""
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
    """Describe how long events are kept, for people."""
    return "forever" if topic.retention_ms < 0 else f"{topic.retention_ms / DAY_MS:g} days"


_LISTED = "; `highwater topics --all` lists them"


@click.command(cls=Command)
@click.argument("topic", required=False)
@click.option("--dead-letters", is_flag=True, help="Also list dead-letter topics.")
@click.option("--all", "everything", is_flag=True, help="List every topic on the broker, also of other applications.")
@json_option
def topics(topic: str | None, dead_letters: bool, everything: bool, as_json: bool) -> None:
    """List the topics of the catalogue, or show TOPIC as the broker has it.

    TOPIC may be any topic on the broker: configuration, partitions with leaders and sizes, consumer groups, schema.
    """
    if topic is not None and (dead_letters or everything):
        raise click.UsageError("--dead-letters and --all are for the list", click.get_current_context())
    if topic is not None:
        _show_topic(topic, as_json)
        return
    if everything:
        _list_all(as_json)
        return
    listed = list(all_topics() if dead_letters else TOPICS.values())
    if as_json:
        print_json([catalogued(topic) for topic in listed])
        return
    rows = [
        (t.name, t.key or "-", t.schema or "-", t.partitions, ", ".join(t.producers), ", ".join(t.consumers))
        for t in listed
    ]
    print_table(["topic", "key", "schema", "partitions", "producers", "consumers"], rows, right=["partitions"])


def _list_all(as_json: bool) -> None:
    from highwater.api.broker.topics import all_topics as on_broker
    from highwater.api.cli.sources import registry_sources

    found = asyncio.run(on_broker(registry_sources()))
    if as_json:
        print_json(found)
        return
    rows = [
        (one["topic"], one["subsystem"], one["kind"], one["partitions"], one["replicas"], _problem(one))
        for one in found
    ]
    columns = ["topic", "subsystem", "holds", "partitions", "copies", ""]
    print_table(columns, rows, right=["partitions", "copies"])


def _problem(one: Mapping[str, Any]) -> str:
    if one["leaderless"]:
        return f"{one['leaderless']} without a leader"
    return f"{counted(one['out_of_sync'], 'copy', 'copies')} behind" if one["out_of_sync"] else ""


def _show_topic(name: str, as_json: bool) -> None:
    found = asyncio.run(_on_broker(name))
    if as_json:
        print_json(found)
        return
    size = "unknown size" if found["size_bytes"] is None else f"{found['size_bytes']:,} bytes"
    say(f"{found['topic']}: {found['about'] or 'not in the catalogue'}; {counted(found['events'], 'event')}, {size}")
    rows = [
        (
            one["partition"],
            "none" if one["leader"] is None else one["leader"],
            ", ".join(map(str, one["replicas"])),
            ", ".join(map(str, one["in_sync"])),
            *("-" if one[number] is None else one[number] for number in ("first", "next", "size_bytes")),
        )
        for one in found["partitions"]
    ]
    columns = ["partition", "leader", "copies", "in sync", "first", "next", "bytes"]
    print_table(columns, rows, right=["partition", "leader", "first", "next", "bytes"])
    if found["groups"]:
        behind = [(one["group"], one["lag"]) for one in found["groups"]]
        print_table(["group", "events behind"], behind, right=["events behind"])
    own = [
        (one["name"], one["value"], "" if one["expected"] in (None, one["value"]) else f"declared: {one['expected']}")
        for one in found["config"]
        if not one["is_default"]
    ]
    if own:
        print_table(["setting", "value", ""], own)
    schema = found["schema"]
    if schema is not None:
        versions = ", ".join(str(one["version"]) for one in schema["versions"])
        say(f"schema {schema['subject']}: versions {versions}, compatibility {schema['compatibility'] or 'unknown'}")


async def _on_broker(name: str) -> Mapping[str, Any]:
    from highwater.api.broker.topics import one_topic
    from highwater.api.cli.sources import broker_sources
    from highwater.api.core.errors import NotFoundError

    async with broker_sources() as sources:
        try:
            return await one_topic(sources, name)
        except NotFoundError as error:
            known = await sources.admin.partition_counts()
            raise click.UsageError(
                f"{error}{nearest(name, known) or _LISTED}", click.get_current_context(silent=True)
            ) from error


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
    """Return the fields of a topic's events with their descriptions in the schema."""
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
    """Return the state on the broker; None if the topic does not exist."""
    from highwater.connectors.kafka.admin import Admin
    from highwater.connectors.kafka.reading import log_ranges_of
    from highwater.schemas.errors import CatalogueMismatchError

    admin = Admin(kafka_client(settings))
    ranges = await log_ranges_of(admin, [topic.name])
    if not ranges:
        return None
    differences: list[str] = []
    try:
        # The topic exists, so this creates nothing; it only compares.
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
    say(f"{topic.name}: {topic.about}")
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
        say("the broker does not have it; run `highwater init`")
        return
    say(counted(live["events"], "event"))
    held = [(partition, offsets["low"], offsets["high"]) for partition, offsets in live["partitions"].items()]
    print_table(["partition", "first", "next"], held, right=["partition", "first", "next"])
    for difference in live["differences"]:
        say(f"differs: {difference}")
