"""Owns what a version of a user's clusters is: the window it is made of, its clusters, and what is outside them.

Apart from `recluster`, which makes it: who only stores or writes about it needs none of what making it takes (HDBSCAN and what
that brings: a second, and 60 MB).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from highwater.streams.feeds.curations import Curation
from highwater.streams.feeds.tracking import ClusterChange

Place = tuple[float, float]
# Ids of the insights in the rest of a cluster that was split, and in each of its parts.
Homes = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as it is stored and served.

    `insight_ids` in the order of the window; parallel to them `confidences` (membership, 0.3..1), `since` (the version in
    which each entered this cluster) and `positions` on the map. `nearby_ids` are noise that leans towards it, most
    confident first, with the share of their ties that do; they are not members. `changed_version`: the last version in
    which its members changed by anything else than leaving the window. `title` and `summary` are a language model's when
    `written_version`, the version for which it wrote them, is above 0; else the label and sentences of the texts. `theme`: what
    it and the clusters that are read with it are called; "" in versions from before there were themes.
    `label_by`: "reader" where the label, and with it the title, is the reader's own.
    """

    cluster_id: str
    label: str
    title: str
    keywords: tuple[str, ...]
    summary: str
    size: int
    representative_id: str
    insight_ids: tuple[str, ...]
    confidences: tuple[float, ...]
    since: tuple[int, ...]
    positions: tuple[Place, ...]
    position: Place
    radius: float
    born_version: int
    changed_version: int
    nearby_ids: tuple[str, ...]
    nearby_confidences: tuple[float, ...]
    written_version: int = 0
    theme: str = ""
    label_by: str = ""


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """A cluster as it was found, before its reader's curations were applied."""

    cluster_id: str
    insight_ids: tuple[str, ...]
    born_version: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a curated version was made of, for the next one: the clusters as they were found, and by the id of each split who is
    in which part.
    """

    clusters: tuple[FoundCluster, ...]
    homes: Mapping[str, Homes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outside:
    """Insights of the window in no cluster, with their places; None: its vector says nothing, so it is on no map."""

    insight_ids: tuple[str, ...] = ()
    positions: tuple[Place | None, ...] = ()


@dataclass(frozen=True, slots=True)
class LastVersion:
    """The version before. `neighbours`: what it stored to save work, None when it was of another basis or kept none.
    `found`: None where its clusters are those that were found.
    """

    clusters: tuple[Cluster, ...]
    outside: Outside
    neighbours: bytes | None = None
    found: Found | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The insights that a version is made of: `vectors` float32 (n, d) of one basis, `texts` and `insight_ids` of length n;
    and what the reader said of the clusters.
    """

    version: int
    vectors: NDArray[np.float32]
    texts: tuple[str | None, ...]
    insight_ids: tuple[str, ...]
    last: LastVersion | None = None
    curations: tuple[Curation, ...] = ()


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version, largest cluster first; `changes` since the last one; `neighbours` and `found` to be kept for the next."""

    clusters: tuple[Cluster, ...]
    outside: Outside
    changes: tuple[ClusterChange, ...]
    neighbours: bytes
    found: Found | None = None

    @property
    def noise_count(self) -> int:
        """Insights in no cluster."""
        return len(self.outside.insight_ids)
