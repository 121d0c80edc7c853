"""The graph of a window's vectors: the ties of near ones, the averaged vectors, and which groups belong together.

Invariant: everything is a function of the neighbour lists, so it is linear in the window and independent of its order.

- Ties are scaled locally, as in UMAP (McInnes et al. 2018): a point's nearest neighbour is certain, and its ties have
  the same sum whether it lies in a crowd or far out. Without that, a dense topic absorbs a sparse one.
- Averaging over the graph (mean shift along it; simple graph convolution, Wu et al. 2019) draws the vectors of a topic
  together and leaves isolated ones where they were. Raw text vectors are nearly all equally far apart: 80 % of real
  commits were noise to HDBSCAN before it, 30 % after.
- Fragments of a topic are joined while that raises the modularity (Newman 2004): more ties between them than chance.
  Requiring twice as many gives more and smaller clusters, which are easier to name and further from the digits' true
  classes.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, eye_array

from highwater.streams.feeds.neighbours import NOBODY, Float32Array, IntArray, Neighbours

FloatArray = NDArray[np.float64]

# Two give nearly the same clusters, eight blur neighbouring topics (measured on commits and on the digits).
AVERAGING_STEPS = 4
# Coordinates averaged at once: 10,000 points with 128 of them are 5 MB, which fit a core's caches while the ties of all
# points are followed; with all 384 it takes twice as long.
COLUMNS = 128
# Halvings in the search for a point's scale: 2^-40 of its range is below float32's rounding.
SCALE_STEPS = 40


def ties(neighbours: Neighbours) -> csr_array:
    """Return the symmetric graph: weights in 0..1 of float32, (u, u).

    A point's weight to a neighbour at distance d is exp(-(d - r) / s), r being the distance of its nearest and s such
    that its weights sum to log2 of their number; two directions combine as a + b - ab.
    """
    u, k = neighbours.others.shape
    is_tie = neighbours.others != NOBODY
    similarities = neighbours.similarities.astype(np.float64)
    distances = np.sqrt(np.maximum(2.0 - 2.0 * similarities, 0.0))
    beyond = np.where(is_tie, distances - distances[:, :1], 0.0) if k else distances
    weights = np.where(is_tie, np.exp(-beyond / _scales(beyond, is_tie)[:, None]), 0.0).astype(np.float32)
    rows, columns = np.nonzero(is_tie)
    one_way = csr_array((weights[rows, columns], (rows, neighbours.others[rows, columns])), shape=(u, u))
    other_way = one_way.T.tocsr()
    return csr_array(one_way + other_way - one_way.multiply(other_way))


def _scales(beyond: FloatArray, is_tie: NDArray[np.bool_]) -> FloatArray:
    """Return per point the s for which its weights sum to log2 of their number, by bisection; float64 (u,)."""
    wanted = np.log2(np.maximum(is_tie.sum(axis=1), 1))
    low, high = np.zeros(len(beyond)), np.full(len(beyond), 4.0)
    for _ in range(SCALE_STEPS):
        middle = (low + high) / 2
        sums = np.where(is_tie, np.exp(-beyond / np.maximum(middle, 1e-12)[:, None]), 0.0).sum(axis=1)
        high = np.where(sums > wanted, middle, high)
        low = np.where(sums > wanted, low, middle)
    return cast("FloatArray", np.maximum((low + high) / 2, 1e-12))


def averaged(vectors: Float32Array, graph: csr_array) -> Float32Array:
    """Return vectors (u, d) after `AVERAGING_STEPS` averagings with their neighbours, each of unit length: float32 (u, d)."""
    with_self = csr_array(graph + eye_array(len(vectors), dtype=np.float32, format="csr"))
    sums = np.asarray(with_self.sum(axis=1)).ravel()
    step = csr_array(diags_array((1.0 / sums).astype(np.float32)) @ with_self)
    current = _unit(vectors)
    for _ in range(AVERAGING_STEPS):
        current = _unit(_product(step, current))
    return current


def _product(graph: csr_array, vectors: Float32Array) -> Float32Array:
    """Return the same numbers as `graph @ vectors`."""
    found = np.empty_like(vectors)
    for first in range(0, vectors.shape[1], COLUMNS):
        part = slice(first, first + COLUMNS)
        found[:, part] = graph @ np.ascontiguousarray(vectors[:, part])
    return found


def _unit(vectors: Float32Array) -> Float32Array:
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return cast("Float32Array", vectors / np.maximum(lengths, np.float32(1e-12))[:, None])


def joined(labels: IntArray, graph: csr_array, *, resolution: float = 1.0, within: IntArray | None = None) -> IntArray:
    """Return groups (u,), -1 for none, after joining the pair that raises modularity most until none does.

    `resolution`: how many times as many ties as by chance are required (Reichardt and Bornholdt 2006). `within`: groups
    (u,) that are not left: fragments of two of them stay apart. Equal gains are taken in the order of the labels. New
    labels count from 0 in the order of the old.
    """
    count = int(labels.max(initial=-1)) + 1
    if count < 2:
        return labels
    member = _membership(labels, count)
    degrees = np.asarray(graph.sum(axis=1), dtype=np.float64).ravel()
    total = degrees.sum()
    between = (member.T @ graph @ member).toarray() / total
    share = (member.T @ degrees) / total
    group_of = np.zeros(count, dtype=np.intp)
    if within is not None:
        group_of[labels[labels >= 0]] = within[labels >= 0]
    into = np.arange(count)
    for group in np.unique(group_of).tolist():
        own = np.flatnonzero(group_of == group)
        into[own] = own[_joined_pairs(between[np.ix_(own, own)], share[own], resolution)]
    renumbered = np.unique(into, return_inverse=True)[1]
    return cast("IntArray", np.where(labels >= 0, renumbered[np.maximum(labels, 0)], NOBODY))


def _joined_pairs(between: FloatArray, share: FloatArray, resolution: float) -> IntArray:
    """Return the number of the group that each one joins, int (groups,). The arrays are changed."""
    # Half of the modularity gained by joining two groups: the share of ties between them above that by chance.
    gains = between - resolution * np.outer(share, share)
    np.fill_diagonal(gains, -np.inf)
    into = np.arange(len(share))
    # The first best partner of each group: only a few change with a pair.
    partners = gains.argmax(axis=1)
    bests = gains[into, partners]
    while True:
        first = int(bests.argmax())
        if bests[first] <= 0:
            return into
        kept, gone = sorted((first, int(partners[first])))
        between[kept] += between[gone]
        between[:, kept] += between[:, gone]
        share[kept] += share[gone]
        into[into == gone] = kept
        gains[gone], gains[:, gone] = -np.inf, -np.inf
        alive = np.isfinite(gains[kept])
        alive[kept] = False
        gains[kept, alive] = gains[alive, kept] = between[kept, alive] - resolution * share[kept] * share[alive]
        is_changed = (partners == kept) | (partners == gone) | (gains[:, kept] >= bests)
        is_changed[[kept, gone]] = True
        rows = np.flatnonzero(is_changed)
        partners[rows] = gains[rows].argmax(axis=1)
        bests[rows] = gains[rows, partners[rows]]


def _membership(labels: IntArray, count: int) -> csr_array:
    """1 where a point is in a group: (u, count)."""
    inside = np.flatnonzero(labels >= 0)
    return csr_array((np.ones(len(inside)), (inside, labels[inside])), shape=(len(labels), count))


def leanings(labels: IntArray, graph: csr_array) -> tuple[IntArray, FloatArray]:
    """Return for every point without a group the group of most of its ties, and the share of those.

    int (u,), -1 without a tie to any group and for a point in one, and float64 (u,) in 0..1. Equal shares: the lower
    label.
    """
    count = int(labels.max(initial=-1)) + 1
    nearest, shares = np.full(len(labels), NOBODY, dtype=np.intp), np.zeros(len(labels))
    free = np.flatnonzero(labels < 0)
    if count == 0 or not len(free):
        return nearest, shares
    own = graph[free]
    towards = csr_array(own @ _membership(labels, count))
    sums = np.asarray(own.sum(axis=1), dtype=np.float64).ravel()
    rows = np.repeat(np.arange(len(free)), np.diff(towards.indptr))
    order = np.lexsort((towards.indices, -towards.data, rows))
    firsts = np.unique(rows[order], return_index=True)[1]
    chosen = order[firsts]
    nearest[free[rows[chosen]]] = towards.indices[chosen]
    shares[free[rows[chosen]]] = np.minimum(towards.data[chosen] / np.maximum(sums[rows[chosen]], 1e-12), 1.0)
    return nearest, shares
