"""The themes of a version: groups of similar clusters, so that fifty can be read as eight.

Invariant: a function of the clusters' centres alone, in any order; every cluster is in one theme.

Clusters are joined from the bottom up, first those whose union is spread least (Ward 1963), by the directions of their
centres.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

# Up to this many clusters need no themes.
CLUSTERS_READ = 4
# Themes for n clusters: this times the root of n, so eight for fifty. There are about as many themes as clusters in
# each.
THEMES_FACTOR = 1.13
# Directions are rounded, so that sums in different orders are equal.
_DIGITS = 6


def theme_count(clusters: int) -> int:
    """The maximum number of themes for this number of clusters."""
    if clusters <= CLUSTERS_READ:
        return clusters
    return max(2, round(THEMES_FACTOR * math.sqrt(clusters)))


def group_clusters(centres: Sequence[NDArray[np.float64]], keys: Sequence[str]) -> list[int]:
    """The number of each cluster's theme, from 0.

    `centres` float64 (d,); `keys`, all different, decide where centres are equal.
    """
    count = theme_count(len(centres))
    if count == len(centres):
        return list(range(len(centres)))
    order = sorted(range(len(centres)), key=keys.__getitem__)
    own = np.stack([centres[place] for place in order])
    lengths = np.linalg.norm(own, axis=1, keepdims=True)
    directions = np.round(np.divide(own, lengths, out=np.zeros_like(own), where=lengths > 0), _DIGITS)
    found = fcluster(linkage(directions, method="ward"), count, criterion="maxclust")
    theme_of = np.empty(len(centres), dtype=np.int64)
    theme_of[order] = found - 1
    numbers: list[int] = theme_of.tolist()
    return numbers
