"""Traces a served feed or page back to the events that caused it: first PostgreSQL, then the log, then a tree.

Invariant: nothing is guessed. An event that PostgreSQL or a header names is read at its position; an event that nothing
names (the advance of a channel, the novelty that reported it) is the first one in the log that matches, and a missing
event is reported as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias, TypeVar

import asyncpg
import orjson

from highwater.connectors.explain.clusters import MEMBERS_MAX, ClusterFacts, Member, trace_cluster
from highwater.connectors.explain.explanations import Explanation, Step, chain, position_of, with_traces
from highwater.connectors.explain.feeds import CHANNELS_DEFAULT, FeedFacts, NewInsight, novel_channels, trace_feed
from highwater.connectors.explain.pages import trace_page
from highwater.connectors.explain.seasons import SeasonLog, season_log
from highwater.connectors.explain.statements import QUERIES
from highwater.connectors.feeds.read_model import clusters, tracked_cluster
from highwater.connectors.kafka.finding import Finder
from highwater.connectors.postgres.pool import Row, one_row, reading
from highwater.schemas.codec import Codec
from highwater.schemas.errors import HighwaterError, UnknownSchemaError
from highwater.schemas.feeds import INSIGHT_INGESTED
from highwater.schemas.positions import Cause, Position
from highwater.streams.clock import to_ms

# Schemas of other program versions in one topic; more would mean that the registry answers nonsense.
_SCHEMAS_MAX = 20

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
Learn = Callable[[int], Awaitable[str]]
Found = TypeVar("Found")


class UnknownResourceError(HighwaterError):
    """Nothing is stored under this key. `GET /api/changes` names keys as they change; a page is stored after its first read."""


class Explainer:
    """Explains feeds and pages; used by the command, the API and the dashboard."""

    def __init__(self, pool: Pool, codec: Codec, client: Mapping[str, str], learn: Learn) -> None:
        """`client` is librdkafka's connection; `learn` returns the text of a schema that the codec does not know."""
        self._pool = pool
        self._codec = codec
        self._client = client
        self._learn = learn

    async def feed(self, user_id: str, channels_max: int = CHANNELS_DEFAULT) -> Explanation:
        """Explain a user's feed, with the channels that have the most new insights.

        Raises:
            UnavailableError: PostgreSQL, Kafka or the registry is unavailable.
        """
        facts = await self._feed_facts(user_id, channels_max)
        tree = await self._in_log(lambda finder: _traced(finder, trace_feed(finder, facts)))
        return Explanation(f"feed:{user_id}", facts.feed_version, facts.feed_etag, tree)

    async def cluster(self, user_id: str, cluster_id: str, now_ms: int, version: int | None = None) -> Explanation:
        """Explain why a cluster of a version, by default the current one, has its insights.

        Raises:
            UnknownResourceError: the version has no such cluster.
            UnavailableError: PostgreSQL, Kafka or the registry is unavailable.
        """
        held = await clusters(self._pool, user_id, version, now_ms)
        found = next((one for one in held.clusters or () if one["cluster_id"] == cluster_id), None)
        if found is None:
            raise UnknownResourceError(
                f"version {held.cluster_version} of the clusters of {user_id!r} has no cluster {cluster_id[:100]!r}"
            )
        facts = await self._cluster_facts(user_id, found, held.cluster_version)
        tree = await self._in_log(lambda finder: _traced(finder, trace_cluster(finder, facts)))
        return Explanation(f"clusters:{user_id}", held.head.version, held.head.etag, tree)

    async def _cluster_facts(self, user_id: str, found: Mapping[str, Any], version: int) -> ClusterFacts:
        tracked = tracked_cluster(found, version)
        since = dict(zip(tracked.insight_ids, tracked.since, strict=True))
        shown = sorted(since, key=lambda name: (-since[name], name))[:MEMBERS_MAX]
        async with reading(self._pool) as connection:
            rows = await connection.fetch(QUERIES["explain_members"], shown)
            versions = sorted({since[name] for name in shown})
            requests = await connection.fetch(QUERIES["explain_versions"], user_id, versions)
        asked = {row["cluster_version"]: position_of(row["caused_by"]) for row in requests}
        members = [(row["channel_id"], _insight(row)) for row in rows]
        return ClusterFacts(
            cluster_id=tracked.cluster_id,
            label=str(found["label"]),
            version=version,
            born_version=tracked.born_version,
            size=len(tracked.insight_ids),
            members=tuple(
                Member(one.insight_id, channel, one.text, since[one.insight_id], one.position, one.arrived_ms)
                for channel, one in members
            ),
            requests={number: position for number, position in asked.items() if position is not None},
        )

    async def resource(self, key: str) -> Explanation:
        """Explain the resource of a key; `feed:{user}` and `clusters:{user}` are explained as feeds.

        Raises:
            UnknownResourceError: nothing is stored under the key.
            UnavailableError: PostgreSQL, Kafka or the registry is unavailable.
        """
        kind, _, user_id = key.partition(":")
        if kind in ("feed", "clusters") and user_id:
            return await self.feed(user_id)
        async with reading(self._pool) as connection:
            row = await connection.fetchrow(QUERIES["explain_resource"], key)
        if row is None:
            raise UnknownResourceError(f"nothing is stored under {key!r}")
        held = (key, row["version"], row["position"], to_ms(row["changed_at"]))
        tree = await self._in_log(lambda finder: _traced(finder, trace_page(finder, *held)))
        return Explanation(key, row["version"], row["etag"], tree)

    async def season(self, season: str) -> SeasonLog:
        """Return the changes of a season's matches.

        Raises:
            UnavailableError: Kafka or the registry is unavailable.
        """
        return await self._in_log(lambda finder: season_log(finder, season))

    async def _feed_facts(self, user_id: str, channels_max: int) -> FeedFacts:
        async with reading(self._pool) as connection:
            row = await one_row(connection, QUERIES["explain_feed"], user_id)
            hwm, before = _marks(row["hwm"]), _marks(row["hwm_before"])
            channels = novel_channels(hwm, before)
            shown = channels[:channels_max]
            asked = sorted({(one.channel_id, seq) for one in shown for seq in (one.after_seq + 1, one.upto_seq)})
            rows = (
                await connection.fetch(QUERIES["explain_insights"], *map(list, zip(*asked, strict=True)))
                if asked
                else []
            )
            subscribed = await connection.fetch(
                QUERIES["explain_subscriptions"], user_id, [one.channel_id for one in shown]
            )
        return FeedFacts(
            user_id=user_id,
            cluster_version=row["cluster_version"],
            feed_version=row["feed_version"] or 0,
            feed_etag=row["feed_etag"] or "",
            is_built=row["built_at"] is not None and row["document_cluster_version"] == row["cluster_version"],
            clusters_version=row["clusters_version"] or 0,
            request=position_of(row["caused_by"] or ""),
            numbers={name: row[name] for name in ("clusters", "dataset_size", "noise", "omitted", "basis_id")},
            channels=tuple(shown),
            channels_left_out=len(channels) - len(shown),
            insights={(r["channel_id"], r["seq"]): _insight(r) for r in rows},
            subscribed_ms={r["channel_id"]: r["changed_ms"] for r in subscribed},
            erased=None if row["erased_by"] is None else Cause(row["erased_ms"], row["erased_by"]),
        )

    async def _in_log(self, read: Callable[[Finder], Found]) -> Found:
        """Read in a thread; repeat a read that met an unknown schema once the schema was fetched.

        A value with an id that the registry does not have is not an event, and is skipped from then on.
        """
        absent: set[int] = set()
        for _ in range(_SCHEMAS_MAX):
            try:
                return await asyncio.to_thread(self._read, read, absent)
            except UnknownSchemaError as error:
                try:
                    self._codec.teach(error.schema_id, await self._learn(error.schema_id))
                except UnknownSchemaError:
                    absent.add(error.schema_id)
        return await asyncio.to_thread(self._read, read, absent)

    def _read(self, read: Callable[[Finder], Found], absent: Collection[int]) -> Found:
        finder = Finder(self._client, self._codec, absent)
        try:
            return read(finder)
        finally:
            finder.close()


def _traced(finder: Finder, tree: Step) -> Step:
    """Return a tree with the traces of its steps."""
    # PostgreSQL has the insight; if the trace begins with one, it is read only for its trace id.
    first = position_of(chain(tree)[0][0].position)
    if first is not None and finder.trace_of(first) is None:
        finder.at(first)
    return with_traces(tree, finder.trace_of)


def _marks(text: str | None) -> dict[str, int] | None:
    found: dict[str, int] | None = None if text is None else orjson.loads(text)
    return found


def _insight(row: Row) -> NewInsight:
    position = Position(INSIGHT_INGESTED, row["source_partition"], row["source_offset"])
    return NewInsight(row["insight_id"], row["text"] or "", position, to_ms(row["arrived_at"]))
