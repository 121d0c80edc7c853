"""The map of a window: a place in the plane for every point and every cluster. Invariant: on the map of version n + 1,
insights that stayed keep their place from version n; the map is never rotated, mirrored or redrawn.

Similar points are placed near each other by t-SNE's forces (van der Maaten and Hinton 2008) on the graph of nearest
neighbours: every edge attracts, every pair repels. The repulsion is read from a grid by a Fourier transform (Linderman
et al. 2019), so that a step costs what the edges cost. It begins with coordinates smoothed over the graph, which
approximate its spectral drawing (Koren 2005): related points are on the same side.

A cluster is a disc whose area is its share of the points. Overlapping discs repel each other, members are kept inside,
unclustered points outside. Any discs of half a round map's area fit into it (Fekete et al. 2019).

The next version starts from the last one (Frishman and Tal 2008, pinning weights): a new point starts at the mean of
its neighbours and is free; one that stayed moves only as far as its own neighbours are new; a cluster that stayed moves
only where another one grew into it; a new one takes the nearest free space. So if nothing is new nothing moves.

Points are processed in the order of their ids and start from a hash of them, so the order of the rows changes nothing,
and no BLAS product is used, whose bits depend on the number of threads.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.forces import CELL, Complex, Field, Floats, Graph, Ints, sums_of

DECIMALS = 4  # a ten-thousandth of the half width: below a pixel, and short as JSON
# Discs cover this part of the map together: below the half that always fits, with space for unclustered points.
DISC_SHARE = 0.45
DISC_GAP = 0.1  # of two radii together, when first placed: space to grow before any disc has to move
RIM = 1.04  # an unclustered point is kept this many radii away from a disc's centre

# A map's half width in units of t-SNE's kernel, per root of the number of points: t-SNE's own maps are about as wide.
WIDTH = 0.8
REACH = 1.25  # half widths that a point may move while the first map unfolds
SMOOTHINGS = 60
PULL_FIRST = 3.0  # early exaggeration: the first steps gather related points
COHESION = 0.3
CENTRING = 0.1  # at a disc's edge; otherwise related points of two discs collect where the discs are nearest
SPEED, MOMENTUM = 2.0, 0.8
STEP_MAX = 0.05  # of the half width, so that nothing is thrown across the map
# Steps of one relaxation: as many as small maps gain from; from 2,200 points on as few as 0.3 s allow for 10,000.
STEPS_MIN, STEPS_MAX, STEPS_POINTS = 20, 100, 220_000
PACKINGS_MAX, PACKING_PAIRS = 400, 8_000_000  # the second limits 200 clusters to a tenth of a second
PINNED = 0.1  # how easily a disc that stayed moves, compared with a new one
YIELDING = 0.3  # how far a point that stayed follows when all its neighbours are new
DRIFT_MAX = 0.08  # and its limit in one version: a twenty-fifth of the map's diameter
ROOMS = 48  # places per side that are tried for a new disc
SLACK = 2e-4  # twice the rounding: a point outside a disc by less counts as inside


@dataclass(frozen=True, slots=True)
class Previous:
    """The places in the previous version.

    `positions` float64 (u, 2): those of this version's points, NaN for a new point. `clusters`: position by cluster id.
    """

    positions: Floats
    clusters: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The map of one version, within the unit circle, rounded to `DECIMALS`.

    `positions` float64 (u, 2), one row per point. `clusters` float64 (c, 2) and `radii` float64 (c,): the discs, in
    the order of the labels.
    """

    positions: Floats
    clusters: Floats
    radii: Floats


def lay_out(
    point_ids: Sequence[str],
    labels: NDArray[np.integer],
    cluster_ids: Sequence[str],
    neighbours: NDArray[np.integer],
    similarities: NDArray[np.float32],
    previous: Previous | None = None,
) -> Layout:
    """Place u distinct points and c clusters.

    `point_ids`: unique, of length u. `labels` int (u,): index into `cluster_ids`, -1 for a point in no cluster; every
    cluster has a point. `neighbours` int (u, k): rows of the nearest others, -1 if there are fewer; `similarities`
    float (u, k) in 0..1. `previous` None draws a first map. Source: the module's docstring.

    Raises:
        ValueError: shapes differ, an id repeats, a cluster is empty, an index or a similarity is out of range.
    """
    _check(point_ids, labels, cluster_ids, neighbours, similarities, previous)
    u, c = len(point_ids), len(cluster_ids)
    order = np.array(sorted(range(u), key=point_ids.__getitem__), dtype=np.intp)
    ranked = sorted(range(c), key=cluster_ids.__getitem__)
    ids = [point_ids[row] for row in order]
    names = [cluster_ids[label] for label in ranked]
    rank_of = np.empty(c + 1, dtype=np.intp)
    rank_of[[*ranked, c]] = [*range(c), -1]  # label -1 reads the last entry
    graph = Graph.of(neighbours, similarities, order)
    members = _Members.of(rank_of[np.asarray(labels, dtype=np.intp)[order]], c)
    start = _hashed(ids)
    if previous is None or np.isnan(previous.positions).all():
        places, discs = _first(graph, members, start)
    else:
        were = previous.positions[order, 0] + 1j * previous.positions[order, 1]
        places, discs = _next(graph, members, start, were, [previous.clusters.get(name) for name in names])
    positions, clusters, radii = np.empty((u, 2)), np.empty((c, 2)), np.empty(c)
    positions[order] = _rounded(places)
    clusters[ranked] = _rounded(discs.centres)
    radii[ranked] = discs.radii
    return Layout(positions, clusters, radii)


def _check(
    point_ids: Sequence[str],
    labels: NDArray[np.integer],
    cluster_ids: Sequence[str],
    neighbours: NDArray[np.integer],
    similarities: NDArray[np.float32],
    previous: Previous | None,
) -> None:
    u, c = len(point_ids), len(cluster_ids)
    if labels.shape != (u,) or neighbours.ndim != 2 or len(neighbours) != u or similarities.shape != neighbours.shape:
        raise ValueError("point_ids, labels, neighbours and similarities differ in length or shape")
    if len(set(point_ids)) != u or len(set(cluster_ids)) != c:
        raise ValueError("an id repeats")
    if not np.array_equal(np.unique(labels[labels != -1]), np.arange(c)):
        raise ValueError("labels are not -1 and every index of cluster_ids")
    if neighbours.size and not (int(neighbours.min()) >= -1 and int(neighbours.max()) < u):
        raise ValueError("a neighbour is not a row")
    if not ((similarities >= 0) & (similarities <= 1)).all():
        raise ValueError("a similarity is not in 0..1")
    if previous is not None and (previous.positions.shape != (u, 2) or np.isinf(previous.positions).any()):
        raise ValueError("previous positions differ in shape or are infinite")


@dataclass(frozen=True, slots=True)
class _Members:
    """The clustered points (`rows`, of the cluster `of_row`), the unclustered ones (`others`), and sizes (c,)."""

    rows: Ints
    of_row: Ints
    others: Ints
    sizes: Floats

    @staticmethod
    def of(labels: Ints, count: int) -> "_Members":
        """By label, -1 for none."""
        rows = np.flatnonzero(labels >= 0)
        of_row = labels[rows]
        sizes = np.bincount(of_row, minlength=count).astype(np.float64)
        return _Members(rows, of_row, np.flatnonzero(labels < 0), sizes)

    def means(self, at: Complex) -> Complex:
        """Return the mean place of every cluster's points."""
        return sums_of(self.of_row, at[self.rows], len(self.sizes)) / self.sizes

    def per_point(self, values: Floats) -> Floats:
        """Return each point's cluster's value, infinite for an unclustered point."""
        read = np.full(len(self.rows) + len(self.others), np.inf)
        read[self.rows] = values[self.of_row]
        return read

    def radii(self) -> Floats:
        """Return the radii of discs whose areas are the clusters' shares of all points."""
        return np.sqrt(DISC_SHARE * self.sizes / max(1, len(self.rows) + len(self.others)))


@dataclass(frozen=True, slots=True)
class _Discs:
    """The clusters on the map."""

    centres: Complex
    radii: Floats
    members: _Members

    def gathered(self, at: Complex) -> Complex:
        """Return every cluster's points around its disc's centre as they lay around their mean, spread evenly over it."""
        rows, of_row, sizes = self.members.rows, self.members.of_row, self.members.sizes
        context = at[rows] - self.members.means(at)[of_row]
        distance = np.abs(context)
        inner_first = np.lexsort((np.round(distance, 9), of_row))
        rank = np.empty(len(rows))
        rank[inner_first] = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[of_row[inner_first]]
        reach = self.radii[of_row] * np.sqrt((rank + 0.5) / sizes[of_row])
        placed = at.copy()
        placed[rows] = self.centres[of_row] + context / np.maximum(distance, 1e-12) * reach
        return placed

    def inward(self, at: Complex) -> Complex:
        """Return the vector from every member to its disc's centre, with length 1 at the edge."""
        return (self.centres[self.members.of_row] - at[self.members.rows]) / self.radii[self.members.of_row]

    def kept_in(self, at: Complex) -> Complex:
        """Move members outside their disc to its edge."""
        rows, of_row = self.members.rows, self.members.of_row
        context = at[rows] - self.centres[of_row]
        distance, radius = np.abs(context), self.radii[of_row]
        outside = distance > radius + SLACK
        placed = at.copy()
        moved = self.centres[of_row] + context * (radius / np.maximum(distance, radius))
        placed[rows[outside]] = moved[outside]
        return placed

    def kept_out(self, at: Complex, mobility: Floats) -> Complex:
        """Move mobile unclustered points in a disc to just outside of it."""
        rows = self.members.others[mobility[self.members.others] > 0]
        if not len(self.radii) or not len(rows):
            return at
        context = at[rows][:, None] - self.centres
        radii = np.abs(context) / self.radii
        nearest = radii.argmin(axis=1)
        each = np.arange(len(rows))
        inside = radii[each, nearest] < 1
        away = context[each, nearest][inside]
        placed = at.copy()
        placed[rows[inside]] = self.centres[nearest[inside]] + away / np.maximum(np.abs(away), 1e-12) * (
            RIM * self.radii[nearest[inside]]
        )
        return placed


def _first(graph: Graph, members: _Members, start: Complex) -> tuple[Complex, _Discs]:
    """Draw a first map: smooth, unfold, pack the clusters, then settle inside and around them."""
    everyone = np.ones(len(start))
    at = _relaxed(_smoothed(graph, members, start), graph, everyone, members=members)
    if len(at):
        at = at - (at.real.mean() + 1j * at.imag.mean())
        # The farthest fiftieth may lie beyond the edge: a few stray points must not make the map small.
        at = _held(at / max(1e-9, float(np.quantile(np.abs(at), 0.98))), 1.0)
    radii = members.radii()
    discs = _Discs(_packed(members.means(at), radii, np.ones(len(radii)), DISC_GAP), radii, members)
    return _relaxed(discs.gathered(at), graph, everyone, discs=discs), discs


def _next(
    graph: Graph, members: _Members, start: Complex, were: Complex, known: list[tuple[float, float] | None]
) -> tuple[Complex, _Discs]:
    """Draw a following map: see the module's docstring."""
    radii = members.radii()
    stayed = np.array([place is not None for place in known], dtype=bool)
    before = np.array([complex(*place) if place is not None else 0j for place in known], dtype=np.complex128)
    at, is_new = _joined(graph, members, start, were, np.where(stayed, before, np.nan))
    centres = _in_free_room(np.where(stayed, before, members.means(at)), radii, stayed)
    discs = _Discs(_packed(centres, radii, np.where(stayed, PINNED, 1.0), 0.0), radii, members)
    shift = np.where(stayed, discs.centres - before, 0)
    at[members.rows] += shift[members.of_row]
    placed = discs.kept_in(at)
    # A point that came from far outside of its disc is as free as a new one: nothing is left of its old place.
    free = is_new | (np.abs(placed - at) > members.per_point(radii))
    mobility = np.where(free, 1.0, YIELDING * graph.mean_of_neighbours(free.astype(np.float64)))
    return (_relaxed(placed, graph, mobility, discs=discs) if mobility.any() else placed), discs


def _hashed(ids: Sequence[str]) -> Complex:
    """Return a place in the unit circle for each id, evenly spread."""
    digests = b"".join(blake2b(one.encode("utf-8", "surrogatepass"), digest_size=8).digest() for one in ids)
    halves = np.frombuffer(digests, dtype="<u4").reshape(-1, 2) / 2.0**32
    return np.asarray(np.sqrt(halves[:, 0]) * np.exp(2j * np.pi * halves[:, 1]), dtype=np.complex128)


def _smoothed(graph: Graph, members: _Members, start: Complex) -> Complex:
    """Return coordinates averaged over neighbours and clusters many times, then spread evenly over the unit circle."""
    degrees = graph.degrees
    total = max(float(degrees.sum()), 1e-12)
    at = start.copy()
    for step in range(SMOOTHINGS):
        mean = graph.mean_of_neighbours(np.stack([at.real, at.imag], axis=1))
        at = np.where(degrees > 0, 0.3 * at + 0.7 * (mean[:, 0] + 1j * mean[:, 1]), at)
        if step % 2 == 0:
            at[members.rows] = 0.5 * (at[members.rows] + members.means(at)[members.of_row])
        if step % 20 == 19:  # before common features hide the differences
            x, y = (side - (side * degrees).sum() / total for side in (at.real, at.imag))
            y = y - x * ((x * y * degrees).sum() / max(float((x * x * degrees).sum()), 1e-24))
            x, y = (side / max(math.sqrt((side * side * degrees).sum() / total), 1e-12) for side in (x, y))
            at = x + 1j * y
    distance = np.abs(at)
    rank = np.empty(len(at))
    rank[np.argsort(np.round(distance, 9), kind="stable")] = np.arange(len(at))
    return at / np.maximum(distance, 1e-12) * np.sqrt((rank + 0.5) / max(1, len(at)))


def _relaxed(
    at: Complex,
    graph: Graph,
    mobility: Floats,
    *,
    members: _Members | None = None,
    discs: _Discs | None = None,
) -> Complex:
    """Move the points by t-SNE's forces, each as far as its mobility allows.

    With `members` clusters are drawn together, freely over the map and more strongly at first; with `discs` they are
    kept in theirs.
    """
    width = WIDTH * math.sqrt(max(1, len(at)))
    field = Field(width * (REACH if discs is None else 1.0) + CELL)
    began, speed = at, np.zeros(len(at), dtype=np.complex128)
    steps = min(STEPS_MAX, max(STEPS_MIN, STEPS_POINTS // max(1, len(at))))
    for step in range(steps):
        strength = 1.0 if members is None else PULL_FIRST + (1.0 - PULL_FIRST) * step / (steps - 1)
        force = strength * graph.pull(at * width) + field.push(at * width)
        if members is not None:
            away = (members.means(at)[members.of_row] - at[members.rows]) * width
            force[members.rows] += COHESION * away / (1 + np.abs(away))
        if discs is not None:
            force[discs.members.rows] += CENTRING * discs.inward(at)
        speed = MOMENTUM * speed + SPEED / strength * mobility * force / width
        speed = _held(speed, STEP_MAX)
        moved = at + speed
        if discs is None:
            at = _held(moved, REACH)
        else:
            moved = discs.kept_in(_held(moved, 1.0))
            moved = np.where(mobility == 1, moved, began + _held(moved - began, DRIFT_MAX))
            at = np.where(mobility > 0, moved, at)
    return at if discs is None else _held(discs.kept_out(at, mobility), 1.0)


def _joined(
    graph: Graph, members: _Members, start: Complex, were: Complex, centres: Complex
) -> tuple[Complex, NDArray[np.bool_]]:
    """Return where every point starts, and which are new: at the mean of placed neighbours, wave by wave.

    A point without such a neighbour starts at its cluster's centre, one with neither at its hash's place near the edge.
    """
    has_place = ~np.isnan(were)
    is_new = ~has_place
    at = np.where(has_place, were, 0)
    # Slightly apart: forces cannot separate points at the same place.
    apart = start * (0.5 / math.sqrt(max(1, len(at))))
    while True:
        known = has_place.astype(np.float64)
        sums = graph.both_ways @ np.stack([at.real * known, at.imag * known, known], axis=1)
        reached = ~has_place & (sums[:, 2] > 0)
        if not reached.any():
            break
        near = sums[reached]
        at[reached] = (near[:, 0] + 1j * near[:, 1]) / near[:, 2] + apart[reached]
        has_place |= reached
    rest = start / np.maximum(np.abs(start), 1e-12) * (0.9 + 0.1 * np.abs(start))
    known_centre = ~np.isnan(centres[members.of_row])
    rows = members.rows[known_centre]
    rest[rows] = centres[members.of_row[known_centre]] + apart[rows]
    return np.where(has_place, at, rest), is_new


def _in_free_room(centres: Complex, radii: Floats, stayed: NDArray[np.bool_]) -> Complex:
    """Place new discs, large ones first, each at the nearest free place to its points."""
    side = (np.arange(ROOMS) + 0.5) / ROOMS * 2 - 1
    rooms = (side[:, None] + 1j * side).ravel()
    taken = stayed.copy()
    placed = centres.copy()
    for new in sorted(np.flatnonzero(~stayed), key=lambda one: -radii[one]):
        wish = _held(placed[[new]], 1 - radii[new])
        choices = np.concatenate([wish, rooms[np.abs(rooms) + radii[new] <= 1]])
        gaps = np.abs(choices[:, None] - placed[taken]) - (1 + DISC_GAP) * (radii[new] + radii[taken])
        # Overlap counts ten times as much as distance: a disc goes to the next gap, across the map only if necessary.
        costs = 10 * np.maximum(-gaps, 0).sum(axis=1) + np.abs(choices - wish)
        placed[new] = choices[np.round(costs, 9).argmin()]
        taken[new] = True
    return placed


def _packed(centres: Complex, radii: Floats, mobility: Floats, gap: float) -> Complex:
    """Push the discs apart until none overlaps, the more mobile and smaller one farther; rounded as they are published."""
    c = len(centres)

    def inside(x: Floats, y: Floats) -> tuple[Floats, Floats]:
        inward = np.minimum(1.0, (1 - radii) / np.maximum(np.sqrt(x * x + y * y), 1e-9))
        return x * inward, y * inward

    # A shift below the rounding: discs at one place have no direction to separate in.
    x, y = inside(centres.real + 1e-7 * np.cos(np.arange(c)), centres.imag + 1e-7 * np.sin(np.arange(c)))
    wanted = (radii[:, None] + radii) * (1 + gap)
    steps = min(PACKINGS_MAX, PACKING_PAIRS // max(1, c * c))
    for step in range(steps):
        if step in {0, steps // 2}:  # halfway through, remaining overlaps are jammed: now all move equally
            weight = (mobility if step < steps // 2 else 1.0) / radii
            share = weight[:, None] / (weight[:, None] + weight)
        across, along = x[:, None] - x, y[:, None] - y
        distance = np.sqrt(across * across + along * along)
        overlap = np.maximum(wanted - distance, 0.0)
        np.fill_diagonal(overlap, 0.0)
        if float(overlap.max(initial=0.0)) <= SLACK:
            break
        push = 0.9 * overlap * share / np.maximum(distance, 1e-9)
        x, y = inside(x + (push * across).sum(axis=1), y + (push * along).sum(axis=1))
    return np.round(x, DECIMALS) + 1j * np.round(y, DECIMALS)


def _held(values: Complex, length_max: float) -> Complex:
    """Shorten each value to at most `length_max`."""
    return values * np.minimum(1.0, length_max / np.maximum(np.abs(values), 1e-12))


def _rounded(places: Complex) -> Floats:
    """Return rows (x, y); adding 0 turns -0.0 into 0.0."""
    return np.asarray(np.round(np.stack([places.real, places.imag], axis=1), DECIMALS) + 0.0, dtype=np.float64)
