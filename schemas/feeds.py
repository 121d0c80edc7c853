"""Typed records of the feeds events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class BasisChanged(TypedDict):
    """Vectors are compared in another basis from now on; all but those that came from outside are in it."""

    basis_id: str
    previous_basis_id: str
    kind: str
    corpus_size: int
    reembedded: int
    changed_at: int


class ChannelAdvanced(TypedDict):
    """A batch moved the head of a channel, or retracted insights of it."""

    channel_id: str
    head: int
    arrived_at: int
    retractions: int


class ChannelDirty(TypedDict):
    """A tick found that a channel moved since the last one; its subscribers are to be told."""

    channel_id: str
    head: int
    dirty_since: int
    tick: int
    now: int


class ClusterEvolved(TypedDict):
    """What happened to one cluster between two versions of a user's clusters; one that stayed as it was is not told."""

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
    """A reader renamed, merged or split clusters, or undid that. It holds in every later version until it is undone."""

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
    """An insight came again under its id with other content; the first one stays, and this one changed nothing."""

    insight_id: str
    channel_id: str
    position: str
    first_position: str
    fields: list[str]
    at: int


class InsightIngested(TypedDict):
    """An insight arrived in a channel (R0.13)."""

    insight_id: str
    channel_id: str
    ts: int
    text: str | None
    url: str | None
    embedding: bytes | None
    embedding_model: str | None


class InsightRetracted(TypedDict):
    """An insight was taken back: it keeps its number and is left out of later rebuilds and reads."""

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
    """Heads of channels for those subscribers whose keys hash to the record's partition."""

    heads: list[ChannelHead]


class PlanChanged(TypedDict):
    """A user's plan changed (R0.10)."""

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
    """What became of a request to rebuild: whoever asked is always told."""

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


class RebuildRequested(TypedDict):
    """The decision to rebuild a user's clusters, with all it was made from."""

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
    """A user subscribed to a channel or left it."""

    user_id: str
    channel_id: str
    subscribed: bool
    ts: int


class SubscriptionsReplaced(TypedDict):
    """A user's whole set of subscriptions was replaced."""

    user_id: str
    channels: list[str]
    ts: int


class UserActive(TypedDict):
    """A user was active (R0.7)."""

    user_id: str
    ts: int


class UserChanged(TypedDict):
    """What a user's own events changed, in the order the sink stored them."""

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
    """A user's data is to be erased."""

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
