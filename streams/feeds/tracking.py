"""Owns what is known of a cluster over versions, and what of it a reader has not seen. Law: `since` and `changed_version`
alone tell what is new, so that a reader needs no history.

Apart from `evolution`, which finds it out: who only reads it needs none of what finding it takes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    """What happened to a cluster between two versions.

    A cluster that changed has exactly one of `BORN`, `GREW`, `SHRANK`, `DIED`, and the numbers of these add up.
    `MERGED` and `SPLIT` are reported beside it, with the same numbers. `GREW`: it is not smaller than before and other insights
    came in, so an even exchange is reported too, with the size it had. `SHRANK`: it is smaller.
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

    `insight_ids` are its members in the order given; `since`, parallel, the version in which each entered this cluster
    (one that left and came back entered when it came back). `changed_version` is the last version in which its members
    changed by anything else than insights leaving the data set: it is at least every `since`.
    """

    cluster_id: str
    insight_ids: tuple[str, ...]
    since: tuple[int, ...]
    born_version: int
    changed_version: int


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """One thing that happened to one cluster; all numbers but `jaccard` count insights.

    `size` is 0 for one that died and `previous_size` for one that was born; size = previous_size + joined - left.
    Of those that `joined`, `arrived` were not in the last data set; of those that `left`, `expired` are not in this one.
    `jaccard` in 0..1 compares it with itself over shared insights, 0 when born or died. `related`, sorted: merged: the
    clusters that it took in; split: those that its parts are in now; died: those that hold half of what is left of it or
    a part of its split; born: those that it took over or is a part of.
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
class UnreadCluster:
    """A cluster that changed since a reader's version: whether it is new to them, and the insights that entered it."""

    cluster_id: str
    is_new: bool
    insight_ids: tuple[str, ...]


def new_since(clusters: Iterable[TrackedCluster], version: int) -> tuple[UnreadCluster, ...]:
    """The clusters of a version that changed after `version`, which the reader read last; in the order given.

    One that only lost insights to others or to noise is there with no insight. Version 0 is that of who never read.
    """
    return tuple(
        UnreadCluster(
            one.cluster_id,
            one.born_version > version,
            tuple(insight_id for insight_id, since in zip(one.insight_ids, one.since, strict=True) if since > version),
        )
        for one in clusters
        if one.changed_version > version
    )
