"""Read models whose log has lost its beginning, or was recreated, and those that depend on them."""

from __future__ import annotations

import pytest

from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.jobs.sink_jobs import JobsSink
from highwater.connectors.league.sink_fixtures import FixturesSink
from highwater.connectors.league.sink_posts import PostsSink
from highwater.connectors.league.sink_results import ResultsSink
from highwater.connectors.league.sink_votes import VotesSink
from highwater.connectors.queries.sink_queries import QueriesSink
from highwater.connectors.verify.models import MODELS, unusable_groups
from highwater.connectors.verify.report import LISTED_MAX, Checked, Difference

SINKS = (UsersSink, InsightsSink, FixturesSink, ResultsSink, VotesSink, PostsSink, QueriesSink, JobsSink)
TOPICS = {sink.group: sink.topics for sink in SINKS}


@pytest.mark.parametrize(
    ("topic", "groups"),
    [
        ("feeds.insight-ingested", {"insights"}),
        ("feeds.user-active", {"users"}),
        # Whom the log no longer says to be erased has rows in the shadow that are rightly gone.
        ("feeds.user-erased", {"users", "votes", "posts", "queries", "jobs"}),
        # A match that the log no longer schedules takes no results, votes or comments.
        ("league.match-scheduled", {"fixtures", "results", "votes", "posts"}),
        ("league.vote-cast", {"votes"}),
    ],
)
def test_what_leans_on_a_topic_is_not_compared_without_it(topic: str, groups: set[str]):
    """With why, group by group; all others are."""
    found = unusable_groups(TOPICS, {topic: "it lost its beginning"})
    assert found == dict.fromkeys(groups, "it lost its beginning")


def test_every_model_is_of_a_group_that_is_known():
    """So its log is read."""
    assert {model.group for model in MODELS} <= set(TOPICS) | {"organizations", "usage", "chunks"}


def test_parts_of_a_table_add_up():
    """Counts and reasons are summed, each skipped row is named, and the list of differences stays bounded."""
    whole = Checked("tables", "users")
    for number in range(3):
        one = Checked("tables", "users", compared=5, moved=1, skipped=f"partition {number}" if number else None)
        one.leave_out("forgotten")
        for key in range(LISTED_MAX - 5):
            one.differs(Difference(str(key), "row", 1, 2, None))
        whole.add(one)
    assert (whole.compared, whole.moved, whole.skipped) == (15, 3, "partition 1; partition 2")
    assert (whole.left_out, whole.differences_count, len(whole.differences)) == ({"forgotten": 3}, 45, LISTED_MAX)
