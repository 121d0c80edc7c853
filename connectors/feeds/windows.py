"""What a rebuild reads and stores: the window in one embedding model version, the previous version, and the forms of
the new one.

Invariant: vectors of two embedding model versions are never compared. A window is compared in the one that most of its
insights have; insights without such a vector are left out, counted and reported. If the configured model has processed
all of a window, its vectors are used (`streams/feeds/readiness.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from highwater.connectors.feeds.bases import preferred_basis, read_active
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, Row
from highwater.schemas.feeds import ClusterEvolved
from highwater.streams.feeds.versions import (
    Cluster,
    FoundBeforeCuration,
    FoundCluster,
    LastVersion,
    NewVersion,
    Outside,
)

# An embedding model version, and the dimension of its vectors.
Kind: TypeAlias = tuple[str, int]
# The part of a text used for labels and summaries; more text says no more about its subject.
_TEXT_CHARACTERS = 2_000

# Fields of clusters that later releases added.
_LATER = frozenset({"theme", "label_by", "arrived", "written_for", "theme_for"})

HISTORY_COLUMNS = (
    "user_id", "cluster_id", "cluster_version", "kind", "label", "size", "previous_size", "joined", "arrived", "left",
    "expired", "jaccard", "related", "evolved_at", "caused_by",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """Selects the insights of a version (R0.35): for each channel those up to `upto` that are above `floor`, or whose
    own time lies in `since`..`until`.

    `floor` is how far the user's clusters had come before the window began. So an insight stays for the window's length
    from its own time or from the first version that held it, whichever ends later, and all new insights are included:
    one rule for the first version, which includes everything in the channels, and for later ones.
    """

    channels: Sequence[str]
    floor: Sequence[int]
    upto: Sequence[int]
    since: datetime
    until: datetime

    @property
    def places(self) -> tuple[Sequence[str], Sequence[int], Sequence[int]]:
        """Return channels and numbers as columns."""
        return self.channels, self.floor, self.upto


@dataclass(frozen=True, slots=True)
class Dataset:
    """The insights of a rebuild, in the order of the log, with vectors float32 (n, d) of one embedding model version.

    `omitted`: insights beyond the limit of a rebuild. `left_out`: those within it without a vector of this version.
    """

    basis_id: str
    vectors: NDArray[np.float32]
    texts: tuple[str | None, ...]
    insight_ids: tuple[str, ...]
    omitted: int
    left_out: int

    def __len__(self) -> int:
        return len(self.insight_ids)


def choose_basis(held: Iterable[Collection[Kind]], active: str) -> Kind:
    """Return the kind of vector that most insights have; on a tie the active one, then the first in order.

    `held`: for each insight the kinds of its vectors. `active`: the active embedding model version, or the local
    model's beside it. Without any vector: that version, with dimension 0.
    """
    counts = Counter(kind for kinds in held for kind in kinds)
    return min(counts, key=lambda kind: (-counts[kind], kind[0] != active, kind), default=(active, 0))


async def read_dataset(tx: Connection, span: Span, insights_max: int, basis_id: str | None) -> Dataset:
    """Return the insights of a span with vectors of one kind, newest first up to the limit (R0.35).

    `basis_id`: the version that wins a tie; None: the active one, or the local model's beside it.
    """
    active = basis_id or preferred_basis(await read_active(tx))
    rows = await tx.fetch(
        QUERIES["rebuild_insights"], *span.places, span.since, span.until, _TEXT_CHARACTERS, insights_max, True
    )
    return dataset_of(rows, active)


async def read_insight_ids(tx: Connection, span: Span, insights_max: int) -> set[str]:
    """Return the ids that `read_dataset` would read, including those without a vector of the chosen kind."""
    rows = await tx.fetch(
        QUERIES["rebuild_insights"], *span.places, span.since, span.until, _TEXT_CHARACTERS, insights_max, False
    )
    return {row["insight_id"] for row in rows}


def dataset_of(rows: Sequence[Row], active: str) -> Dataset:
    """Return the data set in the rows of `rebuild_insights`.

    The dimension counts too: vectors with one name and two dimensions are two kinds.
    """
    held = [_vectors_of(row) for row in rows]
    chosen = choose_basis(held, active)
    kept = [(row, vectors[chosen]) for row, vectors in zip(rows, held, strict=True) if chosen in vectors]
    return Dataset(
        basis_id=chosen[0],
        vectors=np.frombuffer(b"".join(vector for _, vector in kept), dtype="<f4").reshape(len(kept), chosen[1]),
        texts=tuple(row["text"] for row, _ in kept),
        insight_ids=tuple(row["insight_id"] for row, _ in kept),
        omitted=rows[0]["total"] - len(rows) if rows else 0,
        left_out=len(rows) - len(kept),
    )


def _vectors_of(row: Row) -> dict[Kind, bytes]:
    """Return an insight's vectors: of the version it was stored with, and of the one that is being rolled out, if any."""
    pairs = ((row["embedding_model"], row["embedding"]), (row["next_model"], row["next_embedding"]))
    return {(basis or "", len(vector) // 4): vector for basis, vector in pairs if vector is not None}


def last_version_of(row: Mapping[str, Any] | None, basis_id: str) -> LastVersion | None:
    """Return the previous version; its neighbours only if they were computed from the same kind of vectors.

    None if there is none, or it was stored before clusters had an identity.
    """
    if row is None or row["outside"] is None:
        return None
    outside = orjson.loads(row["outside"])
    return LastVersion(
        clusters=tuple(_cluster_of(one) for one in orjson.loads(row["clusters"])),
        outside=Outside(
            tuple(outside["insight_ids"]),
            tuple(_place(one) for one in outside["positions"]),
            tuple(outside.get("arrived") or (0,) * len(outside["insight_ids"])),
        ),
        neighbours=row["neighbours"] if row["basis_id"] == basis_id else None,
        found=None if row["found"] is None else _found_of(orjson.loads(row["found"])),
    )


def _found_of(stored: Mapping[str, Any]) -> FoundBeforeCuration:
    clusters = (
        FoundCluster(one["cluster_id"], tuple(one["insight_ids"]), one["born_version"]) for one in stored["clusters"]
    )
    homes = {curation_id: tuple(map(tuple, homes)) for curation_id, homes in stored["homes"].items()}
    return FoundBeforeCuration(tuple(clusters), homes)


def shown_ids(last: LastVersion | None) -> set[str]:
    """Return the insights that a version holds, in clusters or outside of them."""
    if last is None:
        return set()
    return {i for one in last.clusters for i in one.insight_ids} | set(last.outside.insight_ids)


def is_same(
    version: NewVersion, basis_id: str, left_out: int, row: Mapping[str, Any] | None, last: LastVersion | None
) -> bool:
    """Return whether a version equals the last one (`row`, read as `last`), so that it is not stored. False without a
    last version.
    """
    if row is None:
        return not version.clusters and not version.outside.insight_ids and not left_out
    if last is None or (row["basis_id"], row["left_out"]) != (basis_id, left_out):
        return False
    return version.clusters == last.clusters and version.outside == last.outside


def _cluster_of(stored: Mapping[str, Any]) -> Cluster:
    # A version that an older release stored has no themes, its labels have no author, and when its insights arrived is unknown.
    values = {one.name: stored[one.name] for one in fields(Cluster) if one.name in stored or one.name not in _LATER}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    positions = tuple((x, y) for x, y in stored["positions"])
    return Cluster(**{"arrived": tuple(stored["since"]), **values, "positions": positions})


def _place(stored: Sequence[float] | None) -> tuple[float, float] | None:
    return None if stored is None else (stored[0], stored[1])


def clusters_json(version: NewVersion) -> str:
    """Return the clusters as they are served (contract, `GET /api/users/{user}/clusters`)."""
    return orjson.dumps(version.clusters).decode()


def outside_json(version: NewVersion) -> str:
    """Return the unclustered insights, as they are served beside the clusters."""
    return orjson.dumps(version.outside).decode()


def found_json(version: NewVersion) -> str | None:
    """Return the clusters before the curations, for the next version; None if they are the same."""
    return None if version.found is None else orjson.dumps(version.found).decode()


def labels_of(version: NewVersion, last: LastVersion | None) -> dict[str, str]:
    """Return the label of each cluster of two versions: the newer one if it is in both."""
    return {one.cluster_id: one.label for one in (*(last.clusters if last else ()), *version.clusters)}


def history_rows(
    version: NewVersion, labels: Mapping[str, str], user_id: str, number: int, at: datetime, caused_by: str
) -> list[tuple[Any, ...]]:
    """Return the changes of a version as rows of `cluster_history`, in the order of `HISTORY_COLUMNS`."""
    return [
        (
            user_id, one.cluster_id, number, one.kind.value, labels[one.cluster_id], one.size, one.previous_size,
            one.joined, one.arrived, one.left, one.expired, one.jaccard, list(one.related), at, caused_by,
        )
        for one in version.changes
    ]  # fmt: skip


def evolved_events(
    version: NewVersion, labels: Mapping[str, str], user_id: str, number: int, now_ms: int, request: str
) -> list[ClusterEvolved]:
    """Return the changes of a version as events, `feeds.cluster-evolved`."""
    return [
        ClusterEvolved(
            user_id=user_id, cluster_version=number, cluster_id=one.cluster_id, kind=one.kind.value,
            label=labels[one.cluster_id], size=one.size, previous_size=one.previous_size, joined=one.joined,
            arrived=one.arrived, left=one.left, expired=one.expired, jaccard=one.jaccard, related=list(one.related),
            request_position=request, evolved_at=now_ms,
        )
        for one in version.changes
    ]  # fmt: skip
