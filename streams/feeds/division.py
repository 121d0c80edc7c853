"""Owns which clusters are told in parts: those of which nothing can be said as a whole.

Its law: a cluster whose members share a subject stays as it was found. One without is replaced by its closer parts
(`clustering.Parts`) where at least half of its members are then in parts that have a subject, so that what was "Mixed" is read.
Which it is follows from the vectors and texts of the window alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from highwater.streams.feeds.clustering import NOISE, Clustering
from highwater.streams.feeds.naming import Members, is_mixed, name_clusters
from highwater.streams.feeds.neighbours import IntArray
from highwater.streams.feeds.phrases import Reading
from highwater.streams.feeds.roots import Roots

# The share of a cluster's members that is in parts with a subject, for the parts to be told instead.
TOLD_SHARE_MIN = 0.5


def divide(found: Clustering, texts: Sequence[str | None]) -> Clustering:
    """The clusters with parts in place of those that have no subject; numbers count from 0 in the order of the old ones. Pure.

    `texts`: of the rows.
    """
    if not found.cluster_count:
        return found
    roots = Roots(Reading(texts))
    number_of_row = np.array([roots.reading.number_of[text] if text else -1 for text in texts], dtype=np.int64)
    mixed = _without_subject(found.labels, range(found.cluster_count), roots, number_of_row)
    parts_of = {cluster: np.unique(found.parts.labels[found.labels == cluster]) for cluster in mixed}
    candidates = [part for parts in parts_of.values() if len(parts) > 1 for part in parts.tolist()]
    unread = set(_without_subject(found.parts.labels, candidates, roots, number_of_row))
    sizes = dict(zip(*map(np.ndarray.tolist, np.unique(found.parts.labels, return_counts=True)), strict=True))
    divided = [
        cluster
        for cluster, parts in parts_of.items()
        if len(parts) > 1 and _told_share(parts, sizes, unread) >= TOLD_SHARE_MIN
    ]
    return _with_parts(found, divided) if divided else found


def _told_share(parts: IntArray, sizes: Mapping[int, int], unread: set[int]) -> float:
    told = sum(sizes[part] for part in parts.tolist() if part not in unread)
    return told / sum(sizes[part] for part in parts.tolist())


def _without_subject(labels: IntArray, chosen: Sequence[int], roots: Roots, number_of_row: IntArray) -> list[int]:
    """Those of the chosen clusters of whose members no half says one thing."""
    members = []
    for cluster in chosen:
        numbers = number_of_row[labels == cluster]
        held, copies = np.unique(numbers[numbers >= 0], return_counts=True)
        members.append(Members(len(numbers), held, copies.astype(np.float64), np.zeros(len(held))))
    names = name_clusters(roots, members)
    return [cluster for cluster, name in zip(chosen, names, strict=True) if is_mixed(name.head)]


def _with_parts(found: Clustering, divided: Sequence[int]) -> Clustering:
    """With the parts of these clusters in their place, for members and for what leans towards them."""
    offset = found.cluster_count

    def replaced(labels: IntArray, parts: IntArray) -> IntArray:
        return np.where(np.isin(labels, divided), np.where(parts == NOISE, NOISE, parts + offset), labels)

    labels = replaced(found.labels, found.parts.labels)
    # The part of an undivided cluster is the cluster.
    whole_of = np.full(int(found.parts.labels.max(initial=NOISE)) + 1, NOISE, dtype=np.intp)
    inside = found.labels != NOISE
    whole_of[found.parts.labels[inside]] = labels[inside]
    is_moved = np.isin(found.leanings, divided)
    leaning = np.where(is_moved, whole_of[np.maximum(found.parts.leanings, 0)], found.leanings)
    confidences = np.where(is_moved, found.parts.confidences, found.confidences)
    numbers = np.unique(labels[labels != NOISE])
    order = sorted(numbers.tolist(), key=lambda number: (int(found.labels[labels == number][0]), number))
    renumbered = np.full(
        int(numbers.max(initial=NOISE)) + 2, NOISE, dtype=np.intp
    )  # the last entry is what noise reads
    renumbered[order] = np.arange(len(order))
    return replace(found, labels=renumbered[labels], leanings=renumbered[leaning], confidences=confidences)
