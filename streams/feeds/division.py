"""Adjusts clusters by their texts: which are shown in parts, and what else belongs to one.

Invariant: a cluster whose members share a subject keeps them all. One without is divided
(`clustering.Clustering.parts`): parts with a subject become clusters if they hold enough of its members, and the rest
stays together, so that fewer clusters are "Mixed". Clusters whose leading words are nearly the same are one. Insights
that lean to a cluster and contain its subject join it.
Everything follows from the vectors and texts of the window alone, and rows of one direction stay together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from highwater.streams.feeds.clustering import CLUSTER_SIZE_MIN, NOISE, Clustering, cluster_size_for
from highwater.streams.feeds.keeping import Grouping, keep_former
from highwater.streams.feeds.label_words import is_mixed
from highwater.streams.feeds.naming import COVERAGE_MIN, Members, Name, name_clusters
from highwater.streams.feeds.neighbours import IntArray
from highwater.streams.feeds.phrases import FAINT, BoolArray, FloatArray, Reading
from highwater.streams.feeds.roots import Roots

# The share of a cluster's members in parts with a subject that makes these clusters.
TOLD_SHARE_MIN = 0.2
# A part has at least this share of a cluster's least size.
PART_SIZE_SHARE = 0.5
# Two clusters are one to a reader if their leading words, by score, are the same to this share (weighted Jaccard index).
# Near copies that differ in a number are far apart to some models ("Release 2.3.1"), and six clusters of them had one
# name.
SAME_WORDS_MIN = 0.4
LEADING_WORDS = 10
# A leading word is in two members of its cluster.
MEMBERS_MIN = 2
# Scores are compared to nine digits, so that the order of summation does not matter.
_DIGITS = 9


def divide(
    found: Clustering, texts: Sequence[str | None], roots: Roots | None = None, former: IntArray | None = None
) -> Clustering:
    """Return the clusters adjusted by their texts; numbers count from 0 in the order of the old ones. Pure.

    `texts`: of the rows; `roots`: of these texts, if they were read before; `former`: the cluster of each row in the last
    version, int (n,), `NOISE` for none, which is kept where it can be (`keeping`).
    """
    if not found.cluster_count:
        return found
    roots = roots or Roots(Reading(texts))
    window = _Window(roots, np.array([roots.reading.number_of[text] if text else -1 for text in texts], dtype=np.int64))
    labels, names = _renumbered(found.labels, *_united(*_divided(found, window), window))
    divided = found if np.array_equal(labels, found.labels) else found.regrouped(labels)
    grown = _grown(divided, names, window)
    made = divided if np.array_equal(grown, labels) else divided.regrouped(grown)
    if former is None or not (former != NOISE).any():
        return made
    present, past = (Grouping(one, window.with_subject(one)) for one in (made.labels, former))
    return made.regrouped(keep_former(made, present, past, _least(made)))


@dataclass(frozen=True, slots=True)
class _Window:
    """The texts of a window; `number_of_row` int (n,): the text of each row, -1 for none."""

    roots: Roots
    number_of_row: IntArray

    def names(self, labels: IntArray, chosen: Iterable[int]) -> dict[int, Name]:
        """Return the names of the chosen clusters, by number."""
        numbers = list(chosen)
        members = []
        for cluster in numbers:
            own = self.number_of_row[labels == cluster]
            held, copies = np.unique(own[own >= 0], return_counts=True)
            members.append(Members(len(own), held, copies.astype(np.float64), np.zeros(len(held))))
        return dict(zip(numbers, name_clusters(self.roots, members), strict=True))

    def with_subject(self, labels: IntArray) -> IntArray:
        """Return the clusters of which half of the members contain the same telling word or action."""
        times, sizes = self._counts(labels, np.arange(int(labels.max(initial=NOISE)) + 1))
        can_be_subject = (self.roots.kinds > FAINT) | self.roots.is_action
        return np.flatnonzero((times[:, can_be_subject] >= COVERAGE_MIN * sizes).any(axis=1))

    def _counts(self, labels: IntArray, clusters: Sequence[int] | IntArray) -> tuple[FloatArray, FloatArray]:
        """Return how many members of each cluster contain each root, (clusters, roots), and have words, (clusters, 1)."""
        says = self.roots.says
        place = np.full(int(labels.max(initial=NOISE)) + 2, NOISE, dtype=np.int64)  # the last entry is for noise
        place[list(clusters)] = np.arange(len(clusters))
        inside = np.flatnonzero((self.number_of_row >= 0) & (place[labels] != NOISE))
        where = (place[labels[inside]], self.number_of_row[inside])
        counts = csr_array((np.ones(len(inside)), where), shape=(len(clusters), says.shape[0]))
        return (counts @ says).toarray(), np.maximum(np.asarray(counts.sum(axis=1)).reshape(-1, 1), 1)

    def holds(self, rows: IntArray, roots: frozenset[int]) -> BoolArray:
        """Return which of the rows contain all of these roots."""
        numbers = self.number_of_row[rows]
        said: BoolArray = np.zeros(len(rows), dtype=bool)
        is_read = numbers >= 0
        said[is_read] = (self.roots.says[numbers[is_read]][:, sorted(roots)].toarray() > 0).all(axis=1)
        return said

    def leading_words(self, labels: IntArray, clusters: Sequence[int]) -> FloatArray:
        """Return the scores of the leading words of each of these clusters, 0 for others: (clusters, words).

        By class-based TF-IDF (Grootendorst 2022) with shares of members as frequencies; a word of every text scores 0, since
        it does not tell clusters apart.
        """
        times, sizes = self._counts(labels, clusters)
        read = self.number_of_row[self.number_of_row >= 0]
        everywhere = np.bincount(read, minlength=self.roots.says.shape[0]) @ self.roots.says
        shares = times / sizes
        rarity = np.log(np.maximum(len(read) / np.maximum(everywhere, 1), 1.0))
        scores = shares * rarity * self.roots.weights
        scores = np.round(np.where(times >= MEMBERS_MIN, scores, 0.0), _DIGITS)
        order = np.argsort(-scores, axis=1, kind="stable")
        np.put_along_axis(scores, order[:, LEADING_WORDS:], 0.0, axis=1)
        return np.asarray(scores[:, scores.any(axis=0)], dtype=np.float64)


def _united(labels: IntArray, names: dict[int, Name], window: _Window) -> tuple[IntArray, dict[int, Name]]:
    """Return the labels with clusters of nearly the same leading words as one, if that has a subject, and all names."""
    clusters = sorted(names)
    words = window.leading_words(labels, clusters)
    is_same = np.array([_likeness(one, words) >= SAME_WORDS_MIN for one in words]).reshape(len(words), len(words))
    group_of = connected_components(is_same, directed=False)[1]
    for group in np.flatnonzero(np.bincount(group_of) > 1).tolist():
        own = [clusters[place] for place in np.flatnonzero(group_of == group).tolist()]
        united = np.where(np.isin(labels, own), own[0], labels)
        name = window.names(united, own[:1])[own[0]]
        if is_mixed(name.head):
            continue
        labels = united
        for one in own:
            del names[one]
        names[own[0]] = name
    return labels, names


def _likeness(one: FloatArray, others: FloatArray) -> FloatArray:
    """Return the weighted Jaccard index of one cluster's scores and those of others, 0..1."""
    both = np.minimum(one, others).sum(axis=1)
    either = np.maximum(one, others).sum(axis=1)
    found: FloatArray = np.divide(both, either, out=np.zeros(len(others)), where=either > 0)
    return np.round(found, _DIGITS)


def _divided(found: Clustering, window: _Window) -> tuple[IntArray, dict[int, Name]]:
    """Return the labels with parts in place of clusters without a subject, and all names."""
    least = _least(found)
    labels, count = found.labels, found.cluster_count
    names = window.names(labels, range(count))
    for parts in found.parts:
        sizes = np.bincount(parts[parts != NOISE], minlength=1)
        parts_of = {
            cluster: _parts_in(parts[labels == cluster], sizes, least)
            for cluster, name in names.items()
            if is_mixed(name.head)
        }
        called = window.names(parts, [part for own in parts_of.values() for part in own])
        divided: list[int] = []
        for cluster, own in parts_of.items():
            is_rest = labels == cluster
            told = [part for part in own if not is_mixed(called[part].head)]
            if not told or int(sizes[told].sum()) < TOLD_SHARE_MIN * is_rest.sum():
                continue
            for part in told:
                labels = np.where(parts == part, count, labels)
                names[count] = called[part]
                is_rest &= parts != part
                count += 1
            if is_rest.sum() < least:
                labels = np.where(is_rest, NOISE, labels)
                del names[cluster]
            else:
                divided.append(cluster)
        names |= window.names(labels, divided)
    return labels, names


def _least(found: Clustering) -> int:
    """Return how many points a part has at least."""
    return max(CLUSTER_SIZE_MIN, round(PART_SIZE_SHARE * cluster_size_for(len(found.distinct))))


def _parts_in(parts: IntArray, sizes: IntArray, least: int) -> list[int]:
    """Return the parts of a cluster's members that are large enough to be clusters."""
    return [part for part in np.unique(parts).tolist() if part != NOISE and sizes[part] >= least]


def _renumbered(before: IntArray, labels: IntArray, names: dict[int, Name]) -> tuple[IntArray, list[Name]]:
    """Return numbers from 0 without a gap, in the order of the original clusters, and the names in that order."""
    numbers, rows = np.unique(labels, return_index=True)
    order = sorted(
        (int(before[row]), number) for number, row in zip(numbers.tolist(), rows, strict=True) if number >= 0
    )
    number_of = {number: place for place, (_, number) in enumerate(order)}
    renumbered = np.array([number_of.get(number, NOISE) for number in numbers.tolist()], dtype=np.intp)
    return renumbered[np.searchsorted(numbers, labels)], [names[number] for _, number in order]


def _grown(found: Clustering, names: Sequence[Name], window: _Window) -> IntArray:
    """Return the labels after insights joined the cluster that they lean to and whose subject they contain."""
    labels, node_of_row = found.labels.copy(), found.distinct.node_of_row
    for cluster, name in enumerate(names):
        if is_mixed(name.head) or not name.roots:
            continue
        leaning = np.flatnonzero(found.leanings == cluster)
        # Rows of one direction join together.
        nodes = node_of_row[leaning[window.holds(leaning, name.roots)]]
        labels[leaning[np.isin(node_of_row[leaning], nodes)]] = cluster
    return labels
