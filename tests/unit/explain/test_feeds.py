"""The tree of a feed, over a log in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from highwater.connectors.explain.explanations import Explanation, Step, chain
from highwater.connectors.explain.feeds import FeedFacts, NewInsight, NovelChannel, novel_channels, trace_feed
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.schemas.positions import Cause, Position
from tests.unit.explain.memory_log import MemoryLog

USER = "alice"
T = 1_800_000_000_000


def requested(**fields: Any) -> dict[str, Any]:
    """The value of a request."""
    return {
        "user_id": USER, "trigger": "novelty", "forced": False, "planned_at": T, "tick_position": "streams.tick/0/1",
        "pending": 2, "plan": "pro", "last_active_at": T, "last_clustered_at": None, "last_checked_at": None,
        "last_enqueued_at": None, "policy_hash": "h", **fields,
    }  # fmt: skip


class Story:
    """A log in which a user's feed comes about, step by step; times are milliseconds after the story's beginning."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.insights: dict[tuple[str, int], NewInsight] = {}
        self.request: Position | None = None

    def insight(self, channel: str, seq: int, at: int) -> None:
        """An insight and, a moment after it, the advance."""
        value = {
            "insight_id": f"{channel}#{seq}", "channel_id": channel, "ts": T, "text": f"about {seq}\nmore", "url": None,
            "embedding": None, "embedding_model": None,
        }  # fmt: skip
        position = self.log.add("feeds.insight-ingested", channel, T + at, value)
        self.insights[channel, seq] = NewInsight(f"{channel}#{seq}", f"about {seq}\nmore", position, T + at)
        advanced = {"channel_id": channel, "head": seq, "arrived_at": T + at}
        self.log.add("feeds.channel-advanced", channel, T + at + 5, advanced, position)

    def published(self, channel: str, head: int, at: int, *, users: tuple[str, ...] = (USER,)) -> None:
        """A channel found dirty, and its subscribers notified a moment later."""
        dirty = {"channel_id": channel, "head": head, "dirty_since": T, "tick": 7, "now": T + at}
        cause = self.log.add("feeds.channel-dirty", channel, T + at, dirty)
        self.novelty(channel, head, at + 3, cause, users)

    def novelty(self, channel: str, head: int, at: int, cause: Position, users: tuple[str, ...] = (USER,)) -> None:
        """Notify some users of a head."""
        value = {"heads": [{"channel_id": channel, "head": head, "users": list(users)}]}
        self.log.add("feeds.novelty", None, T + at, value, cause, partition=murmur2_partition(USER.encode(), 8))

    def rebuilt(self, at: int, *, clusters_at: int = 45, feed_at: int = 1_000, **fields: Any) -> None:
        """A request and its outcome; this long after the request the broker has the versions of clusters and feed."""
        self.request = self.log.add("feeds.rebuild-requested", USER, T + at, requested(**fields))
        finished = {
            "user_id": USER, "request_position": str(self.request), "outcome": "rebuilt", "reason": "", "cluster_version": 1,
            "hwm": {}, "last_clustered_at": T, "last_checked_at": None, "finished_at": T,
        }  # fmt: skip
        self.log.add("feeds.rebuild-finished", USER, T + at + 40, finished, self.request)
        for key, later in ((f"clusters:{USER}", clusters_at), (f"feed:{USER}", feed_at)):
            bumped = {
                "key": key,
                "version": 3,
                "etag": "e",
                "caused_by": str(self.request),
                "bumped_at": T,
                "reason": "",
            }
            self.log.add("cache.version-bumped", key, T + at + later, bumped, self.request)

    def facts(self, *channels: NovelChannel, **fields: Any) -> FeedFacts:
        """The answers of PostgreSQL."""
        told = {
            "user_id": USER, "cluster_version": 1, "feed_version": 3, "feed_etag": "feed-3", "is_built": True,
            "clusters_version": 3, "request": self.request, "numbers": {"clusters": 4, "dataset_size": 9},
            "channels_left_out": 0, "subscribed_ms": {}, **fields,
        }  # fmt: skip
        return FeedFacts(channels=channels, insights=self.insights, **told)

    def tree(self, *channels: NovelChannel, **fields: Any) -> Step:
        """The tree."""
        return trace_feed(self.log, self.facts(*channels, **fields))


@pytest.fixture
def story() -> Story:
    """A story without events yet."""
    return Story()


def test_an_empty_feed_says_why(story: Story) -> None:
    """None was made, or an erasure took it, which is then behind it."""
    never = story.tree(cluster_version=0, request=None)
    assert (never.kind, never.missing, never.causes) == ("served", "no clusters were made for this user yet", ())
    erased = story.tree(cluster_version=0, request=None, erased=Cause(7, "feeds.user-erased/0/3"))
    assert [(step.kind, step.position, step.at_ms) for step in erased.causes] == [("event", "feeds.user-erased/0/3", 7)]
    assert erased.missing == "no clusters were made since the user was erased"


def _kinds(tree: Step) -> list[str]:
    return [step.kind for step, _ in chain(tree)]


def test_the_chain_leads_from_the_first_insight_to_the_feed(story: Story) -> None:
    """Every step is there with its place in the log, and with the time to the next."""
    story.insight("c", 1, 0)
    story.insight("c", 2, 100)
    story.published("c", 2, 1_000)
    story.rebuilt(2_000)
    tree = story.tree(NovelChannel("c", 0, 2))
    assert _kinds(tree) == ["insight", "advance", "dirty", "novelty", "request", "rebuild", "bump", "served"]
    document = Explanation("feed:alice", 3, "feed-3", tree).document()
    assert [step["delay_ms"] for step in document["chain"]] == [5, 995, 3, 997, 40, 5, 955, None]
    assert document["chain"][0]["position"].startswith("feeds.insight-ingested/")
    assert document["chain"][0]["about"] == "about 1"
    assert all(step["position"] and not step["missing"] for step in document["chain"])
    assert document["tree"]["causes"][0]["kind"] == "bump"


def test_first_and_last_insight_of_a_channel_are_followed(story: Story) -> None:
    """The first made it pending, the last is how far the version reaches; what lies between is counted."""
    for seq in range(1, 6):
        story.insight("c", seq, seq * 10)
    story.published("c", 5, 1_000)
    story.rebuilt(2_000)
    (novelty,) = _request(story.tree(NovelChannel("c", 0, 5))).causes
    assert novelty.numbers["new"] == 5
    (dirty,) = novelty.causes
    assert [advance.numbers["head"] for advance in dirty.causes] == [1, 5]


def test_an_insight_that_came_after_the_request_is_said_to_have_been_taken_along(story: Story) -> None:
    """It is not a cause of the request: it is listed below the rebuild that included it, and the chain does not lead to it."""
    story.insight("c", 1, 0)
    story.published("c", 1, 1_000)
    story.insight("late", 1, 1_500)
    story.rebuilt(2_000)
    story.published("late", 1, 2_010)
    tree = story.tree(NovelChannel("late", 0, 1), NovelChannel("c", 0, 1))
    assert [step.numbers["channel_id"] for step in _request(tree).causes] == ["c"]
    _, late = tree.causes[0].causes[0].causes
    assert (late.kind, late.numbers["channel_id"], late.numbers["came_after_request"]) == ("novelty", "late", True)
    assert "c#1" in [step.numbers.get("insight_id") for step, _ in chain(tree)]
    assert_in_order(Explanation("", 1, "", tree).tree)


@pytest.mark.parametrize("told_at", [2_030, 2_038, 2_100, 9_000])
def test_no_cause_is_later_than_its_effect(story: Story, told_at: int) -> None:
    """A notification after the rebuild that included it caused nothing; the insight itself did, and is still listed."""
    story.insight("c", 1, 0)
    story.published("c", 1, 1_000)
    story.rebuilt(2_000)
    story.insight("late", 1, 1_990)
    story.published("late", 1, told_at)
    tree = Explanation("", 1, "", story.tree(NovelChannel("c", 0, 1), NovelChannel("late", 0, 1))).tree
    assert_in_order(tree)
    rebuild = tree.causes[0].causes[0]
    assert "late#1" in {step.numbers.get("insight_id") for step in _all(rebuild)}
    assert "late#1" not in {step.numbers.get("insight_id") for step in _all(rebuild.causes[0])}


def test_events_of_one_rebuild_may_reach_the_broker_in_any_order(story: Story) -> None:
    """The bump overtook the end of the rebuild, and the feed's own bump that of its clusters: other relays carried them."""
    story.insight("c", 1, 0)
    story.published("c", 1, 1_000)
    story.rebuilt(2_000, clusters_at=30, feed_at=20)
    tree = Explanation("", 1, "", story.tree(NovelChannel("c", 0, 1))).tree
    assert _kinds(tree) == ["insight", "advance", "dirty", "novelty", "request", "rebuild", "bump", "served"]
    assert_in_order(tree)
    document = Explanation("", 1, "", tree).document()
    assert [step["delay_ms"] for step in document["chain"]][-4:] == [20, 0, 0, None]


def test_what_a_channel_reached_after_a_subscription_is_no_cause_of_it(story: Story) -> None:
    """It was published with the subscription, and is listed beside it."""
    story.insight("c", 1, 0)
    subscribed = story.log.add("feeds.subscription-changed", USER, T + 5_000, _subscription())
    changed = story.log.add("feeds.user-changed", USER, T + 5_005, _changed(subscribed=["c"]), subscribed)
    story.insight("c", 2, 5_003)
    story.novelty("c", 2, 5_010, changed)
    story.rebuilt(6_000)
    tree = Explanation("", 1, "", story.tree(NovelChannel("c", 0, 2), subscribed_ms={"c": T + 5_000})).tree
    (novelty,) = _request(tree).causes
    assert [step.kind for step in novelty.causes] == ["subscription", "advance"]
    assert novelty.causes[1].causes[0].numbers["insight_id"] == "c#2"
    assert_in_order(tree)


def _all(step: Step) -> list[Step]:
    return [step, *(one for cause in step.causes for one in _all(cause))]


def assert_in_order(tree: Step, limit_ms: float = math.inf) -> None:
    """No step is later than one that it led to."""
    at_ms = limit_ms if tree.at_ms is None else tree.at_ms
    assert at_ms <= limit_ms, (tree.kind, tree.about)
    for cause in tree.causes:
        assert_in_order(cause, at_ms)


def test_another_users_novelty_is_not_taken_for_it(story: Story) -> None:
    """The record must name this user, not one whose id contains it or stands in the same record."""
    story.insight("c", 1, 0)
    story.published("c", 1, 500, users=("alice2", "bob"))
    story.published("c", 1, 900)
    story.rebuilt(2_000)
    (novelty,) = _request(story.tree(NovelChannel("c", 0, 1))).causes
    assert novelty.at_ms == T + 903


def test_a_subscription_leads_to_what_was_there_before_it(story: Story) -> None:
    """A later subscriber gets them with the subscription; insights before the channel's head are still shown."""
    story.insight("c", 1, 0)
    story.published("c", 1, 100, users=("bob", USER))  # had left the channel since, and subscribes again
    subscribed = story.log.add("feeds.subscription-changed", USER, T + 5_000, _subscription())
    changed = story.log.add("feeds.user-changed", USER, T + 5_005, _changed(subscribed=["c"]), subscribed)
    story.novelty("c", 1, 5_010, changed)
    story.rebuilt(6_000)
    tree = story.tree(NovelChannel("c", 0, 1), subscribed_ms={"c": T + 5_000})
    (novelty,) = _request(tree).causes
    (subscription,) = novelty.causes
    assert subscription.kind == "subscription"
    assert [cause.kind for cause in subscription.causes] == ["advance", "event"]
    assert subscription.causes[1].position == str(subscribed)


def test_a_demand_is_the_cause_of_a_manual_request(story: Story) -> None:
    """The last one before it, with the event of the operator."""
    first = story.log.add("feeds.rebuild-demanded", USER, T, {"user_id": USER, "ts": T, "force": False})
    second = story.log.add("feeds.rebuild-demanded", USER, T + 10, {"user_id": USER, "ts": T, "force": False})
    for cause in (first, second):
        story.log.add("feeds.user-changed", USER, T + 20, _changed(rebuild_demanded=True), cause)
    story.rebuilt(1_000, trigger="manual")
    later = story.log.add("feeds.rebuild-demanded", USER, T + 9_000, {"user_id": USER, "ts": T, "force": False})
    story.log.add("feeds.user-changed", USER, T + 9_000, _changed(rebuild_demanded=True), later)
    (demand,) = _request(story.tree()).causes
    assert [demand.kind, demand.causes[0].position] == ["demand", str(second)]


def test_a_curation_is_the_cause_of_a_manual_request(story: Story) -> None:
    """It is distinguished from an operator's demand, and its event is named."""
    said = story.log.add(
        "feeds.clusters-curated", USER, T, {"user_id": USER, "ts": T, "kind": "undo", "curation_id": "x"}
    )
    story.log.add("feeds.user-changed", USER, T + 20, _changed(rebuild_demanded=True), said)
    story.rebuilt(1_000, trigger="manual")
    (demand,) = _request(story.tree()).causes
    assert [demand.about, demand.causes[0].position] == ["the reader said what the clusters are", str(said)]


def test_what_the_log_does_not_hold_is_said_to_be_missing(story: Story) -> None:
    """An insight is still there with its place; what led from it to the user is not, and nothing is made up."""
    story.insights["c", 1] = NewInsight("c#1", "", Position("feeds.insight-ingested", 0, 5), T)
    story.rebuilt(2_000)
    (novelty,) = _request(story.tree(NovelChannel("c", 0, 1))).causes
    assert novelty.missing
    assert novelty.causes[0].missing
    assert novelty.causes[0].causes[0].position == "feeds.insight-ingested/0/5"
    assert novelty.causes[0].causes[0].about == "c#1"


def test_a_feed_that_nobody_has_read_is_not_built(story: Story) -> None:
    """The version of its clusters is still explained."""
    story.insight("c", 1, 0)
    story.published("c", 1, 1_000)
    story.rebuilt(2_000)
    tree = story.tree(NovelChannel("c", 0, 1), is_built=False)
    assert "next reader" in tree.missing
    assert (tree.position, tree.causes[0].kind, _kinds(tree)[0]) == ("", "bump", "insight")


def test_a_user_without_clusters_has_nothing_to_explain(story: Story) -> None:
    """One step, which says so."""
    tree = story.tree(cluster_version=0, request=None)
    assert (tree.causes, bool(tree.missing)) == ((), True)


def test_channels_are_those_that_moved_between_two_versions() -> None:
    """Those with most that is new come first; a version whose predecessor is not kept counts from the beginning."""
    found = novel_channels({"a": 5, "b": 9, "c": 3}, {"a": 5, "b": 2})
    assert [NovelChannel("b", 2, 9), NovelChannel("c", 0, 3)] == found
    assert [NovelChannel("a", 0, 5)] == novel_channels({"a": 5}, None)
    assert novel_channels(None, None) == []


def _request(tree: Step) -> Step:
    return tree.causes[0].causes[0].causes[0]


def _subscription() -> dict[str, Any]:
    return {"user_id": USER, "channel_id": "c", "subscribed": True, "ts": T}


def _changed(**fields: Any) -> dict[str, Any]:
    return {
        "user_id": USER, "revision": 1, "plan": None, "last_active_at": None, "subscribed": [], "unsubscribed": [],
        "rebuild_demanded": False, "rebuild_forced": False, "erased": False, **fields,
    }  # fmt: skip
