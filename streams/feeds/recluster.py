"""Builds one version of a user's clusters from a window of insights and the previous version.

Invariant: the same window, previous version and curations give the same version. Clusters are found in the window alone,
those of the previous version are kept where they hold together nearly as well (`keeping`), and the reader's curations
are applied to them (`curating`). Identity (which cluster continues which, since when), places on the map and labels that
are still about as accurate as the best come from the previous version, so that what a reader knows keeps its place,
identity and label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.clustering import NOISE, Clustering, cluster_embeddings
from highwater.streams.feeds.curating import Curated, curate, renamed
from highwater.streams.feeds.curations import READER
from highwater.streams.feeds.division import divide
from highwater.streams.feeds.evolution import Evolution, match_clusters
from highwater.streams.feeds.keeping import former_rows
from highwater.streams.feeds.labels import ClusterDescription, describe_clusters
from highwater.streams.feeds.layout import Layout, Previous, lay_out
from highwater.streams.feeds.neighbours import Neighbours
from highwater.streams.feeds.phrases import Reading
from highwater.streams.feeds.roots import Roots
from highwater.streams.feeds.subjects import Subjects
from highwater.streams.feeds.summary import summarise
from highwater.streams.feeds.tracking import TrackedCluster
from highwater.streams.feeds.versions import (
    Cluster,
    FoundBeforeCuration,
    FoundCluster,
    LastVersion,
    NewVersion,
    Outside,
    Place,
    Window,
)

# Memberships, confidences and radii are shown, and compared by people: three digits.
DIGITS = 3
# An id means mostly the same insights: the largest part of a split is another cluster if it has less than half.
CONTINUED_SHARE_MIN = 0.5


def recluster(window: Window) -> NewVersion:
    """Build a version. Pure. Source: R0.35, R0.36.

    Raises:
        ValueError: the window is malformed, or a value is not finite.
    """
    last = window.last or LastVersion((), Outside())
    ids = window.insight_ids
    before = last.arrived
    arrived = {insight_id: before.get(insight_id, window.version) for insight_id in ids}
    known = None if last.neighbours is None else Neighbours.from_bytes(last.neighbours)
    roots = Roots(Reading(window.texts))
    # As they were found, before a reader's curations.
    were = last.clusters if last.found is None else last.found.clusters
    former = former_rows([one.insight_ids for one in were], ids)
    as_found = divide(cluster_embeddings(window.vectors, known=known), window.texts, roots, former)
    natural = _matched(as_found, window, last, roots)
    curated = curate(as_found, [one.cluster_id for one in natural.clusters], ids, window.curations, last)
    found = curated.found
    row_of = {insight_id: row for row, insight_id in enumerate(ids)}
    described = _described(found, window, last, roots)
    # The number of each described cluster among the labels.
    numbers = [int(found.labels[row_of[one.insight_ids[0]]]) for one in described]
    cluster_ids = [curated.cluster_ids[number] for number in numbers]
    described = renamed(described, cluster_ids, curated.labels)
    evolution = natural
    if curated.is_regrouped or last.found is not None:
        present = [one.insight_ids for one in described]
        evolution = match_clusters(
            _tracked(last.clusters), before, present, ids, window.version, cluster_ids=cluster_ids
        )
    tracked_of = {one.cluster_id: one for one in evolution.clusters}
    tracked = [tracked_of[cluster_id] for cluster_id in cluster_ids]
    drawn = _draw(found, ids, numbers, tracked, last)
    text_of = dict(zip(ids, window.texts, strict=True))
    clusters = tuple(
        _cluster(
            description,
            one,
            tuple(arrived[insight_id] for insight_id in one.insight_ids),
            summarise([text_of[insight_id] for insight_id in description.insight_ids], description.keywords),
            _Nearby.of(found, number, ids),
            _Drawn(drawn, place, [row_of[insight_id] for insight_id in description.insight_ids], found),
            READER if one.cluster_id in curated.labels else "",
        )
        for place, (description, one, number) in enumerate(zip(described, tracked, numbers, strict=True))
    )
    rows = np.flatnonzero(found.labels == NOISE).tolist()
    outside = Outside(
        tuple(ids[row] for row in rows),
        tuple(_place(drawn, found, row) for row in rows),
        tuple(arrived[ids[row]] for row in rows),
    )
    kept = _found_in(natural, curated) if curated.is_regrouped or curated.homes else None
    return NewVersion(clusters, outside, evolution.changes, found.kept.to_bytes(), kept)


def _described(found: Clustering, window: Window, last: LastVersion, roots: Roots) -> list[ClusterDescription]:
    return describe_clusters(
        found.labels,
        found.memberships,
        window.vectors,
        window.texts,
        window.insight_ids,
        former={one.label: one.insight_ids for one in last.clusters if not one.label_by},
        former_themes=_themes_of(last),
        roots=roots,
    )


def _matched(found: Clustering, window: Window, last: LastVersion, roots: Roots) -> Evolution:
    """Match the found clusters, by number, with those of the last version."""
    members: list[list[str]] = [[] for _ in range(found.cluster_count)]
    for row in np.flatnonzero(found.labels != NOISE).tolist():
        members[found.labels[row]].append(window.insight_ids[row])
    before = _tracked(last.clusters) if last.found is None else [_as_tracked(one) for one in last.found.clusters]
    subjects = Subjects(roots, window.texts, window.insight_ids)
    return match_clusters(
        before,
        last.arrived,
        members,
        window.insight_ids,
        window.version,
        are_alike=subjects.are_alike,
        share_min=CONTINUED_SHARE_MIN,
    )


def _tracked(clusters: Sequence[Cluster]) -> list[TrackedCluster]:
    return [
        TrackedCluster(one.cluster_id, one.insight_ids, one.since, one.born_version, one.changed_version)
        for one in clusters
    ]


def _as_tracked(one: FoundCluster) -> TrackedCluster:
    """Return a cluster for matching only, which needs its first version and its members."""
    since = (one.born_version,) * len(one.insight_ids)
    return TrackedCluster(one.cluster_id, one.insight_ids, since, one.born_version, one.born_version)


def _found_in(natural: Evolution, curated: Curated) -> FoundBeforeCuration:
    clusters = (FoundCluster(one.cluster_id, one.insight_ids, one.born_version) for one in natural.clusters)
    return FoundBeforeCuration(tuple(clusters), curated.homes)


@dataclass(frozen=True, slots=True)
class _Nearby:
    """Noise that leans towards a cluster, most confident first."""

    ids: tuple[str, ...]
    confidences: tuple[float, ...]

    @classmethod
    def of(cls, found: Clustering, number: int, ids: Sequence[str]) -> _Nearby:
        rows = np.flatnonzero(found.leanings == number).tolist()
        rows.sort(key=lambda row: (-found.confidences[row], ids[row]))
        confidences = tuple(round(float(found.confidences[row]), DIGITS) for row in rows)
        return cls(tuple(ids[row] for row in rows), confidences)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A cluster on the map: its disc and the rows of its members."""

    layout: Layout
    place: int
    rows: Sequence[int]
    found: Clustering


def _cluster(
    description: ClusterDescription,
    tracked: TrackedCluster,
    arrived: tuple[int, ...],
    summary: str,
    nearby: _Nearby,
    drawn: _Drawn,
    label_by: str,
) -> Cluster:
    memberships = drawn.found.memberships[list(drawn.rows)]
    nodes = drawn.found.distinct.node_of_row[list(drawn.rows)]
    return Cluster(
        cluster_id=tracked.cluster_id,
        label=description.label,
        title=description.label,
        keywords=description.keywords,
        summary=summary,
        size=description.size,
        representative_id=description.representative_id,
        insight_ids=tracked.insight_ids,
        confidences=tuple(np.round(memberships, DIGITS).tolist()),
        since=tracked.since,
        arrived=arrived,
        positions=tuple((x, y) for x, y in drawn.layout.positions[nodes].tolist()),
        position=_pair(drawn.layout.clusters[drawn.place]),
        radius=round(float(drawn.layout.radii[drawn.place]), DIGITS),
        born_version=tracked.born_version,
        changed_version=tracked.changed_version,
        nearby_ids=nearby.ids,
        nearby_confidences=nearby.confidences,
        theme=description.theme,
        label_by=label_by,
    )


def _themes_of(last: LastVersion) -> dict[str, list[str]]:
    """Return the insights of each theme of a version, except themes that their reader or a language model named."""
    themes: dict[str, list[str]] = {}
    for one in last.clusters:
        if one.theme and one.theme_for is None and not (one.label_by and one.theme == one.label):
            themes.setdefault(one.theme, []).extend(one.insight_ids)
    return themes


def _draw(
    found: Clustering,
    ids: Sequence[str],
    numbers: Sequence[int],
    clusters: Sequence[TrackedCluster],
    last: LastVersion,
) -> Layout:
    """Draw the map of the distinct points, starting from the previous places of their insights."""
    rows_of_node = _first_rows(found)
    place_of_number = np.full(len(numbers) + 1, NOISE, dtype=np.intp)
    place_of_number[list(numbers)] = np.arange(len(numbers))  # the last entry is for noise
    labels = place_of_number[found.labels[rows_of_node]]
    previous = None
    if last.clusters or last.outside.insight_ids:
        were = _positions(last)
        positions = np.full((len(found.distinct), 2), np.nan)
        # Any copy from the last version gives the place; the first in the window's order is used.
        for row in range(len(ids) - 1, -1, -1):
            node, place = found.distinct.node_of_row[row], were.get(ids[row])
            if node != NOISE and place is not None:
                positions[node] = place
        previous = Previous(positions, {one.cluster_id: one.position for one in last.clusters})
    return lay_out(
        [ids[row] for row in rows_of_node],
        labels,
        [one.cluster_id for one in clusters],
        found.neighbours.others,
        found.neighbours.similarities,
        previous,
    )


def _first_rows(found: Clustering) -> NDArray[np.intp]:
    """Return the first row of each distinct point, int (u,)."""
    rows = np.empty(len(found.distinct), dtype=np.intp)
    node_of_row = found.distinct.node_of_row
    told = np.flatnonzero(node_of_row != NOISE)[::-1]
    rows[node_of_row[told]] = told
    return rows


def _positions(last: LastVersion) -> Mapping[str, Place]:
    places = {
        insight_id: place
        for insight_id, place in zip(last.outside.insight_ids, last.outside.positions, strict=True)
        if place is not None
    }
    for one in last.clusters:
        places.update(zip(one.insight_ids, one.positions, strict=True))
    return places


def _place(layout: Layout, found: Clustering, row: int) -> Place | None:
    node = found.distinct.node_of_row[row]
    return None if node == NOISE else _pair(layout.positions[node])


def _pair(position: NDArray[np.float64]) -> Place:
    return float(position[0]), float(position[1])
