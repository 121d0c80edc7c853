"""Typed records of the feeds events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class BasisChanged(TypedDict):
    """The embedding model version changed. All vectors except those that producers supplied have been recomputed."""

    basis_id: str
    previous_basis_id: str
    kind: str
    corpus_size: int
    reembedded: int
    changed_at: int


class ChannelAdvanced(TypedDict):
    """A batch added insights to a channel or retracted some."""

    channel_id: str
    head: int
    arrived_at: int
    retractions: int


class ChannelDirty(TypedDict):
    """A channel changed since the last tick; its subscribers are to be notified."""

    channel_id: str
    head: int
    dirty_since: int
    tick: int
    now: int


class ClusterEvolved(TypedDict):
    """A cluster changed between two versions of a user's clusters. Clusters that stayed the same have no event."""

    user_id: str
    cluster_version: int
    cluster_id: str
    kind: str
    label: str
    size: int
    previous_size: int
    joined: int
    arrived: int
    left: int
    expired: int
    jaccard: float
    related: list[str]
    request_position: str
    evolved_at: int


class ClusterPart(TypedDict):
    """Part of a record."""

    insight_ids: list[str]
    label: str | None


class ClustersCurated(TypedDict):
    """A reader renamed, merged or split clusters, said how to name them, or undid it. It applies until it is undone."""

    user_id: str
    ts: int
    kind: str
    cluster_id: str
    label: str | None
    cluster_ids: list[str]
    parts: list[ClusterPart]
    curation_id: str | None


class ClustersRebuilt(TypedDict):
    """A new version of a user's clusters is stored."""

    user_id: str
    cluster_version: int
    request_position: str
    hwm: dict[str, int]
    dataset_size: int
    omitted: int
    clusters: int
    noise: int
    rebuilt_at: int
    basis_id: str
    left_out: int
    curations: list[str]


class InsightConflicted(TypedDict):
    """An insight arrived again under its id with different content. The first one is kept and this one is ignored."""

    insight_id: str
    channel_id: str
    position: str
    first_position: str
    fields: list[str]
    at: int


class InsightIngested(TypedDict):
    """A producer published an insight of a channel."""

    insight_id: str
    channel_id: str
    ts: int
    text: str | None
    url: str | None
    embedding: bytes | None
    embedding_model: str | None


class InsightRetracted(TypedDict):
    """An insight was retracted: it keeps its number, and later rebuilds and reads leave it out."""

    insight_id: str
    channel_id: str
    ts: int


class ChannelHead(TypedDict):
    """Part of a record."""

    channel_id: str
    head: int
    users: list[str]
    retractions: int


class NoveltyFound(TypedDict):
    """New heads of channels, for the subscribers whose keys belong to the partition of the record."""

    heads: list[ChannelHead]


class PlanChanged(TypedDict):
    """A user's plan changed."""

    user_id: str
    plan: str
    ts: int


class RebuildDemanded(TypedDict):
    """An operator asked for a rebuild of a user's clusters now."""

    user_id: str
    ts: int
    force: bool
    if_new: bool


class RebuildFinished(TypedDict):
    """Outcome of a rebuild request; every request has one."""

    user_id: str
    request_position: str
    outcome: str
    reason: str
    cluster_version: int
    hwm: dict[str, int]
    last_clustered_at: int | None
    last_checked_at: int | None
    finished_at: int
    retractions: dict[str, int] | None
    last_enqueued_at: int | None
    demanded_revision: int
    forced: bool


class RebuildRequested(TypedDict):
    """The decision to rebuild a user's clusters, with its inputs."""

    user_id: str
    trigger: str
    forced: bool
    planned_at: int
    tick_position: str
    pending: int
    plan: str
    last_active_at: int | None
    last_clustered_at: int | None
    last_checked_at: int | None
    last_enqueued_at: int | None
    policy_hash: str
    is_changed: bool
    demanded_revision: int


class SubscriptionChanged(TypedDict):
    """A user subscribed to a channel or unsubscribed from it."""

    user_id: str
    channel_id: str
    subscribed: bool
    ts: int


class SubscriptionsReplaced(TypedDict):
    """A user's complete list of subscriptions was replaced."""

    user_id: str
    channels: list[str]
    ts: int


class UserActive(TypedDict):
    """A user was active."""

    user_id: str
    ts: int


class UserChanged(TypedDict):
    """Changes of a user's plan, activity or subscriptions, in the order in which they were stored."""

    user_id: str
    revision: int
    plan: str | None
    last_active_at: int | None
    subscribed: list[str]
    unsubscribed: list[str]
    rebuild_demanded: bool
    rebuild_forced: bool
    erased: bool


class UserErased(TypedDict):
    """A request to erase a user's data."""

    user_id: str
    ts: int


INSIGHT_INGESTED: Final = TopicName[InsightIngested]("feeds.insight-ingested")
INSIGHT_RETRACTED: Final = TopicName[InsightRetracted]("feeds.insight-retracted")
INSIGHT_CONFLICTED: Final = TopicName[InsightConflicted]("feeds.insight-conflicted")
SUBSCRIPTION_CHANGED: Final = TopicName[SubscriptionChanged]("feeds.subscription-changed")
SUBSCRIPTIONS_REPLACED: Final = TopicName[SubscriptionsReplaced]("feeds.subscriptions-replaced")
USER_ACTIVE: Final = TopicName[UserActive]("feeds.user-active")
PLAN_CHANGED: Final = TopicName[PlanChanged]("feeds.plan-changed")
REBUILD_DEMANDED: Final = TopicName[RebuildDemanded]("feeds.rebuild-demanded")
CLUSTERS_CURATED: Final = TopicName[ClustersCurated]("feeds.clusters-curated")
USER_ERASED: Final = TopicName[UserErased]("feeds.user-erased")
CHANNEL_ADVANCED: Final = TopicName[ChannelAdvanced]("feeds.channel-advanced")
CHANNEL_DIRTY: Final = TopicName[ChannelDirty]("feeds.channel-dirty")
USER_CHANGED: Final = TopicName[UserChanged]("feeds.user-changed")
NOVELTY: Final = TopicName[NoveltyFound]("feeds.novelty")
REBUILD_REQUESTED: Final = TopicName[RebuildRequested]("feeds.rebuild-requested")
REBUILD_FINISHED: Final = TopicName[RebuildFinished]("feeds.rebuild-finished")
CLUSTERS_REBUILT: Final = TopicName[ClustersRebuilt]("feeds.clusters-rebuilt")
CLUSTER_EVOLVED: Final = TopicName[ClusterEvolved]("feeds.cluster-evolved")
BASIS_CHANGED: Final = TopicName[BasisChanged]("feeds.basis-changed")
