"""The themes of a version: groups of clusters, so that fifty can be read as eight.

Invariant: a function of the clusters alone, in any order; every cluster is in one theme.

A theme is a word (or kind of words) that several clusters have in common, and these clusters: first the word that says
most about the most clusters, then the one that does of the others (greedy set cover); a cluster is under the word that
says most about it. Clusters without such a word are joined from the bottom up, first those whose union is spread least
(Ward 1963), by the directions of their centres.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

# Up to this many clusters need no themes.
CLUSTERS_READ = 4
# A reader takes in eight themes at a glance. More than fifty clusters have this times the root of their number: about as
# many themes as clusters in each.
THEMES_READ = 8
THEMES_FACTOR = 1.13
# Directions and sums are rounded, so that sums in different orders are equal.
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Theme:
    """Clusters, by place in ascending order, and the word (column) that all of them contain; None: they have none.

    `is_rest`: the clusters are what is left over.
    """

    places: tuple[int, ...]
    word: int | None = None
    is_rest: bool = False


def theme_count(clusters: int) -> int:
    """The maximum number of themes for this number of clusters."""
    if clusters <= CLUSTERS_READ:
        return clusters
    return max(min(THEMES_READ, clusters // 2), round(THEMES_FACTOR * math.sqrt(clusters)))


def find_themes(
    values: FloatArray, near: FloatArray, centres: Sequence[FloatArray], keys: Sequence[str]
) -> list[Theme]:
    """Return the themes, those with a word first.

    `values` (clusters, words): how well a word says what a cluster is about; 0: it does not. `near`: the same for
    clusters whose words no theme has, which then join one. `centres` float64 (d,); `keys`, all different, decide where
    all else is equal.
    """
    count = theme_count(len(keys))
    if count == len(keys):
        return [Theme((place,)) for place in range(count)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    chosen = _common_words(values[order], count - 1)
    word_of = _assigned(values, chosen)
    left = sorted({word for word in word_of.tolist() if word >= 0}, key=chosen.index)
    word_of = np.where(word_of >= 0, word_of, _best(near, left))
    themes = [Theme(tuple(np.flatnonzero(word_of == word).tolist()), word) for word in left]
    rest = [place for place in order if word_of[place] < 0]
    groups = group_clusters([centres[place] for place in rest], count - len(themes))
    themes += [
        Theme(tuple(sorted(place for place, own in zip(rest, groups, strict=True) if own == group)))
        for group in dict.fromkeys(groups)
    ]
    return themes


def _common_words(values: FloatArray, limit: int) -> list[int]:
    """Return up to `limit` words, each with at least two clusters that no earlier one has, the most valuable first."""
    free = np.ones(len(values), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < limit and free.any():
        own = values[free]
        gains = np.where((own > 0).sum(axis=0) > 1, np.round(own.sum(axis=0), _DIGITS), 0.0)
        best = int(gains.argmax())
        if gains[best] <= 0:
            break
        chosen.append(best)
        free &= values[:, best] <= 0
    return chosen


def _assigned(values: FloatArray, chosen: Sequence[int]) -> IntArray:
    """Return for each cluster the chosen word that says best what it is about, -1 for none; no word is a single cluster's."""
    left = list(chosen)
    while True:
        word_of = _best(values, left)
        lonely = [word for word in left if (word_of == word).sum() < 2]
        if not lonely:
            return word_of
        left.remove(lonely[-1])


def _best(values: FloatArray, words: Sequence[int]) -> IntArray:
    """Return for each cluster the most valuable of these words, of equal ones the first; -1 without any."""
    if not words:
        return np.full(len(values), -1, dtype=np.intp)
    own = np.round(values[:, list(words)], _DIGITS)
    return np.where(own.max(axis=1) > 0, np.array(words, dtype=np.intp)[own.argmax(axis=1)], -1)


def group_clusters(centres: Sequence[FloatArray], count: int) -> list[int]:
    """Return the number of each cluster's group, at most `count`, by their `centres`, float64 (d,)."""
    if len(centres) <= count:
        return list(range(len(centres)))
    own = np.stack(centres)
    lengths = np.linalg.norm(own, axis=1, keepdims=True)
    directions = np.round(np.divide(own, lengths, out=np.zeros_like(own), where=lengths > 0), _DIGITS)
    numbers: list[int] = fcluster(linkage(directions, method="ward"), count, criterion="maxclust").tolist()
    return numbers
