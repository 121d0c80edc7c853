"""The catalogue of topics: the only place where a topic's name, key, schema, size and readers are declared.

Topics are created from it, checked against it, and documented from it. A partition count is never changed silently,
because the partition of a key, and with it the order of its events, depends on it. Topics with keys all have the same
number: it is the installation's (HIGHWATER_PARTITIONS), and a process learns it once, from its settings, before it uses
any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DAY_MS = 86_400_000
MIB = 1 << 20

# The default. Eight: enough for four workers of two partitions each, few enough that one worker recovers all of them in
# seconds.
PARTITIONS = 8
# A broker carries some 4,000 partitions: three brokers with every topic and changelog replicated three times carry 64
# of each.
PARTITIONS_MAX = 64
# An insight may have 1 MiB of text and a vector; 8 MiB lets an oversized one arrive and be dead-lettered with a reason.
MESSAGE_BYTES_MAX = 8 * MIB
# A dead letter repeats the original bytes and adds headers.
DEAD_LETTER_BYTES_MAX = 9 * MIB
DEAD_LETTER_SUFFIX = ".dlq"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `schema` names an Avro file `<subsystem>/<Event>.v1`.

    `key` names the field whose value is the key, or several, joined by `|` like their values. `is_grant`: its events set what
    limits, pays or allows, so producers from outside have no right to write it (docs/kafka-access.md).
    """

    name: str
    schema: str
    key: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    outsider: bool = False
    is_grant: bool = False
    fixed_partitions: int | None = None  # None: the number of the installation
    retention_ms: int = -1
    cleanup: str = "delete"
    message_bytes_max: int = MESSAGE_BYTES_MAX
    about: str = ""

    @property
    def partitions(self) -> int:
        """Return the number of its partitions."""
        return keyed_partitions() if self.fixed_partitions is None else self.fixed_partitions

    @property
    def is_catalogued(self) -> bool:
        """Return whether the catalogue declares it; else it belongs to another application (`foreign_topic`)."""
        return self.name.removesuffix(DEAD_LETTER_SUFFIX) in TOPICS

    @property
    def subject(self) -> str:
        """Return the registry subject of the value (TopicNameStrategy)."""
        return f"{self.name}-value"

    @property
    def dead_letter(self) -> str:
        """Return the topic of events of this topic that cannot be processed."""
        return self.name + DEAD_LETTER_SUFFIX

    def key_of(self, event: Mapping[str, object]) -> str:
        """Return the key of an event of this topic."""
        return "|".join(str(event[name]) for name in self.key.split("|"))

    def config(self) -> dict[str, str]:
        """Return the broker configuration of this topic; compared key by key."""
        return {
            "cleanup.policy": self.cleanup,
            "retention.ms": str(self.retention_ms),
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(self.message_bytes_max),
        }


class _Installation:
    """What this process knows of its installation."""

    partitions = PARTITIONS


def keyed_partitions() -> int:
    """Return the number of partitions of each topic with a key in this installation."""
    return _Installation.partitions


def use_partitions(count: int) -> None:
    """Set the number of partitions: called when a process reads its settings, before anything else."""
    _Installation.partitions = count


def partitions_refusal(counts: Mapping[str, int], expected: int) -> str | None:
    """Return the message if the broker has another number than this process; None if it has the same, or no topics yet.

    Args:
        counts: partitions of each topic on the broker, including foreign ones.
        expected: the number of this process for a topic with a key.
    """
    found = {counts[name] for name, topic in TOPICS.items() if topic.fixed_partitions is None and name in counts}
    if found <= {expected}:
        return None
    if len(found) == 1:
        there = found.pop()
        return (
            f"the topics have {there} partitions and HIGHWATER_PARTITIONS is {expected}: set it to {there} for every process; an"
            " installation keeps the number that it was begun with"
        )
    numbers = ", ".join(map(str, sorted(found)))
    return (
        f"the topics have different numbers of partitions ({numbers}), and HIGHWATER_PARTITIONS is {expected}: events of one key"
        " must be in the same partition of each, and Kafka cannot remove partitions. Do not delete a topic, it has the only"
        " copy of its events: move to a new installation as docs/scaling.md describes"
    )


def _outside(name: str, schema: str, key: str, sink: str, about: str, *, is_grant: bool = False) -> Topic:
    producers = ("api", "outside")
    return Topic(name, schema, key, producers, consumers=(sink,), outsider=True, is_grant=is_grant, about=about)


_TOPICS = (
    _outside(
        "feeds.insight-ingested",
        "feeds/InsightIngested.v1",
        "channel_id",
        "insights",
        "an insight arrived in a channel",
    ),
    _outside(
        "feeds.insight-retracted",
        "feeds/InsightRetracted.v1",
        "channel_id",
        "insights",
        "an insight was retracted; later rebuilds and reads leave it out",
    ),
    Topic(
        "feeds.insight-conflicted",
        "feeds/InsightConflicted.v1",
        "channel_id",
        ("outbox",),
        (),
        about="an insight arrived again under its id with different content; the first one is kept",
    ),
    _outside(
        "feeds.subscription-changed",
        "feeds/SubscriptionChanged.v1",
        "user_id",
        "users",
        "a user subscribed to one channel or unsubscribed from it",
    ),
    _outside(
        "feeds.subscriptions-replaced",
        "feeds/SubscriptionsReplaced.v1",
        "user_id",
        "users",
        "a user's complete list of subscriptions was replaced",
    ),
    _outside(
        "feeds.user-active",
        "feeds/UserActive.v1",
        "user_id",
        "users",
        "a user was active; clusters of inactive users are not rebuilt",
    ),
    _outside(
        "feeds.plan-changed",
        "feeds/PlanChanged.v1",
        "user_id",
        "users",
        "a user's plan changed; it decides how often clusters are rebuilt",
        is_grant=True,
    ),
    _outside(
        "feeds.rebuild-demanded",
        "feeds/RebuildDemanded.v1",
        "user_id",
        "users",
        "an immediate rebuild of a user's clusters was requested",
    ),
    _outside(
        "feeds.clusters-curated",
        "feeds/ClustersCurated.v1",
        "user_id",
        "users",
        "a reader renamed, merged or split clusters, said how to name them, or undid that",
    ),
    _outside("feeds.user-erased", "feeds/UserErased.v1", "user_id", "users", "a request to erase a user's data"),
    _outside(
        "league.match-scheduled",
        "league/MatchScheduled.v1",
        "season",
        "fixtures",
        "a match was scheduled or rescheduled",
    ),
    _outside("league.match-updated", "league/MatchUpdated.v1", "season", "results", "the score of a match in play"),
    _outside(
        "league.match-finalized",
        "league/MatchFinalized.v1",
        "season",
        "results",
        "the final result of a match, or a correction of it",
    ),
    _outside("league.vote-cast", "league/VoteCast.v1", "match_id", "votes", "a user's vote on the outcome of a match"),
    _outside(
        "league.prediction-made", "league/PredictionMade.v1", "match_id", "votes", "a user's prediction of a result"
    ),
    _outside("league.comment-posted", "league/CommentPosted.v1", "match_id", "posts", "a user's comment on a match"),
    _outside(
        "league.ad-changed", "league/AdChanged.v1", "ad_id", "posts", "an advertisement was added, changed or removed"
    ),
    _outside(
        "league.rules-changed", "league/RulesChanged.v1", "season", "posts", "the rules of a season were declared"
    ),
    _outside("queries.query-submitted", "queries/QuerySubmitted.v1", "user_id", "queries", "a user asked a question"),
    _outside(
        "queries.run-controlled",
        "queries/RunControlled.v1",
        "user_id",
        "controls",
        "a request to cancel a run, or to restart it from a stage",
    ),
    _outside(
        "queries.prompt-changed",
        "queries/PromptChanged.v1",
        "role_name",
        "queries",
        "an administrator changed the prompt of a pipeline role",
        is_grant=True,
    ),
    _outside(
        "jobs.job-submitted",
        "jobs/JobSubmitted.v1",
        "job_id",
        "jobs",
        "a user requested a deck, the ingest of a document, or an export",
    ),
    _outside("jobs.view-recorded", "jobs/ViewRecorded.v1", "presentation_id", "views", "a public deck was viewed"),
    _outside(
        "jobs.plan-changed",
        "jobs/PlanChanged.v1",
        "organization_id",
        "organizations",
        "an organization's plan or subscription status changed",
        is_grant=True,
    ),
    _outside(
        "jobs.role-changed",
        "jobs/RoleChanged.v1",
        "user_id",
        "organizations",
        "a user's role changed; sessions with the old role become invalid",
        is_grant=True,
    ),
    _outside(
        "chunks.chunk-submitted",
        "chunks/ChunkSubmitted.v1",
        "ns|slot|source_id",
        "chunks",
        "a chunk of a source was submitted",
    ),
    _outside(
        "chunks.ingest-finished",
        "chunks/IngestFinished.v1",
        "ns|slot|source_id",
        "chunks",
        "all chunks of a source have been submitted",
    ),
    Topic(
        "streams.tick",
        "streams/Tick.v1",
        "",
        ("worker",),
        ("worker", "mirror", "ratings", "digests"),
        retention_ms=7 * DAY_MS,
        about="the clock of the log: one record per partition and tick",
    ),
    Topic(
        "streams.dead-letter-handled",
        "streams/DeadLetterHandled.v1",
        "topic",
        ("operator", "api"),
        (),
        fixed_partitions=1,  # actions of people, in their order
        about="a dead letter was sent again, edited or deleted, and by whom",
    ),
    Topic(
        "security.action-recorded",
        "security/ActionRecorded.v1",
        "action",
        ("operator", "api", "outbox"),
        (),
        fixed_partitions=1,  # refused and privileged actions in their order; kept forever
        about="a refused or privileged action, and who requested it",
    ),
    Topic(
        "feeds.channel-advanced",
        "feeds/ChannelAdvanced.v1",
        "channel_id",
        ("outbox",),
        ("worker", "mirror"),
        about="insights were added to a channel or retracted from it",
    ),
    Topic(
        "feeds.channel-dirty",
        "feeds/ChannelDirty.v1",
        "channel_id",
        ("worker",),
        ("fanout", "mirror"),
        about="a channel changed since the last tick",
    ),
    Topic(
        "feeds.user-changed",
        "feeds/UserChanged.v1",
        "user_id",
        ("outbox",),
        ("worker", "fanout", "mirror"),
        about="a change of a user's plan, activity or subscriptions, as stored",
    ),
    Topic(
        "feeds.novelty",
        "feeds/NoveltyFound.v1",
        "",
        ("fanout",),
        ("worker", "mirror"),
        about="new heads of channels, for the subscribers of one partition",
    ),
    Topic(
        "feeds.rebuild-requested",
        "feeds/RebuildRequested.v1",
        "user_id",
        ("worker",),
        ("rebuild", "mirror"),
        about="the decision to rebuild a user's clusters, with its inputs",
    ),
    Topic(
        "feeds.rebuild-finished",
        "feeds/RebuildFinished.v1",
        "user_id",
        ("outbox",),
        ("worker", "mirror"),
        about="the outcome of a rebuild request: rebuilt, skipped, failed or delayed",
    ),
    Topic(
        "feeds.clusters-rebuilt",
        "feeds/ClustersRebuilt.v1",
        "user_id",
        ("outbox",),
        ("mirror",),
        about="a new version of a user's clusters was stored",
    ),
    Topic(
        "feeds.cluster-evolved",
        "feeds/ClusterEvolved.v1",
        "user_id",
        ("outbox",),
        (),
        about="one cluster changed between two versions of a user's clusters",
    ),
    Topic(
        "feeds.basis-changed",
        "feeds/BasisChanged.v1",
        "basis_id",
        ("outbox",),
        (),
        fixed_partitions=1,  # a handful over the lifetime of a store, in order
        about="the embedding model version changed; vectors of two versions are never compared",
    ),
    Topic(
        "league.match-changed",
        "league/MatchChanged.v1",
        "season",
        ("outbox",),
        ("worker", "ratings"),
        about="a stored match changed; its new state",
    ),
    Topic(
        "league.refresh-requested",
        "league/RefreshRequested.v1",
        "scope",
        ("worker", "outbox"),
        ("documents",),
        about="documents that a change has made outdated, to be rebuilt",
    ),
    Topic(
        "queries.pipeline-stage",
        "queries/PipelineStage.v1",
        "user_id",
        ("outbox",),
        ("timeline", "worker"),
        about="a run was created, or its status changed",
    ),
    Topic(
        "queries.stage-requested",
        "queries/StageRequested.v1",
        "user_id",
        ("worker",),
        ("stages",),
        about="the decision to run a stage of a waiting run, with its inputs",
    ),
    Topic(
        "queries.run-archived",
        "queries/RunArchived.v1",
        "user_id",
        ("outbox",),
        ("timeline", "worker"),
        about="the memory of a completed run was stored; its user's next run may start",
    ),
    Topic(
        "queries.run-failed",
        "queries/RunFailed.v1",
        "request_id",
        ("outbox",),
        ("alerts",),
        about="a run failed, with what an operator needs to know",
    ),
    Topic(
        "jobs.control",
        "jobs/JobControl.v1",
        "job_id",
        ("api", "outbox"),
        ("jobcontrols",),
        about="a request to revoke a job, to publish it to its workers again, or to approve its outline",
    ),
    Topic(
        "jobs.generation-requested",
        "jobs/GenerationRequested.v1",
        "job_id",
        ("outbox",),
        ("generation",),
        about="a deck is to be generated",
    ),
    Topic(
        "jobs.ingestion-requested",
        "jobs/IngestionRequested.v1",
        "job_id",
        ("outbox",),
        ("ingestion",),
        about="a document is to be cut into chunks",
    ),
    Topic(
        "jobs.export-requested",
        "jobs/ExportRequested.v1",
        "job_id",
        ("outbox",),
        ("export",),
        about="a deck is to be written as a file",
    ),
    Topic(
        "jobs.checkpoint-saved",
        "jobs/CheckpointSaved.v1",
        "job_id",
        ("outbox",),
        ("progress",),
        cleanup="compact",
        about="the progress of a job, from which another worker can continue; a tombstone once its result is stored",
    ),
    Topic(
        "jobs.progress",
        "jobs/JobProgressed.v1",
        "job_id",
        ("outbox",),
        ("progress",),
        about="a step of a job, as its watchers see it",
    ),
    Topic(
        "jobs.tokens-used",
        "jobs/TokensUsed.v1",
        "organization_id",
        ("api",),
        ("tokens",),
        about="tokens paid for outside jobs and queries: the question of a search was embedded",
    ),
    Topic(
        "jobs.usage-recorded",
        "jobs/UsageRecorded.v1",
        "organization_id",
        ("outbox",),
        ("progress", "worker"),
        about="what a job, a query or a search used",
    ),
    Topic(
        "jobs.usage-flushed",
        "jobs/UsageFlushed.v1",
        "organization_id",
        ("worker",),
        ("usage",),
        about="an organization's usage in a period so far, in absolute totals",
    ),
    Topic(
        "chunks.ingest-progressed",
        "chunks/IngestProgressed.v1",
        "ns|slot|source_id",
        ("outbox",),
        ("worker",),
        about="the progress of the ingest of a source",
    ),
    Topic(
        "chunks.ingest-decided",
        "chunks/IngestDecided.v1",
        "ns|slot|source_id",
        ("worker",),
        ("ingests",),
        about="the decision that an ingest of a source has ended, with its inputs",
    ),
    Topic(
        "chunks.ingest-reported",
        "chunks/IngestReported.v1",
        "ingest_id",
        ("outbox",),
        (),
        cleanup="compact",
        about="the result of an ingest over all its sources",
    ),
    Topic(
        "chunks.chunk-changed",
        "chunks/ChunkChanged.v1",
        "ns|slot|source_id",
        ("outbox",),
        (),
        about="chunks were inserted, updated, revived, orphaned, archived, removed or embedded",
    ),
    Topic(
        "chunks.embedding-requested",
        "chunks/EmbeddingRequested.v1",
        "ns|slot|source_id",
        ("outbox",),
        ("backfill",),
        about="chunks of a source need vectors",
    ),
    Topic(
        "chunks.queries-served",
        "chunks/QueriesServed.v1",
        "ns",
        ("api",),
        ("worker",),
        about="the number of searches answered in a namespace",
    ),
    Topic(
        "chunks.namespace-rated",
        "chunks/NamespaceRated.v1",
        "ns",
        ("worker",),
        ("namespaces",),
        about="how often a namespace is searched, and whether it is hot",
    ),
    Topic(
        "chunks.sweep-requested",
        "chunks/SweepRequested.v1",
        "sweep",
        ("worker",),
        ("namespaces",),
        fixed_partitions=1,  # one an hour, each completed before the next
        about="once an hour: find orphans whose grace period has ended, and cold chunks",
    ),
    Topic(
        "cache.prewarm-requested",
        "cache/PrewarmRequested.v1",
        "season",
        ("api", "worker"),
        ("documents",),
        about="the pages of a season are to be built before readers request them",
    ),
    Topic(
        "cache.invalidation-requested",
        "cache/InvalidationRequested.v1",
        "key",
        ("api",),
        ("documents",),
        about="an operator requested a new version of a document",
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
    """Return the dead-letter topic of a consumed topic: original bytes, so it has no schema and keeps the original keys."""
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
    """Return every topic that `highwater init` creates: the catalogue and a dead-letter topic for each."""
    return _TOPICS + tuple(dead_letter_topic(topic) for topic in _TOPICS)


def foreign_topic(name: str) -> Topic:
    """Return a topic of another application: nothing is declared about it, and its values are shown unchanged."""
    return Topic(name, "", "", producers=(), consumers=())


def is_topic_name(text: str) -> bool:
    """Return whether Kafka allows a topic with this name."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")
