"""Applies a reader's curations to the clusters of a version.

Invariant: every insight stays in exactly one cluster or outside, insights with equal vectors stay together, and the
same clusters with the same curations give the same groups, for any order of the curations: they apply in
the order of the log. A repeat changes nothing.

Clusters are found and matched with those of the last version without curations, which are applied to the result; so
both sides of a merge, and the whole of a split, keep an identity that can be matched again. A curation whose clusters
are not in a version is inactive, and applies again in a version that has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.clustering import NOISE, Clustering
from highwater.streams.feeds.curations import Curation, CurationKind
from highwater.streams.feeds.labels import ClusterDescription
from highwater.streams.feeds.neighbours import Float32Array, IntArray
from highwater.streams.feeds.versions import Homes, LastVersion

# Closeness to a part is compared to this many digits, so that the order of summation does not matter.
_DIGITS = 6
# A point without a known part.
_OPEN = -1


@dataclass(frozen=True, slots=True)
class Curated:
    """Clusters after curations: `found` with other labels and leanings, the id of each number, and the reader's labels.

    `homes` by the id of each split: the members of its rest and its parts. `is_regrouped`: whether anything is in
    another cluster, or under another id, than before.
    """

    found: Clustering
    cluster_ids: tuple[str, ...]
    labels: Mapping[str, str]
    homes: Mapping[str, Homes]
    is_regrouped: bool


def curate(
    found: Clustering,
    cluster_ids: Sequence[str],
    insight_ids: Sequence[str],
    curations: Sequence[Curation],
    last: LastVersion,
) -> Curated:
    """Apply a reader's curations to clusters with these ids (by number); `insight_ids` are those of the rows."""
    if not curations:
        return Curated(found, tuple(cluster_ids), {}, {}, is_regrouped=False)
    groups = _Groups(found, cluster_ids, insight_ids, last)
    labels: dict[str, str] = {}
    for one in sorted(curations, key=lambda one: one.order):
        match one.kind:
            case CurationKind.RENAME:
                labels[one.cluster_id] = one.label
            case CurationKind.MERGE:
                groups.merge(one.cluster_id, one.cluster_ids)
            case CurationKind.SPLIT:
                groups.split(one)
                named = zip(one.part_ids, one.parts, strict=True)
                labels |= {part_id: part.label for part_id, part in named if part.label and part_id not in labels}
            case CurationKind.WISH:
                pass  # of names that a language model writes (connectors/feeds/titles.py)
            case CurationKind.UNDO:
                raise ValueError("an undo is not a stored curation")
    numbers = sorted(groups.number_of.values())
    id_of = {number: cluster_id for cluster_id, number in groups.number_of.items()}
    return Curated(
        replace(
            found,
            labels=groups.spread(groups.labels, numbers),
            leanings=groups.spread(groups.leanings, numbers),
        ),
        tuple(id_of[number] for number in numbers),
        {cluster_id: label for cluster_id, label in labels.items() if cluster_id in groups.number_of},
        groups.homes,
        groups.is_regrouped,
    )


def renamed(
    described: Sequence[ClusterDescription], cluster_ids: Sequence[str], labels: Mapping[str, str]
) -> list[ClusterDescription]:
    """Return the descriptions of clusters with their reader's labels.

    A theme of one cluster gets the cluster's label, unless another theme has it.
    """
    themes = Counter(one.theme for one in described)
    taken = {theme.casefold() for theme in themes}
    result = []
    for one, cluster_id in zip(described, cluster_ids, strict=True):
        label = labels.get(cluster_id)
        if label is None:
            result.append(one)
            continue
        is_alone = themes[one.theme] == 1 and label.casefold() not in taken
        taken.add(label.casefold())
        result.append(replace(one, label=label, theme=label if is_alone else one.theme))
    return result


class _Groups:
    """The clusters while curations are applied to them, over the distinct points.

    `labels` and `leanings` int (u,) are numbers of clusters or `NOISE`; `number_of` has the clusters with any member.
    """

    def __init__(
        self, found: Clustering, cluster_ids: Sequence[str], insight_ids: Sequence[str], last: LastVersion
    ) -> None:
        self._node_of_row = found.distinct.node_of_row
        self._vectors: Float32Array = found.distinct.rounded
        self._row_of = {insight_id: row for row, insight_id in enumerate(insight_ids)}
        self._insight_ids = insight_ids
        self._last = last
        self.labels = self._of_nodes(found.labels)
        self.leanings = self._of_nodes(found.leanings)
        self.number_of = {cluster_id: number for number, cluster_id in enumerate(cluster_ids)}
        self.homes: dict[str, Homes] = {}
        self._count = len(cluster_ids)
        self._found = self.labels.copy(), dict(self.number_of)

    @property
    def is_regrouped(self) -> bool:
        """Return whether anything is in another cluster, or under another id, than before."""
        labels, number_of = self._found
        return self.number_of != number_of or not np.array_equal(self.labels, labels)

    def _of_nodes(self, values: IntArray) -> IntArray:
        """Return row values for the distinct points, whose rows all have the same value."""
        nodes = np.full(len(self._vectors), NOISE, dtype=np.intp)
        is_somewhere = self._node_of_row != NOISE
        nodes[self._node_of_row[is_somewhere]] = values[is_somewhere]
        return nodes

    def spread(self, nodes: IntArray, numbers: Sequence[int]) -> IntArray:
        """Return values for the rows, with the numbers counted from 0 in this order."""
        place = np.full(self._count + 1, NOISE, dtype=np.intp)  # the last entry is for noise
        place[list(numbers)] = np.arange(len(numbers))
        placed = np.append(place[nodes], NOISE)  # the same for rows without a direction
        return placed[self._node_of_row]

    def merge(self, into: str, others: Collection[str]) -> None:
        """Merge all of these under one id, even if that cluster is gone."""
        sources = [self.number_of.pop(one) for one in (into, *others) if one in self.number_of]
        if not sources:
            return
        first = sources[0]
        for nodes in (self.labels, self.leanings):
            nodes[np.isin(nodes, sources)] = first
        self.number_of[into] = first

    def split(self, one: Curation) -> None:
        """Split a cluster: members of a part stay in it, and new insights join the nearest part."""
        if one.curation_id in self.homes:
            return
        known = None if self._last.found is None else self._last.found.homes.get(one.curation_id)
        number = self.number_of.get(one.cluster_id)
        if number is None:
            self._rest(one, known or ())
            return
        anchors = self._anchors(known or self._named(one), number)
        targets = [number, *range(self._count, self._count + len(one.parts))]
        members = np.flatnonzero(self.labels == number)
        for nodes in (self.labels, self.leanings):
            own = np.flatnonzero(nodes == number)
            nodes[own] = np.array(targets, dtype=np.intp)[self._homes_of(own, anchors)]
        self._count += len(one.parts)
        self._note(one, targets, members)

    def _named(self, one: Curation) -> Homes:
        """Return the homes of a new split: the named parts, and the rest that its reader saw in the cluster."""
        named = {insight_id for part in one.parts for insight_id in part.insight_ids}
        # A cluster that was merged or split off since the last version has no members there: then all of it is the
        # rest.
        seen = next((c.insight_ids for c in self._last.clusters if c.cluster_id == one.cluster_id), self._insight_ids)
        rest = tuple(insight_id for insight_id in seen if insight_id not in named)
        return (rest, *(part.insight_ids for part in one.parts))

    def _rest(self, one: Curation, known: Homes) -> None:
        """Remember the members that are still in the window of a cluster that is absent, for when it returns."""
        left = tuple(tuple(insight_id for insight_id in home if insight_id in self._row_of) for home in known)
        if any(left):
            self.homes[one.curation_id] = left

    def _note(self, one: Curation, targets: Sequence[int], members: IntArray) -> None:
        """Store the members of each home, and which of the clusters have any."""
        rows_of: dict[int, list[str]] = {target: [] for target in targets}
        for row in np.flatnonzero(np.isin(self._node_of_row, members)).tolist():
            rows_of[int(self.labels[self._node_of_row[row]])].append(self._insight_ids[row])
        self.homes[one.curation_id] = tuple(tuple(rows_of[target]) for target in targets)
        del self.number_of[one.cluster_id]
        for cluster_id, target in zip((one.cluster_id, *one.part_ids), targets, strict=True):
            if rows_of[target]:
                self.number_of[cluster_id] = target

    def _anchors(self, homes: Homes, number: int) -> IntArray:
        """Return for each point of a cluster the home of its insights, of several the first part; else `_OPEN`: int (u,)."""
        anchors = np.full(len(self._vectors), _OPEN, dtype=np.intp)
        for home in (0, *range(len(homes) - 1, 0, -1)):  # later statements count
            rows = [self._row_of[one] for one in homes[home] if one in self._row_of]
            nodes = self._node_of_row[np.array(rows, dtype=np.intp)]
            nodes = nodes[nodes != NOISE]
            anchors[nodes[self.labels[nodes] == number]] = home
        return anchors

    def _homes_of(self, nodes: IntArray, anchors: IntArray) -> IntArray:
        """Return the home of each of these points: its own, else the one with the nearest centre; the rest if nothing
        is known.
        """
        chosen = anchors[nodes]
        is_open = chosen == _OPEN
        known = [home for home in range(int(anchors.max(initial=_OPEN)) + 1) if (anchors == home).any()]
        if not known:
            return np.zeros(len(nodes), dtype=np.intp)
        centres = np.stack(
            [_direction(self._vectors[anchors == home].astype(np.float64).sum(axis=0)) for home in known]
        )
        closeness = np.round(self._vectors[nodes[is_open]].astype(np.float64) @ centres.T, _DIGITS)
        chosen[is_open] = np.array(known, dtype=np.intp)[closeness.argmax(axis=1)]
        return chosen


def _direction(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
