"""The identity of clusters over versions: which cluster of this version continues one of the last, and what happened to
each.

Invariant: every cluster of the last version is continued by exactly one of this version or ended, every cluster of this
version continues exactly one or is new, and neither depends on the order in which clusters and members are given.

Two clusters are compared by the Jaccard index over *shared* insights, those that both data sets held: an insight that
did not exist before cannot have been in the cluster, and one that left the window is not a loss. Pairs are chosen by an
optimal assignment (Kuhn 1955); of the clusters that remain, those of one subject are paired with less overlap. A
cluster whose insights have all left the window shares nothing with anything: it died, and a cluster on the same subject
that comes after it is another one. How the rest is classified follows MONIC (Spiliopoulou et al. 2006): shares of a
cluster's surviving insights distinguish a merge from a split.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from highwater.streams.feeds.tracking import ChangeKind, ClusterChange, TrackedCluster

# From this Jaccard index on, two clusters are the same. A cluster that exchanged half of its insights has 1/3, as has
# each third of an equal split: one of the three continues it. A quarter (1/4) is a part of a cluster and not the
# cluster.
SAME_JACCARD_MIN = 0.3
# Of the rest, one of the same subject continues a cluster if they share a third of the smaller of the two, and two
# insights, since a single one is a stray. Other vectors, and fewer insights of a subject, draw its border elsewhere.
ALIKE_SHARE_MIN = 0.33
ALIKE_INSIGHTS_MIN = 2
# For a cluster that is not continued, the share of its surviving insights that must be in one place for a merge: most
# of it, or one of two halves. And the share of all it had: one whose insights have nearly all left the window ended for
# that reason, wherever the last few are.
MERGE_SHARE_MIN = 0.5
MERGE_SHARE_OF_ALL_MIN = 0.25
# Each part of a split holds this share, so that at most four are reported; and two insights, since a single one is a
# stray.
SPLIT_SHARE_MIN = 0.25
SPLIT_INSIGHTS_MIN = 2
CLUSTER_ID_CHARACTERS = 12
# The assignment sums integers, which doubles do exactly below 2**53: 500 indices of at most 2**43 and the ranks that
# break ties. So the choice equals exact arithmetic on every machine.
_JACCARD_UNIT = 2**43


_KIND_RANK = {kind: rank for rank, kind in enumerate(ChangeKind)}


@dataclass(frozen=True, slots=True)
class Evolution:
    """`clusters` parallel to the present ones; `changes` by kind in the order of `ChangeKind`, the larger first, then by id."""

    clusters: tuple[TrackedCluster, ...]
    changes: tuple[ClusterChange, ...]


def match_clusters(
    previous: Sequence[TrackedCluster],
    previous_ids: Collection[str],
    present: Sequence[Sequence[str]],
    present_ids: Collection[str],
    version: int,
    *,
    cluster_ids: Sequence[str] | None = None,
    are_alike: Callable[[Sequence[str], Sequence[str]], bool] | None = None,
    share_min: float = 0.0,
) -> Evolution:
    """Find the clusters of the last version in this one: `version`, with `present` as lists of insight ids.

    `previous_ids` and `present_ids` are all insights of the two data sets, in a cluster or not. The chosen pairs have
    the greatest possible sum of Jaccard indices, each at least `SAME_JACCARD_MIN`. If two could equally be continued by
    a cluster, the older one is (then the lower id); if two could equally continue it, the larger does (then the one
    with the lowest insight id). A version without clusters, also the first, is an empty sequence. `cluster_ids`,
    parallel to `present`: nothing is chosen, since a reader has decided the identities. `are_alike`: whether two
    clusters, by their members, have one subject; where no pair is chosen for either, less is required of such a pair
    (`ALIKE_SHARE_MIN`). `share_min`: the share of a cluster's remaining insights that one must hold to continue it, unless
    both have one subject. Source: Kuhn 1955; Spiliopoulou et al. 2006.

    Raises:
        ValueError: a cluster is empty, an insight is in two clusters or not in its data set, a cluster id occurs twice,
            `since` is not parallel to `insight_ids`, or `version` is not above the versions of `previous`.
    """
    before, now = frozenset(previous_ids), frozenset(present_ids)
    _check_input(previous, before, present, now, version)
    # Everything is processed in an order derived from the content, so that the input's order cannot matter.
    old = sorted(previous, key=lambda one: (one.born_version, one.cluster_id))
    places = sorted(range(len(present)), key=lambda place: (-len(present[place]), min(present[place])))
    new = [present[place] for place in places]
    shared = _Shared.of([one.insight_ids for one in old], before, new, now)
    old_ids = [one.cluster_id for one in old]
    if cluster_ids is None:
        heirs = _assign(shared, share_min)
        if are_alike is not None:
            alike = (
                (p, q)
                for p, q in _overlapping(shared, heirs)
                if are_alike([one for one in old[p].insight_ids if one in now], new[q])
            )
            heirs |= _chosen(shared, list(alike))
        new_ids = _ids_of(new, {heir: old_ids[origin] for origin, heir in heirs.items()}, set(old_ids), version)
    else:
        new_ids = [cluster_ids[place] for place in places]
        heir_of = {cluster_id: q for q, cluster_id in enumerate(new_ids)}
        heirs = {p: heir_of[cluster_id] for p, cluster_id in enumerate(old_ids) if cluster_id in heir_of}
    origins = {heir: origin for origin, heir in heirs.items()}
    tracked = {
        place: _tracked(new_ids[q], new[q], old[origins[q]] if q in origins else None, now, version)
        for q, place in enumerate(places)
    }
    changes = _changes(shared, heirs, old_ids, new_ids)
    return Evolution(tuple(tracked[place] for place in range(len(present))), tuple(changes))


@dataclass(frozen=True, slots=True)
class _Shared:
    """How many insights clusters share. Clusters are numbers: p of the last version, q of this one.

    `previous_sizes` and `sizes` count all members, `kept[p]` those still in the data set, `known[q]` those that were in
    the last one, `both[p, q]` those in both clusters; only pairs that share something are present.
    """

    previous_sizes: list[int]
    sizes: list[int]
    kept: list[int]
    known: list[int]
    both: dict[tuple[int, int], int]

    @classmethod
    def of(
        cls, old: Sequence[Sequence[str]], before: frozenset[str], new: Sequence[Sequence[str]], now: frozenset[str]
    ) -> "_Shared":
        """Count over two versions of disjoint clusters."""
        old_of = {insight_id: p for p, members in enumerate(old) for insight_id in members}
        return cls(
            previous_sizes=[len(members) for members in old],
            sizes=[len(members) for members in new],
            kept=[sum(insight_id in now for insight_id in members) for members in old],
            known=[sum(insight_id in before for insight_id in members) for members in new],
            both=Counter(
                (old_of[insight_id], q)
                for q, members in enumerate(new)
                for insight_id in members
                if insight_id in old_of
            ),
        )

    def jaccard(self, p: int, q: int) -> float:
        """Return the index of two clusters; 0 if they share no insight, which only happens by a reader's decision."""
        both = self.both[p, q]
        return both / (self.kept[p] + self.known[q] - both) if both else 0.0

    def places(self) -> dict[int, dict[int, int]]:
        """Return for each p that shares insights: in which clusters q they are now, and how many in each."""
        places: dict[int, dict[int, int]] = defaultdict(dict)
        for (p, q), both in self.both.items():
            places[p][q] = both
        return places


def _check_input(
    previous: Sequence[TrackedCluster],
    before: frozenset[str],
    present: Sequence[Sequence[str]],
    now: frozenset[str],
    version: int,
) -> None:
    _check_groups("previous", [one.insight_ids for one in previous], before)
    _check_groups("present", present, now)
    if len({one.cluster_id for one in previous}) != len(previous):
        raise ValueError("a cluster id occurs twice in the previous version")
    if any(len(one.since) != len(one.insight_ids) for one in previous):
        raise ValueError("since is not parallel to insight_ids")
    last = max((max(one.changed_version, one.born_version, *one.since) for one in previous), default=version - 1)
    if last >= version:
        raise ValueError(f"version {version} is not above {last}, which the previous clusters have seen")


def _check_groups(which: str, groups: Sequence[Sequence[str]], ids: frozenset[str]) -> None:
    members = {insight_id for group in groups for insight_id in group}
    if not all(len(group) for group in groups):
        raise ValueError(f"a {which} cluster is empty")
    if len(members) != sum(len(group) for group in groups):
        raise ValueError(f"an insight is in the {which} clusters twice")
    if not members <= ids:
        raise ValueError(f"the {which} data set lacks {min(members - ids)!r}, which is in a cluster")


def _assign(shared: _Shared, share_min: float) -> dict[int, int]:
    """Return the cluster q that continues p, for each continued p."""
    same = [
        (p, q)
        for (p, q), both in shared.both.items()
        if shared.jaccard(p, q) >= SAME_JACCARD_MIN and both >= share_min * shared.kept[p]
    ]
    return _chosen(shared, same)


def _overlapping(shared: _Shared, heirs: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the pairs without an heir or origin that share enough to be the same cluster if their subject is."""
    taken = frozenset(heirs.values())
    return [
        (p, q)
        for (p, q), both in sorted(shared.both.items())
        if p not in heirs
        and q not in taken
        and both >= max(ALIKE_INSIGHTS_MIN, ALIKE_SHARE_MIN * min(shared.kept[p], shared.known[q]))
    ]


def _chosen(shared: _Shared, same: list[tuple[int, int]]) -> dict[int, int]:
    """Return of these pairs those with the greatest sum of Jaccard indices."""
    heirs: dict[int, int] = {}
    for pairs in _components(same, len(shared.previous_sizes), len(shared.sizes)):
        heirs.update(_best_pairs(shared, pairs))
    return heirs


def _components(pairs: list[tuple[int, int]], p_count: int, q_count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the pairs of each connected component: few and small, so that one matrix of all clusters is never needed."""
    if not pairs:
        return
    rows, columns = np.array(pairs).T
    nodes = p_count + q_count
    graph = coo_array((np.ones(len(pairs)), (rows, columns + p_count)), shape=(nodes, nodes))
    component_of = connected_components(graph, directed=False)[1]
    components: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for pair in pairs:
        components[int(component_of[pair[0]])].append(pair)
    yield from components.values()


def _best_pairs(shared: _Shared, pairs: list[tuple[int, int]]) -> dict[int, int]:
    """Return the assignment of one component with the greatest sum; ties are broken by ranks, which are far below a unit."""
    rows, columns = (sorted(set(numbers)) for numbers in zip(*pairs, strict=True))
    row_of, column_of = ({number: place for place, number in enumerate(numbers)} for numbers in (rows, columns))
    weights = np.zeros((len(rows), len(columns)))
    for p, q in pairs:
        row, column = row_of[p], column_of[q]
        rank = (len(rows) - row) * (len(columns) - column)
        weights[row, column] = round(shared.jaccard(p, q) * _JACCARD_UNIT) + rank
    chosen = zip(*linear_sum_assignment(weights, maximize=True), strict=True)
    # A pair of weight 0 shares nothing: it only completes the assignment.
    return {rows[int(row)]: columns[int(column)] for row, column in chosen if weights[row, column]}


def _ids_of(new: Sequence[Sequence[str]], continued: dict[int, str], used: set[str], version: int) -> list[str]:
    """Return the id of each cluster: the one it continues, or a new one from the version and the members.

    Without the version, a cluster that reappears with its former members would get the id of one that ended. The mark
    begins with a zero byte, which no insight id contains, so it sorts first and cannot be mistaken for a member. Two
    ids collide once in 2**48 pairs; then the mark is incremented.
    """
    ids = []
    for q, members in enumerate(new):
        cluster_id = continued.get(q)
        if cluster_id is None:
            tries = (cluster_id_of([f"\0{version}.{attempt}", *members]) for attempt in count())
            cluster_id = next(one for one in tries if one not in used)
            used.add(cluster_id)
        ids.append(cluster_id)
    return ids


def cluster_id_of(insight_ids: Sequence[str]) -> str:
    """Return an id from the content alone: 12 hex characters of SHA-256 over the sorted ids, each ended by a zero byte."""
    digest = hashlib.sha256()
    for insight_id in sorted(insight_ids):
        digest.update(insight_id.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:CLUSTER_ID_CHARACTERS]


def _tracked(
    cluster_id: str, members: Sequence[str], origin: TrackedCluster | None, now: frozenset[str], version: int
) -> TrackedCluster:
    if origin is None:
        return TrackedCluster(cluster_id, tuple(members), (version,) * len(members), version, version)
    since_of = dict(zip(origin.insight_ids, origin.since, strict=True))
    # Equal without the insights that left the data set: nothing joined, and nothing moved elsewhere.
    is_unchanged = set(members) == {insight_id for insight_id in origin.insight_ids if insight_id in now}
    return TrackedCluster(
        cluster_id,
        tuple(members),
        tuple(since_of.get(insight_id, version) for insight_id in members),
        origin.born_version,
        origin.changed_version if is_unchanged else version,
    )


def _changes(
    shared: _Shared, heirs: dict[int, int], old_ids: Sequence[str], new_ids: Sequence[str]
) -> list[ClusterChange]:
    """Return all changes, in the order of `Evolution.changes`."""
    parts, halves = _destinations(shared, heirs)
    origins = {heir: origin for origin, heir in heirs.items()}
    sources: dict[int, set[int]] = defaultdict(set)
    changes = []
    for p, cluster_id in enumerate(old_ids):
        if p in parts:
            elsewhere = sorted(new_ids[q] for q in parts[p] if q != heirs.get(p))
            changes.append(_change(shared, ChangeKind.SPLIT, cluster_id, p, heirs.get(p), elsewhere))
        destinations = parts.get(p, set()) | halves.get(p, set())
        if p not in heirs:
            where = sorted(new_ids[q] for q in destinations)
            changes.append(_change(shared, ChangeKind.DIED, cluster_id, p, None, where))
        for q in destinations:
            sources[q].add(p)
    for q, cluster_id in enumerate(new_ids):
        if q not in origins:
            whence = sorted(old_ids[p] for p in sources[q])
            changes.append(_change(shared, ChangeKind.BORN, cluster_id, None, q, whence))
            continue
        taken_in = sorted(old_ids[p] for p in sources[q] if q in halves.get(p, set()))
        if taken_in:
            changes.append(_change(shared, ChangeKind.MERGED, cluster_id, origins[q], q, taken_in))
        balance = _change(shared, ChangeKind.GREW, cluster_id, origins[q], q, [])
        if balance.size < balance.previous_size:
            changes.append(replace(balance, kind=ChangeKind.SHRANK))
        elif balance.joined:
            changes.append(balance)
    return sorted(changes, key=lambda one: (_KIND_RANK[one.kind], -max(one.size, one.previous_size), one.cluster_id))


def _destinations(shared: _Shared, heirs: dict[int, int]) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Return the parts of each p that split, and for each p that is not continued the clusters that hold half of the
    rest of it.
    """
    parts: dict[int, set[int]] = {}
    halves: dict[int, set[int]] = {}
    for p, places in shared.places().items():
        kept = shared.kept[p]
        found = {q for q, both in places.items() if both >= max(SPLIT_INSIGHTS_MIN, SPLIT_SHARE_MIN * kept)}
        if len(found) > 1:
            parts[p] = found
        if p not in heirs:
            least = max(MERGE_SHARE_MIN * kept, MERGE_SHARE_OF_ALL_MIN * shared.previous_sizes[p])
            halves[p] = {q for q, both in places.items() if both >= least}
    return parts, halves


def _change(
    shared: _Shared, kind: ChangeKind, cluster_id: str, p: int | None, q: int | None, related: Sequence[str]
) -> ClusterChange:
    """Return the change of p to q; without p it is new, without q it ended."""
    both = 0 if p is None or q is None else shared.both[p, q]
    size, known = (0, 0) if q is None else (shared.sizes[q], shared.known[q])
    previous_size, kept = (0, 0) if p is None else (shared.previous_sizes[p], shared.kept[p])
    return ClusterChange(
        cluster_id=cluster_id,
        kind=kind,
        size=size,
        previous_size=previous_size,
        joined=size - both,
        arrived=size - known,
        left=previous_size - both,
        expired=previous_size - kept,
        jaccard=0.0 if p is None or q is None else shared.jaccard(p, q),
        related=tuple(related),
    )
