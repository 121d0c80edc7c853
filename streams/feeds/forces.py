"""The two forces of the map: the attraction along the edges of the neighbour graph, the repulsion between all pairs.

They are t-SNE's (van der Maaten and Hinton 2008); the repulsion is read from a grid by a Fourier transform (Linderman
et al. 2019), so that a step costs what the edges cost. Places are complex numbers. Invariant: no BLAS product, so the
same bits for any number of threads.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.sparse import csr_array

CELL = 1.25  # kernel units per cell of the grid: the kernel is 1 wide
CELLS_MIN, CELLS_MAX = 48, 160  # 160: the transform costs no more than the edges of 10,000 points

Complex = NDArray[np.complex128]
Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges (u, k) to nearest neighbours whose weights sum to 1 per row (to 0 where there is no neighbour).

    `both_ways` (u, u) holds them in both directions, `degrees` (u,) the sums of its rows.
    """

    targets: Ints
    weights: Floats
    both_ways: csr_array
    degrees: Floats

    @staticmethod
    def of(neighbours: NDArray[np.integer], similarities: NDArray[np.float32], order: Ints) -> "Graph":
        """The graph of the rows taken in `order`."""
        u = len(order)
        rank_of = np.empty(u, dtype=np.intp)
        rank_of[order] = np.arange(u)
        own = np.arange(u)[:, None]
        targets = np.asarray(neighbours, dtype=np.intp)[order]
        weights = np.where(targets >= 0, similarities[order].astype(np.float64), 0.0)
        targets = np.where(targets >= 0, rank_of[targets], own) if u else targets
        weights[targets == own] = 0.0
        sums = weights.sum(axis=1, keepdims=True)
        weights = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
        starts = np.arange(u + 1) * targets.shape[1]
        edges = csr_array((weights.ravel(), targets.ravel(), starts), shape=(u, u))
        both_ways = csr_array(edges + edges.T)
        return Graph(targets, weights, both_ways, np.asarray(both_ways.sum(axis=1), dtype=np.float64).ravel())

    def mean_of_neighbours(self, values: Floats) -> Floats:
        """Return the means of `values` (u,) or (u, m) over each point's neighbours in either direction, 0 without any."""
        sums = self.both_ways @ values
        return np.asarray((sums.T / np.maximum(self.degrees, 1e-12)).T, dtype=np.float64)

    def pull(self, at: Complex) -> Complex:
        """Return t-SNE's attraction: along every edge, less over long ones, half for either end."""
        apart = at[self.targets] - at[:, None]
        force = apart * (self.weights / (1 + apart.real**2 + apart.imag**2))
        pulled: Complex = force.sum(axis=1) - sums_of(self.targets.ravel(), force.ravel(), len(at))
        return 0.5 * pulled


class Field:
    """t-SNE's repulsion, read from a grid: the potential of the kernel 1 / (1 + d^2) and its slope."""

    def __init__(self, half: float) -> None:
        self.half = half
        self.cells = min(CELLS_MAX, max(CELLS_MIN, math.ceil(2 * half / CELL)))
        self.cell = 2 * half / self.cells
        self.padded = fft.next_fast_len(2 * self.cells, real=True)
        steps = np.arange(self.padded)
        squares = (np.minimum(steps, self.padded - steps) * self.cell) ** 2
        self.kernel = fft.rfft2(1 / (1 + squares[:, None] + squares))

    def push(self, at: Complex) -> Complex:
        """Return the repulsion on every point from all others, scaled so that all pairs' closeness sums to their number."""
        cells = self.cells
        x = np.clip((at.real + self.half) / self.cell - 0.5, 0, cells - 1.001)
        y = np.clip((at.imag + self.half) / self.cell - 0.5, 0, cells - 1.001)
        column, row = x.astype(np.intp), y.astype(np.intp)
        right, up = x - column, y - row
        corner = column * cells + row
        corners = (corner, corner + 1, corner + cells, corner + cells + 1)
        shares = ((1 - right) * (1 - up), (1 - right) * up, right * (1 - up), right * up)
        mass = np.bincount(np.concatenate(corners), np.concatenate(shares), minlength=cells * cells)
        spectrum = fft.rfft2(mass.reshape(cells, cells), (self.padded, self.padded)) * self.kernel
        potential = fft.irfft2(spectrum, (self.padded, self.padded))[:cells, :cells]
        slope = np.gradient(potential, self.cell, axis=0) + 1j * np.gradient(potential, self.cell, axis=1)
        closeness = float((mass * potential.ravel()).sum()) - len(at)
        flat = slope.ravel()
        read = np.zeros(len(at), dtype=np.complex128)
        for share, place in zip(shares, corners, strict=True):
            read += share * flat[place]
        return -0.5 * len(at) / max(1.0, closeness) * read


def sums_of(groups: Ints, values: Complex, count: int) -> Complex:
    """Return the sum of the values of each group."""
    return np.bincount(groups, values.real, count) + 1j * np.bincount(groups, values.imag, count)
