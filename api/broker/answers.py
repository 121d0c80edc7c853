"""The answers of the routes of topics, groups and schemas, for the OpenAPI document.

Invariant: a member without a value is `None`. No answer has other members.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ListedTopic(TypedDict):
    """A topic on the broker. `replicas`: the fewest copies of a partition; `out_of_sync`: copies that lag behind their leader."""

    topic: str
    subsystem: str
    kind: Literal["events", "dead letters", "changelog", "internal"]
    is_catalogued: bool
    partitions: int
    replicas: int
    out_of_sync: int
    leaderless: int


class ListedTopics(TypedDict):
    """Every topic on the broker, by name."""

    topics: list[ListedTopic]


class TopicSetting(TypedDict):
    """A setting of a topic. `is_default`: not set for this topic. `expected`: what the catalogue declares, if it does."""

    name: str
    value: str | None
    is_default: bool
    expected: str | None


class TopicPartition(TypedDict):
    """A partition. `leader` null: it has none; `size_bytes` null: the brokers do not report it."""

    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    first: int | None
    next: int | None
    size_bytes: int | None


class TopicReader(TypedDict):
    """A consumer group of a topic. `group`: its name in the catalogue, or Kafka's; `lag`: events that it has not read.

    `lag` counts a partition without a commit from its first record.
    """

    group: str
    kafka_group: str
    is_catalogued: bool
    lag: int


class SchemaVersionName(TypedDict):
    """A version of a schema, without its text."""

    version: int
    schema_id: int


class TopicSchema(TypedDict):
    """The schema of the values of a topic."""

    subject: str
    compatibility: str | None
    versions: list[SchemaVersionName]


class BrokerTopic(TypedDict):
    """A topic on the broker, with its declaration if the catalogue has one.

    `events`: number of offsets; a compacted topic has fewer records. `size_bytes`: one copy of each partition.
    `takes_events`: whether `POST /api/events/{topic}` accepts events for it.
    """

    topic: str
    topic_id: str
    subsystem: str
    kind: Literal["events", "dead letters", "changelog", "internal"]
    is_catalogued: bool
    takes_events: bool
    about: str | None
    key: str | None
    producers: list[str]
    consumers: list[str]
    events: int
    size_bytes: int | None
    config: list[TopicSetting]
    partitions: list[TopicPartition]
    groups: list[TopicReader]
    schema: TopicSchema | None


class ListedGroup(TypedDict):
    """A consumer group. `group`: its name in the catalogue, or Kafka's. `state`: as Kafka reports it; `dead`: unknown to Kafka.

    `lag`: events that it has not read, in all partitions of its topics; null: it has committed no offset.
    """

    group: str
    kafka_group: str
    is_catalogued: bool
    state: str
    lag: int | None


class ListedGroups(TypedDict):
    """Every consumer group, by name, those of the catalogue first."""

    groups: list[ListedGroup]


class AssignedPartition(TypedDict):
    """A partition that a member reads."""

    topic: str
    partition: int


class GroupMember(TypedDict):
    """A consumer of a group; `instance_id`: of a static member."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: list[AssignedPartition]


class GroupPartition(TypedDict):
    """The position of a group in a partition. `next` null: it has no commit there; `member`: the client that reads it.

    `stopped`: why its consumer stopped this partition, if it did.
    """

    topic: str
    partition: int
    next: int | None
    end: int
    lag: int
    member: str | None
    stopped: str | None


class ConsumerGroup(ListedGroup):
    """A consumer group with its members and positions. `coordinator`: the broker that manages it.

    `auto_offset_reset`: where it begins in a partition without a commit (`next` null). `unknown`: its consumers decide, and
    Kafka does not report it; `lag` then counts from the first record of the partition.
    """

    assignor: str
    coordinator: str | None
    auto_offset_reset: Literal["earliest", "unknown"]
    members: list[GroupMember]
    partitions: list[GroupPartition]


class ResetPartition(TypedDict):
    """A partition of a reset. `before` null: the group had no commit there."""

    topic: str
    partition: int
    before: int | None
    after: int


class GroupReset(TypedDict):
    """The changes of a reset, planned or applied. It is refused while `live_members` is not 0."""

    group: str
    executed: bool
    live_members: int
    partitions: list[ResetPartition]


class ListedSchema(TypedDict):
    """A subject of the schema registry. `topic`: whose keys or values it describes; null: no topic has this name."""

    subject: str
    topic: str | None
    is_catalogued: bool


class ListedSchemas(TypedDict):
    """Every subject of the schema registry, by name, those of the catalogue first."""

    schemas: list[ListedSchema]


class SchemaVersion(SchemaVersionName):
    """A version of a schema. `kind`: AVRO, JSON or PROTOBUF; `text`: formatted, if it is JSON."""

    kind: str
    text: str


class RegisteredSchema(ListedSchema):
    """A subject with its versions, oldest first. `compatibility` null: the registry has no level for it."""

    compatibility: str | None
    versions: list[SchemaVersion]


class SchemaFieldChange(TypedDict):
    """A field that differs. `before` and `after`: its type and default; null: that version does not have it."""

    kind: Literal["added", "removed", "changed"]
    field: str
    before: str | None
    after: str | None


SchemaDiff = TypedDict(
    "SchemaDiff",
    {
        "subject": str,
        "from": int,
        "to": int,
        "fields": list[SchemaFieldChange],
        "lines": list[str],
    },
)
SchemaDiff.__doc__ = (
    """What differs between two versions: fields of Avro records, and a unified diff of the formatted texts."""
)


class SchemaCheck(TypedDict):
    """Whether a schema may be the next version. `reasons`: why not, by the registry, or by Avro's rules where it gives none."""

    subject: str
    compatibility: str | None
    is_compatible: bool
    reasons: list[str]
