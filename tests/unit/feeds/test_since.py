"""Changes since a reader's version: the same for feeds and clusters, and as computed by the core."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.connectors.feeds.documents import feed_cluster, feed_news
from highwater.connectors.feeds.items import FeedInsight, extractive_item
from highwater.connectors.feeds.read_model import (
    ClusterInsights,
    Clusters,
    ClustersSince,
    has_all_changes,
    tracked_cluster,
    unread_clusters,
)
from highwater.connectors.redis.resource_cache import Head
from highwater.streams.feeds.tracking import new_since
from tests.integration.api_server import cluster, old_cluster

VERSION = 9


@st.composite
def stored_clusters(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Clusters of version 9 with any past; some from before clusters had one."""
    clusters = []
    for number in range(draw(st.integers(0, 5))):
        since = draw(st.lists(st.integers(1, VERSION), min_size=1, max_size=6))
        ids = [f"i-{number}-{place}" for place in range(len(since))]
        if draw(st.booleans()):
            clusters.append(old_cluster(f"c-{number}", ids))
            continue
        born = draw(st.integers(1, min(since)))
        changed = draw(st.integers(max(since), VERSION))
        more = {"arrived": [draw(st.integers(1, one)) for one in since]} if draw(st.booleans()) else {}
        clusters.append(cluster(f"c-{number}", ids, since=since, born=born, changed=changed, **more))
    return clusters


def _found(clusters: list[dict[str, Any]]) -> Clusters:
    return Clusters(Head(1, "clusters-1", "", 0), VERSION, VERSION, clusters, 0, 0, "", None, 0, None)


@given(stored_clusters(), st.integers(0, VERSION + 1))
def test_what_is_new_is_what_the_core_says(clusters: list[dict[str, Any]], since: int) -> None:
    """Feed items and clusters select, flag and count as `new_since` does, for any history of the clusters."""
    expected = new_since([tracked_cluster(one, VERSION) for one in clusters], since)
    assert [(one.cluster_id, one.is_new, one.insight_ids) for one in expected] == [
        (one["cluster_id"], one["is_new"], one["new_insight_ids"]) for one in unread_clusters(_found(clusters), since)
    ]
    insight = FeedInsight("i-0-0", "c", 0, "text", None, is_representative=True)
    items = [
        extractive_item(feed_cluster(one, VERSION, ClusterInsights((insight,) if place == 0 else (), is_whole=True)))
        for place, one in enumerate(clusters)
    ]
    news = feed_news(orjson.dumps({"cluster_version": VERSION, "items": items}), since)
    assert news is not None
    assert [(one.cluster_id, one.is_new, len(one.insight_ids)) for one in expected] == [
        (item["cluster_id"], item["is_new"], item["new_count"]) for item in news.document["items"]
    ]


@given(stored_clusters())
def test_who_never_read_is_told_everything(clusters: list[dict[str, Any]]) -> None:
    """Since version 0 every cluster and every insight is new; since the version itself nothing is."""
    everything = unread_clusters(_found(clusters), 0)
    assert everything == [{**one, "is_new": True, "new_insight_ids": tuple(one["insight_ids"])} for one in clusters]
    assert unread_clusters(_found(clusters), VERSION) == []


def test_an_item_has_the_theme_of_its_version() -> None:
    """The theme is that of the cluster; a version that an older release stored has no themes, nor have its items."""
    told = [cluster("a", ["i"], theme="Broker"), cluster("b", ["i"], theme=""), old_cluster("c", ["i"])]
    items = [extractive_item(feed_cluster(one, VERSION, ClusterInsights((), is_whole=True))) for one in told]
    assert [item.get("theme", "absent") for item in items] == ["Broker", "absent", "absent"]


def test_a_feed_of_another_form_does_not_tell() -> None:
    """A document stored before items had their version gives no answer to any request."""
    assert feed_news(orjson.dumps({"cluster_version": 1, "items": [{"cluster_id": "a", "size": 3}]}), 0) is None


@pytest.mark.parametrize(
    ("since", "told_since", "is_complete"),
    [
        (0, 0, True),  # nothing is forgotten
        (5, 5, True),
        (4, 5, False),  # the changes of version 5 are forgotten
        (8, VERSION, False),  # a version from before there were changes to tell
        (9, VERSION, True),  # nothing has changed since
        (9, VERSION + 3, True),  # asked of an earlier version, up to that one
        (0, None, True),  # a user without a version
    ],
)
def test_it_is_said_when_the_past_is_forgotten(since: int, told_since: int | None, is_complete: bool) -> None:
    """Complete means that the changes of every version after the reader's are stored, with any present setting."""
    assert has_all_changes(ClustersSince(_found([]), (), told_since), since) is is_complete
