"""Owns the low-memory route: finds the few edges that can be in the spanning tree, without keeping all pairs.

Its law is the cycle property: an edge that is strictly heavier than the heaviest edge on a path between its ends is in
no minimum spanning tree, and Prim's algorithm never chooses it. So any spanning tree bounds every pair:

1. Near nodes: one pass over all pairs in blocks gives the core distances and each node's nearest nodes.
2. A first tree: the minimum spanning tree of those near edges, its parts joined by any short edge. It need not be
   minimal; the nearer it is to minimal, the fewer pairs survive.
3. The screen: with the nodes in the order of that tree's dendrogram, the heaviest edge on the path between positions
   p < q is the highest merge between them, a running maximum. A second pass keeps the pairs within it, ties included.

Prim's algorithm over what is left takes the same edges in the same order as over all pairs (tests force both routes).
"""

from collections.abc import Iterator
from typing import cast

import numpy as np
from hdbscan._hdbscan_linkage import label as single_linkage_of
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from streams.feeds.reachability import (
    BLOCK_BYTES,
    DistinctVectors,
    Float32Array,
    FloatArray,
    IntArray,
    Neighbours,
    RowNeighbours,
    near_nodes,
    places,
)

# Near nodes kept for the first tree. More make it closer to minimal; past 24 the screen keeps no fewer pairs.
NEAR_NODES = 24
# Real text keeps about 10 edges a node. When nearly everything ties (vectors of a few equal steps), the screen cannot
# help; past this the rows are computed one by one instead: slower, no more memory. 200 x 20,000 edges take 100 MB.
EDGES_PER_NODE_MAX = 200


class Edges:
    """A growing list of undirected edges: ends and mutual reachability."""

    def __init__(self) -> None:
        self._parts: list[tuple[IntArray, IntArray, FloatArray]] = []
        self.count = 0

    def add(self, ends: IntArray | int, others: IntArray, weights: FloatArray) -> None:
        """Add edges from `ends` (one or many) to `others`."""
        self._parts.append((np.broadcast_to(np.asarray(ends, dtype=np.intp), others.shape), others, weights))
        self.count += len(others)

    def arrays(self) -> tuple[IntArray, IntArray, FloatArray]:
        """All edges so far."""
        first, second, weights = zip(*self._parts, strict=True)
        return np.concatenate(first), np.concatenate(second), np.concatenate(weights)


class SparseNeighbours:
    """Knows only the edges that passed the screen."""

    def __init__(self, count: int, edges: Edges) -> None:
        ends, others, weights = edges.arrays()
        both = np.concatenate([ends, others])
        order = np.argsort(both, kind="stable")
        self._starts = np.searchsorted(both[order], np.arange(count + 1))
        self._others = np.concatenate([others, ends])[order]
        self._weights = np.concatenate([weights, weights])[order]
        self._is_open = np.ones(count, dtype=bool)

    def closer(self, node: int, best: FloatArray) -> tuple[IntArray, FloatArray]:
        """The edges of `node` that improve on `best`."""
        self._is_open[node] = False
        span = slice(self._starts[node], self._starts[node + 1])
        others, weights = self._others[span], self._weights[span]
        nearer = (weights < best[others]) & self._is_open[others]
        return others[nearer], weights[nearer]


def screened_neighbours(distinct: DistinctVectors, rank: int) -> tuple[FloatArray, Neighbours]:
    """Core distances float64 (u,), and the neighbours by the edges that a spanning tree cannot rule out."""
    core, near = _near_edges(distinct, rank)
    tree = _first_tree(distinct, core, near)
    del near
    edges = _edges_within(distinct, core, *_leaf_order(tree))
    if edges is None:
        return core, RowNeighbours(distinct, core)
    return core, SparseNeighbours(len(distinct), edges)


def _near_edges(distinct: DistinctVectors, rank: int) -> tuple[FloatArray, tuple[IntArray, IntArray, FloatArray]]:
    core = np.empty(len(distinct))
    lengths = Edges()
    kept = 1 + max(rank, NEAR_NODES)
    for first, block in distinct.squared_blocks():
        for near in near_nodes(distinct, first, block, rank, NEAR_NODES):
            core[near.node] = near.core
            lengths.add(near.node, near.others[:kept], near.distances[:kept])
    ends, others, distances = lengths.arrays()
    apart = ends != others
    ends, others, distances = ends[apart], others[apart], distances[apart]
    return core, (ends, others, np.maximum(distances, np.maximum(core[ends], core[others])))


def _first_tree(distinct: DistinctVectors, core: FloatArray, near: tuple[IntArray, IntArray, FloatArray]) -> FloatArray:
    """A spanning tree, minimal among the near edges: float64 (u - 1, 3), lightest first."""
    count = len(distinct)
    ends, others, weights = near
    while True:
        low, high = np.minimum(ends, others), np.maximum(ends, others)
        _, once = np.unique(low * count + high, return_index=True)  # a sparse matrix would add up repeated edges
        graph = csr_array((weights[once], (low[once], high[once])), shape=(count, count))
        forest = coo_array(minimum_spanning_tree(graph))
        ends, others, weights = forest.row.astype(np.intp), forest.col.astype(np.intp), forest.data
        parts, part_of = connected_components(forest, directed=False)
        if parts == 1:
            break
        bridges = _bridges(distinct, core, part_of, parts)
        ends, others, weights = (np.concatenate(pair) for pair in zip((ends, others, weights), bridges, strict=True))
    order = np.argsort(weights, kind="stable")
    return np.column_stack([ends[order], others[order], weights[order]]).astype(np.float64)


def _bridges(
    distinct: DistinctVectors, core: FloatArray, part_of: IntArray, parts: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """From every part but the largest, a short edge to another part; at least halves the number of parts."""
    largest = int(np.bincount(part_of, minlength=parts).argmax())
    outside = np.flatnonzero(part_of != largest)
    squared_core = (core * core).astype(np.float32)
    height = max(1, BLOCK_BYTES // (4 * len(distinct)))
    nearest, lengths = np.empty(len(outside), dtype=np.intp), np.empty(len(outside), dtype=np.float32)
    for first in range(0, len(outside), height):
        nodes = outside[first : first + height]
        block = (distinct.vectors[nodes] * np.float32(-2.0)) @ distinct.vectors.T
        block += distinct.squares[nodes, None]
        block += distinct.squares
        np.maximum(block, squared_core, out=block)
        block[part_of[nodes][:, None] == part_of[None, :]] = np.inf
        nearest[first : first + height] = block.argmin(axis=1)
        lengths[first : first + height] = block.min(axis=1)
    lengths = np.maximum(lengths, squared_core[outside])
    order = np.lexsort((lengths, part_of[outside]))
    heads = order[np.unique(part_of[outside][order], return_index=True)[1]]
    ends, others = outside[heads], nearest[heads]
    weights = np.array([_reach(distinct, core, int(a), others[i : i + 1])[0] for i, a in enumerate(ends)])
    return ends, others, weights


def _reach(distinct: DistinctVectors, core: FloatArray, node: int, others: IntArray) -> FloatArray:
    """Mutual reachability (m,) from a node to others."""
    distances = distinct.distances(node, others)
    return cast("FloatArray", np.maximum(np.maximum(distances, core[others]), core[node]))


def _leaf_order(tree: FloatArray) -> tuple[IntArray, FloatArray]:
    """The nodes in dendrogram order (u,), and the merge height between each and the next (u - 1,).

    Every merge puts the second branch behind the first, so a branch stays one run of leaves and the largest height
    between two leaves is where they meet.
    """
    count = len(tree) + 1
    linkage = single_linkage_of(np.ascontiguousarray(tree))
    head, tail = list(range(2 * count - 1)), list(range(2 * count - 1))
    follower, height = [-1] * count, [0.0] * count
    for merge, (left, right, weight) in enumerate(linkage[:, :3].tolist()):
        a, b, branch = int(left), int(right), count + merge
        follower[tail[a]], height[tail[a]] = head[b], weight
        head[branch], tail[branch] = head[a], tail[b]
    order, leaf = [], head[2 * count - 2]
    while leaf >= 0:
        order.append(leaf)
        leaf = follower[leaf]
    leaves = np.array(order, dtype=np.intp)
    return leaves, np.array(height)[leaves[:-1]]


def _edges_within(distinct: DistinctVectors, core: FloatArray, leaves: IntArray, heights: FloatArray) -> Edges | None:
    """All edges no heavier than the bound of their pair, measured exactly; None when there are too many to hold."""
    edges = Edges()
    edges_max = EDGES_PER_NODE_MAX * len(leaves)
    for position, later, bounds in _pairs_within(distinct, leaves, heights):
        node, others = int(leaves[position]), leaves[later]
        weights = _reach(distinct, core, node, others)
        kept = weights <= bounds
        edges.add(node, others[kept], weights[kept])
        if edges.count > edges_max:
            return None
    return edges


def _pairs_within(
    distinct: DistinctVectors, leaves: IntArray, heights: FloatArray
) -> Iterator[tuple[int, IntArray, FloatArray]]:
    """For each position: the later positions that may be within their bound, and those bounds (m,)."""
    count = len(leaves)
    vectors, squares = distinct.vectors[leaves], distinct.squares[leaves]
    first = 0
    while first < count:
        last = min(count, first + max(1, BLOCK_BYTES // (4 * (count - first))))
        block = (vectors[first:last] * np.float32(-2.0)) @ vectors[first:].T
        block += squares[first:last, None]
        block += squares[first:]
        bounds = _Bounds(heights, first, last)
        rows, columns = places(block <= bounds.squared(distinct.slack))
        starts = np.searchsorted(rows, np.arange(last - first + 1))
        for offset in range(last - first):
            chosen = columns[starts[offset] : starts[offset + 1]]
            if len(chosen):
                yield first + offset, chosen + first, bounds.of(offset, chosen)
        first = last


class _Bounds:
    """The largest height between each of the positions first..last and each later one; offsets count from `first`."""

    def __init__(self, heights: FloatArray, first: int, last: int) -> None:
        self._rows = last - first
        ahead = np.triu(np.broadcast_to(np.append(heights[first:last], 0.0)[: self._rows], (self._rows, self._rows)))
        reached = np.maximum.accumulate(ahead, axis=1)
        self._inside = np.zeros((self._rows, self._rows))
        self._inside[:, 1:] = reached[:, :-1]
        self._to_end = reached[:, -1]
        self._beyond = np.maximum.accumulate(np.append(0.0, heights[last:]))[: len(heights) + 1 - last]

    def squared(self, slack: float) -> Float32Array:
        """float32 (rows, positions from first): the squared bound plus slack, -inf where a pair is not later."""
        limits = np.empty((self._rows, self._rows + len(self._beyond)), dtype=np.float32)
        limits[:, : self._rows] = self._inside * self._inside + slack
        limits[:, : self._rows][np.tril_indices(self._rows)] = -np.inf
        beyond = (self._beyond * self._beyond + slack).astype(np.float32)
        to_end = (self._to_end * self._to_end + slack).astype(np.float32)
        np.maximum(to_end[:, None], beyond[None, :], out=limits[:, self._rows :])
        return limits

    def of(self, offset: int, columns: IntArray) -> FloatArray:
        """The bounds (m,) of one row's columns, all of them later."""
        inside = columns < self._rows
        bounds = np.empty(len(columns))
        bounds[inside] = self._inside[offset, columns[inside]]
        bounds[~inside] = np.maximum(self._to_end[offset], self._beyond[columns[~inside] - self._rows])
        return bounds
