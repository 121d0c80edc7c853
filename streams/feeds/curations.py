"""A reader's curations of clusters: one renames a cluster, merges several, splits one, or says how a language model should
name them, and is active until it is undone.

Invariant: a reader's curations follow from the reader's events in the order of the log, and a repeated event changes
nothing. A curation is identified by what it does, so a repeat is the same one; a cluster has one name, and a reader one
wish, the last one given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from highwater.schemas.errors import InvalidEventError
from highwater.schemas.feeds import ClustersCurated
from highwater.streams.checks import check_id, check_name, check_not_blank

# A reader reviews them, and every rebuild applies all of them; a hundred are more than a version has clusters.
CURATIONS_MAX = 100
# A line of a list, in any script: 240 bytes are 60 to 240 characters.
LABEL_BYTES_MAX = 240
# Clusters that one merge may name: fifty are a long list for a reader.
MERGED_MAX = 50
# Parts that one split names; for further ones the parts are split again.
PARTS_MAX = 10
# Insights that a split names over all parts: they decide where the others belong, and a thousand are enough.
NAMED_MAX = 1_000
CURATION_ID_CHARACTERS = 12
# Who labelled a cluster, if not `naming`.
READER = "reader"

# When the broker received an event, and its position: (ms since 1970, partition, offset).
Order = tuple[int, int, int]


class CurationKind(StrEnum):
    """What an event of `feeds.clusters-curated` does."""

    RENAME = "rename"
    MERGE = "merge"
    SPLIT = "split"
    WISH = "wish"
    UNDO = "undo"


# Of these the last one counts.
_REPLACED = (CurationKind.RENAME, CurationKind.WISH)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a split: its insights and its label; an empty label is replaced by one from `naming`."""

    insight_ids: tuple[str, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Curation:
    """A reader's curation of `cluster_id`: its `label`; or that `cluster_ids` belong to it; or that `parts` do not. A wish is
    of no cluster: its `label` says how to name all.

    An undo names a curation instead, by `curation_id`.
    """

    curation_id: str
    kind: CurationKind
    order: Order
    cluster_id: str = ""
    label: str = ""
    cluster_ids: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def part_ids(self) -> tuple[str, ...]:
        """Return the ids of the clusters that a split creates: from the cluster and the named insights, so that they
        never change.
        """
        return tuple(_id_of("part", self.cluster_id, *sorted(part.insight_ids)) for part in self.parts)

    def is_resting(self, cluster_ids: Iterable[str]) -> bool:
        """Return whether it is inactive in a version with these clusters: none of its clusters is there."""
        if self.kind is CurationKind.WISH:
            return False
        about = self.part_ids if self.kind is CurationKind.SPLIT else (self.cluster_id,)
        return set(about).isdisjoint(cluster_ids)


@dataclass(frozen=True, slots=True)
class CurationState:
    """A reader's curations after some events, by id, and the events beyond `CURATIONS_MAX`."""

    curations: Mapping[str, Curation]
    refused: tuple[Curation, ...] = ()


def curation_of(event: ClustersCurated, order: Order) -> Curation:
    """Return the curation in a checked event.

    Its id is derived from what it does: labels do not count, nor does the order of ids.
    """
    kind = CurationKind(event["kind"])
    parts = tuple(Part(tuple(one["insight_ids"]), one["label"] or "") for one in event["parts"])
    curation_id = event["curation_id"] or _id_of(
        kind,
        event["cluster_id"],
        *sorted(event["cluster_ids"]),
        *sorted("\1".join(sorted(part.insight_ids)) for part in parts),
    )
    return Curation(
        curation_id, kind, order, event["cluster_id"], event["label"] or "", tuple(event["cluster_ids"]), parts
    )


def fold_curations(stored: Mapping[str, Curation], curations: Iterable[Curation]) -> CurationState:
    """Return a reader's curations after these events: a later name replaces the earlier one, an undo removes, a repeat
    changes nothing.
    """
    after, refused = dict(stored), []
    for one in sorted(curations, key=lambda one: one.order):
        before = after.get(one.curation_id)
        if one.kind is CurationKind.UNDO:
            after.pop(one.curation_id, None)
        elif before is None and len(after) >= CURATIONS_MAX:
            refused.append(one)
        elif before is None or (one.kind in _REPLACED and one.order > before.order):
            after[one.curation_id] = one
    return CurationState(after, tuple(refused))


def check_curated(event: ClustersCurated) -> None:
    """Check an event of `feeds.clusters-curated` beyond its schema.

    Raises:
        InvalidEventError: names the field at fault and a machine-readable reason.
    """
    kind = event["kind"]
    if kind not in list(CurationKind):
        raise InvalidEventError("unknown_kind", f"kind {kind!r} is none of {', '.join(CurationKind)}", field="kind")
    if kind == CurationKind.UNDO:
        check_id("curation_id", event["curation_id"] or "")
        return
    if event["curation_id"]:
        raise InvalidEventError("not_an_undo", "only an undo names a curation", field="curation_id")
    if kind == CurationKind.WISH:
        if event["cluster_id"]:
            raise InvalidEventError("of_a_cluster", "a wish is for all clusters and names none", field="cluster_id")
        check_words("label", event["label"] or "")
        return
    check_id("cluster_id", event["cluster_id"])
    match kind:
        case CurationKind.RENAME:
            check_words("label", event["label"] or "")
        case CurationKind.MERGE:
            _check_merged(event["cluster_id"], event["cluster_ids"])
        case _:
            _check_parts([part["insight_ids"] for part in event["parts"]])
            for part in event["parts"]:
                if part["label"] is not None:
                    check_words("parts", part["label"])


def check_words(name: str, words: str) -> None:
    """Check a label or wish, which the field `name` has.

    Raises:
        InvalidEventError: it is blank, of more than one line or too long.
    """
    check_name(name, words, LABEL_BYTES_MAX)
    check_not_blank(name, words)


def _check_merged(cluster_id: str, cluster_ids: Sequence[str]) -> None:
    _check_count("cluster_ids", len(cluster_ids), MERGED_MAX)
    for one in cluster_ids:
        check_id("cluster_ids", one)
    if cluster_id in cluster_ids:
        raise InvalidEventError("with_itself", f"{cluster_id!r} cannot be merged with itself", field="cluster_ids")
    _check_once("cluster_ids", cluster_ids)


def _check_parts(parts: Sequence[Sequence[str]]) -> None:
    _check_count("parts", len(parts), PARTS_MAX)
    named = [insight_id for part in parts for insight_id in part]
    _check_count("parts", len(named), NAMED_MAX)
    if not all(parts):
        raise InvalidEventError("empty", "a part names no insight", field="parts")
    for one in named:
        check_id("parts", one)
    _check_once("parts", named)


def _check_count(name: str, count: int, most: int) -> None:
    if not count:
        raise InvalidEventError("empty", f"{name} is empty", field=name)
    if count > most:
        raise InvalidEventError("too_many", f"{name} names {count}; there may be {most} at most", field=name)


def _check_once(name: str, ids: Sequence[str]) -> None:
    if len(set(ids)) != len(ids):
        raise InvalidEventError("twice", f"{name} names an id twice", field=name)


def wish_of(curations: Iterable[Curation]) -> Curation | None:
    """Return how the reader wishes clusters to be named; None: no wish."""
    return next((one for one in curations if one.kind is CurationKind.WISH), None)


def curation_from(stored: Mapping[str, Any], curation_id: str, order: Order) -> Curation:
    """Parse a curation from `curation_json`."""
    parts = tuple(Part(tuple(one["insight_ids"]), one["label"]) for one in stored["parts"])
    kind = CurationKind(stored["kind"])
    return Curation(
        curation_id, kind, order, stored["cluster_id"], stored["label"], tuple(stored["cluster_ids"]), parts
    )


def curation_json(one: Curation) -> dict[str, Any]:
    """Return a curation as it is stored and served, without its id and its place."""
    parts = [{"insight_ids": list(part.insight_ids), "label": part.label} for part in one.parts]
    return {
        "kind": one.kind.value,
        "cluster_id": one.cluster_id,
        "label": one.label,
        "cluster_ids": list(one.cluster_ids),
        "parts": parts,
    }


def _id_of(*words: str) -> str:
    """Hash these words in this order; no id contains a zero byte, so the boundaries are unambiguous."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(word.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:CURATION_ID_CHARACTERS]
