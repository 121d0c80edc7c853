"""Owns exact HDBSCAN over a user's embeddings. Its law: the labels are those of the `hdbscan` package, bit for bit.

One call clusters one rebuild's whole window (R0.3, R0.35, R0.36). The steps are those of Campello, Moulavi and Sander
(2013): core distances, the minimum spanning tree of the mutual reachability distance, the condensed tree. The last is
`hdbscan`'s own code; the first two are ours, because the package spends 26 s on 10,000 text vectors.

How speed and identity go together:

- Matrix products in float32 only *screen*: they say which distances cannot matter, with a rigorous bound on their
  rounding error. Every distance that is compared comes from `hdbscan`'s own double precision metric, so the result
  depends neither on the BLAS nor on how many threads it uses.
- Equal vectors (commit subjects repeat by the hundred) are one node with a multiplicity. Equal vectors are
  indistinguishable to Prim's algorithm until the first of them joins the tree, so nothing is lost.
- Ties are broken as `hdbscan` breaks them: the lowest row joins first, and edges are sorted by NumPy's default sort,
  which is not stable. Ties are common (many edges weigh one core distance), so this decides labels.

Two routes to the same tree; see `choose_route`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from hdbscan._hdbscan_linkage import label as single_linkage_of
from hdbscan.hdbscan_ import _tree_to_labels
from numpy.typing import NDArray

from streams.feeds.reachability import DistinctVectors, Neighbours, dense_neighbours
from streams.feeds.screening import screened_neighbours

CLUSTER_SIZE_MIN = 10
NOISE = -1

# The dense route holds one float32 per pair. 10,600 distinct vectors make 450 MB, which leaves half of a worker's
# 1 GiB for Python, the libraries (150 MB), the vectors and the blocks; 20,000 would make 1.6 GB.
DENSE_BYTES_MAX = 450_000_000

IntArray = NDArray[np.intp]
FloatArray = NDArray[np.float64]
Route = Literal["dense", "screened"]
_ROUTES: dict[Route, Callable[[DistinctVectors, int], tuple[FloatArray, Neighbours]]] = {
    "dense": dense_neighbours,
    "screened": screened_neighbours,
}


@dataclass(frozen=True, slots=True)
class Clustering:
    """The clusters of n points.

    `labels` int (n,): cluster number from 0, or `NOISE`. `probabilities` float64 (n,): strength of membership in
    0..1, 0 for noise. `persistence` float64 (clusters,): how long each cluster lives in the tree, 0..1.
    """

    labels: IntArray
    probabilities: FloatArray
    persistence: FloatArray

    @property
    def cluster_count(self) -> int:
        """How many clusters there are, noise not counted."""
        return len(self.persistence)


def cluster_embeddings(
    vectors: NDArray[np.float32],
    *,
    min_cluster_size: int = CLUSTER_SIZE_MIN,
    min_samples: int | None = None,
    route: Route | None = None,
) -> Clustering:
    """Cluster the rows of `vectors` as `hdbscan.HDBSCAN(min_cluster_size, min_samples).fit(vectors)` does.

    `vectors` is float32 (n, d), finite; unit length is usual and zero rows are allowed. `min_samples` defaults to
    `min_cluster_size`. Fewer points than `min_cluster_size` are all noise. `route` forces one of the two ways to the
    same result (tests); None chooses by memory. Source: R0.3, R0.36; Campello et al. 2013; McInnes and Healy 2017.

    Raises:
        ValueError: a value is not finite, the array is not float32 (n, d), or a parameter is out of range.
    """
    samples = min_cluster_size if min_samples is None else min_samples
    _check_input(vectors, min_cluster_size, samples)
    n = len(vectors)
    if n < min_cluster_size:
        return _all_noise(n)
    distinct = DistinctVectors.of(vectors)
    if len(distinct) == 1:  # no distance to tell anything apart; hdbscan calls it noise too
        return _all_noise(n)
    rank = min(n - 1, samples)
    core, neighbours = _ROUTES[route or choose_route(len(distinct))](distinct, rank)
    return _flat_clusters(_spanning_tree(distinct, core, neighbours), min_cluster_size)


def cluster_size_for(n: int) -> int:
    """A `min_cluster_size` that suits n points: 4 up to 1,600 of them, a tenth of the root of n above, at most 10.

    With the package's 10, a user of a few hundred insights gets no cluster at all; with 5, one of ten thousand gets
    hundreds (measured on commit subjects).
    """
    return max(4, min(CLUSTER_SIZE_MIN, round(math.sqrt(n) / 10)))


def choose_route(distinct_count: int) -> Route:
    """`dense` keeps every pair's distance (4 bytes each); `screened` keeps only edges that may be in the tree.

    Dense up to `DENSE_BYTES_MAX`: there it is the faster of the two, above it would not fit a worker's memory.
    """
    return "dense" if 4 * distinct_count * distinct_count <= DENSE_BYTES_MAX else "screened"


def _check_input(vectors: NDArray[np.float32], min_cluster_size: int, min_samples: int) -> None:
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(f"vectors must be float32 (n, d), not {vectors.dtype} {vectors.shape}")
    if min_cluster_size < 2 or min_samples < 1:
        raise ValueError("min_cluster_size is at least 2 and min_samples at least 1")
    if not np.isfinite(vectors).all():
        raise ValueError("vectors hold a value that is not finite")
    if vectors.size and float(np.abs(vectors).max()) > 1e15:  # its square must stay within float32
        raise ValueError("vectors hold a value above 1e15")


def _all_noise(n: int) -> Clustering:
    return Clustering(np.full(n, NOISE, dtype=np.intp), np.zeros(n), np.zeros(0))


def _spanning_tree(distinct: DistinctVectors, core: FloatArray, neighbours: Neighbours) -> FloatArray:
    """Prim's tree in `hdbscan`'s order: float64 (n - 1, 3) rows of (source row, new row, weight).

    The state is kept per distinct vector: `best` is the weight at which its remaining copies can join. The row that
    joins next is the lowest among the lightest. Once the first copy is in, the others can join at their common core
    distance, and nothing that joins later is nearer: no mutual reachability is below it.
    """
    count = len(distinct)
    has_copies = distinct.row_count > count
    best = np.full(count, np.inf)
    source = np.zeros(count, dtype=np.intp)
    next_row = distinct.first_rows.copy()
    has_entered = np.zeros(count, dtype=bool)
    edges = np.empty((distinct.row_count - 1, 3))
    node, row = int(distinct.node_of_row[0]), 0
    for step in range(distinct.row_count):
        if step:
            node = int(best.argmin())
            weight = best[node]
            if has_copies:
                ties = np.flatnonzero(best == weight)
                if len(ties) > 1:
                    node = int(ties[next_row[ties].argmin()])
            row = int(next_row[node])
            edges[step - 1] = source[node], row, weight
        following = int(distinct.row_after[row])
        if not has_entered[node]:
            has_entered[node] = True
            others, weights = neighbours.closer(node, best)
            best[others] = weights
            source[others] = row
            if following >= 0 and core[node] < best[node]:
                best[node], source[node] = core[node], row
        if following >= 0:
            next_row[node] = following
        else:
            best[node] = np.inf
    if not np.isfinite(edges[:, 2]).all():  # label() would never return; a route lost an edge of the tree
        raise RuntimeError("the neighbours do not connect all points")
    return edges


def _flat_clusters(edges: FloatArray, min_cluster_size: int) -> Clustering:
    """The flat clusters of the tree, by `hdbscan`'s own functions; equal points make it divide by zero, as upstream."""
    ordered = np.ascontiguousarray(edges[np.argsort(edges.T[2]), :])
    with np.errstate(all="ignore"):
        labels, probabilities, persistence, _, _ = _tree_to_labels(None, single_linkage_of(ordered), min_cluster_size)
    return Clustering(
        np.asarray(labels, dtype=np.intp),
        np.asarray(probabilities, dtype=np.float64),
        np.asarray(persistence, dtype=np.float64),
    )
