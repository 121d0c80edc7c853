"""Reads the digest of a user: what is new in the current version of the clusters since another one.

Invariant: one digest is one snapshot, so that an insight that is retracted is in none that is read afterwards. Its head is
that of the clusters with the version that it begins with, so that a 304 reads no cluster.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from highwater.connectors.feeds import read_model as feeds_reads
from highwater.connectors.feeds.read_model import Clusters, Pool, tracked_cluster
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.postgres.pool import Connection, snapshot
from highwater.connectors.redis.resource_cache import Head
from highwater.streams.clock import to_datetime, to_ms, to_ms_or_none
from highwater.streams.feeds import digest_text
from highwater.streams.feeds.digest import WEEK_MS, ClusterNews, NewInsight, Reached, digest, most_news

# Of a digest whose reader names no version: since the version 24 hours earlier.
DAY_MS = 86_400_000
# The newest new insights of a cluster from which its examples and its version bumps are taken.
INSIGHTS_READ = 200
# Changes with what digests of the same clusters say, so that no ETag names two bodies.
_FORM = 1


@dataclass(frozen=True, slots=True)
class DigestHead:
    """The version of a digest, the cluster version from which it begins, and the one that it reaches."""

    head: Head
    since: int
    cluster_version: int


@dataclass(frozen=True, slots=True)
class _News:
    """A cluster with its new insights; `stored` as it is served."""

    stored: Mapping[str, Any]
    is_new: bool
    insight_ids: Sequence[str]
    arrived_version: int


async def digest_head(pool: Pool, user_id: str, since: int | None, now_ms: int) -> DigestHead:
    """Return the head of the digest since a version; None: since the version 24 hours earlier, 0 if there was none."""
    async with snapshot(pool) as connection:
        return await _head(connection, user_id, since, now_ms)


async def _head(connection: Connection, user_id: str, since: int | None, now_ms: int) -> DigestHead:
    if since is None:
        day_ago = to_datetime(now_ms - DAY_MS)
        since = await connection.fetchval(QUERIES["digest_version_at"], user_id, day_ago) or 0
    head = await feeds_reads.clusters_head_in(connection, user_id, now_ms)
    version = await connection.fetchval(QUERIES["read_cluster_version"], user_id) or 0
    return DigestHead(replace(head, etag=f"{head.etag}-digest{_FORM}-{since}"), since, version)


async def read_digest(pool: Pool, user_id: str, since: int | None, now_ms: int) -> tuple[DigestHead, dict[str, Any]]:
    """Return the digest with its head.

    Raises:
        UnavailableError: PostgreSQL is unavailable.
    """
    async with snapshot(pool) as connection:
        head = await _head(connection, user_id, since, now_ms)
        found = await feeds_reads.clusters_in(connection, user_id, None, now_ms)
        since_at = await connection.fetchval(QUERIES["digest_time_of"], user_id, head.since)
        reached = Reached(
            version=found.cluster_version,
            at_ms=found.updated_at_ms,
            position=found.caused_by,
            since=head.since,
            since_ms=to_ms_or_none(since_at),
            is_preliminary=found.is_preliminary,
            is_regrouped=found.is_regrouped,
        )
        news = _news(found, head.since)
        places = most_news((key, one.stored["label"], len(one.insight_ids)) for key, one in news.items())
        shown = await _read(connection, [news[place] for place in places], found.updated_at_ms or now_ms)
    count = sum(len(one.insight_ids) for one in news.values())
    clusters = sum(1 for key in news if key)
    # Off the loop: thousands of texts are compared, and all other requests would wait.
    return head, await asyncio.to_thread(digest, user_id, reached, shown, clusters=clusters, insights=count)


class DigestNotice(NamedTuple):
    """A digest as it is sent to a person or a program; version 0: the user has no clusters."""

    version: int
    is_empty: bool
    subject: str
    text: str
    document: Mapping[str, Any]


async def read_notice(pool: Pool, user_id: str, since: int | None, now_ms: int) -> DigestNotice:
    """Return what is new of a user, in the language of its texts; `since` and errors as of `read_digest`."""
    head, document = await read_digest(pool, user_id, since, now_ms)
    messages = digest_text.messages_of(document)
    subject, text = digest_text.subject(document, messages), digest_text.plain_text(document, messages)
    return DigestNotice(head.cluster_version, not document["new_count"], subject, text, document)


def _news(found: Clusters, since: int) -> dict[str, _News]:
    """Return the clusters with insights that arrived after version `since`, by id; those outside of all under ""."""
    news: dict[str, _News] = {}
    for stored in found.clusters or []:
        tracked = tracked_cluster(stored, found.cluster_version)
        arrived = [pair for pair in zip(tracked.insight_ids, tracked.arrived, strict=True) if pair[1] > since]
        if arrived:
            news[tracked.cluster_id] = _news_of(stored, arrived, is_new=tracked.born_version > since > 0)
    outside = {} if found.outside is None else orjson.loads(found.outside)
    pairs = zip(outside.get("insight_ids", ()), outside.get("arrived") or (), strict=False)
    arrived = [pair for pair in pairs if pair[1] > since]
    if arrived:
        stored = {"cluster_id": "", "label": "", "size": found.noise, "insight_ids": outside["insight_ids"]}
        news[""] = _news_of(stored, arrived, is_new=False)
    return news


def _news_of(stored: Mapping[str, Any], arrived: Sequence[tuple[str, int]], *, is_new: bool) -> _News:
    return _News(stored, is_new, [insight_id for insight_id, _ in arrived], max(version for _, version in arrived))


async def _read(connection: Connection, news: Sequence[_News], at_ms: int) -> list[ClusterNews]:
    """Return what a digest says of these, without retracted insights."""
    members = _columns([one.stored["insight_ids"] for one in news])
    new = _columns([one.insight_ids for one in news])
    weeks = (to_datetime(at_ms - 2 * WEEK_MS), to_datetime(at_ms - WEEK_MS))
    grown = {row["place"]: row for row in await connection.fetch(QUERIES["digest_weeks"], *members, *weeks)}
    channels: dict[int, list[Any]] = defaultdict(list)
    for row in await connection.fetch(QUERIES["digest_channels"], *new):
        channels[row["place"]].append(row)
    insights: dict[int, list[NewInsight]] = defaultdict(list)
    for row in await connection.fetch(QUERIES["digest_insights"], *new, INSIGHTS_READ):
        insight = NewInsight(row["insight_id"], row["channel_id"], to_ms(row["ts"]), row["text"], row["url"])
        insights[row["place"]].append(insight)
    return [
        ClusterNews(
            cluster_id=one.stored["cluster_id"],
            label=str(one.stored.get("title") or one.stored["label"]),
            theme=str(one.stored.get("theme") or ""),
            is_new=one.is_new,
            size=one.stored["size"],
            new_count=sum(row["count"] for row in channels[place]),
            arrived_version=one.arrived_version,
            week=grown[place]["week"] if place in grown else 0,
            week_before=grown[place]["week_before"] if place in grown else 0,
            channels={row["channel_id"]: row["count"] for row in channels[place]},
            first_ms=min(to_ms(row["first_ts"]) for row in channels[place]),
            last_ms=max(to_ms(row["last_ts"]) for row in channels[place]),
            insights=tuple(insights[place]),
        )
        for place, one in enumerate(news)
        if place in channels
    ]


def _columns(ids: Sequence[Sequence[str]]) -> tuple[list[int], list[str]]:
    """Return ids by place as two columns."""
    places = [place for place, listed in enumerate(ids) for _ in listed]
    return places, [insight_id for listed in ids for insight_id in listed]
