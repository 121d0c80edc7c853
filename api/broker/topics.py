"""Gathers what the broker, the registry and the catalogue know about topics and assembles the API's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from highwater.api.broker.answers import BrokerTopic, ListedTopic, SchemaVersionName, TopicReader, TopicSchema
from highwater.api.broker.naming import catalogued, kind_of, subsystem_of
from highwater.api.broker.sources import Sources
from highwater.api.core.errors import NotFoundError
from highwater.connectors.kafka.groups import Standing, catalogued_groups, kafka_group_of, standings
from highwater.connectors.kafka.inspection import TopicFacts, TopicSummary, described_topic, listed_topics
from highwater.connectors.kafka.memberships import GROUPS_ASKED_MAX, committed_in, listed_groups
from highwater.connectors.kafka.subjects import Subject, described_subject
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, Topic, dead_letter_topic


async def all_topics(sources: Sources) -> list[ListedTopic]:
    """Return every topic on the broker.

    Raises:
        UnavailableError: the broker does not answer.
    """
    return [listed(one) for one in await listed_topics(sources.admin)]


def listed(summary: TopicSummary) -> ListedTopic:
    """Return the list entry of a topic."""
    return {
        "topic": summary.name,
        "subsystem": subsystem_of(summary.name),
        "kind": kind_of(summary.name),
        "is_catalogued": catalogued(summary.name) is not None,
        "partitions": summary.partitions,
        "replicas": summary.replicas,
        "out_of_sync": summary.out_of_sync,
        "leaderless": summary.leaderless,
    }


async def one_topic(sources: Sources, name: str) -> BrokerTopic:
    """Return a topic with its readers and its schema.

    Raises:
        NotFoundError: the broker has no such topic.
        UnavailableError: the broker, the registry or PostgreSQL does not answer.
    """
    facts = await described_topic(sources.admin, sources.client, name)
    if facts is None:
        raise NotFoundError(f"there is no topic {name[:250]!r} on the broker")
    known = catalogued(name)
    subject = f"{name.removesuffix(DEAD_LETTER_SUFFIX) if known else name}-value"
    readers, schema = await asyncio.gather(_readers(sources, facts), described_subject(sources.registry, subject))
    return document_of(facts, known, readers, schema)


def document_of(
    facts: TopicFacts, known: Topic | None, readers: Sequence[TopicReader], schema: Subject | None
) -> BrokerTopic:
    """Assemble the answer; `known` is the topic of the catalogue, or the one whose dead letters these are."""
    is_letters = facts.name.endswith(DEAD_LETTER_SUFFIX)
    declared = dead_letter_topic(known) if known is not None and is_letters else known
    expected = {} if declared is None else declared.config()
    return {
        "topic": facts.name,
        "topic_id": facts.topic_id,
        "subsystem": subsystem_of(facts.name),
        "kind": kind_of(facts.name),
        "is_catalogued": declared is not None,
        "takes_events": declared is not None and declared.outsider and not is_letters,
        "about": None if declared is None else declared.about,
        "key": None if declared is None else declared.key,
        "producers": [] if declared is None else list(declared.producers),
        "consumers": [] if declared is None else list(declared.consumers),
        "events": facts.events,
        "size_bytes": facts.size_bytes,
        "config": [
            {"name": one.name, "value": one.value, "is_default": one.is_default, "expected": expected.get(one.name)}
            for one in facts.config
        ],
        "partitions": [
            {
                "partition": one.partition,
                "leader": one.leader,
                "replicas": list(one.replicas),
                "in_sync": list(one.in_sync),
                "first": None if one.range is None else one.range.low,
                "next": None if one.range is None else one.range.high,
                "size_bytes": one.size_bytes,
            }
            for one in facts.partitions
        ],
        "groups": list(readers),
        "schema": None if schema is None else _schema(schema),
    }


def _schema(subject: Subject) -> TopicSchema:
    versions: list[SchemaVersionName] = [
        {"version": one.version, "schema_id": one.schema_id} for one in subject.versions
    ]
    return {"subject": subject.name, "compatibility": subject.compatibility, "versions": versions}


async def _readers(sources: Sources, facts: TopicFacts) -> list[TopicReader]:
    """Return the groups of the catalogue that read a topic, and other groups that have committed offsets in it."""
    client = sources.client
    own = {group: [facts.name] for group, topics in catalogued_groups().items() if facts.name in topics}
    found: list[TopicReader] = []
    if own:
        for group, stands in (await standings(client, sources.require_pool(), own)).items():
            lag = sum(one.events for one in stands if one.topic == facts.name)
            found.append({"group": group, "kafka_group": kafka_group_of(group), "is_catalogued": True, "lag": lag})
    ours = {kafka_group_of(group) for group in catalogued_groups()}
    others = [one.kafka_group for one in await listed_groups(sources.admin) if one.kafka_group not in ours]
    ranges = {(facts.name, one.partition): one.range for one in facts.partitions if one.range is not None}
    committed = await committed_in(client, others[:GROUPS_ASKED_MAX], ranges)
    for name, offsets in committed.items():
        lag = sum(Standing(*place, offsets.get(place), held).events for place, held in ranges.items())
        found.append({"group": name, "kafka_group": name, "is_catalogued": False, "lag": lag})
    return sorted(found, key=lambda one: (not one["is_catalogued"], one["group"]))
