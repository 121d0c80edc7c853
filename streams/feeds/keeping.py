"""Which clusters of the last version are kept in this one, so that an id means mostly the same insights.

Invariant: a version follows from its window and the clusters of the last version, in any order of both. Without a last
version nothing is changed here.

Small changes of a window move the borders of clusters that are found from nothing: with 5 % new insights a quarter of
the insights were in another cluster. So the former clusters are a prior (evolutionary clustering, Chakrabarti, Kumar and
Tomkins 2006): a former cluster is kept while it holds together nearly as well as what was found in its place, by the
modularity of its members (Newman 2004). Its members stay while enough of their ties do, and insights that were found
together with most of it join it. What is left is as it was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from highwater.streams.feeds.clustering import CLOSENESS, MEMBERSHIP_MIN, NOISE, Clustering
from highwater.streams.feeds.graph import FloatArray, leanings
from highwater.streams.feeds.neighbours import IntArray

# A former cluster stays while it has this share of the modularity of what was found in its place.
KEPT_SHARE_MIN = 0.9
# The share of a found cluster in kept ones that makes the rest of it theirs.
TAKEN_SHARE_MIN = 0.5


def former_rows(clusters: Iterable[Sequence[str]], insight_ids: Sequence[str]) -> IntArray:
    """Return the number of the former cluster of each row, int (n,), `NOISE` for none."""
    number_of = {insight_id: number for number, ids in enumerate(clusters) for insight_id in ids}
    return np.array([number_of.get(insight_id, NOISE) for insight_id in insight_ids], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Clusters of all rows: `labels` int (n,), `NOISE` for none, and the numbers of those that have a subject."""

    labels: IntArray
    with_subject: Collection[int]


def keep_former(found: Clustering, present: Grouping, former: Grouping, least: int) -> IntArray:
    """Return the clusters of all rows after keeping former ones, int (n,): numbered from 0 without a gap, the
    former ones first. Pure.

    `present`: as they were found; `former`: of the last version; `least`: distinct points of a cluster.
    """
    now, before = found.of_points(present.labels), found.of_points(former.labels)
    count = int(before.max(initial=NOISE)) + 1
    ties_before, worth_before = _held(before, found.graph)
    worth_now = _held(now, found.graph)[1]
    is_in = before != NOISE
    was, would_be = (np.bincount(before[is_in], one[is_in], minlength=count) for one in (worth_before, worth_now))
    is_kept = (was > 0) & (was >= KEPT_SHARE_MIN * would_be)
    # One without a subject gives way to those that have one.
    with_subject = np.bincount(before[is_in & np.isin(now, list(present.with_subject))], minlength=count)
    is_kept &= np.isin(np.arange(count), list(former.with_subject)) | (
        2 * with_subject < np.bincount(before[is_in], minlength=count)
    )
    kept = np.where(is_in & is_kept[before], before, NOISE)
    taken_by = _taken(now, kept)
    # A member stays for its ties, or for what it was found with.
    stays = (ties_before >= MEMBERSHIP_MIN) | ((now != NOISE) & (taken_by[now] == kept))
    kept = np.where(stays, kept, NOISE)
    sizes = np.bincount(kept[kept != NOISE], minlength=count)
    kept = np.where((kept != NOISE) & (sizes[kept] >= least), kept, NOISE)
    nearest, share = leanings(kept, found.graph)
    is_taken = (now != NOISE) & (taken_by[now] != NOISE)
    free = np.where((kept == NOISE) & ~is_taken, now, NOISE)
    left = np.bincount(free[free != NOISE], minlength=int(now.max(initial=NOISE)) + 1)
    whole = np.bincount(now[now != NOISE], minlength=len(left))
    # A single point is a cluster if its copies are many enough (`clustering`).
    free = np.where((free != NOISE) & ((left[free] >= least) | (left[free] == whole[free])), free + count, NOISE)
    joins = is_taken & (kept == NOISE) & (share >= MEMBERSHIP_MIN)
    points = np.where(kept != NOISE, kept, np.where(joins, nearest, free))
    numbers = np.unique(points[points != NOISE])
    return found.of_rows(np.where(points == NOISE, NOISE, np.searchsorted(numbers, points)))


def _held(groups: IntArray, graph: csr_array) -> tuple[FloatArray, FloatArray]:
    """Return the share of each point's ties that its own group has, and its part of the modularity; 0 for noise: (u,)."""
    member = np.flatnonzero(groups != NOISE)
    count = int(groups.max(initial=NOISE)) + 1
    degrees = np.asarray(graph.sum(axis=1), dtype=np.float64).ravel()
    volumes = np.bincount(groups[member], degrees[member], minlength=count)
    pairs = graph.tocoo()
    is_within = (groups[pairs.row] == groups[pairs.col]) & (groups[pairs.row] != NOISE)
    own = np.bincount(pairs.row[is_within], pairs.data[is_within].astype(np.float64), minlength=len(groups))
    worth = np.zeros(len(groups))
    by_chance = degrees[member] * volumes[groups[member]] / max(float(degrees.sum()), 1e-12)
    worth[member] = own[member] - CLOSENESS * by_chance
    return own / np.maximum(degrees, 1e-12), worth


def _taken(now: IntArray, kept: IntArray) -> IntArray:
    """Return the kept cluster that most of each found one is in, if enough of it is in kept ones, int (found + 1,); the
    last entry is for noise.
    """
    count = int(now.max(initial=NOISE)) + 1
    found = np.full(count + 1, NOISE, dtype=np.intp)
    inside = np.flatnonzero((now != NOISE) & (kept != NOISE))
    if not len(inside):
        return found
    shared = np.zeros((count, int(kept.max()) + 1))
    np.add.at(shared, (now[inside], kept[inside]), 1.0)
    whole = np.bincount(now[now != NOISE], minlength=count)
    is_taken = shared.sum(axis=1) >= TAKEN_SHARE_MIN * whole
    found[:-1][is_taken] = shared.argmax(axis=1)[is_taken]
    return found
