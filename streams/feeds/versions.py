"""The data of a version of a user's clusters: its window, its clusters, and the unclustered insights.

Separate from `recluster`, which builds it: code that only stores or describes it needs none of those dependencies
(HDBSCAN and what it imports: a second, and 60 MB).
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

    `insight_ids` in the order of the window; parallel to them `confidences` (membership, 0.3..1), `since` (the version
    in which each entered this cluster), `arrived` (the version in which each came into the data set; 0 or `since` if an
    older release stored the last version) and `positions` on the map. `nearby_ids` are noise that leans towards it, most
    confident first, with the share of their ties that do; they are not members. `changed_version`: the last version in
    which its members changed for any reason other than leaving the window. `title` and `summary` are a language model's
    if `written_version`, the version for which it wrote them, is above 0, except where the texts did not found its title;
    else the label and sentences of the texts.
    `theme`: the name of the group of clusters that it belongs to; "" in versions from before themes. `label_by`:
    "reader" if the label, and with it the title, is the reader's own. `written_for` and `theme_for`: the position of the
    reader's wish that a model's title and name of the theme follow, "" without a wish; None: the name is built in.
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
    arrived: tuple[int, ...]
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
    written_for: str = ""
    theme_for: str | None = None


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """A found cluster, before its reader's curations were applied."""

    cluster_id: str
    insight_ids: tuple[str, ...]
    born_version: int


@dataclass(frozen=True, slots=True)
class FoundBeforeCuration:
    """The input of a curated version, for the next one: the clusters as they were found, and by the id of each split
    the members of its parts.
    """

    clusters: tuple[FoundCluster, ...]
    homes: Mapping[str, Homes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outside:
    """Unclustered insights of the window, with their places; None: its vector has no direction, so it is not on the map.

    `arrived`, parallel, is that of `Cluster`.
    """

    insight_ids: tuple[str, ...] = ()
    positions: tuple[Place | None, ...] = ()
    arrived: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LastVersion:
    """The previous version. `neighbours`: stored to save work, None if it had another embedding model version or kept
    none. `found`: None if no curation changed its clusters.
    """

    clusters: tuple[Cluster, ...]
    outside: Outside
    neighbours: bytes | None = None
    found: FoundBeforeCuration | None = None

    @property
    def arrived(self) -> dict[str, int]:
        """Return the insights of the data set, each with the version in which it came into it."""
        parts: tuple[Cluster | Outside, ...] = (*self.clusters, self.outside)
        return {name: version for one in parts for name, version in zip(one.insight_ids, one.arrived, strict=True)}


@dataclass(frozen=True, slots=True)
class Window:
    """The insights of a version: `vectors` float32 (n, d) of one embedding model version, `texts` and `insight_ids` of
    length n; and the reader's curations.
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
    found: FoundBeforeCuration | None = None

    @property
    def noise_count(self) -> int:
        """Return the number of unclustered insights."""
        return len(self.outside.insight_ids)
