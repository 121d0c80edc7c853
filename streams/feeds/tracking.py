"""What is known of a cluster over versions, and which changes of it a reader has not seen. Invariant: `arrived` and
`changed_version` alone decide what is new, so that a reader needs no history; an insight that moved is not new.

Separate from `evolution`, which computes it: readers of it need none of those dependencies.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    """What happened to a cluster between two versions.

    A changed cluster has exactly one of `BORN`, `GREW`, `SHRANK`, `DIED`, and their numbers add up. `MERGED` and
    `SPLIT` are reported in addition, with the same numbers. `GREW`: it is not smaller than before and other insights
    entered, so an even exchange is reported too, with an equal size. `SHRANK`: it is smaller.
    """

    BORN = "born"
    GREW = "grew"
    SHRANK = "shrank"
    MERGED = "merged"
    SPLIT = "split"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class TrackedCluster:
    """A cluster of one version with its past.

    `insight_ids` are its members in the given order; `since`, parallel, the version in which each entered this cluster
    (one that left and returned entered when it returned). `changed_version` is the last version in which its members
    changed for any reason other than insights leaving the data set: it is at least every `since`.
    """

    cluster_id: str
    insight_ids: tuple[str, ...]
    since: tuple[int, ...]
    born_version: int
    changed_version: int


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """One change of one cluster; all numbers except `jaccard` count insights.

    `size` is 0 for one that ended and `previous_size` for a new one; size = previous_size + joined - left. Of those
    that `joined`, `arrived` were not in the last data set; of those that `left`, `expired` are not in this one.
    `jaccard` in 0..1 compares it with itself over shared insights, 0 if new or ended. `related`, sorted: merged: the
    clusters that it absorbed; split: those that its parts are in now; died: those that hold half of its rest or a part
    of its split; born: those that it absorbed or is a part of.
    """

    cluster_id: str
    kind: ChangeKind
    size: int
    previous_size: int
    joined: int
    arrived: int
    left: int
    expired: int
    jaccard: float
    related: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredCluster(TrackedCluster):
    """A cluster as a version has it; `arrived`, parallel to its members: the version in which each came into the data set."""

    arrived: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnreadCluster:
    """A cluster that changed since a reader's version: whether the cluster is younger, and its insights that are."""

    cluster_id: str
    is_new: bool
    insight_ids: tuple[str, ...]


def new_since(clusters: Iterable[StoredCluster], version: int) -> tuple[UnreadCluster, ...]:
    """Return the clusters of a version that changed after `version`, which the reader read last; in the given order.

    One between which and others or noise insights only moved is included without insights. Version 0 is for a reader who
    never read.
    """
    return tuple(
        UnreadCluster(
            one.cluster_id,
            one.born_version > version,
            tuple(name for name, arrived in zip(one.insight_ids, one.arrived, strict=True) if arrived > version),
        )
        for one in clusters
        if one.changed_version > version
    )
