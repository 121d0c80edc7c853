"""Versions of clusters without insights that were retracted after they were stored.

Invariants. A version is tagged with its insights when it is stored (`connectors/pages/surrogate_keys.py`). A retraction
increments `redactions` of every kept version that holds the insight, drops the feeds built from them, and gives the
resources of their users a new version, all in its own transaction: afterwards nothing older is served. The contents of
a version are then computed when it is read, so a retraction costs its holders one row each and rewrites no version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.kafka.records import Event
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.pages.surrogate_keys import Holder
from highwater.connectors.postgres.pool import Connection, Row
from highwater.connectors.redaction import Withdrawn
from highwater.schemas.codec import Codec
from highwater.schemas.feeds import InsightRetracted
from highwater.streams.feeds.redaction import (
    SearchedTexts,
    label_without,
    parts_of,
    redact_clusters,
    redact_outside,
    redact_words,
)
from highwater.streams.feeds.versions import NewVersion
from highwater.streams.languages import STEMMED

SOURCE = "/connectors/sinks/insights"
# Texts of a cluster against which its words are checked: its newest insights. A word in none of them is removed.
TEXTS_MAX = 500


# -- retracting -----------------------------------------------------------------------------------------------------------


async def to_withdraw(tx: Connection, retracted: Sequence[Event[InsightRetracted]]) -> list[Withdrawn]:
    """Return insights that are retracted for the first time, with all documents that hold them; read before they are
    marked, under their channels' locks.
    """
    await surrogate_keys.hold(tx)
    causes = {(event.value["insight_id"], event.value["channel_id"]): str(event.record.position) for event in retracted}
    ids, channels = [insight_id for insight_id, _ in causes], [channel_id for _, channel_id in causes]
    return [
        Withdrawn(
            surrogate_keys.channel_space(row["channel_id"]),
            row["seq"],
            row["insight_id"],
            row["text"] or "",
            causes[row["insight_id"], row["channel_id"]],
        )
        for row in await tx.fetch(QUERIES["insights_to_withdraw"], ids, channels)
    ]


async def redact_feeds(tx: Connection, codec: Codec, withdrawn: Sequence[Withdrawn], now_ms: int) -> None:
    """Remove retracted insights from clusters, feeds and published labels of clusters. A `RedactionStep`."""
    found = await surrogate_keys.holders(tx, "clusters", withdrawn)
    rows = await tx.fetch(QUERIES["redact_versions"], *_places(found))
    causes = {(one.document, one.version): one.withdrawn[-1].caused_by for one in found}
    bumped = {
        f"clusters:{row['user_id']}": causes[row["user_id"], row["cluster_version"]]
        for row in rows
        if row["is_current"]
    }
    shown = await surrogate_keys.holders(tx, "feed", withdrawn)
    await tx.execute(QUERIES["drop_feeds_of_versions"], *_places(shown))
    current = {row["user_id"]: row["cluster_version"] for row in rows if row["is_current"]}
    bumped |= {
        f"feed:{one.document}": one.withdrawn[-1].caused_by for one in shown if current.get(one.document) == one.version
    }
    for user_id in await _redact_labels(tx, withdrawn):
        bumped.setdefault(f"clusters:{user_id}", withdrawn[-1].caused_by)
    await surrogate_keys.bump_holders(tx, codec, bumped, now_ms, source=SOURCE)


def _places(holders: Iterable[Holder]) -> tuple[list[str], list[int]]:
    places = [(one.document, one.version) for one in holders]
    return [user_id for user_id, _ in places], [version for _, version in places]


async def _redact_labels(tx: Connection, withdrawn: Sequence[Withdrawn], user_id: str | None = None) -> list[str]:
    """Remove words that only retracted insights contain from the labels in the history; return the affected users."""
    if user_id is None:
        channels = [one.space.partition(":")[2] for one in withdrawn]
        rows = await tx.fetch(QUERIES["labels_of_readers"], channels, [one.number for one in withdrawn])
    else:
        rows = await tx.fetch(QUERIES["labels_of_user"], user_id)
    said = SearchedTexts(one.text for one in withdrawn)
    quoting = {row["label"]: parts for row in rows if (parts := [one for one in parts_of(row["label"]) if one in said])}
    if not quoting:
        return []
    phrases = sorted({part for parts in quoting.values() for part in parts})
    still = {row["phrase"] for row in await tx.fetch(QUERIES["phrases_still_said"], phrases, list(STEMMED))}
    replaced = {label: label_without(label, gone) for label, parts in quoting.items() if (gone := {*parts} - still)}
    if not replaced:
        return []
    users = await tx.fetch(QUERIES["replace_labels"], list(replaced), list(replaced.values()), user_id)
    return sorted(row["user_id"] for row in users)


# -- storing a version ------------------------------------------------------------------------------------------------------


async def share(tx: Connection) -> None:
    """Take the lock for storing versions: no insight is retracted until the transaction ends. Take it before locking
    anything of a user.
    """
    await surrogate_keys.share(tx)


async def tag_version(
    tx: Connection, user_id: str, version: int, made: NewVersion, request: str, *, versions_kept: int
) -> None:
    """Tag a version that was just stored with its insights; one that was retracted meanwhile is hidden from the start."""
    members = [insight_id for one in made.clusters for insight_id in one.insight_ids]
    held = [*members, *made.outside.insight_ids]
    await surrogate_keys.tag_insights(tx, f"clusters:{user_id}", version, held)
    await surrogate_keys.tag_insights(tx, f"feed:{user_id}", version, members)
    # A stale feed may be served from a version that is no longer kept.
    fed = await tx.fetchval(QUERIES["version_of_feed"], user_id)
    await surrogate_keys.untag_versions(tx, f"clusters:{user_id}", version - versions_kept)
    await surrogate_keys.untag_versions(
        tx, f"feed:{user_id}", version - versions_kept, but=[] if fed is None else [fed]
    )
    retracted = await surrogate_keys.retracted_of(tx, held, request)
    if retracted:
        await tx.execute(QUERIES["redact_versions"], [user_id], [version])
        await _redact_labels(tx, retracted, user_id)


# -- reading a version ------------------------------------------------------------------------------------------------------


class Redacted(NamedTuple):
    """Clusters and unclustered insights, without retracted ones; `outside` None: the version does not record them."""

    clusters: list[dict[str, Any]]
    outside: dict[str, Any] | None


async def redacted(tx: Connection, clusters: Sequence[Mapping[str, Any]], outside: str | None) -> Redacted:
    """Return a stored version as it is served after retractions; read it in the version's snapshot."""
    beside = None if outside is None else orjson.loads(outside)
    held = [insight_id for one in clusters for insight_id in one["insight_ids"]]
    retracted = await _retracted(tx, [*held, *(beside["insight_ids"] if beside else ())])
    texts = await _texts(tx, clusters, retracted)
    left = redact_clusters(clusters, retracted, texts)
    return Redacted(left, None if beside is None else redact_outside(beside, retracted))


async def redacted_row(tx: Connection, row: Row | None) -> Mapping[str, Any] | None:
    """Return the row of a last version for the next rebuild, without words that only retracted insights contain.

    Its members stay, so that the fate of a cluster covers all its members.
    """
    if row is None or row["redactions"] == 0:
        return None if row is None else dict(row)
    clusters = orjson.loads(row["clusters"])
    retracted = await _retracted(tx, [insight_id for one in clusters for insight_id in one["insight_ids"]])
    texts = await _texts(tx, clusters, retracted)
    told = [
        one
        if retracted.isdisjoint(one["insight_ids"])
        else redact_words(one, {i: texts[i] for i in one["insight_ids"] if i in texts}, retracted)
        for one in clusters
    ]
    return {**row, "clusters": orjson.dumps(told)}


async def _retracted(tx: Connection, insight_ids: Sequence[str]) -> frozenset[str]:
    rows = await tx.fetch(QUERIES["retracted_insights"], insight_ids)
    return frozenset(row["insight_id"] for row in rows)


async def _texts(
    tx: Connection, clusters: Sequence[Mapping[str, Any]], retracted: Collection[str]
) -> dict[str, str | None]:
    """Return the texts of the remaining insights in clusters that lost some."""
    asked: dict[int, list[str]] = defaultdict(list)
    for place, one in enumerate(clusters):
        if any(insight_id in retracted for insight_id in one["insight_ids"]):
            asked[place] = one["insight_ids"]
    pairs = [(place, insight_id) for place, ids in asked.items() for insight_id in ids]
    rows = await tx.fetch(
        QUERIES["texts_of_remaining"], [place for place, _ in pairs], [insight_id for _, insight_id in pairs], TEXTS_MAX
    )
    return {row["insight_id"]: row["text"] for row in rows}
