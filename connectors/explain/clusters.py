"""The trace of one cluster: its version, the rebuilds in which its members entered it, and the insights in the log.

Invariant: that of `connectors/explain/explaining.py`. A rebuild whose version is no longer kept is named only by its
number; of many members the latest ones are traced, and the others are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from highwater.connectors.explain.explanations import Step
from highwater.connectors.kafka.finding import Finder
from highwater.schemas.positions import Position
from highwater.streams.wording import counted

# Members that are traced: as many as a person reads. Each is read from the log for its trace.
MEMBERS_MAX = 20


@dataclass(frozen=True, slots=True)
class Member:
    """An insight of a cluster: the version in which it entered, and its position in the log with the broker's time."""

    insight_id: str
    channel_id: str
    text: str
    since: int
    position: Position
    arrived_ms: int


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What PostgreSQL holds of a cluster; `requests`: the request of each kept version."""

    cluster_id: str
    label: str
    version: int
    born_version: int
    size: int
    members: tuple[Member, ...]
    requests: Mapping[int, Position]


def trace_cluster(finder: Finder, facts: ClusterFacts) -> Step:
    """Return the tree of a cluster."""
    by_version: dict[int, list[Member]] = {}
    for one in sorted(facts.members, key=lambda member: (-member.since, member.arrived_ms, member.insight_id)):
        by_version.setdefault(one.since, []).append(one)
    causes = tuple(_rebuild(finder, facts.requests.get(version), version, of) for version, of in by_version.items())
    numbers = {"size": facts.size, "born_version": facts.born_version, "cluster_version": facts.version}
    left_out = facts.size - len(facts.members)
    if left_out:
        numbers["members_left_out"] = left_out
    return Step(
        "cluster",
        f"{facts.label}: {counted(facts.size, 'insight')} in version {facts.version}",
        numbers=numbers,
        causes=causes,
    )


def _rebuild(finder: Finder, request: Position | None, version: int, members: Sequence[Member]) -> Step:
    """Return the rebuild of a version, and the members that it added to the cluster."""
    causes = tuple(map(_insight, members))
    about = f"{len(members)} of its insights entered it in version {version}"
    if request is None:
        return Step("rebuild", about, missing="this version is no longer kept", causes=causes)
    found = finder.at(request)
    if found is None:
        return Step("rebuild", about, str(request), missing="the log no longer holds what asked for it", causes=causes)
    return Step("rebuild", about, str(request), found.record.arrived_ms, causes=causes)


def _insight(member: Member) -> Step:
    numbers = {"channel_id": member.channel_id, "insight_id": member.insight_id}
    return Step("insight", member.text or member.insight_id, str(member.position), member.arrived_ms, numbers)
