"""Identity of clusters over versions: invariants on generated pairs of versions, and cases with an obvious answer."""

import itertools
import json
import time
import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.schemas.avro_files import schema_text
from highwater.streams.feeds import evolution
from highwater.streams.feeds.evolution import (
    MERGE_SHARE_MIN,
    MERGE_SHARE_OF_ALL_MIN,
    SAME_JACCARD_MIN,
    SPLIT_INSIGHTS_MIN,
    SPLIT_SHARE_MIN,
    ClusterChange,
    Evolution,
    cluster_id_of,
    match_clusters,
)
from highwater.streams.feeds.tracking import ChangeKind, StoredCluster, TrackedCluster, UnreadCluster, new_since

BALANCE = {ChangeKind.BORN, ChangeKind.GREW, ChangeKind.SHRANK, ChangeKind.DIED}
VERSION = 9


def cluster(cluster_id: str, members, born: int = 1, since: int | None = None) -> TrackedCluster:
    """A cluster whose members all entered in version `since`, or when it was born."""
    entered = born if since is None else since
    return TrackedCluster(cluster_id, tuple(members), (entered,) * len(members), born, entered)


def ids(name: str, count: int) -> list[str]:
    """`count` insight ids that open with `name`."""
    return [f"{name}{number:05}" for number in range(count)]


def evolve(previous, present, *, before=(), now=(), version: int = VERSION) -> Evolution:
    """Match; `before` and `now` are insights of the data sets that belong to no cluster."""
    previous_ids = {*before, *(member for one in previous for member in one.insight_ids)}
    present_ids = {*now, *(member for members in present for member in members)}
    return match_clusters(previous, previous_ids, present, present_ids, version)


def published(evolved: Evolution) -> dict[tuple[str, str], ClusterChange]:
    """The changes by kind and cluster."""
    by_name = {(one.kind.value, one.cluster_id): one for one in evolved.changes}
    assert len(by_name) == len(evolved.changes)
    return by_name


def numbers(change: ClusterChange) -> tuple[int, ...]:
    """Size, previous size, joined, arrived, left, expired."""
    return change.size, change.previous_size, change.joined, change.arrived, change.left, change.expired


@st.composite
def versions(draw, clusters: int = 4, insights: int = 28):
    """Two data sets: each insight is absent (-2), in no cluster (-1) or in one, before and now; most stay together."""
    place = st.integers(-2, clusters - 1)
    before = draw(st.lists(place, min_size=0, max_size=insights))
    moves = draw(st.lists(place, min_size=clusters, max_size=clusters))
    now = [moves[old] if old >= 0 and draw(st.integers(0, 2)) else draw(place) for old in before]
    names = [f"i{number:02}" for number in range(len(before))]
    groups = [[name for name, old in zip(names, before, strict=True) if old == q] for q in range(clusters)]
    previous = []
    for q, members in enumerate(groups):
        if members:
            born = draw(st.integers(1, 3))
            since = tuple(draw(st.integers(born, 6)) for _ in members)
            changed = max(*since, draw(st.integers(born, 8)))
            previous.append(TrackedCluster(f"c{q}", tuple(members), since, born, changed))
    present = [[name for name, new in zip(names, now, strict=True) if new == q] for q in range(clusters)]
    previous_ids = [name for name, old in zip(names, before, strict=True) if old > -2]
    present_ids = [name for name, new in zip(names, now, strict=True) if new > -2]
    return previous, previous_ids, [members for members in present if members], present_ids


def pairs_of(previous, evolved: Evolution) -> list[tuple[TrackedCluster, TrackedCluster]]:
    """Each continued cluster: as it was, as it is."""
    now = {one.cluster_id: one for one in evolved.clusters}
    return [(one, now[one.cluster_id]) for one in previous if one.cluster_id in now]


def index_of(old, old_ids, new, new_ids) -> float:
    """The Jaccard index over insights that both data sets hold, from its definition."""
    shared = set(old_ids) & set(new_ids)
    old, new = set(old) & shared, set(new) & shared
    return len(old & new) / len(old | new) if old | new else 0.0


# --- invariants


@settings(max_examples=200, deadline=None)
@given(case=versions())
def test_a_version_like_the_last_changes_nothing(case):
    """With the same clusters and the same data set every cluster is returned unchanged, and nothing is reported."""
    previous, previous_ids, _, _ = case
    evolved = match_clusters(previous, previous_ids, [one.insight_ids for one in previous], previous_ids, VERSION)
    assert evolved == Evolution(tuple(previous), ())
    assert new_since(evolved.clusters, VERSION - 1) == ()


@settings(max_examples=400, deadline=None)
@given(case=versions())
def test_every_cluster_is_continued_born_or_died_exactly_once(case):
    """Ids are unique; each earlier cluster continues or died, each present one continues or was born, never both."""
    previous, _, present, _ = case
    evolved = match_clusters(*case, VERSION)
    found = [one.cluster_id for one in evolved.clusters]
    assert len(set(found)) == len(found) == len(present)
    before = [one.cluster_id for one in previous]
    died = [one.cluster_id for one in evolved.changes if one.kind is ChangeKind.DIED]
    born = [one.cluster_id for one in evolved.changes if one.kind is ChangeKind.BORN]
    continued = [one.cluster_id for one, _ in pairs_of(previous, evolved)]
    assert sorted(before) == sorted(died + continued)
    assert sorted(found) == sorted(born + continued)
    assert [list(one.insight_ids) for one in evolved.clusters] == present


@settings(max_examples=300, deadline=None)
@given(case=versions(), data=st.data())
def test_the_order_of_the_input_gives_no_cluster_another_id(case, data):
    """Clusters, members and data sets in another order: the same clusters in that order, and the very same changes."""
    previous, previous_ids, present, present_ids = case
    evolved = match_clusters(*case, VERSION)
    order = data.draw(st.permutations(range(len(present))))
    shuffled = [data.draw(st.permutations(present[place])) for place in order]
    earlier = []
    for one in data.draw(st.permutations(previous)):
        places = data.draw(st.permutations(range(len(one.insight_ids))))
        members = tuple(one.insight_ids[place] for place in places)
        earlier.append(replace(one, insight_ids=members, since=tuple(one.since[place] for place in places)))
    again = match_clusters(earlier, previous_ids[::-1], shuffled, present_ids[::-1], VERSION)
    assert evolved.changes == again.changes
    for place, members, other in zip(order, shuffled, again.clusters, strict=True):
        one = evolved.clusters[place]
        entered = dict(zip(one.insight_ids, one.since, strict=True))
        assert replace(one, insight_ids=tuple(members), since=tuple(entered[insight_id] for insight_id in members)) == (
            other
        )


@settings(max_examples=200, deadline=None)
@given(case=versions(), arrivals=st.lists(st.integers(0, 40), min_size=4, max_size=4), data=st.data())
def test_new_insights_alone_take_no_cluster_its_id(case, arrivals, data):
    """For any number of insights that arrive in existing clusters and beside them, each cluster keeps its id, with index 1."""
    previous, previous_ids, _, _ = case
    added = [ids(f"new{place}-", arrivals[place]) for place in range(len(previous))]
    present = [[*more, *one.insight_ids] for one, more in zip(previous, added, strict=True)]
    present_ids = [*previous_ids, *itertools.chain(*added), "beside"]
    evolved = match_clusters(previous, previous_ids, present, present_ids, VERSION)
    assert [one.cluster_id for one in evolved.clusters] == [one.cluster_id for one in previous]
    assert {one.kind for one in evolved.changes} <= {ChangeKind.GREW}
    assert {one.cluster_id: numbers(one)[2:] for one in evolved.changes} == {
        one.cluster_id: (len(more), len(more), 0, 0) for one, more in zip(previous, added, strict=True) if more
    }
    assert all(one.jaccard == 1 for one in evolved.changes)


@settings(max_examples=200, deadline=None)
@given(case=versions(), data=st.data())
def test_expired_insights_alone_take_no_cluster_its_id(case, data):
    """Insights that leave the window: a cluster with one left keeps id, versions and since; one with none left died."""
    previous, previous_ids, _, _ = case
    gone = data.draw(st.sets(st.sampled_from(previous_ids))) if previous_ids else set()
    left = [[member for member in one.insight_ids if member not in gone] for one in previous]
    present_ids = [member for member in previous_ids if member not in gone]
    evolved = match_clusters(previous, previous_ids, [members for members in left if members], present_ids, VERSION)
    expected = []
    for one, members in zip(previous, left, strict=True):
        kept = [place for place, member in enumerate(one.insight_ids) if member not in gone]
        if kept:
            since = tuple(one.since[place] for place in kept)
            expected.append(replace(one, insight_ids=tuple(members), since=since))
    assert evolved.clusters == tuple(expected)
    assert all(one.left == one.expired and one.joined == 0 for one in evolved.changes)
    assert {one.kind for one in evolved.changes} <= {ChangeKind.SHRANK, ChangeKind.DIED}


@settings(max_examples=400, deadline=None)
@given(case=versions(insights=20))
def test_the_assignment_is_the_best_of_all(case):
    """No other choice of pairs at or above the threshold has a greater sum of indices; each chosen one is at or above."""
    previous, previous_ids, present, present_ids = case
    index = [[index_of(one.insight_ids, previous_ids, new, present_ids) for new in present] for one in previous]

    def best(p: int, free: frozenset[int]) -> float:
        if p == len(previous):
            return 0.0
        taken = [index[p][q] + best(p + 1, free - {q}) for q in free if index[p][q] >= SAME_JACCARD_MIN]
        return max([best(p + 1, free), *taken])

    evolved = match_clusters(*case, VERSION)
    chosen = [
        index_of(old.insight_ids, previous_ids, new.insight_ids, present_ids)
        for old, new in pairs_of(previous, evolved)
    ]
    assert all(one >= SAME_JACCARD_MIN for one in chosen)
    assert sum(chosen) == pytest.approx(best(0, frozenset(range(len(present)))), abs=1e-9)


@settings(max_examples=400, deadline=None)
@given(case=versions())
def test_numbers_are_those_of_the_sets_and_add_up(case):
    """Every change counts what the sets hold; a cluster has one change that adds up exactly when its members differ."""
    previous, previous_ids, _, present_ids = case
    evolved = match_clusters(*case, VERSION)
    old = {one.cluster_id: set(one.insight_ids) for one in previous}
    new = {one.cluster_id: set(one.insight_ids) for one in evolved.clusters}
    for one in evolved.changes:
        was, is_now = old.get(one.cluster_id, set()), new.get(one.cluster_id, set())
        joined, left = is_now - was, was - is_now
        arrived, expired = joined - set(previous_ids), left - set(present_ids)
        assert numbers(one) == tuple(map(len, (is_now, was, joined, arrived, left, expired)))
        assert one.size == one.previous_size + one.joined - one.left
        assert one.jaccard == index_of(was, previous_ids, is_now, present_ids)
    balanced = [one.cluster_id for one in evolved.changes if one.kind in BALANCE]
    assert sorted(balanced) == sorted(one for one in {*old, *new} if old.get(one) != new.get(one))
    for one in evolved.changes:
        if one.kind is ChangeKind.GREW:
            assert one.size >= one.previous_size > 0 < one.joined
        if one.kind is ChangeKind.SHRANK:
            assert 0 < one.size < one.previous_size
    order = list(ChangeKind)
    keys = [(order.index(one.kind), -max(one.size, one.previous_size), one.cluster_id) for one in evolved.changes]
    assert sorted(set(keys)) == keys


@settings(max_examples=600, deadline=None)
@given(case=versions(clusters=3))
def test_merges_and_splits_are_those_of_the_definition(case):
    """The mergers, splits, deaths and births follow from shares of surviving insights, and nothing else."""
    previous, _, _, present_ids = case
    evolved = match_clusters(*case, VERSION)
    continued = {one.cluster_id for one, _ in pairs_of(previous, evolved)}
    merged, split, died, born = {}, {}, {}, {one.cluster_id: [] for one in evolved.clusters}
    for old in previous:
        kept = set(old.insight_ids) & set(present_ids)
        at = {one.cluster_id: len(kept & set(one.insight_ids)) for one in evolved.clusters}
        parts = {q for q, n in at.items() if n >= SPLIT_INSIGHTS_MIN and n >= SPLIT_SHARE_MIN * len(kept)}
        parts = parts if len(parts) > 1 else set()
        least = max(MERGE_SHARE_MIN * len(kept), MERGE_SHARE_OF_ALL_MIN * len(old.insight_ids))
        halves = {q for q, n in at.items() if n and n >= least}
        if parts:
            split[old.cluster_id] = tuple(sorted(parts - {old.cluster_id}))
        if old.cluster_id not in continued:
            died[old.cluster_id] = tuple(sorted(parts | halves))
            for q in halves & continued:
                merged[q] = (*merged.get(q, ()), old.cluster_id)
        for q in parts if old.cluster_id in continued else parts | halves:
            born[q].append(old.cluster_id)
    found = {kind: {one.cluster_id: one.related for one in evolved.changes if one.kind is kind} for kind in ChangeKind}
    assert found[ChangeKind.SPLIT] == split
    assert found[ChangeKind.DIED] == died
    assert found[ChangeKind.MERGED] == {q: tuple(sorted(taken)) for q, taken in merged.items()}
    assert found[ChangeKind.BORN] == {q: tuple(sorted(of)) for q, of in born.items() if q not in continued}
    assert set(found[ChangeKind.GREW].values()) | set(found[ChangeKind.SHRANK].values()) <= {()}


@settings(max_examples=300, deadline=None)
@given(case=versions())
def test_since_and_changed_say_when_an_insight_entered(case):
    """A member keeps its since, one that enters has this version; changed_version moves for all but expiry."""
    previous, _, _, present_ids = case
    evolved = match_clusters(*case, VERSION)
    old = {one.cluster_id: one for one in previous}
    for one in evolved.clusters:
        was = old.get(one.cluster_id)
        since = dict(zip(was.insight_ids, was.since, strict=True)) if was else {}
        assert one.since == tuple(since.get(member, VERSION) for member in one.insight_ids)
        assert one.born_version == (was.born_version if was else VERSION)
        moved = not was or set(one.insight_ids) != {member for member in since if member in set(present_ids)}
        assert one.changed_version == (VERSION if moved else was.changed_version)
        assert one.changed_version >= max(one.since)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(-2, 2), min_size=14, max_size=14), min_size=2, max_size=6),
    read=st.integers(0, 6),
)
def test_over_many_versions_no_id_returns_and_a_reader_misses_nothing(steps, read):
    """An id that died stays dead; a reader of any version finds every insight that entered a cluster after it."""
    clusters: tuple[TrackedCluster, ...] = ()
    before: list[str] = []
    seen: dict[int, set[tuple[str, str]]] = {0: set()}
    died: set[str] = set()
    for version, places in enumerate(steps, start=1):
        names = [f"i{number:02}" for number, place in enumerate(places) if place > -2]
        groups = [[f"i{number:02}" for number, place in enumerate(places) if place == q] for q in range(3)]
        evolved = match_clusters(clusters, before, [group for group in groups if group], names, version)
        clusters, before = evolved.clusters, names
        assert died.isdisjoint(one.cluster_id for one in clusters)
        died |= {one.cluster_id for one in evolved.changes if one.kind is ChangeKind.DIED}
        seen[version] = {(one.cluster_id, member) for one in clusters for member in one.insight_ids}
    read = min(read, len(steps))
    new = {
        (one.cluster_id, member)
        for one in clusters
        if one.changed_version > read
        for member, since in zip(one.insight_ids, one.since, strict=True)
        if since > read
    }
    assert new >= seen[len(steps)] - seen[read]
    # An insight that entered a cluster was outside it in a version since the reader's.
    assert new <= {pair for pair in seen[len(steps)] if any(pair not in seen[v] for v in range(read, len(steps)))}


# --- cases


def test_the_first_version_bears_every_cluster():
    """Without a version before, all clusters are born and all their insights joined and arrived."""
    evolved = evolve([], [ids("a", 3), ids("b", 5)], now=["noise"], version=1)
    one, other = evolved.clusters
    assert (one.born_version, one.changed_version, one.since) == (1, 1, (1, 1, 1))
    assert [numbers(change) for change in evolved.changes] == [(5, 0, 5, 5, 0, 0), (3, 0, 3, 3, 0, 0)]
    assert [change.cluster_id for change in evolved.changes] == [other.cluster_id, one.cluster_id]


def test_an_empty_version_lets_every_cluster_die():
    """Without clusters now all died: of insights that are still there none expired."""
    evolved = evolve([cluster("old", ids("a", 4))], [], now=ids("a", 3))
    assert evolved.clusters == ()
    assert published(evolved) == {("died", "old"): ClusterChange("old", ChangeKind.DIED, 0, 4, 0, 0, 4, 1, 0.0)}


def test_nothing_becomes_nothing():
    """Two versions without clusters, with or without insights, tell nothing."""
    assert evolve([], []) == evolve([], [], before=["x"], now=["y"]) == Evolution((), ())


def test_a_single_cluster_lives_on():
    """One that loses two to the window and one to noise and gets three keeps its id; who stayed keeps its since."""
    old = cluster("old", ids("a", 8), born=2, since=5)
    evolved = evolve([old], [[*ids("a", 8)[3:], "n1", "n2", "was-noise"]], before=["was-noise"], now=["a00002"])
    (one,) = evolved.clusters
    assert (one.cluster_id, one.born_version, one.changed_version) == ("old", 2, VERSION)
    assert one.since == (5, 5, 5, 5, 5, VERSION, VERSION, VERSION)
    # Shared: a00002 to a00007 before, a00003 to a00007 and was-noise now.
    assert evolved.changes == (ClusterChange("old", ChangeKind.GREW, 8, 8, 3, 2, 3, 2, 5 / 7),)
    (one,) = evolved.clusters
    entered = [name for name, since in zip(one.insight_ids, one.since, strict=True) if since == VERSION]
    assert entered == ["n1", "n2", "was-noise"]


def test_two_clusters_merge_into_the_one_that_is_most_of_it():
    """The larger continues as merged and grew, the smaller died into it, and each names the other."""
    evolved = evolve([cluster("large", ids("a", 12)), cluster("small", ids("b", 6))], [ids("a", 12) + ids("b", 6)])
    assert [one.cluster_id for one in evolved.clusters] == ["large"]
    assert evolved.clusters[0].since == (1,) * 12 + (VERSION,) * 6
    events = published(evolved)
    assert set(events) == {("merged", "large"), ("grew", "large"), ("died", "small")}
    assert numbers(events["merged", "large"]) == numbers(events["grew", "large"]) == (18, 12, 6, 0, 0, 0)
    assert events["merged", "large"].related == ("small",)
    assert events["died", "small"].related == ("large",)
    assert numbers(events["died", "small"]) == (0, 6, 0, 0, 6, 0)


def test_a_cluster_of_which_less_than_half_came_did_not_merge():
    """Two of five are in the survivor: it is not a merge, and the dead cluster names no other."""
    old = [cluster("large", ids("a", 12)), cluster("small", ids("b", 5))]
    evolved = evolve(old, [ids("a", 12) + ids("b", 2)], now=ids("b", 5))
    assert set(published(evolved)) == {("grew", "large"), ("died", "small")}
    assert published(evolved)["died", "small"].related == ()


def test_a_cluster_that_nearly_all_expired_did_not_merge():
    """Two of fourteen are left and both are in the survivor: it died of age, and names no other."""
    old = [cluster("large", ids("a", 12)), cluster("small", ids("b", 14))]
    evolved = evolve(old, [ids("a", 12) + ids("b", 2)])
    assert set(published(evolved)) == {("grew", "large"), ("died", "small")}
    assert published(evolved)["died", "small"].related == ()


def test_the_older_of_two_equals_goes_on():
    """Two clusters of one size merge: the earlier born keeps its id; if both have the same age, the lower id."""
    a, b = ids("a", 6), ids("b", 6)
    for first, second in itertools.permutations([(a, "x"), (b, "y")]):
        one, other = cluster(first[1], first[0], born=2, since=4), cluster(second[1], second[0], born=3, since=4)
        assert evolve([other, one], [a + b]).clusters[0].cluster_id == one.cluster_id
    assert evolve([cluster("y", a), cluster("x", b)], [a + b]).clusters[0].cluster_id == "x"


def test_of_three_with_two_places_the_youngest_gives_way():
    """All four pairs have index 1/3, so any two of the three could continue: the two that were born first do."""
    a, b, c, d = ids("a", 4), ids("b", 6), ids("c", 6), ids("d", 4)
    noise = ids("n", 4)
    for births in itertools.permutations((1, 2, 3)):
        old = [
            cluster(f"born{born}", members, born, since=3) for members, born in zip((a, b + c, d), births, strict=True)
        ]
        evolved = evolve(old, [a + b + noise[:2], c + d + noise[2:]], before=noise)
        assert {one.cluster_id for one in evolved.clusters} == {"born1", "born2"}


def test_two_left_over_in_one_component_do_not_become_one():
    """At one end two clusters merge, at the other one splits, with others between: the remaining old one died, the remaining
    new one was born.
    """
    sizes = {"11": 30, "21": 30, "31": 40, "33": 30, "43": 30, "44": 30, "94": 40, "98": 30, "99": 30}
    shared = {pair: ids(f"{pair}-", size) for pair, size in sizes.items()}

    def joint(place: int, name: str) -> list[str]:
        return [member for pair, members in shared.items() if pair[place] == name for member in members]

    old = [cluster(f"old{name}", joint(0, name), born=int(name)) for name in "12349"]
    # Every index is 0.3 to 1/3, so four pairs beat any three, and old2 is left over as is the last of the present.
    evolved = evolve(old, [joint(1, name) for name in "13489"], version=10)
    assert [one.cluster_id for one in evolved.clusters][:4] == ["old1", "old3", "old4", "old9"]
    assert published(evolved)["died", "old2"].related == ("old1",)
    assert published(evolved)["born", evolved.clusters[4].cluster_id].related == ("old9",)


def test_a_cluster_splits_and_goes_on_in_its_larger_part():
    """The larger part keeps the id, the other is born of it, and the split names the other."""
    evolved = evolve([cluster("old", ids("a", 20))], [ids("a", 20)[12:], ids("a", 20)[:12]])
    part, rest = evolved.clusters
    assert rest.cluster_id == "old"
    assert (part.born_version, part.since) == (VERSION, (VERSION,) * 8)
    events = published(evolved)
    assert set(events) == {("split", "old"), ("shrank", "old"), ("born", part.cluster_id)}
    assert events["split", "old"].related == (part.cluster_id,)
    assert events["born", part.cluster_id].related == ("old",)
    assert numbers(events["split", "old"]) == numbers(events["shrank", "old"]) == (12, 20, 0, 0, 8, 0)
    assert events["split", "old"].jaccard == 12 / 20


def test_equal_halves_with_more_beside_them():
    """Of two halves with equal overlap the larger cluster continues; of equal ones that with the lowest id."""
    halves = ids("a", 8)[:4], ids("a", 8)[4:]
    evolved = evolve([cluster("old", ids("a", 8))], [halves[0], [*halves[1], "new"]])
    assert [one.cluster_id == "old" for one in evolved.clusters] == [False, True]
    evolved = evolve([cluster("old", ids("a", 8))], [halves[1], halves[0]])
    assert [one.cluster_id == "old" for one in evolved.clusters] == [False, True]


def test_a_cluster_that_falls_into_four_splits_and_dies():
    """Each quarter has index 1/4 and is born of it; of three thirds (1/3) one continues."""
    old = cluster("old", ids("a", 12))
    quarters = [ids("a", 12)[start : start + 3] for start in range(0, 12, 3)]
    evolved = evolve([old], quarters)
    events = published(evolved)
    parts = tuple(sorted(one.cluster_id for one in evolved.clusters))
    assert events["split", "old"].related == events["died", "old"].related == parts
    assert numbers(events["split", "old"]) == numbers(events["died", "old"]) == (0, 12, 0, 0, 12, 0)
    assert {name for name in events if name[0] == "born"} == {("born", part) for part in parts}
    assert all(events["born", part].related == ("old",) for part in parts)
    thirds = evolve([old], [ids("a", 12)[start : start + 4] for start in range(0, 12, 4)])
    assert [one.cluster_id for one in thirds.clusters].count("old") == 1


@pytest.mark.parametrize(("largest", "lives"), [(6, True), (5, False)])
def test_with_a_share_an_id_stays_with_half_of_its_insights(largest: int, lives: bool):
    """Six of twelve are the cluster; of five, three and four all are born of it, and the split names them."""
    old = cluster("old", ids("a", 12))
    parts = [ids("a", 12)[:largest], ids("a", 12)[largest:8], ids("a", 12)[8:]]
    evolved = match_clusters([old], old.insight_ids, parts, old.insight_ids, VERSION, share_min=0.5)
    assert (evolved.clusters[0].cluster_id == "old") == lives
    assert "split" in [one.kind.value for one in evolved.changes]
    assert evolve([old], parts).clusters[0].cluster_id == "old"


def test_a_part_of_less_than_a_quarter_or_of_one_insight_is_no_split():
    """Four of twenty elsewhere is a loss; so is one of four, which is a quarter but a stray."""
    large = evolve([cluster("old", ids("a", 20))], [ids("a", 16), [*ids("a", 20)[16:], "n"]])
    assert {kind for kind, _ in published(large)} == {"shrank", "born"}
    assert published(large)["born", large.clusters[1].cluster_id].related == ()
    small = evolve([cluster("old", ids("a", 4))], [ids("a", 3), ["a00003", "n1", "n2"]])
    assert {kind for kind, _ in published(small)} == {"shrank", "born"}


def test_four_equal_clusters_in_one_are_a_new_one():
    """No quarter is the whole: all four died into a cluster that is born of them."""
    groups = [ids(name, 5) for name in "abcd"]
    old = [cluster(f"c{name}", group) for name, group in zip("abcd", groups, strict=True)]
    evolved = evolve(old, [list(itertools.chain(*groups))])
    born = evolved.clusters[0].cluster_id
    events = published(evolved)
    assert events["born", born].related == ("ca", "cb", "cc", "cd")
    assert all(events["died", one.cluster_id].related == (born,) for one in old)
    assert len(events) == 5


def test_a_part_that_joins_another_cluster_is_told_of_both():
    """Eight of twenty go to a living cluster: a split that names it; the other grew by them and took in no cluster."""
    one, other = cluster("one", ids("a", 20)), cluster("other", ids("b", 20))
    evolved = evolve([one, other], [ids("a", 12), ids("b", 20) + ids("a", 20)[12:]])
    assert [cluster.cluster_id for cluster in evolved.clusters] == ["one", "other"]
    events = published(evolved)
    assert set(events) == {("split", "one"), ("shrank", "one"), ("grew", "other")}
    assert events["split", "one"].related == ("other",)


def test_a_cluster_whose_insights_all_turned_over_is_another():
    """All its insights expired and as many arrived: one died, one is born, and neither names the other."""
    evolved = evolve([cluster("old", ids("a", 6))], [ids("b", 6)])
    (one,) = evolved.clusters
    assert [(change.kind, change.related) for change in evolved.changes] == [("born", ()), ("died", ())]
    assert one.cluster_id != "old"
    assert numbers(published(evolved)["died", "old"]) == (0, 6, 0, 0, 6, 6)


def test_an_even_exchange_is_told_as_grown():
    """As many came as went: the size is the same, the numbers say how many came and went."""
    evolved = evolve([cluster("old", ids("a", 6))], [[*ids("a", 6)[1:], "n"]], now=["a00000"])
    assert evolved.changes == (ClusterChange("old", ChangeKind.GREW, 6, 6, 1, 1, 1, 0, 5 / 6),)


def test_a_loss_to_the_window_is_no_news_and_a_loss_to_noise_is():
    """A reader is shown nothing of a cluster that only aged, and a change without new insights of one that lost some."""
    old = [cluster("aged", ids("a", 6)), cluster("thinned", ids("b", 6))]
    evolved = evolve(old, [ids("a", 6)[1:], ids("b", 6)[1:]], now=["b00000"])
    assert [one.changed_version for one in evolved.clusters] == [1, VERSION]
    assert {kind for kind, _ in published(evolved)} == {"shrank"}
    assert all(VERSION not in one.since for one in evolved.clusters)


def test_the_threshold_is_a_share_of_three_tenths():
    """Three of ten shared insights are the same cluster, three of eleven another."""
    old = cluster("old", ids("a", 3) + ids("gone", 3))
    for strangers, goes_on in ((4, True), (5, False)):
        new = ids("a", 3) + ids("was-noise", strangers)
        evolved = evolve([old], [new], before=ids("was-noise", strangers), now=ids("gone", 3))
        assert (evolved.clusters[0].cluster_id == "old") is goes_on


def test_the_sum_decides_and_not_the_best_pair():
    """One more id persists if a cluster continues in its second-best place and another one in the best place."""
    one, other = cluster("one", ids("a", 9)), cluster("other", ids("b", 5))
    # one-first 5/14, one-second 4/9, other-first 5/10: the best sum is one-second and other-first.
    first, second = ids("a", 5) + ids("b", 5), ids("a", 9)[5:]
    assert [found.cluster_id for found in evolve([one, other], [first, second]).clusters] == ["other", "one"]
    # If the other is removed, one continues where most of its members are.
    evolved = evolve([one], [ids("a", 5), second])
    assert [found.cluster_id == "one" for found in evolved.clusters] == [True, False]


def test_a_reader_is_shown_what_arrived_after_the_version_they_read():
    """Version by version: what a reader of 3 sees as new is less than what a reader of 1 sees, in the members' order. When an
    insight entered the cluster does not matter.
    """
    one = StoredCluster("one", ("d", "a", "c", "b"), (5, 1, 5, 2), 1, 5, (4, 1, 3, 2))
    other = StoredCluster("other", ("x", "y"), (2, 2), 2, 2, (2, 2))
    assert new_since([one, other], 0) == (
        UnreadCluster("one", True, ("d", "a", "c", "b")),
        UnreadCluster("other", True, ("x", "y")),
    )
    assert new_since([other, one], 1) == (
        UnreadCluster("other", True, ("x", "y")),
        UnreadCluster("one", False, ("d", "c", "b")),
    )
    assert new_since([one, other], 3) == (UnreadCluster("one", False, ("d",)),)
    assert new_since([one, other], 4) == (UnreadCluster("one", False, ()),)
    assert new_since([one, other], 5) == ()


# --- ids


def test_a_new_id_is_of_its_version_and_members():
    """12 hex; the same version and members give the same, another version or member another, also where they look alike."""
    (one,) = evolve([], [["7.0", "x"]], version=8).clusters
    assert len(one.cluster_id) == 12
    assert int(one.cluster_id, 16) >= 0
    assert evolve([], [["x", "7.0"]], version=8).clusters[0].cluster_id == one.cluster_id
    others = [(["7.0", "x"], 9), (["8.0", "x"], 7), (["8.0", "x"], 8), (["x"], 8), (["8.0", "7.0", "x"], 8)]
    found = {evolve([], [members], version=version).clusters[0].cluster_id for members, version in others}
    assert len(found) == len(others)
    assert one.cluster_id not in found
    assert cluster_id_of(["7.0", "x"]) != one.cluster_id  # the id of a version from before ids were kept


def test_a_cluster_that_returns_is_another():
    """The members of a cluster that died come together again two versions later: a new id."""
    members = ids("a", 5)
    first = evolve([], [members], version=1).clusters
    assert evolve(first, [], now=members, version=2).clusters == ()
    (again,) = evolve([], [members], before=members, version=3).clusters
    assert again.cluster_id != first[0].cluster_id


def test_ids_that_collide_by_chance_are_told_apart(monkeypatch):
    """With ids of one hex character new ones differ from those alive and from each other, in any order of the input."""
    monkeypatch.setattr(evolution, "cluster_id_of", lambda members: cluster_id_of(members)[:1])
    old = [cluster(f"{number:x}", ids(f"o{number}-", 3)) for number in range(8)]
    new = [ids(f"n{number}-", 3) for number in range(8)]
    present = [*(list(one.insight_ids) for one in old[:4]), *new]  # four of before died; their ids stay theirs
    found = [one.cluster_id for one in evolve(old, present, now=ids("o7-", 3)).clusters]
    assert found[:4] == ["0", "1", "2", "3"]
    assert sorted(found[4:]) == list("89abcdef")
    turned = evolve(old[::-1], present[::-1], now=ids("o7-", 3)).clusters
    assert [one.cluster_id for one in turned][::-1] == found


# --- bad input, cost, contract


@pytest.mark.parametrize(
    ("previous", "previous_ids", "present", "present_ids", "version", "message"),
    [
        ([], [], [[]], [], 1, "a present cluster is empty"),
        ([cluster("c", [])], [], [], [], 2, "a previous cluster is empty"),
        ([], [], [["a"], ["b", "a"]], ["a", "b"], 1, "an insight is in the present clusters twice"),
        ([cluster("c", ["a", "a"])], ["a"], [], [], 2, "an insight is in the previous clusters twice"),
        ([], [], [["a", "b"]], ["b"], 1, "the present data set lacks 'a'"),
        ([cluster("c", ["a"])], [], [], [], 2, "the previous data set lacks 'a'"),
        ([cluster("c", ["a"]), cluster("c", ["b"])], ["a", "b"], [], [], 2, "a cluster id occurs twice"),
        ([TrackedCluster("c", ("a",), (1, 1), 1, 1)], ["a"], [], [], 2, "since is not parallel"),
        ([cluster("c", ["a"], born=2)], ["a"], [], [], 2, "version 2 is not above 2"),
        ([TrackedCluster("c", ("a",), (1,), 1, 7)], ["a"], [], [], 7, "version 7 is not above 7"),
    ],
)
def test_what_cannot_be_is_refused(previous, previous_ids, present, present_ids, version, message):
    """Input that contradicts itself raises and says in what."""
    with pytest.raises(ValueError, match=message):
        match_clusters(previous, previous_ids, present, present_ids, version)


def moved(share: float, count: int = 500, size: int = 40):
    """`count` clusters of `size` before and now; `share` of the insights went to any cluster."""
    source = np.random.default_rng(4)
    before = np.arange(count * size) % count
    now = np.where(source.random(count * size) < share, source.integers(0, count, count * size), before)
    names = [f"insight-{number:08}" for number in range(count * size)]
    grouped = [[[names[row] for row in np.flatnonzero(place == q)] for q in range(count)] for place in (before, now)]
    return [cluster(f"c{q:03}", members) for q, members in enumerate(grouped[0])], grouped[1], names


def test_five_hundred_clusters_are_matched_in_a_moment():
    """20,000 insights, 500 clusters against 500: under 0.2 s of CPU, for any overlap.

    Three tenths moved anywhere; all moved; and all in one component, each half in its place and half in the next.
    """
    previous, present, names = moved(0.3)
    mixed, scattered, _ = moved(1.0)
    halves = [(one.insight_ids[:20], one.insight_ids[20:]) for one in previous]
    chain = [[*halves[q][0], *halves[q - 1][1]] for q in range(500)]
    for old, new, continued in ((previous, present, 500), (mixed, scattered, 0), (previous, chain, 500)):
        spent = []
        for _ in range(3):
            started = time.process_time()
            evolved = match_clusters(old, names, new, names, VERSION)
            spent.append(time.process_time() - started)
        assert len(pairs_of(old, evolved)) == continued
        assert min(spent) < 0.2
    # In the chain every pair has index 1/3: the ranks decide, and give each cluster its own first half.
    assert [one.cluster_id for one in evolved.clusters] == [one.cluster_id for one in previous]


def test_the_most_clusters_of_a_window_need_no_matrix_of_all_pairs():
    """5,000 clusters of 4, as many as 20,000 insights can make: under 64 MB, where a matrix of all pairs takes 200 MB."""
    previous, present, names = moved(0.3, count=5000, size=4)
    tracemalloc.start()
    try:
        match_clusters(previous, names, [members for members in present if members], names, VERSION)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_the_event_carries_every_number_of_a_change():
    """`feeds/ClusterEvolved.v1` has a field of each name of `ClusterChange`, and its doc names every kind."""
    schema = {field["name"]: field for field in json.loads(schema_text("feeds/ClusterEvolved.v1"))["fields"]}
    assert {field.name for field in fields(ClusterChange)} <= set(schema)
    assert all(kind.value in schema["kind"]["doc"] for kind in ChangeKind)


def test_the_cluster_id_comes_from_the_content_alone():
    """The order of ids does not matter, their boundaries do."""
    assert cluster_id_of(["a", "b"]) == cluster_id_of(["b", "a"])
    assert cluster_id_of(["ab", "c"]) != cluster_id_of(["a", "bc"])
    assert len(cluster_id_of(["a"])) == 12


def alike(*pairs: tuple[str, str]):
    """Whether two clusters have one subject: those whose members begin with these letters."""
    return lambda before, now: (min(before)[0], min(now)[0]) in pairs


def evolve_alike(previous, present, are_alike) -> list[str]:
    """The ids of the present clusters, all data in clusters."""
    ids_of = ({m for one in previous for m in one.insight_ids}, {m for members in present for m in members})
    found = match_clusters(previous, ids_of[0], present, ids_of[1], VERSION, are_alike=are_alike)
    return [one.cluster_id for one in found.clusters]


@pytest.mark.parametrize(
    ("kept", "others", "lives"),
    [(6, 2, True), (2, 4, True), (2, 5, False), (1, 1, False), (0, 6, False)],
    ids=["a quarter of the old one", "a third of the new one", "less than a third", "a single insight", "nothing"],
)
def test_of_one_subject_a_third_of_the_smaller_one_is_enough(kept: int, others: int, lives: bool):
    """A cluster whose border moved is the same if it is about the same; of other subjects it ended."""
    old, new = [cluster("old", ids("a", 24))], [[*ids("a", kept), *ids("b", others)]]
    before = {*ids("a", 24), *ids("b", others)}
    present = {*ids("a", 24), *ids("b", others)}
    for are_alike, same in ((lambda *_: True, lives), (lambda *_: False, False), (None, False)):
        found = match_clusters(old, before, new, present, VERSION, are_alike=are_alike)
        assert (found.clusters[0].cluster_id == "old") == same


def test_a_subject_takes_no_cluster_from_a_pair_that_shares_more():
    """What the index decides stays; a subject only decides among the rest, and there the greater overlap."""
    old = [cluster("a", ids("a", 20)), cluster("b", ids("b", 20))]
    new = [[*ids("a", 20)[:12], *ids("b", 20)[:9]], ids("b", 20)[9:12], ids("b", 20)[12:17]]
    assert evolve_alike(old, new, alike(("b", "a"), ("b", "b")))[::2] == ["a", "b"]
