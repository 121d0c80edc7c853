"""The clusters of a window. Invariant: they are a function of the set of distinct vectors alone.

So permuting the insights permutes the labels, a copy of an insight gets its label and changes nothing else, and data of
an earlier window saves time without changing a result. The steps (R0.3, R0.36):

1. Distinct vectors; the exact nearest neighbours of each (`neighbours`), reused from the last version where they are
   still valid.
2. The graph of their ties, and the vectors averaged over it (`graph`).
3. HDBSCAN's condensed tree (Campello, Moulavi and Sander 2013) over the graph's edges, by the `hdbscan` package itself:
   single linkage, excess of mass, in which a branch of more than `BRANCH_SHARE_MAX` of the points (at least of
   `BRANCH_SIZE_MIN`) has no mass if others within it have one. The chosen branches are small, and fragments of topics. A
   point in one has a membership.
4. Fragments of one topic joined by modularity, and within each cluster again with closer ties, which gives its parts.
   A point of whose ties `JOIN_SHARE_MIN` lead to one cluster is in it. The rest is noise. A text that repeats often enough is a
   cluster even if nothing is similar.

A point whose membership is below `MEMBERSHIP_MIN` counts as noise. Noise may still lean towards a cluster; that is
reported with its confidence, and never counted as membership.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hdbscan._hdbscan_linkage import label as single_linkage_of
from hdbscan.hdbscan_ import compute_stability, condense_tree, get_clusters
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from highwater.streams.feeds.graph import FloatArray, averaged, joined, leanings, ties
from highwater.streams.feeds.neighbours import (
    NEIGHBOURS,
    NOBODY,
    Distinct,
    Float32Array,
    IntArray,
    Neighbours,
    find_neighbours,
)

NOISE = NOBODY
# Below this a membership says little: the point left its branch early.
MEMBERSHIP_MIN = 0.3
CLUSTER_SIZE_MIN, CLUSTER_SIZE_MAX = 4, 15
NEIGHBOURS_MIN = 5
# Averaged vectors nearer than this count as equal: otherwise a core of near copies would set the scale of membership
# and turn the rest of its topic into noise.
DISTANCE_MIN = 0.05
# 1.5 MB of differences at 384 coordinates, which fit a core's caches.
EDGES_AT_ONCE = 1 << 10
# Fragments have as few points as a cluster may have, but are no more than these: joining them takes time by their square.
FRAGMENTS_MAX = 2_500
# Excess of mass alone may choose one branch of nearly everything: 96 % of 1,200 Russian program messages.
# A branch of as many as a reader takes in at once is left whole in a small window.
BRANCH_SHARE_MAX, BRANCH_SIZE_MIN = 0.15, 60
# One and a half times as many ties as by chance join two fragments. At once as many, half of some windows is one cluster.
CLOSENESS = 1.5
# Parts of a cluster, ever closer: this many times as many ties within as by chance. What the first cannot separate, as
# half of some windows with the local model, the second can (docs/benchmarks/labels.md).
PARTS = (5.0, 12.0)
# A point joins the cluster that has this share of its ties. With half of them a third of some windows is noise.
JOIN_SHARE_MIN = 0.45
# Points that join may take others with them; after three rounds it is a handful.
ROUNDS = 3
# Components of the graph without a tie are joined far outside the range of distances (0..2), where no branch survives.
APART = 1e3


@dataclass(frozen=True, slots=True)
class Clustering:
    """The clusters of n points.

    `labels` int (n,): cluster from 0, or `NOISE`. `memberships` float64 (n,): strength in 0..1, at least
    `MEMBERSHIP_MIN` in a cluster; for noise, that in the branch that it left too early, else 0. `leanings` int (n,):
    for noise, the cluster of most of its ties, `NOISE` without any; `confidences` float64 (n,): the share of those
    ties. `distinct` and `neighbours`: the input of the map. `kept`: the start of the next version, with more neighbours
    where more were known. `graph`: the ties of the distinct points. `parts` int (n,) each: clusters in ever closer
    parts (`division`), every part within one of those before; `NOISE` for points in none.
    """

    labels: IntArray
    memberships: FloatArray
    leanings: IntArray
    confidences: FloatArray
    distinct: Distinct
    neighbours: Neighbours
    kept: Neighbours
    graph: csr_array
    parts: tuple[IntArray, ...]

    @property
    def cluster_count(self) -> int:
        """Return the number of clusters, without noise."""
        return int(self.labels.max(initial=NOISE)) + 1

    def of_points(self, labels: IntArray) -> IntArray:
        """Return the labels of the distinct points from those of the rows, int (u,): of unequal ones the highest."""
        points = np.full(len(self.distinct), NOISE, dtype=np.intp)
        is_placed = self.distinct.node_of_row != NOBODY
        np.maximum.at(points, self.distinct.node_of_row[is_placed], labels[is_placed])
        return points

    def of_rows(self, points: IntArray) -> IntArray:
        """Return the labels of the rows from those of the distinct points, int (n,)."""
        return _spread(points, self.distinct, NOISE)

    def regrouped(self, labels: IntArray) -> Clustering:
        """Return the same points in other clusters: int (n,) from 0 without a gap, equal for rows of one direction.

        The membership of a point that joins a cluster is the share of its ties to that cluster; a removed point has
        none.
        """
        leaning, confidence = _leanings(self.of_points(labels), self.graph, self.distinct)
        came, went = (self.labels == NOISE) & (labels != NOISE), (self.labels != NOISE) & (labels == NOISE)
        memberships = np.where(came, np.maximum(self.confidences, MEMBERSHIP_MIN), self.memberships)
        return replace(
            self,
            labels=labels,
            memberships=np.where(went, 0.0, memberships),
            leanings=leaning,
            confidences=confidence,
        )


def cluster_embeddings(
    vectors: Float32Array, *, known: Neighbours | None = None, min_cluster_size: int | None = None
) -> Clustering:
    """Cluster the rows of float32 (n, d), by direction (cosine).

    `known`: neighbours in an earlier window of the same basis. `min_cluster_size`: distinct points that form a cluster,
    by default `cluster_size_for`. Rows of zeros have no direction and are noise. Source: R0.3, R0.36.

    Raises:
        ValueError: a value is not finite, or the array is not float32 (n, d).
    """
    distinct = Distinct.of(vectors)
    count = neighbours_for(len(distinct))
    kept = find_neighbours(distinct, known=known, count=count)
    neighbours = kept.first(count)
    size = cluster_size_for(len(distinct)) if min_cluster_size is None else min_cluster_size
    graph = ties(neighbours)
    tree = _tree(averaged(distinct.rounded, graph), graph)
    least = max(CLUSTER_SIZE_MIN, len(distinct) // FRAGMENTS_MAX)
    limit = max(BRANCH_SIZE_MIN, BRANCH_SHARE_MAX * len(distinct))
    branch, strength = _branches(tree, len(distinct), least, size_max=limit)
    fragments = np.where(strength >= MEMBERSHIP_MIN, branch, NOISE)
    topics = _large(joined(fragments, graph, resolution=CLOSENESS), size)
    # A fragment of no topic is noise.
    is_left = (fragments != NOISE) & (topics == NOISE)
    fragments, strength = _large(np.where(is_left, NOISE, fragments), 1), np.where(is_left, 0.0, strength)
    can_join = _is_known(neighbours)
    labels, strengths = _with_leaning(topics, strength, graph, can_join)
    labels, strengths = _with_repeats(labels, strengths, distinct.copies, size)
    leaning, confidence = _leanings(labels, graph, distinct)
    return Clustering(
        labels=_spread(labels, distinct, NOISE),
        memberships=_spread(strengths, distinct, 0.0),
        leanings=leaning,
        confidences=confidence,
        distinct=distinct,
        neighbours=neighbours,
        kept=kept,
        graph=graph,
        parts=tuple(_spread(one, distinct, NOISE) for one in _parts(fragments, graph, labels, can_join)),
    )


def cluster_size_for(distinct_count: int) -> int:
    """Return how many distinct points form a cluster: a third of the root of their number, from 4 to 15.

    A user with a hundred insights has topics of a handful; one with ten thousand does not need hundreds of clusters.
    """
    return max(CLUSTER_SIZE_MIN, min(CLUSTER_SIZE_MAX, round(math.sqrt(distinct_count) / 3)))


def neighbours_for(distinct_count: int) -> int:
    """Return the number of neighbours that a point is tied to: 0.55 of the root of their number, from 5 to 15, which
    744 points reach.

    With 15 in a window of a hundred points everything is near everything, and one cluster absorbs all topics.
    """
    return max(NEIGHBOURS_MIN, min(NEIGHBOURS, round(0.55 * math.sqrt(distinct_count))))


def _tree(vectors: Float32Array, graph: csr_array) -> FloatArray:
    """Return the single linkage of float32 (u, d) over the graph's edges, float64 (u - 1, 4); no rows for fewer than
    two points.
    """
    if len(vectors) < 2:
        return np.zeros((0, 4))
    tree: FloatArray = single_linkage_of(_spanning_edges(vectors, graph))
    return tree


def _branches(
    tree: FloatArray, u: int, min_cluster_size: int, *, size_max: float = math.inf
) -> tuple[IntArray, FloatArray]:
    """Return the stable branches of the condensed tree: label int (u,) and membership float64 (u,).

    A branch of more than `size_max` points is not chosen if others within it have a mass.
    """
    if u < max(min_cluster_size, 2):
        return np.full(u, NOISE, dtype=np.intp), np.zeros(u)
    with np.errstate(all="ignore"):
        condensed = condense_tree(tree, min_cluster_size)
        masses = _limited(condensed, compute_stability(condensed), size_max)
        labels, strength, _ = get_clusters(condensed, masses)
    return np.asarray(labels, dtype=np.intp), np.nan_to_num(np.asarray(strength, dtype=np.float64), nan=1.0)


def _limited(condensed: NDArray[Any], masses: dict[int, float], size_max: float) -> dict[int, float]:
    """Return the masses with 0 for branches of more than `size_max` points within which others have a mass."""
    limited = dict(masses)
    within: dict[int, float] = defaultdict(float)
    branches = condensed[condensed["child_size"] > 1]
    # The branches within one have higher numbers.
    for parent, branch, _, size in branches[np.argsort(-branches["child"])].tolist():
        if size > size_max and within[branch] > 0:
            limited[branch] = 0.0
        within[parent] += max(limited[branch], within[branch])
    return limited


def _large(labels: IntArray, least: int) -> IntArray:
    """Return the groups of at least `least` points, numbered from 0 without a gap in the same order."""
    if not (labels != NOISE).any():
        return labels
    is_large = np.bincount(labels[labels != NOISE]) >= least
    numbers = np.where(is_large, np.cumsum(is_large) - 1, NOISE)
    return np.where(labels == NOISE, NOISE, numbers[labels])


def _is_known(neighbours: Neighbours) -> NDArray[np.bool_]:
    """Return which points are a neighbour of another, bool (u,): a point far from everything is not."""
    found: NDArray[np.bool_] = np.zeros(len(neighbours.others), dtype=bool)
    found[neighbours.others[neighbours.others != NOBODY]] = True
    return found


def _with_leaning(
    groups: IntArray, strength: FloatArray, graph: csr_array, can_join: NDArray[np.bool_]
) -> tuple[IntArray, FloatArray]:
    """Return the groups with the points of `can_join` whose ties lead to one; the share is their membership."""
    for _ in range(ROUNDS):
        nearest, share = leanings(groups, graph)
        joins = (groups == NOISE) & (share >= JOIN_SHARE_MIN) & can_join
        groups, strength = np.where(joins, nearest, groups), np.where(joins, share, strength)
    return groups, strength


def _parts(fragments: IntArray, graph: csr_array, labels: IntArray, can_join: NDArray[np.bool_]) -> Iterator[IntArray]:
    """Yield groups (u,) in ever closer parts, as `PARTS` defines; points that joined a cluster join one of its parts."""
    within = labels
    for resolution in PARTS:
        within = joined(fragments, graph, resolution=resolution, within=within)
        cluster_of = np.full(int(within.max(initial=NOISE)) + 2, NOISE, dtype=np.intp)  # the last entry is for noise
        cluster_of[within[within != NOISE]] = labels[within != NOISE]
        part, _ = _with_leaning(within, np.zeros(len(labels)), graph, can_join & (labels != NOISE))
        yield np.where(cluster_of[part] == labels, part, NOISE)


def _spanning_edges(vectors: Float32Array, graph: csr_array) -> FloatArray:
    """Return the minimum spanning tree over the graph's edges, shortest first: float64 (u - 1, 3) of (point, point,
    distance).

    Lengths are distances of the averaged vectors. Ties are in the order of the points. Components are joined at
    `APART`.
    """
    u = len(vectors)
    pairs = coo_array(graph)
    once = pairs.row < pairs.col
    ends, others = pairs.row[once].astype(np.intp), pairs.col[once].astype(np.intp)
    lengths = np.empty(len(ends))
    for first in range(0, len(ends), EDGES_AT_ONCE):
        part = slice(first, first + EDGES_AT_ONCE)
        gaps = vectors[ends[part]] - vectors[others[part]]
        lengths[part] = np.sqrt(np.einsum("ij,ij->i", gaps, gaps))
    lengths = np.maximum(lengths, DISTANCE_MIN)
    forest = coo_array(minimum_spanning_tree(csr_array((lengths, (ends, others)), shape=(u, u))))
    edges = np.column_stack([forest.row, forest.col, forest.data]).astype(np.float64)
    parts, part_of = connected_components(forest, directed=False)
    heads = np.unique(part_of, return_index=True)[1]
    strung = np.column_stack([heads[:-1], heads[1:], np.full(parts - 1, APART)])
    edges = np.concatenate([edges, strung])
    return np.ascontiguousarray(edges[np.lexsort((edges[:, 1], edges[:, 0], edges[:, 2]))])


def _with_repeats(
    labels: IntArray, strength: FloatArray, copies: IntArray, min_cluster_size: int
) -> tuple[IntArray, FloatArray]:
    """Turn an unclustered point with enough copies into a cluster of its own."""
    alone = np.flatnonzero((labels == NOISE) & (copies >= min_cluster_size))
    labels, strength = labels.copy(), strength.copy()
    labels[alone] = np.arange(len(alone)) + labels.max(initial=NOISE) + 1
    strength[alone] = 1.0
    return labels, strength


def _leanings(labels: IntArray, graph: csr_array, distinct: Distinct) -> tuple[IntArray, FloatArray]:
    """Return the cluster that each row of noise leans to, and its confidence."""
    nearest, confidence = leanings(labels, graph)
    is_noise = labels == NOISE
    return (
        _spread(np.where(is_noise, nearest, NOISE), distinct, NOISE),
        _spread(np.where(is_noise, confidence, 0.0), distinct, 0.0),
    )


def _spread(values: NDArray[Any], distinct: Distinct, otherwise: float) -> NDArray[Any]:
    """Return values of the distinct points for every row; `otherwise` for rows without a direction."""
    if not len(values):
        return np.full(len(distinct.node_of_row), otherwise, dtype=values.dtype)
    return np.where(distinct.node_of_row == NOBODY, values.dtype.type(otherwise), values[distinct.node_of_row])
