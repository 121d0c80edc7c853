"""The catalogue of topics: the only place where a topic's name, key, schema, size and readers are declared.

Topics are created from it, checked against it, and documented from it. A partition count is never changed silently,
because the place of a key, and with it the order of its events, depends on it. Topics with keys all have the same number: it is
the installation's (HIGHWATER_PARTITIONS), and a process learns it once, from its settings, before it asks for any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DAY_MS = 86_400_000
MIB = 1 << 20

# Of an installation that does not say otherwise. Eight: enough for four workers of two partitions each, few enough that one
# worker recovers all of them in seconds.
PARTITIONS = 8
# A broker carries some 4,000 partitions: three with every topic and changelog three times on them carry 64 of each.
PARTITIONS_MAX = 64
# An insight may carry 1 MiB of text and a vector; 8 MiB lets an oversized one arrive and be dead-lettered with a reason.
MESSAGE_BYTES_MAX = 8 * MIB
# A dead letter repeats the original bytes and adds headers.
DEAD_LETTER_BYTES_MAX = 9 * MIB
DEAD_LETTER_SUFFIX = ".dlq"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `schema` names an Avro file `<subsystem>/<Event>.v1`.

    `key` names the field whose value is the key, or several, joined by `|` as their values are.
    """

    name: str
    schema: str
    key: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    outsider: bool = False
    fixed_partitions: int | None = None  # None: as many as the installation has
    retention_ms: int = -1
    cleanup: str = "delete"
    message_bytes_max: int = MESSAGE_BYTES_MAX
    about: str = ""

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return keyed_partitions() if self.fixed_partitions is None else self.fixed_partitions

    @property
    def is_catalogued(self) -> bool:
        """Whether the catalogue declares it; else it belongs to another application (`foreign_topic`)."""
        return bool(self.producers)

    @property
    def subject(self) -> str:
        """The registry subject of the value (TopicNameStrategy)."""
        return f"{self.name}-value"

    @property
    def dead_letter(self) -> str:
        """Where events of this topic that cannot be processed go."""
        return self.name + DEAD_LETTER_SUFFIX

    def key_of(self, event: Mapping[str, object]) -> str:
        """The key of an event of this topic."""
        return "|".join(str(event[name]) for name in self.key.split("|"))

    def config(self) -> dict[str, str]:
        """What the broker must say of this topic; compared key by key."""
        return {
            "cleanup.policy": self.cleanup,
            "retention.ms": str(self.retention_ms),
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(self.message_bytes_max),
        }


class _Installation:
    """What this process was told of the installation that it belongs to."""

    partitions = PARTITIONS


def keyed_partitions() -> int:
    """How many partitions each topic with a key has in this installation."""
    return _Installation.partitions


def use_partitions(count: int) -> None:
    """Say how many they are: called where a process reads its settings, before anything else."""
    _Installation.partitions = count


def partitions_refusal(counts: Mapping[str, int], wanted: int) -> str | None:
    """What to say when the broker has another number than this process; None when it has the same, or no topics yet.

    Args:
        counts: partitions of each topic on the broker, those of others too.
        wanted: how many this process thinks that a topic with a key has.
    """
    found = {counts[name] for name, topic in TOPICS.items() if topic.fixed_partitions is None and name in counts}
    if found <= {wanted}:
        return None
    if len(found) == 1:
        there = found.pop()
        return (
            f"the topics have {there} partitions and HIGHWATER_PARTITIONS is {wanted}: set it to {there} for every process; an"
            " installation keeps the number that it was begun with"
        )
    numbers = ", ".join(map(str, sorted(found)))
    return (
        f"the topics have different numbers of partitions ({numbers}), and HIGHWATER_PARTITIONS is {wanted}: events of one key"
        " must be in the same partition of each; delete the topics that have another number, or begin a new installation"
    )


def _outside(name: str, schema: str, key: str, sink: str, about: str) -> Topic:
    return Topic(name, schema, key, producers=("api", "outside"), consumers=(sink,), outsider=True, about=about)


_TOPICS = (
    _outside("feeds.insight-ingested", "feeds/InsightIngested.v1", "channel_id", "insights", "insights as they come"),
    _outside("feeds.insight-retracted", "feeds/InsightRetracted.v1", "channel_id", "insights", "insights taken back"),
    Topic(
        "feeds.insight-conflicted",
        "feeds/InsightConflicted.v1",
        "channel_id",
        ("outbox",),
        (),
        about="insights that came again with other content",
    ),
    _outside("feeds.subscription-changed", "feeds/SubscriptionChanged.v1", "user_id", "users", "one subscription"),
    _outside("feeds.subscriptions-replaced", "feeds/SubscriptionsReplaced.v1", "user_id", "users", "a set of them"),
    _outside("feeds.user-active", "feeds/UserActive.v1", "user_id", "users", "activity of users"),
    _outside("feeds.plan-changed", "feeds/PlanChanged.v1", "user_id", "users", "plans of users"),
    _outside(
        "feeds.rebuild-demanded", "feeds/RebuildDemanded.v1", "user_id", "users", "an operator asks for a rebuild"
    ),
    _outside(
        "feeds.clusters-curated",
        "feeds/ClustersCurated.v1",
        "user_id",
        "users",
        "a reader names, merges or splits clusters",
    ),
    _outside("feeds.user-erased", "feeds/UserErased.v1", "user_id", "users", "a user is to be erased"),
    _outside("league.match-scheduled", "league/MatchScheduled.v1", "season", "fixtures", "matches and their dates"),
    _outside("league.match-updated", "league/MatchUpdated.v1", "season", "results", "scores of matches in play"),
    _outside("league.match-finalized", "league/MatchFinalized.v1", "season", "results", "results, and corrections"),
    _outside("league.vote-cast", "league/VoteCast.v1", "match_id", "votes", "what users think will come of a match"),
    _outside("league.prediction-made", "league/PredictionMade.v1", "match_id", "votes", "results that users predict"),
    _outside("league.comment-posted", "league/CommentPosted.v1", "match_id", "posts", "comments on matches"),
    _outside("league.ad-changed", "league/AdChanged.v1", "ad_id", "posts", "advertisements put and taken away"),
    _outside("queries.query-submitted", "queries/QuerySubmitted.v1", "user_id", "queries", "what users ask"),
    _outside(
        "queries.run-controlled", "queries/RunControlled.v1", "user_id", "controls", "runs cancelled or restarted"
    ),
    _outside("queries.prompt-changed", "queries/PromptChanged.v1", "role_name", "queries", "prompts of the pipeline"),
    _outside("jobs.job-submitted", "jobs/JobSubmitted.v1", "job_id", "jobs", "decks, ingests and exports wanted"),
    _outside("jobs.view-recorded", "jobs/ViewRecorded.v1", "presentation_id", "views", "views of public decks"),
    _outside("jobs.plan-changed", "jobs/PlanChanged.v1", "organization_id", "organizations", "plans of organizations"),
    _outside("jobs.role-changed", "jobs/RoleChanged.v1", "user_id", "organizations", "roles of users"),
    _outside(
        "chunks.chunk-submitted",
        "chunks/ChunkSubmitted.v1",
        "ns|slot|source_id",
        "chunks",
        "chunks of sources, as they come",
    ),
    _outside("chunks.ingest-finished", "chunks/IngestFinished.v1", "ns|slot|source_id", "chunks", "ends of ingests"),
    Topic(
        "streams.tick",
        "streams/Tick.v1",
        "",
        ("worker",),
        ("worker", "mirror", "ratings"),
        retention_ms=7 * DAY_MS,
        about="the clock in the log, one record a partition and tick",
    ),
    Topic(
        "streams.dead-letter-handled",
        "streams/DeadLetterHandled.v1",
        "topic",
        ("operator", "api"),
        (),
        fixed_partitions=1,  # what people did, in the order in which they did it
        about="dead letters sent again or deleted, and by whom",
    ),
    Topic(
        "security.action-recorded",
        "security/ActionRecorded.v1",
        "action",
        ("operator", "api", "outbox"),
        (),
        fixed_partitions=1,  # refused and privileged actions in the order in which they happened; kept for good
        about="every refused and every privileged action, and who asked for it",
    ),
    Topic(
        "feeds.channel-advanced",
        "feeds/ChannelAdvanced.v1",
        "channel_id",
        ("outbox",),
        ("worker", "mirror"),
        about="a channel has a new head",
    ),
    Topic(
        "feeds.channel-dirty",
        "feeds/ChannelDirty.v1",
        "channel_id",
        ("worker",),
        ("fanout", "mirror"),
        about="a channel moved since the last tick",
    ),
    Topic(
        "feeds.user-changed",
        "feeds/UserChanged.v1",
        "user_id",
        ("outbox",),
        ("worker", "fanout", "mirror"),
        about="plan, activity and subscriptions as stored",
    ),
    Topic("feeds.novelty", "feeds/NoveltyFound.v1", "", ("fanout",), ("worker",), about="heads for the subscribers"),
    Topic(
        "feeds.rebuild-requested",
        "feeds/RebuildRequested.v1",
        "user_id",
        ("worker",),
        ("rebuild", "mirror"),
        about="the decision to rebuild, with its inputs",
    ),
    Topic(
        "feeds.rebuild-finished",
        "feeds/RebuildFinished.v1",
        "user_id",
        ("outbox",),
        ("worker", "mirror"),
        about="what became of it",
    ),
    Topic(
        "feeds.clusters-rebuilt",
        "feeds/ClustersRebuilt.v1",
        "user_id",
        ("outbox",),
        ("mirror",),
        about="a new version of a user's clusters",
    ),
    Topic(
        "feeds.cluster-evolved",
        "feeds/ClusterEvolved.v1",
        "user_id",
        ("outbox",),
        (),
        about="what became of one cluster between two versions",
    ),
    Topic(
        "feeds.basis-changed",
        "feeds/BasisChanged.v1",
        "basis_id",
        ("outbox",),
        (),
        fixed_partitions=1,  # a handful in the life of a store, in their order
        about="vectors are compared in another basis from now on",
    ),
    Topic(
        "league.match-changed",
        "league/MatchChanged.v1",
        "season",
        ("outbox",),
        ("worker", "ratings"),
        about="a match as stored, after a change",
    ),
    Topic(
        "league.refresh-requested",
        "league/RefreshRequested.v1",
        "scope",
        ("worker", "outbox"),
        ("documents",),
        about="documents that a change has made old",
    ),
    Topic(
        "queries.pipeline-stage",
        "queries/PipelineStage.v1",
        "user_id",
        ("outbox",),
        ("timeline", "worker"),
        about="a run of the pipeline was made or changed its status",
    ),
    Topic(
        "queries.stage-requested",
        "queries/StageRequested.v1",
        "user_id",
        ("worker",),
        ("stages",),
        about="a run is to be worked on, with the inputs of that decision",
    ),
    Topic(
        "queries.run-archived",
        "queries/RunArchived.v1",
        "user_id",
        ("outbox",),
        ("timeline", "worker"),
        about="a run's memory is stored; its user's next run may begin",
    ),
    Topic(
        "queries.run-failed",
        "queries/RunFailed.v1",
        "request_id",
        ("outbox",),
        ("alerts",),
        about="failures, with what an operator needs to know",
    ),
    Topic(
        "jobs.control",
        "jobs/JobControl.v1",
        "job_id",
        ("api", "outbox"),
        ("jobcontrols",),
        about="jobs revoked, or asked for again",
    ),
    Topic(
        "jobs.generation-requested",
        "jobs/GenerationRequested.v1",
        "job_id",
        ("outbox",),
        ("generation",),
        about="decks to be made",
    ),
    Topic(
        "jobs.ingestion-requested",
        "jobs/IngestionRequested.v1",
        "job_id",
        ("outbox",),
        ("ingestion",),
        about="documents to be cut into chunks",
    ),
    Topic(
        "jobs.export-requested",
        "jobs/ExportRequested.v1",
        "job_id",
        ("outbox",),
        ("export",),
        about="decks to be written as files",
    ),
    Topic(
        "jobs.checkpoint-saved",
        "jobs/CheckpointSaved.v1",
        "job_id",
        ("outbox",),
        ("progress",),
        cleanup="compact",
        about="how far each job is; a tombstone when its result is stored",
    ),
    Topic(
        "jobs.progress",
        "jobs/JobProgressed.v1",
        "job_id",
        ("outbox",),
        ("progress",),
        about="steps of jobs, as their watchers are told",
    ),
    Topic(
        "jobs.tokens-used",
        "jobs/TokensUsed.v1",
        "organization_id",
        ("api",),
        ("tokens",),
        about="tokens paid for outside jobs and queries: embedded questions of searches",
    ),
    Topic(
        "jobs.usage-recorded",
        "jobs/UsageRecorded.v1",
        "organization_id",
        ("outbox",),
        ("progress", "worker"),
        about="what jobs, queries and searches used",
    ),
    Topic(
        "jobs.usage-flushed",
        "jobs/UsageFlushed.v1",
        "organization_id",
        ("worker",),
        ("usage",),
        about="totals of a period, absolute",
    ),
    Topic(
        "chunks.ingest-progressed",
        "chunks/IngestProgressed.v1",
        "ns|slot|source_id",
        ("outbox",),
        ("worker",),
        about="how far the ingest of a source is",
    ),
    Topic(
        "chunks.ingest-decided",
        "chunks/IngestDecided.v1",
        "ns|slot|source_id",
        ("worker",),
        ("ingests",),
        about="an ingest has come to its end, with the inputs of that decision",
    ),
    Topic(
        "chunks.ingest-reported",
        "chunks/IngestReported.v1",
        "ingest_id",
        ("outbox",),
        (),
        cleanup="compact",
        about="what each ingest did",
    ),
    Topic(
        "chunks.chunk-changed",
        "chunks/ChunkChanged.v1",
        "ns|slot|source_id",
        ("outbox",),
        (),
        about="chunks inserted, updated, revived, orphaned, archived, removed or embedded",
    ),
    Topic(
        "chunks.embedding-requested",
        "chunks/EmbeddingRequested.v1",
        "ns|slot|source_id",
        ("outbox",),
        ("backfill",),
        about="chunks that wait for their vectors",
    ),
    Topic(
        "chunks.queries-served",
        "chunks/QueriesServed.v1",
        "ns",
        ("api",),
        ("worker",),
        about="searches answered in each namespace",
    ),
    Topic(
        "chunks.namespace-rated",
        "chunks/NamespaceRated.v1",
        "ns",
        ("worker",),
        ("namespaces",),
        about="how much namespaces are asked, and which are hot",
    ),
    Topic(
        "chunks.sweep-requested",
        "chunks/SweepRequested.v1",
        "sweep",
        ("worker",),
        ("namespaces",),
        fixed_partitions=1,  # one an hour, each done before the next
        about="ends of grace and cold chunks are to be looked for",
    ),
    Topic(
        "cache.prewarm-requested",
        "cache/PrewarmRequested.v1",
        "season",
        ("api", "worker"),
        ("documents",),
        about="make a season's pages before they are asked for",
    ),
    Topic(
        "cache.invalidation-requested",
        "cache/InvalidationRequested.v1",
        "key",
        ("api",),
        ("documents",),
        about="an operator asks for a new version of a document",
    ),
    Topic(
        "cache.version-bumped",
        "cache/VersionBumped.v1",
        "key",
        ("outbox",),
        ("cache",),
        about="a resource has a new version",
    ),
)

TOPICS: Mapping[str, Topic] = {topic.name: topic for topic in _TOPICS}


def dead_letter_topic(topic: Topic) -> Topic:
    """The dead-letter topic of a consumed topic: original bytes, so it has no schema and keeps its key as it was."""
    return Topic(
        name=topic.dead_letter,
        schema="",
        key=topic.key,
        producers=topic.consumers,
        consumers=("operator",),
        fixed_partitions=1,  # dead letters are few and read by people, in order of arrival
        message_bytes_max=DEAD_LETTER_BYTES_MAX,
        about=f"dead letters of {topic.name}",
    )


def all_topics() -> tuple[Topic, ...]:
    """Every topic that `highwater init` creates: the catalogue and a dead-letter topic beside each."""
    return _TOPICS + tuple(dead_letter_topic(topic) for topic in _TOPICS)


def foreign_topic(name: str) -> Topic:
    """A topic of another application: nothing is declared of it, and its values are shown as they are."""
    return Topic(name, "", "", producers=(), consumers=())


def is_topic_name(text: str) -> bool:
    """Whether Kafka allows a topic of this name."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")
