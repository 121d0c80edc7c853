"""The tree of a cluster, over a log in memory."""

from __future__ import annotations

from highwater.connectors.explain.clusters import ClusterFacts, Member, trace_cluster
from highwater.schemas.positions import Position
from tests.unit.explain.memory_log import MemoryLog

T = 1_800_000_000_000
REQUESTED = {
    "user_id": "ada", "trigger": "novelty", "forced": False, "planned_at": T, "tick_position": "streams.tick/0/1",
    "pending": 2, "plan": "pro", "last_active_at": T, "last_clustered_at": None, "last_checked_at": None,
    "last_enqueued_at": None, "policy_hash": "h",
}  # fmt: skip


def member(name: str, since: int) -> Member:
    """An insight that entered the cluster in a version."""
    return Member(name, "git", f"text of {name}", since, Position("feeds.insight-ingested", 0, since), T + since)


def test_members_stand_under_the_rebuild_in_which_they_entered() -> None:
    """The last comes first; a rebuild without its version or event is reported as missing; omitted members are counted."""
    log = MemoryLog()
    request = log.add("feeds.rebuild-requested", "ada", T + 50, REQUESTED)
    lost = Position("feeds.rebuild-requested", request.partition, 99)
    members = (member("a", 3), member("b", 1), member("c", 3), member("d", 2))
    tree = trace_cluster(log, ClusterFacts("c-1", "kafka", 7, 1, 9, members, {3: request, 2: lost}))
    assert (tree.kind, tree.about) == ("cluster", "kafka: 9 insights in version 7")
    assert tree.numbers == {"size": 9, "born_version": 1, "cluster_version": 7, "members_left_out": 5}
    assert [(one.position, one.at_ms) for one in tree.causes] == [(str(request), T + 50), (str(lost), None), ("", None)]
    assert [bool(one.missing) for one in tree.causes] == [False, True, True]
    assert [[each.about for each in one.causes] for one in tree.causes] == [
        ["text of a", "text of c"], ["text of d"], ["text of b"],
    ]  # fmt: skip
