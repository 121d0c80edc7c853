"""The answers of the routes of feeds, for the OpenAPI document.

Invariant: no answer has other members. An optional member is `NotRequired`; a member without a value is `None`.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from highwater.api.core.answers import Time

# A place on the map of a user's insights: x and y.
Place: TypeAlias = list[float]


class FeedInsight(TypedDict):
    """An insight as a feed shows it; `since`: the cluster version in which it entered the cluster."""

    insight_id: str
    channel_id: str
    ts: Time
    text: str | None
    url: str | None
    since: int


class FeedItem(TypedDict):
    """A cluster as a feed shows it; `entered`: pairs of a cluster version and the number of members that entered then.
    `arrived`: pairs of a version and the number of members that came into the user's data set then, into any cluster or none.

    `theme`: the theme of the cluster in this version; absent in a feed or version that an older release stored.
    With `since`, `is_new` is true if the cluster is younger, and `new_count` is the number of its insights that arrived later;
    insights that only moved into it are not counted.
    """

    cluster_id: str
    title: str
    summary: str
    keywords: list[str]
    theme: NotRequired[str]
    size: int
    born_version: int
    changed_version: int
    position: Place | None
    entered: NotRequired[list[list[int]]]
    arrived: NotRequired[list[list[int]]]
    representative: FeedInsight | None
    insights: list[FeedInsight]
    is_new: NotRequired[bool]
    new_count: NotRequired[int]


class Feed(TypedDict):
    """The feed of a user, largest cluster first; with `since`, only newer content. `preliminary` and `regrouped` as in
    `Clusters`; absent in feeds that an older release stored.
    """

    user_id: str
    cluster_version: int
    built_at: Time | None
    preliminary: NotRequired[bool]
    regrouped: NotRequired[bool]
    items: list[FeedItem]
    since: NotRequired[int]


class DigestChannel(TypedDict):
    """How many new insights a channel has in a section."""

    channel_id: str
    count: int


class DigestExample(TypedDict):
    """A new insight, in whole sentences where its text has them. `alike_count` others say nearly the same; the one that
    `is_odd` is least like all others.
    """

    insight_id: str
    channel_id: str
    ts: Time
    text: str
    url: str | None
    alike_count: int
    is_odd: bool


class DigestBumps(TypedDict):
    """The version bumps among the newest new insights, and what has another version, most frequent first."""

    count: int
    names: list[str]


class DigestSection(TypedDict):
    """What is new in a cluster; `cluster_id` null: insights in no cluster.

    `is_new`: the cluster is younger than version `since`; false if that is 0, which knows no cluster. `is_left_over`: the
    insights have no subject in common. `arrived_version`: the last version in which an insight arrived. `week`
    and `week_before` count the cluster's insights whose own time is less than seven days before that of the version, and in
    the seven days before these.
    """

    cluster_id: str | None
    label: str
    theme: str
    is_new: bool
    is_left_over: bool
    size: int
    new_count: int
    arrived_version: int
    week: int
    week_before: int
    channels: list[DigestChannel]
    first_at: Time
    last_at: Time
    examples: list[DigestExample]
    bumps: DigestBumps | None


class Digest(TypedDict):
    """What is new since version `since`, of which `since_at` is the time (null: unknown, or version 0); the subjects with
    most news come first.

    The counts include clusters that are not among the sections. `position`: the event that caused `cluster_version`.
    `language` is that of most texts. `preliminary` and `regrouped` as in `Clusters`.
    """

    user_id: str
    since: int
    since_at: Time | None
    cluster_version: int
    position: str
    updated_at: Time | None
    preliminary: bool
    regrouped: bool
    language: str
    new_count: int
    cluster_count: int
    sections: list[DigestSection]


class JsonFeedItem(TypedDict):
    """A cluster with news, as an item of a JSON Feed."""

    id: str
    url: str
    title: str
    content_html: str
    date_published: Time
    tags: list[str]


class JsonFeedReach(TypedDict):
    """How far a JSON Feed goes, as in `Digest`."""

    since: int
    cluster_version: int
    position: str


class JsonFeed(TypedDict):
    """A digest as a JSON Feed 1.1."""

    version: str
    title: str
    home_page_url: str
    feed_url: str
    description: str
    language: str
    items: list[JsonFeedItem]
    _highwater: JsonFeedReach


class ClusterOfUser(TypedDict):
    """A cluster of a version. The lists are parallel to `insight_ids`; a version from before clusters had an identity
    has only its first members.
    """

    cluster_id: str
    label: str
    keywords: list[str]
    size: int
    insight_ids: list[str]
    representative_id: str | None
    title: NotRequired[str]
    summary: NotRequired[str]
    confidences: NotRequired[list[float]]
    since: NotRequired[list[int]]
    arrived: NotRequired[list[int]]
    positions: NotRequired[list[Place]]
    position: NotRequired[Place]
    radius: NotRequired[float]
    born_version: NotRequired[int]
    changed_version: NotRequired[int]
    nearby_ids: NotRequired[list[str]]
    nearby_confidences: NotRequired[list[float]]
    written_version: NotRequired[int]
    theme: NotRequired[str]
    label_by: NotRequired[str]
    written_for: NotRequired[str]
    theme_for: NotRequired[str | None]
    is_new: NotRequired[bool]
    new_insight_ids: NotRequired[list[str]]


class OutsideClusters(TypedDict):
    """Insights in no cluster, where each is on the map (null: its vector is zero), and the version in which it arrived."""

    insight_ids: list[str]
    positions: list[Place | None]
    arrived: NotRequired[list[int]]


class DiedCluster(TypedDict):
    """A cluster that ended in a version, and the clusters that its insights went to."""

    cluster_id: str
    label: str
    version: int
    related: list[str]


class Clusters(TypedDict):
    """The clusters of a user in one version; pages have `next_cursor`; `since`, `died` and `complete` only with `since`.

    `preliminary`: the embedding model has not read all insights yet, and a version with its vectors replaces this one.
    `regrouped`: made with another embedding model version than the one before it.
    """

    user_id: str
    cluster_version: int
    updated_at: Time | None
    clusters: list[ClusterOfUser]
    noise: int
    basis_id: NotRequired[str | None]
    left_out: NotRequired[int]
    preliminary: NotRequired[bool]
    regrouped: NotRequired[bool]
    outside: NotRequired[OutsideClusters]
    since: NotRequired[int]
    died: NotRequired[list[DiedCluster]]
    complete: NotRequired[bool]
    next_cursor: NotRequired[str | None]


class ClusterLifeEvent(TypedDict):
    """A change of a cluster between two versions."""

    cluster_version: int
    kind: Literal["born", "grew", "shrank", "merged", "split", "died"]
    label: str
    size: int
    previous_size: int
    joined: int
    arrived: int
    left: int
    expired: int
    jaccard: float
    related: list[str]
    caused_by: str
    evolved_at: Time


class ClusterHistory(TypedDict):
    """The history of a cluster, oldest change first; `complete`: the history includes its birth."""

    user_id: str
    cluster_id: str
    label: str
    is_alive: bool
    born_version: int | None
    size: int
    complete: bool
    events: list[ClusterLifeEvent]
    next_cursor: str | None


class RebuildDelay(TypedDict):
    """The machine failed the last rebuild, `times` in a row; it is requested again without a cooldown, after other users."""

    reason: str
    times: int
    at: Time


class Pending(TypedDict):
    """How many insights wait for the next rebuild of a user's clusters, and whether it is due.

    If it is not, `waits_for` says what must come first, and `due_at` is when it is due without another event of the user (null if
    only an event makes it due; the deadline of the rebuild in progress if it waits for its `answer`).
    A rebuild that is due may wait for `vectors`: a minute at most, in which the embedding model can read the newest insights.
    `delayed` says why the machine failed the last rebuild; null if it did not.
    """

    user_id: str
    pending: int
    by_channel: dict[str, int]
    cluster_version: int
    last_clustered_at: Time | None
    due: bool
    trigger: Literal["novelty", "time", "manual"] | None
    waits_for: Literal["subscription", "activity", "time", "answer", "vectors"] | None
    due_at: Time | None
    changed: bool
    in_flight: bool
    plan: str
    last_active_at: Time | None
    delayed: RebuildDelay | None


class SubscribedChannels(TypedDict):
    """The channels that a user is subscribed to."""

    user_id: str
    channels: list[str]
    next_cursor: str | None


class Channel(TypedDict):
    """A channel; `current_seq` is the number of its insights."""

    channel_id: str
    current_seq: int
    last_insight_ts: Time | None


class Channels(TypedDict):
    """A page of the channels."""

    channels: list[Channel]
    next_cursor: str | None


class Insight(TypedDict):
    """An insight as it was published."""

    insight_id: str
    channel_id: str
    seq: int
    ts: Time
    arrived_at: Time
    text: str | None
    url: str | None
    position: str


class RebuildDemand(TypedDict):
    """The outcome of a requested rebuild; `cluster_version` is the version afterwards."""

    user_id: str
    position: str
    status: Literal["pending", "rebuilt", "unchanged", "skipped", "failed"]
    reason: str
    cluster_version: int | None
    request_position: str | None
    demanded_at: Time
    finished_at: Time | None


class CurationPart(TypedDict):
    """A part of a split."""

    insight_ids: list[str]
    label: str | None


class CurationOfUser(TypedDict):
    """A rename, merge, split or wish; `is_resting`: the current version has none of its clusters."""

    curation_id: str
    kind: Literal["rename", "merge", "split", "wish"]
    cluster_id: str
    label: str | None
    cluster_ids: list[str]
    parts: list[CurationPart]
    part_ids: list[str]
    is_resting: bool
    position: str
    said_at: Time


class Curations(TypedDict):
    """The curations of a user, in the order of the log."""

    user_id: str
    curations: list[CurationOfUser]
