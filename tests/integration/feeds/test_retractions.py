"""Served results after a retraction: from its position on no reader sees the insight, and only results with it change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest

from highwater.connectors.feeds.redactions import tag_version
from highwater.connectors.feeds.sink_insights import InsightsSink
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.pages.statements import QUERIES as PAGES
from highwater.connectors.postgres.migrate import migrate
from highwater.connectors.postgres.pool import open_pool, transaction
from highwater.connectors.slices import REDACTION
from highwater.schemas.cache import VERSION_BUMPED
from highwater.schemas.feeds import INSIGHT_RETRACTED
from highwater.streams.feeds.redaction import RETRACTED_LABEL
from tests.conftest import Stack
from tests.integration.api_server import NOW, Seeds, change, cluster
from tests.integration.connecting import event, in_outbox, in_transaction, until
from tests.integration.databases import own_database


@dataclass
class Retractions:
    """The sink of insights over the module's database, and what its retractions changed."""

    context: ProcessContext
    seeds: Seeds
    offset: int = field(default=0)

    async def say(self, texts: dict[str, str]) -> None:
        """Other texts of insights."""
        for insight_id, text in texts.items():
            await self.seeds.change("insights", "insight_id", insight_id, text=text)

    def sink(self) -> InsightsSink:
        """As it is wired."""
        context = self.context
        return InsightsSink(context.codec, context.clock, context.pool, dimensions=384, redaction=REDACTION)

    def next(self, *insight_ids: str) -> list[Any]:
        """Retractions at the next positions."""
        events = []
        for insight_id in insight_ids:
            value = {"insight_id": insight_id, "channel_id": insight_id.split("#")[0], "ts": 1}
            events.append(event(INSIGHT_RETRACTED, value, offset=self.offset))
            self.offset += 1
        return events

    async def retract(self, *insight_ids: str) -> str:
        """Through the sink; the position of the last."""
        events = self.next(*insight_ids)
        await in_transaction(self.context, self.sink(), events)
        position = str(events[-1].record.position)
        await self.seeds.account_for(position)
        return position

    async def bumps(self, key: str) -> list[dict[str, Any]]:
        """The bumps of a resource by published retractions."""
        return [one for one in await in_outbox(self.context, VERSION_BUMPED, key) if one["reason"] == "retracted"]


@pytest.fixture(scope="module")
async def retractions(context: ProcessContext, seeds: Seeds) -> AsyncIterator[Retractions]:
    """Over the module's database."""
    async with await open_pool(seeds.url, size_max=5) as pool:
        yield Retractions(replace(context, pool=pool), seeds)


def _secret(channel: str) -> str:
    """A word that occurs nowhere else."""
    return f"Falcon {channel} buys Acme tomorrow"


async def _user(r: Retractions, user: str, channel: str) -> list[str]:
    """Two clusters, each of a channel of its own, and one insight in none; the first quotes a secret wherever it can."""
    ids, others = await r.seeds.channel(channel, 4), await r.seeds.channel(f"{channel}-other", 3)
    secret = _secret(channel)
    await r.say({ids[0]: secret, ids[1]: "fix css theme", ids[2]: "update css theme of buttons"})
    told = {
        "label": secret,
        "title": secret,
        "summary": secret,
        "keywords": ["falcon", "css theme"],
        "written_version": 1,
    }
    history = [change("a", "born", size=3, label=secret), change("b", "born", size=3, label="about b")]
    await r.seeds.user(user, [channel, f"{channel}-other"])
    await r.seeds.run(
        "INSERT INTO user_cluster_hwm SELECT $1, * FROM unnest($2::text[], ARRAY[4, 3])",
        user,
        [channel, f"{channel}-other"],
    )
    await r.seeds.rebuild(user, [cluster("a", ids[:3], **told), cluster("b", others)], outside=ids[3:], history=history)
    return [*ids, *others]


async def _shown(http: httpx2.AsyncClient, user: str, headers: dict[str, str]) -> dict[str, httpx2.Response]:
    """Everything that is served of a user's clusters."""
    paths = (
        "feed",
        "feed?since=0",
        "clusters",
        "clusters?since=0",
        "clusters?version=1",
        "clusters?limit=1",
        "clusters/a/history",
        "digest?since=0",
        "digest/atom?since=0",
        "digest/json-feed?since=0",
    )
    return {path: await http.get(f"/api/users/{user}/{path}", headers=headers) for path in paths}


async def test_from_its_own_position_on_an_insight_is_nowhere(
    http: httpx2.AsyncClient, retractions: Retractions
) -> None:
    """Feed, clusters, an earlier version, pages, changes and history: no id, no text, no word of it, and other ETags."""
    ids = await _user(retractions, "rae", "r1")
    before = await _shown(http, "rae", {})
    assert all("Falcon" in answer.text for answer in before.values())
    position = await retractions.retract(ids[0])
    after = await _shown(http, "rae", {"X-Min-Position": position})
    for path, answer in after.items():
        assert answer.status_code == 200, answer.text
        assert "falcon" not in answer.text.casefold(), path
        assert ids[0] not in answer.text, path
        assert answer.headers["etag"] != before[path].headers["etag"], path
    one = after["clusters"].json()["clusters"][0]
    assert (one["size"], one["insight_ids"], one["representative_id"]) == (2, ids[1:3], ids[1])
    assert (one["label"], one["title"], one["written_version"]) == ("Css theme", "Css theme", 0)
    assert after["clusters"].headers["x-caused-by"] == position
    assert after["clusters/a/history"].json()["size"] == 2
    assert [event["label"] for event in after["clusters/a/history"].json()["events"]] == [RETRACTED_LABEL]
    # A client with the old ETag gets a new answer, once.
    stale = {"X-Min-Position": position, "If-None-Match": before["clusters"].headers["etag"]}
    assert (await http.get("/api/users/rae/clusters", headers=stale)).status_code == 200
    known = {"If-None-Match": after["clusters"].headers["etag"]}
    again = await http.get("/api/users/rae/clusters", headers={**known, "X-Min-Position": position})
    assert again.status_code == 304


async def test_only_what_held_it_changes(http: httpx2.AsyncClient, retractions: Retractions) -> None:
    """A user of the same channel whose version does not have it, and a feed that does not show it, keep their tags."""
    ids = await _user(retractions, "sam", "r2")
    await retractions.seeds.user("sid", ["r2"])
    await retractions.seeds.run("INSERT INTO user_cluster_hwm VALUES ('sid', 'r2', 4)")
    await retractions.seeds.rebuild("sid", [cluster("a", ids[1:3])])
    paths = [f"/api/users/{user}/{what}" for user in ("sam", "sid") for what in ("feed", "clusters")]
    tags = {path: (await http.get(path)).headers["etag"] for path in paths}
    position = await retractions.retract(ids[3])  # in sam's version, outside clusters
    named = {"X-Min-Position": position}
    changed = [path for path in paths if (await http.get(path, headers=named)).headers["etag"] != tags[path]]
    assert changed == ["/api/users/sam/clusters"]
    document = (await http.get("/api/users/sam/clusters", headers=named)).json()
    assert (document["outside"]["insight_ids"], document["noise"]) == ([], 0)
    assert [one["caused_by"] for one in await retractions.bumps("clusters:sam")] == [position]
    assert await retractions.bumps("clusters:sid") == []
    await retractions.retract(ids[3])  # said again, it changes nothing
    assert len(await retractions.bumps("clusters:sam")) == 1


async def test_a_cluster_of_nothing_else_is_gone(http: httpx2.AsyncClient, retractions: Retractions) -> None:
    """It is in no feed and no version; its history says that it is over."""
    ids = await _user(retractions, "tia", "r3")
    position = await retractions.retract(*ids[:3])
    named = {"X-Min-Position": position}
    assert [item["cluster_id"] for item in (await http.get("/api/users/tia/feed", headers=named)).json()["items"]] == [
        "b"
    ]
    clusters = (await http.get("/api/users/tia/clusters", headers=named)).json()["clusters"]
    assert [one["cluster_id"] for one in clusters] == ["b"]
    life = (await http.get("/api/users/tia/clusters/a/history", headers=named)).json()
    assert (life["is_alive"], life["size"]) == (False, 0)
    assert "Falcon" not in str(life)


async def test_a_feed_that_is_built_meanwhile_is_built_again(retractions: Retractions, api: Any) -> None:
    """A retraction between the reading and the storing of a feed: the built feed is not stored."""
    ids = await _user(retractions, "uma", "r4")
    builder = api.app.state.feeds.builder
    reading = builder._writer.items
    position: list[str] = []

    async def overtaken(clusters: Any) -> Any:
        made = await reading(clusters)
        if not position:
            loop = retraction_loop
            position.append("")
            done = asyncio.run_coroutine_threadsafe(retractions.retract(ids[0]), loop)
            position[0] = await asyncio.wrap_future(done)
        return made

    retraction_loop = asyncio.get_running_loop()
    builder._writer.items = overtaken
    try:
        answer = await api.get("/api/users/uma/feed")
    finally:
        builder._writer.items = reading
    assert position[0]
    assert "Falcon" not in answer.text
    assert ids[0] not in answer.text


async def test_a_version_that_is_stored_meanwhile_waits_and_hides_it(
    http: httpx2.AsyncClient, retractions: Retractions
) -> None:
    """A retraction and a rebuild that read the insight before: in either order, no reader sees it."""
    r = retractions
    ids = await _user(r, "vic", "r5")
    async with transaction(r.context.pool) as tx:
        await surrogate_keys.share(tx)
        other = asyncio.create_task(in_transaction(r.context, r.sink(), (events := r.next(ids[0]))))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await until(lambda: _count(r, waiting), "the retraction waits for who stores")
    await other
    position = str(events[-1].record.position)
    await r.seeds.account_for(position)
    # A version of the insights read before is stored now.
    version = await r.seeds.rebuild(
        "vic", [cluster("a", ids[:3], label=_secret("r5"))], history=[change("a", "grew", size=3, label=_secret("r5"))]
    )
    made = _Made([_Cluster(ids[:3])], _Outside(ids[3:]))
    async with transaction(r.context.pool) as tx:
        await surrogate_keys.share(tx)
        await tag_version(tx, "vic", version, made, "feeds.rebuild-requested/0/9", versions_kept=10)  # type: ignore[arg-type]
    for path, answer in (await _shown(http, "vic", {"X-Min-Position": position})).items():
        assert "falcon" not in answer.text.casefold(), path
        assert ids[0] not in answer.text, path


async def _count(r: Retractions, query: str) -> bool:
    return bool(await r.context.pool.fetchval(query))


@dataclass
class _Cluster:
    insight_ids: list[str]


@dataclass
class _Outside:
    insight_ids: list[str]


@dataclass
class _Made:
    clusters: list[_Cluster]
    outside: _Outside


async def test_who_is_erased_leaves_no_tags(retractions: Retractions) -> None:
    """Nor does a version that is not kept any more."""
    r = retractions
    await _user(r, "wil", "r6")
    tagged = "SELECT DISTINCT version FROM surrogate_keys WHERE document IN ('clusters:wil', 'feed:wil') ORDER BY 1"
    assert [row["version"] for row in await r.seeds.run(tagged)] == [1]
    made = _Made([_Cluster(["r6#1"])], _Outside([]))
    async with transaction(r.context.pool) as tx:
        await tag_version(tx, "wil", 12, made, "feeds.rebuild-requested/0/9", versions_kept=10)  # type: ignore[arg-type]
    assert [row["version"] for row in await r.seeds.run(tagged)] == [12]
    async with transaction(r.context.pool) as tx:
        await surrogate_keys.untag(tx, ["clusters:wil", "feed:wil"])
    assert await r.seeds.run(tagged) == []


async def test_what_is_stored_is_tagged_and_hidden_by_the_migration(stack: Stack) -> None:
    """Versions and runs from before tags existed; earlier retractions are hidden from then on, under other ETags."""
    async with own_database(stack) as context:
        pool, name = context.pool, "0016_surrogate_keys"
        await pool.execute(
            "DROP TABLE surrogate_keys; DROP INDEX user_cluster_hwm_channel;"
            "ALTER TABLE user_clusters DROP COLUMN redactions, DROP COLUMN told_since;"
            "ALTER TABLE pipeline_runs DROP COLUMN redactions, DROP COLUMN withdrawn"
        )
        await pool.execute("DELETE FROM schema_migrations WHERE name = $1", name)
        for seq in (1, 2, 3):
            await pool.execute(
                "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, retracted_at, source_partition, "
                "source_offset) VALUES ($1, 'c', $2::int, 'epoch', 'epoch', 't', $3, 0, 0)",
                f"i{seq}", seq, NOW if seq == 1 else None,
            )  # fmt: skip
        outside = json.dumps({"insight_ids": ["i3"], "positions": [None]})
        for user, ids in (("ann", ["i1", "i2"]), ("bob", ["i2"])):
            await pool.execute(
                "INSERT INTO user_clusters (user_id, cluster_version, clusters, noise, dataset_size, omitted, hwm, updated_at, "
                "caused_by, outside) VALUES ($1, 4, $2, 1, 3, 0, '{}', 'epoch', '', $3)",
                user, json.dumps([cluster("a", ids)]), outside,
            )  # fmt: skip
            await pool.execute("INSERT INTO feed_documents VALUES ($1, 4, 'epoch', 1, '', false, 1)", user)
            await pool.execute(PAGES["bump_version"], f"clusters:{user}", "", NOW, None)
        told = [{"insight_id": "i2", "channel_id": "c", "position": "feeds.insight-ingested/0/0"}]
        told.append({"insight_id": "s|d.md|7", "channel_id": "ns", "position": "chunks.chunk-submitted/0/0"})
        run_id = "11111111-1111-4111-8111-111111111111"
        for number, sources in ((1, json.dumps(told)), (2, None), (3, "null")):
            await pool.execute(
                "INSERT INTO pipeline_runs (id, user_id, ordinal, user_query, status, position, caused_by, created_at, "
                "updated_at, sources) VALUES ($1, $1, $2, 'q', 'NEW', '', '', 'epoch', 'epoch', $3::jsonb)",
                f"{run_id[:-1]}{number}", number, sources,
            )  # fmt: skip
        assert await migrate(pool) == [name]
        tags = await pool.fetch(
            "SELECT document, version, space, numbers::text FROM surrogate_keys ORDER BY document, space"
        )
        assert [tuple(row) for row in tags] == [
            ("clusters:ann", 4, "channel:c", "{[1,4)}"),
            ("clusters:bob", 4, "channel:c", "{[2,4)}"),
            ("feed:ann", 4, "channel:c", "{[1,3)}"),
            ("feed:bob", 4, "channel:c", "{[2,3)}"),
            (f"run:{run_id}", 0, "channel:c", "{[2,3)}"),
            (f"run:{run_id}", 0, "source:ns|s|d.md", "{[7,8)}"),
        ]
        versions = await pool.fetch("SELECT user_id, redactions, told_since FROM user_clusters ORDER BY 1")
        assert [tuple(row) for row in versions] == [("ann", 1, 4), ("bob", 0, 4)]
        assert await pool.fetchval("SELECT array_agg(user_id) FROM feed_documents") == ["bob"]
        bumped = await pool.fetch("SELECT key, version FROM resource_versions ORDER BY key")
        assert [row["version"] for row in bumped] == [2, 1]
