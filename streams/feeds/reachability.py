"""Owns distances: between distinct vectors, to the k-th neighbour, and whom a new node of Prim's tree brings nearer.

Its law: float32 products only rule pairs out. A pair that is not ruled out is measured by `hdbscan`'s own double
precision metric, so every distance that is ever compared has the very bits that `hdbscan` compares.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from hdbscan.dist_metrics import DistanceMetric
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.intp]

# One block of squared distances is 20 MB; a screen over it needs two or three such arrays at a time.
BLOCK_BYTES = 20_000_000
FLOAT32_ROUNDING = 2.0**-24

_METRIC = DistanceMetric.get_metric("euclidean")


@dataclass(frozen=True, slots=True)
class DistinctVectors:
    """The different rows of an array, in order of first appearance, and where each one's copies stand.

    `vectors` float32 (u, d); `copies` int (u,): how often each occurs; `first_rows` int (u,): its lowest row;
    `node_of_row` int (n,): which distinct vector a row is; `row_after` int (n,): the next row equal to this, or -1.
    `squares` float32 (u,): squared lengths. `slack`: no squared distance from a float32 product is off by more.
    """

    vectors: Float32Array
    copies: IntArray
    first_rows: IntArray
    node_of_row: IntArray
    row_after: IntArray
    squares: Float32Array
    slack: float

    @classmethod
    def of(cls, vectors: Float32Array) -> "DistinctVectors":
        """Find the distinct rows of finite float32 (n, d)."""
        rows = np.ascontiguousarray(vectors) + np.float32(0.0)  # makes -0.0 and 0.0 the same bytes
        n, width = rows.shape
        node_of_row, row_after = np.empty(n, dtype=np.intp), np.full(n, -1, dtype=np.intp)
        node_by_bytes: dict[bytes, int] = {}
        first_rows: list[int] = []
        last_rows: list[int] = []
        for row in range(n):
            node = node_by_bytes.setdefault(rows[row].tobytes(), len(first_rows))
            if node == len(first_rows):
                first_rows.append(row)
                last_rows.append(row)
            else:
                row_after[last_rows[node]] = row
                last_rows[node] = row
            node_of_row[row] = node
        del node_by_bytes
        distinct = rows[first_rows] if len(first_rows) < n else rows
        squares = np.einsum("ij,ij->i", distinct, distinct, dtype=np.float64)
        longest = float(squares.max(initial=0.0))
        return cls(
            vectors=distinct,
            copies=np.bincount(node_of_row, minlength=len(first_rows)).astype(np.intp),
            first_rows=np.array(first_rows, dtype=np.intp),
            node_of_row=node_of_row,
            row_after=row_after,
            squares=squares.astype(np.float32),
            # A dot product of width terms errs by at most (width + 1) roundings of |a||b| (Higham 2002, 3.1), twice
            # that in -2ab; the sums and casts add a few more. Six and sixteen leave room; it only costs candidates.
            slack=6 * (width + 16) * FLOAT32_ROUNDING * longest,
        )

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def row_count(self) -> int:
        """How many rows there were, copies counted."""
        return len(self.node_of_row)

    def distances(self, node: int, others: IntArray) -> FloatArray:
        """Euclidean distances (m,) from a node to others, as `hdbscan` computes them."""
        near = self.vectors[others].astype(np.float64)
        return cast("FloatArray", _METRIC.pairwise(self.vectors[node : node + 1].astype(np.float64), near)[0])

    def squared_blocks(self) -> Iterator[tuple[int, Float32Array]]:
        """Approximate squared distances of all nodes to all: (first node, float32 (rows, u)), off by <= `slack`."""
        height = max(1, BLOCK_BYTES // (4 * len(self)))
        doubled = self.vectors * np.float32(-2.0)
        for first in range(0, len(self), height):
            block = cast("Float32Array", doubled[first : first + height] @ self.vectors.T)
            block += self.squares[first : first + height, None]
            block += self.squares
            yield first, block


class Neighbours(Protocol):
    """Answers Prim's one question; remembers which nodes have entered."""

    def closer(self, node: int, best: FloatArray) -> tuple[IntArray, FloatArray]:
        """Enter `node`; the nodes not entered that it brings below `best`, and their new weights."""


@dataclass(frozen=True, slots=True)
class NearNodes:
    """Of one node: `others` int (m,), nearest first, itself included, with `distances` (m,) and its `core` distance."""

    node: int
    others: IntArray
    distances: FloatArray
    core: float


def near_nodes(
    distinct: DistinctVectors, first: int, block: Float32Array, rank: int, width: int
) -> Iterator[NearNodes]:
    """For each row of a block of squared distances: its nearest nodes, at least `width` of them where there are.

    `rank` is min_samples: the core distance is that of the rank-th other row, copies counted.
    """
    place = min(max(rank, width), len(distinct) - 1)
    limits = np.partition(block, place, axis=1)[:, place] + np.float32(2 * distinct.slack)
    rows, columns = places(block <= limits[:, None])
    starts = np.searchsorted(rows, np.arange(len(block) + 1))
    for offset in range(len(block)):
        others = columns[starts[offset] : starts[offset + 1]]
        distances = distinct.distances(first + offset, others)
        order = np.argsort(distances, kind="stable")
        others, distances = others[order], distances[order]
        reached = int(np.searchsorted(np.cumsum(distinct.copies[others]), rank, side="right"))
        yield NearNodes(first + offset, others, distances, float(distances[reached]))


def places(chosen: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Rows and columns of what is true, row by row; several times faster than `np.nonzero` on two dimensions."""
    rows, columns = np.divmod(np.flatnonzero(chosen), chosen.shape[1])
    return rows, columns


class DenseNeighbours:
    """Keeps the approximate squared distance of every pair: 4 u^2 bytes."""

    def __init__(self, distinct: DistinctVectors, squared: Float32Array, core: FloatArray) -> None:
        self._distinct = distinct
        self._squared = squared
        self._core = core
        self._limits = np.full(len(distinct), np.inf, dtype=np.float32)

    def closer(self, node: int, best: FloatArray) -> tuple[IntArray, FloatArray]:
        """Screen a row of the matrix by the best weights so far, then measure what is left."""
        self._limits[node] = -np.inf
        others = np.flatnonzero(self._row(node) < self._limits)
        floors = np.maximum(self._core[others], self._core[node])
        could = floors < best[others]
        others, floors = others[could], floors[could]
        if not len(others):
            return others, floors
        weights = np.maximum(self._distinct.distances(node, others), floors)
        nearer = weights < best[others]
        others, weights = others[nearer], weights[nearer]
        self._limits[others] = weights * weights + self._distinct.slack
        return others, weights

    def _row(self, node: int) -> Float32Array:
        return cast("Float32Array", self._squared[node])


class RowNeighbours(DenseNeighbours):
    """Computes each row when it is asked for: no memory, one pass over all vectors per node."""

    def __init__(self, distinct: DistinctVectors, core: FloatArray) -> None:
        super().__init__(distinct, np.empty((0, 0), dtype=np.float32), core)

    def _row(self, node: int) -> Float32Array:
        row = self._distinct.vectors @ (self._distinct.vectors[node] * np.float32(-2.0))
        row += self._distinct.squares + self._distinct.squares[node]
        return cast("Float32Array", row)


def dense_neighbours(distinct: DistinctVectors, rank: int) -> tuple[FloatArray, Neighbours]:
    """Core distances float64 (u,), and the neighbours by the full matrix."""
    count = len(distinct)
    core = np.empty(count)
    squared = np.empty((count, count), dtype=np.float32)
    for first, block in distinct.squared_blocks():
        squared[first : first + len(block)] = block
        for near in near_nodes(distinct, first, block, rank, rank):
            core[near.node] = near.core
    return core, DenseNeighbours(distinct, squared, core)
