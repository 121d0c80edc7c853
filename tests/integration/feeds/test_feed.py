"""The feed document: built on read, served by version, never a stale 304 beyond the stated bound."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from highwater.connectors.models.chat import ChatModel, ModelError
from highwater.connectors.models.chat_service import ChatEndpoint
from highwater.connectors.redis.link import open_redis
from highwater.connectors.redis.resource_cache import TRUSTED_MS, Head, ResourceCache
from highwater.streams.retry import RetryPolicy
from tests.integration.api_server import (
    NOW,
    Api,
    Seeds,
    cluster,
    eventually,
    old_cluster,
    running_api,
)
from tests.integration.models.chat_server import ChatServer


@pytest.fixture(scope="module")
def written(own_settings, chat: ChatServer) -> Iterator[Api]:
    """An API whose feeds are written by that model."""
    with running_api(own_settings(LLM_BASE_URL=chat.url)) as running:
        yield running


async def _version_settles(http: httpx2.AsyncClient, path: str, version: int) -> httpx2.Response:
    found: list[httpx2.Response] = []

    async def reached() -> bool:
        found[:] = [await http.get(path)]
        return found[0].json()["cluster_version"] == version

    await eventually(reached, f"version {version} is served")
    return found[0]


async def test_a_user_without_clusters_has_an_empty_feed(http, seeds: Seeds) -> None:
    """Version 0, no items, nothing stored, and still conditional."""
    response = await http.get("/api/users/nobody/feed")
    expected = {"user_id": "nobody", "cluster_version": 0, "built_at": None, "items": []}
    assert response.json() == expected
    again = await http.get("/api/users/nobody/feed", headers={"If-None-Match": response.headers["etag"]})
    assert again.status_code == 304
    assert await seeds.run("SELECT 1 FROM feed_documents WHERE user_id = 'nobody'") == []


@pytest.mark.requirement("R0.40")
async def test_a_feed_is_built_once_and_then_served(http, seeds: Seeds) -> None:
    """The first read stores a document with its version and one outbox row; later reads get those same bytes."""
    ids = await seeds.channel("f1", 6)
    await seeds.rebuild("fay", [cluster("a", ids[:4]), cluster("b", ids[4:])])
    first = await http.get("/api/users/fay/feed")
    items = first.json()["items"]
    assert [item["cluster_id"] for item in items] == ["a", "b"]
    assert items[0]["title"] == "about a"
    assert items[0]["representative"] == {
        "insight_id": ids[0],
        "channel_id": "f1",
        "ts": "2026-11-20T12:00:00Z",
        "text": f"kafka consumer {ids[0]} rebalances partitions slowly",
        "url": "https://example.org/1",
        "since": 1,
    }
    assert "kafka consumer" in items[0]["summary"]
    second = await http.get("/api/users/fay/feed")
    assert second.content == first.content
    assert second.headers["etag"] == first.headers["etag"]
    assert first.headers["x-caused-by"] == "feeds.rebuild-requested/0/1"
    rows = await seeds.run("SELECT topic FROM outbox WHERE key = 'feed:fay'")
    assert [row["topic"] for row in rows] == ["cache.version-bumped"]


async def test_a_retracted_insight_is_left_out_of_the_feed(http, seeds: Seeds) -> None:
    """A retracted representative is not shown: the newest of the rest speaks for the cluster."""
    ids = await seeds.channel("f2", 3)
    await seeds.run("UPDATE insights SET retracted_at = now() WHERE insight_id = $1", ids[0])
    await seeds.rebuild("flo", [cluster("a", ids)])
    (item,) = (await http.get("/api/users/flo/feed")).json()["items"]
    assert ids[0] not in str(item)  # nor in the summary, though the stored one mentions it
    assert item["representative"]["insight_id"] in ids[1:]


async def test_those_that_are_left_speak_for_a_cluster(http, seeds: Seeds) -> None:
    """However many of a cluster's newest insights were retracted, the feed shows the newest of the rest."""
    ids = sorted(await seeds.channel("f18", 25))
    await seeds.run("UPDATE insights SET retracted_at = now() WHERE insight_id = ANY ($1)", ids[:22])
    await seeds.rebuild("flip", [cluster("a", ids)])
    (item,) = (await http.get("/api/users/flip/feed")).json()["items"]
    assert [one["insight_id"] for one in item["insights"]] == ids[22:]


async def test_an_item_says_since_when(http, seeds: Seeds) -> None:
    """Birth, last change and place of the cluster, the version each shown insight came with, and how many came when."""
    ids = await seeds.channel("f13", 5)
    await seeds.rebuild("gia", [cluster("z", ids)])
    await seeds.rebuild("gia", [cluster("a", ids[:4], since=[2, 1, 2, 1], changed=2), old_cluster("b", ids[4:])])
    items = (await http.get("/api/users/gia/feed")).json()["items"]
    named = ("born_version", "changed_version", "position", "entered")
    assert [items[0][name] for name in named] == [1, 2, [2.5, 3.5], [[1, 2], [2, 2]]]
    assert [items[1][name] for name in named] == [2, 2, None, [[2, 1]]]
    assert {one["insight_id"]: one["since"] for one in items[0]["insights"]} == dict(
        zip(ids[:4], [2, 1, 2, 1], strict=True)
    )
    assert items[0]["representative"]["since"] == 2


async def _fed(seeds: Seeds, user: str, channel: str) -> list[str]:
    """Three versions: a stays as it was, b grew in 2 and in 3, c is new in 3."""
    ids = await seeds.channel(channel, 6)
    await seeds.rebuild(user, [cluster("a", ids[:1])])
    await seeds.rebuild(user, [cluster("a", ids[:1])])
    grown = cluster("b", ids[1:5], since=[1, 2, 3, 3], changed=3, arrived=[1, 2, 1, 3])
    await seeds.rebuild(user, [grown, cluster("a", ids[:1]), cluster("c", ids[5:], since=[3], born=3, changed=3)])
    return ids


async def test_whoever_has_a_new_version_is_served_no_older_one(http, api: Api, seeds: Seeds) -> None:
    """Redis answers one call too late and keeps the former head: the new version is served once no process trusts that."""
    ids = await seeds.channel("f19", 4)
    await seeds.rebuild("fin", [cluster("a", ids[:2])])
    old = await http.get("/api/users/fin/feed")
    writer = api.app.state.feeds.builder._writer
    items = writer.items

    async def paused(clusters: Any) -> Any:
        made = await items(clusters)
        await api.app.state.services.cache_link.client.client_pause(400)
        return made

    writer.items = paused
    try:
        await seeds.rebuild("fin", [cluster("b", ids)])
        position = "feeds.insight-ingested/0/0"
        await seeds.account_for(position)
        new = await http.get("/api/users/fin/feed", headers={"X-Min-Position": position})
    finally:
        writer.items = items
    assert new.headers["etag"] != old.headers["etag"]
    again = await http.get("/api/users/fin/feed")
    assert again.headers["etag"] == new.headers["etag"]


async def test_a_reader_is_fed_what_is_new(http, seeds: Seeds) -> None:
    """The same document with the items that changed since, each saying whether it is new and how many of its insights are; one
    that moved from another cluster is not.
    """
    await _fed(seeds, "ora", "f14")
    whole = (await http.get("/api/users/ora/feed")).json()
    for since, expected in (
        (0, [("b", True, 4), ("a", True, 1), ("c", True, 1)]),
        (1, [("b", False, 2), ("c", True, 1)]),
        (2, [("b", False, 1), ("c", True, 1)]),
        (3, []),
    ):
        document = (await http.get(f"/api/users/ora/feed?since={since}")).json()
        assert [(one["cluster_id"], one["is_new"], one["new_count"]) for one in document["items"]] == expected
        assert document == {**whole, "since": since, "items": document["items"]}
        known = [{k: v for k, v in one.items() if k not in ("is_new", "new_count")} for one in document["items"]]
        assert known == [one for one in whole["items"] if one["cluster_id"] in [name for name, *_ in expected]]
    (row,) = await seeds.run("SELECT version FROM resource_versions WHERE key = 'feed:ora'")
    assert row["version"] == 1  # nothing was built for it
    assert (await http.get("/api/users/nobody/feed?since=0")).json()["items"] == []


async def test_what_is_new_in_a_feed_has_a_tag_of_its_own(http, api: Api, seeds: Seeds) -> None:
    """Each `since` is a tag of its own, with the version and cause of the feed; above the version is 400, also for `*`."""
    ids = await _fed(seeds, "pia", "f15")
    paths = [f"/api/users/pia/feed{query}" for query in ("", "?since=1", "?since=2")]
    answers = [await http.get(path) for path in paths]
    tags = [answer.headers["etag"] for answer in answers]
    for path, tag in zip(paths, tags, strict=True):
        again = await http.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        for name in ("etag", "x-resource-version", "x-caused-by", "cache-control"):
            assert again.headers[name] == answers[paths.index(path)].headers[name]
        assert [t for t in tags if (await http.get(path, headers={"If-None-Match": t})).status_code == 304] == [tag]
    for user, since in (("pia", 4), ("nobody", 1)):
        for headers in ({}, {"If-None-Match": "*"}):
            refused = await http.get(f"/api/users/{user}/feed?since={since}", headers=headers)
            assert (refused.status_code, refused.json()["field"]) == (400, "since")
    await seeds.rebuild("pia", [cluster("a", ids)])
    api.clock.offset_ms += TRUSTED_MS + 1
    for path, tag in zip(paths, tags, strict=True):
        assert (await http.get(path, headers={"If-None-Match": tag})).status_code == 200


async def test_the_304_of_what_is_new_reads_no_payload(http, seeds: Seeds, redis) -> None:
    """With a good entry in Redis it costs what the 304 of the whole costs: no payload, no script, no PostgreSQL."""
    await _fed(seeds, "kay", "f16")
    for path, commands in (("feed", 2), ("clusters", 1)):
        url = f"/api/users/kay/{path}?since=1"
        headers = {"If-None-Match": (await http.get(url)).headers["etag"]}
        assert (await http.get(url, headers=headers)).status_code == 304
        await redis.config_resetstat()
        for _ in range(20):
            assert (await http.get(url, headers=headers)).status_code == 304
        stats = await redis.info("commandstats")
        assert stats["cmdstat_hmget"]["calls"] == 20 * commands
        assert not {"cmdstat_get", "cmdstat_evalsha", "cmdstat_hgetall"} & stats.keys()


async def test_who_knows_a_newer_version_than_redis_is_not_refused(http, seeds: Seeds) -> None:
    """A version that was just read elsewhere is valid, though Redis still serves the one before."""
    ids = await seeds.channel("f17", 5)
    await seeds.rebuild("leo", [cluster("a", ids)])
    await http.get("/api/users/leo/feed")
    await seeds.rebuild("leo", [cluster("a", ids), cluster("b", ids[:1], since=[2], born=2, changed=2)])
    answer = await http.get("/api/users/leo/feed?since=2")
    assert (answer.status_code, answer.json()["cluster_version"], answer.json()["items"]) == (200, 2, [])


async def _store_old_form(seeds: Seeds, user: str) -> None:
    """A feed as it was stored before items said since when."""
    nothing = {"born_version": 1, "changed_version": 1, "position": None, "representative": None, "insights": []}
    items = [{"cluster_id": "a", "title": "old", "summary": "", "keywords": [], "size": 1, **nothing}]
    payload = json.dumps({"user_id": user, "cluster_version": 1, "built_at": "2026-11-20T12:00:00Z", "items": items})
    await seeds.run(
        "INSERT INTO feed_documents (user_id, cluster_version, built_at, ttl_seconds, payload) VALUES ($1, 1, $2, 1e7, $3)",
        user,
        NOW,
        payload.encode(),
    )
    await seeds.run("INSERT INTO resource_versions VALUES ($1, 7, 'feed-7', '', $2)", f"feed:{user}", NOW)


async def test_a_feed_of_another_form_is_built_anew(http, api: Api, seeds: Seeds) -> None:
    """A document from before items had their version counts as aged: the next read builds another, and once."""
    for user, query in (("old-1", ""), ("old-2", "?since=0")):
        ids = await seeds.channel(f"f-{user}", 2)
        await seeds.rebuild(user, [cluster("a", ids)])
        await _store_old_form(seeds, user)
        path = f"/api/users/{user}/feed{query}"
        found = await http.get(path, headers={"If-None-Match": 'W/"feed-7"'})
        assert (found.status_code, found.headers["x-resource-version"]) == (200, "8")
        assert found.json()["items"][0]["entered"] == [[1, 2]]
        api.clock.offset_ms += TRUSTED_MS + 1
        assert (await http.get(path, headers={"If-None-Match": found.headers["etag"]})).status_code == 304


async def test_a_hundred_readers_cost_one_build(http, seeds: Seeds) -> None:
    """Concurrent first reads store one document and all get it."""
    ids = await seeds.channel("f3", 5)
    await seeds.rebuild("fred", [cluster("a", ids)])
    async with httpx2.AsyncClient(
        base_url=http.base_url, limits=httpx2.Limits(max_connections=100), timeout=30
    ) as many:
        answers = await asyncio.gather(*(many.get("/api/users/fred/feed") for _ in range(100)))
    assert len({answer.content for answer in answers}) == 1
    (row,) = await seeds.run("SELECT version FROM resource_versions WHERE key = 'feed:fred'")
    assert row["version"] == 1


async def test_two_processes_build_once(stack, seeds: Seeds, http, written: Api, chat: ChatServer) -> None:
    """A build holds the user's lock over processes: the other one waits and serves what the first stored."""
    ids = await seeds.channel("f4", 5)
    await seeds.rebuild("finn", [cluster("a", ids)])
    chat.release.clear()
    calls = len(chat.calls)
    async with written.client() as first:
        one = asyncio.create_task(first.get("/api/users/finn/feed"))
        await eventually(lambda: _true(len(chat.calls) > calls), "the model is asked")
        two = asyncio.create_task(http.get("/api/users/finn/feed"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(two), 0.3)
        chat.release.set()
        assert (await one).content == (await two).content


async def _true(value: bool) -> bool:
    return value


@pytest.mark.requirement("R0.21")
async def test_an_aged_feed_is_another_document(http, api: Api, seeds: Seeds) -> None:
    """Past its time to live the same cluster version gives a new document with a version and a tag of its own."""
    ids = await seeds.channel("f5", 5)
    await seeds.rebuild("fern", [cluster("a", ids)])
    first = await http.get("/api/users/fern/feed")
    api.clock.offset_ms += 3_601_000
    condition = {"If-None-Match": first.headers["etag"]}
    second = await http.get("/api/users/fern/feed", headers=condition)
    assert second.status_code == 200
    assert int(second.headers["x-resource-version"]) == int(first.headers["x-resource-version"]) + 1
    assert second.headers["etag"] != first.headers["etag"]
    assert second.json()["cluster_version"] == first.json()["cluster_version"]


@pytest.mark.requirement("R0.41")
async def test_no_tag_of_an_older_version_ever_gets_304(http, seeds: Seeds, redis) -> None:
    """Five versions, FLUSHALL, five more: every old tag answers 200, and versions only grow."""
    ids = await seeds.channel("f6", 5)
    tags: list[str] = []
    versions: list[int] = []
    for number in range(1, 11):
        await seeds.rebuild("gus", [cluster(f"v{number}", ids)])
        response = await _version_settles(http, "/api/users/gus/feed", number)
        tags.append(response.headers["etag"])
        versions.append(int(response.headers["x-resource-version"]))
        if number == 5:
            await redis.flushdb()
            again = await http.get("/api/users/gus/feed")
            assert again.headers["etag"] == tags[-1]
    assert versions == sorted(set(versions))
    for tag in tags[:-1]:
        assert (await http.get("/api/users/gus/feed", headers={"If-None-Match": tag})).status_code == 200
    assert (await http.get("/api/users/gus/feed", headers={"If-None-Match": tags[-1]})).status_code == 304


async def test_an_old_answer_lives_no_longer_than_its_bound(http, api: Api, seeds: Seeds) -> None:
    """With no mirror at all, a committed bump shows as soon as two seconds of trust have passed; with a position, at once."""
    ids = await seeds.channel("f7", 5)
    await seeds.rebuild("gil", [cluster("a", ids)])
    first = await http.get("/api/users/gil/feed")
    clusters = await http.get("/api/users/gil/clusters")
    await seeds.rebuild("gil", [cluster("b", ids)])
    api.clock.offset_ms += TRUSTED_MS + 1
    feed = await http.get("/api/users/gil/feed", headers={"If-None-Match": first.headers["etag"]})
    assert (feed.status_code, feed.json()["cluster_version"]) == (200, 2)
    now = await http.get("/api/users/gil/clusters", headers={"If-None-Match": clusters.headers["etag"]})
    assert (now.status_code, now.json()["cluster_version"]) == (200, 2)


@pytest.mark.requirement("R0.41")
async def test_a_mirrored_bump_of_the_clusters_shows_at_once_in_the_feed(redis_url, http, seeds: Seeds) -> None:
    """As soon as Redis knows of newer clusters, the feed made of older ones is no longer good, however fresh its entry."""
    link = await open_redis(redis_url)
    ids = await seeds.channel("f12", 5)
    for number in range(1, 6):
        await seeds.rebuild("hugo", [cluster(f"v{number}", ids)])
        (row,) = await seeds.run("SELECT version, etag, position FROM resource_versions WHERE key = 'clusters:hugo'")
        head = Head(row["version"], row["etag"], row["position"], checked_ms=time.time_ns() // 1_000_000)
        await ResourceCache(link).put("clusters:hugo", head)
        response = await http.get("/api/users/hugo/feed")
        assert response.json()["cluster_version"] == number
        condition = {"If-None-Match": response.headers["etag"]}
        assert (await http.get("/api/users/hugo/feed", headers=condition)).status_code == 304
    await link.close()


async def test_a_read_with_a_position_does_not_trust_redis(http, seeds: Seeds) -> None:
    """With X-Min-Position versions come from PostgreSQL: a bump committed this instant is seen, then also on the other page."""
    written = await http.post("/api/users/gwen/activity")
    topic, partition, offset = written.json()["positions"][0].split("/")
    await seeds.run(
        "INSERT INTO positions VALUES ('users', $1, $2, 'id', $3) "
        'ON CONFLICT ("group", topic, partition) DO UPDATE SET next = excluded.next',
        topic,
        int(partition),
        int(offset) + 1,
    )
    ids = await seeds.channel("f8", 5)
    for number in range(1, 6):
        await seeds.rebuild("gwen", [cluster(f"v{number}", ids)])
        paths = ("clusters", "feed") if number % 2 else ("feed", "clusters")
        held = {path: (await http.get(f"/api/users/gwen/{path}")).headers["etag"] for path in paths}  # fills Redis
        await seeds.rebuild("gwen", [cluster(f"w{number}", ids)])
        headers = {"X-Min-Position": f"{topic}/{partition}/{offset}"}
        response = await http.get(f"/api/users/gwen/{paths[0]}", headers=headers)
        assert response.json()["cluster_version"] == number * 2
        plain = await http.get(f"/api/users/gwen/{paths[1]}", headers={"If-None-Match": held[paths[1]]})
        assert (plain.status_code, plain.json()["cluster_version"]) == (200, number * 2)


async def test_the_304_path_is_one_round_trip_without_a_payload(http, seeds: Seeds, redis) -> None:
    """A 304 of /feed costs Redis two HMGETs in one pipeline and PostgreSQL nothing; of /clusters one."""
    ids = await seeds.channel("f9", 200)
    await seeds.rebuild("hal", [cluster("a", ids)])
    tags = {path: (await http.get(f"/api/users/hal/{path}")).headers["etag"] for path in ("feed", "clusters")}
    for path, commands in (("feed", 2), ("clusters", 1)):
        headers = {"If-None-Match": tags[path]}
        assert (await http.get(f"/api/users/hal/{path}", headers=headers)).status_code == 304  # both entries are there
        await redis.config_resetstat()
        sent = (await redis.info("stats"))["total_net_output_bytes"]
        for _ in range(20):
            assert (await http.get(f"/api/users/hal/{path}", headers=headers)).status_code == 304
        stats = await redis.info("commandstats")
        assert stats["cmdstat_hmget"]["calls"] == 20 * commands
        assert not {"cmdstat_get", "cmdstat_evalsha", "cmdstat_hgetall"} & stats.keys()
        assert (await redis.info("stats"))["total_net_output_bytes"] - sent < 20 * 400 + 20_000


@pytest.mark.requirement("R0.4")
async def test_redis_away_changes_speed_and_nothing_else(own_settings, seeds: Seeds) -> None:
    """With no Redis every read answers from PostgreSQL with the same tags and versions."""
    ids = await seeds.channel("f10", 5)
    await seeds.rebuild("ivy", [cluster("a", ids)])
    settings = own_settings(REDIS_URL="redis://127.0.0.1:1/0")
    with running_api(settings, is_awaited=False) as running:
        async with running.client() as http:

            async def is_served() -> bool:
                return (await http.get("/api/users/ivy/feed")).status_code == 200

            await eventually(is_served, "PostgreSQL is reached")
            for path in ("feed", "clusters"):
                first = await http.get(f"/api/users/ivy/{path}")
                again = await http.get(f"/api/users/ivy/{path}", headers={"If-None-Match": first.headers["etag"]})
                assert (first.status_code, again.status_code) == (200, 304)
            await seeds.rebuild("ivy", [cluster("b", ids)])
            assert (await http.get("/api/users/ivy/feed")).json()["cluster_version"] == 2

            async def is_ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await eventually(is_ready, "Kafka and the registry are reached")
            answer = await http.get("/readyz")
            assert (answer.json()["not_ready"], list(answer.json()["degraded"])) == ([], ["redis"])
            assert answer.headers["degraded"] == "redis"
            assert (await http.get("/readyz?exclude=redis")).json()["degraded"] == {}


async def test_redis_never_goes_back(redis_url) -> None:
    """An older version is refused, a newer one clears the payload and origin of the one before."""
    link = await open_redis(redis_url)
    cache = ResourceCache(link)
    new = Head(5, "feed-5", "t/0/5", 100, basis=3, expires_ms=900)
    assert await cache.put("feed:mono", new, b"five")
    assert not await cache.put("feed:mono", Head(4, "feed-4", "t/0/4", 200), b"four")
    assert await cache.heads(["feed:mono"]) == [new]
    assert await cache.payload("feed:mono", 5) == b"five"
    assert await cache.payload("feed:mono", 4) is None
    later = Head(6, "feed-6", "t/0/6", 300)
    assert await cache.put("feed:mono", later)
    assert await cache.heads(["feed:mono", "feed:none"]) == [later, None]
    assert await cache.payload("feed:mono", 6) is None
    await link.close()


async def test_an_erased_user_has_nothing_left_to_read(http, api: Api, seeds: Seeds) -> None:
    """After an erasure feed and clusters are empty under other ETags, though Redis still has the former ones."""
    ids = await seeds.channel("f11", 5)
    await seeds.rebuild("eve", [cluster("a", ids)])
    before = {path: await http.get(f"/api/users/eve/{path}") for path in ("feed", "clusters")}
    keys = ["feed:eve", "clusters:eve"]
    await seeds.run(
        "UPDATE version_floor SET value = greatest(value, (SELECT max(version) FROM resource_versions WHERE key = ANY ($1)))",
        keys,
    )
    await seeds.run("DELETE FROM resource_versions WHERE key = ANY ($1)", keys)
    for table in ("feed_documents", "user_clusters", "user_stats"):
        await seeds.run(f"DELETE FROM {table} WHERE user_id = 'eve'")
    api.clock.offset_ms += TRUSTED_MS + 1
    for path, old in before.items():
        after = await http.get(f"/api/users/eve/{path}", headers={"If-None-Match": old.headers["etag"]})
        assert after.status_code == 200
        assert after.json()["cluster_version"] == 0
        assert "f11" not in after.text
        assert int(after.headers["x-resource-version"]) >= int(old.headers["x-resource-version"])
    await seeds.rebuild("eve", [cluster("b", ids)])
    api.clock.offset_ms += TRUSTED_MS + 1
    again = await http.get("/api/users/eve/feed", headers={"If-None-Match": before["feed"].headers["etag"]})
    assert (again.status_code, again.json()["cluster_version"]) == (200, 1)


async def test_a_model_writes_the_items(written: Api, seeds: Seeds, chat: ChatServer) -> None:
    """With a model configured one call a feed writes titles and summaries, and the rest of an item stays as it is."""
    ids = await seeds.channel("m1", 5)
    await seeds.rebuild("max", [cluster("a", ids[:3]), cluster("b", ids[3:])])
    calls = len(chat.calls)
    async with written.client() as http:
        items = (await http.get("/api/users/max/feed")).json()["items"]
        assert [(item["title"], item["summary"]) for item in items] == [
            ("On kafka", "3 things"),
            ("On kafka", "2 things"),
        ]
        assert items[0]["representative"]["insight_id"] == ids[0]
        await http.get("/api/users/max/feed")
    assert len(chat.calls) == calls + 1


async def test_a_kept_title_is_not_paid_again(written: Api, seeds: Seeds, chat: ChatServer) -> None:
    """A model is asked only about clusters that none has written for, and not at all when there is none."""
    ids = await seeds.channel("m5", 6)
    kept = {"title": "Kept", "summary": "As it was.", "written_version": 1}
    await seeds.rebuild("mel", [cluster("a", ids[:3], **kept), cluster("b", ids[3:])])
    calls = len(chat.calls)
    async with written.client() as http:
        items = (await http.get("/api/users/mel/feed")).json()["items"]
        assert [(item["title"], item["summary"]) for item in items] == [
            ("Kept", "As it was."),
            ("On kafka", "3 things"),
        ]
        (asked,) = [json.loads(call["messages"][1]["content"])["clusters"] for call in chat.calls[calls:]]
        assert [one["cluster_id"] for one in asked] == ["b"]
        await seeds.rebuild("mona", [cluster("a", ids[:3], **kept), cluster("b", ids[3:], **kept)])
        chat.always = "401"  # no process notices
        items = (await http.get("/api/users/mona/feed")).json()["items"]
        chat.always = None
    assert [item["title"] for item in items] == ["Kept", "Kept"]
    assert len(chat.calls) == calls + 1


async def test_a_title_does_not_outlive_what_it_was_written_of(written: Api, seeds: Seeds, chat: ChatServer) -> None:
    """Once an insight is retracted, the title and summary of its cluster are not shown; they are written again from the rest."""
    ids = await seeds.channel("m6", 3)
    kept = {"title": "Told too much", "summary": f"What {ids[2]} said.", "written_version": 1}
    await seeds.rebuild("mat", [cluster("a", ids, **kept)])
    await seeds.run("UPDATE insights SET retracted_at = now() WHERE insight_id = $1", ids[2])
    calls = len(chat.calls)
    async with written.client() as http:
        (item,) = (await http.get("/api/users/mat/feed")).json()["items"]
    assert (item["title"], item["summary"]) == ("On kafka", "3 things")
    assert len(chat.calls) == calls + 1
    assert ids[2] not in str(chat.calls[-1])


async def test_an_old_form_that_cannot_be_built_anew_does_not_tell(
    written: Api, seeds: Seeds, chat: ChatServer
) -> None:
    """While the model fails the last document is served as stale; it does not contain the changes since a version, so that is a
    503.
    """
    ids = await seeds.channel("m7", 2)
    await seeds.rebuild("mo", [cluster("a", ids)])
    await _store_old_form(seeds, "mo")
    chat.always = "401"
    async with written.client() as http:
        plain, since = [await http.get(f"/api/users/mo/feed{query}") for query in ("", "?since=0")]
    chat.always = None
    assert (plain.status_code, plain.headers["x-stale"], plain.json()["items"][0]["title"]) == (200, "true", "old")
    assert (since.status_code, "retry-after" in since.headers) == (503, True)


async def test_what_is_new_may_be_stale_too(written: Api, seeds: Seeds, chat: ChatServer) -> None:
    """While the model fails the last document answers `since`, marked stale, also to who knows a newer version."""
    ids = await seeds.channel("m8", 3)
    await seeds.rebuild("mae", [cluster("a", ids)])
    async with written.client() as http:
        await http.get("/api/users/mae/feed")
        await seeds.rebuild("mae", [cluster("b", ids, since=[2, 2, 2], born=2, changed=2)])
        chat.always = "401"
        written.clock.offset_ms += TRUSTED_MS + 1
        answers = [await http.get(f"/api/users/mae/feed?since={since}") for since in (0, 2, 3)]
        chat.always = None
    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert [[one["cluster_id"] for one in answer.json()["items"]] for answer in answers[:2]] == [["a"], []]
    assert {answer.headers["x-stale"] for answer in answers[:2]} == {"true"}


async def test_a_model_that_recovers_within_its_attempts_is_not_seen(
    written: Api, seeds: Seeds, chat: ChatServer
) -> None:
    """A 500 and a 429 with Retry-After are tried again; the reader gets a fresh document."""
    ids = await seeds.channel("m2", 5)
    await seeds.rebuild("may", [cluster("a", ids)])
    chat.script.extend(["500", "429"])
    async with written.client() as http:
        response = await http.get("/api/users/may/feed")
    assert response.status_code == 200
    assert "x-stale" not in response.headers


@pytest.mark.requirement("R0.40")
async def test_a_failed_model_serves_the_last_document_as_stale(written: Api, seeds: Seeds, chat: ChatServer) -> None:
    """Without an earlier document 503 with Retry-After; with one, that one unchanged, marked stale in headers only."""
    ids = await seeds.channel("m3", 5)
    await seeds.rebuild("mia", [cluster("a", ids)])
    async with written.client() as http:
        chat.always = "401"
        refused = await http.get("/api/users/mia/feed")
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
        assert int(refused.headers["retry-after"]) >= 1
        calls = len(chat.calls)
        assert (await http.get("/api/users/mia/feed")).status_code == 503
        assert len(chat.calls) == calls  # it is left alone for a moment
        chat.always = None
        await eventually(lambda: _answers(http, "mia"), "the model is asked again")
        good = await http.get("/api/users/mia/feed")
        await seeds.rebuild("mia", [cluster("b", ids)])
        chat.always = "401"
        written.clock.offset_ms += TRUSTED_MS + 1
        stale = await http.get("/api/users/mia/feed")
        chat.always = None
    assert stale.status_code == 200
    assert stale.content == good.content
    assert (stale.headers["x-stale"], stale.headers["cache-control"]) == ("true", "no-store")
    assert stale.headers["etag"] == good.headers["etag"]
    assert "x-stale" not in good.headers


async def _answers(http: httpx2.AsyncClient, user: str) -> bool:
    return (await http.get(f"/api/users/{user}/feed")).status_code == 200


@pytest.mark.parametrize("step", ["500", "401", "html", "broken", "half", "prose"])
async def test_every_kind_of_nonsense_is_one_error(chat: ChatServer, step: str) -> None:
    """Error pages, half documents and prose all end in ModelError, for any error of the client library."""
    model = ChatModel(
        ChatEndpoint(chat.url, None, seconds_max=30), "m", policy=RetryPolicy(first_ms=1, most_ms=1, attempts_max=2)
    )
    chat.script.extend([step, step])
    with pytest.raises(ModelError):
        await model.object_for("system", '{"clusters": []}')
    chat.script.clear()
    await model.close()


async def test_silence_ends_at_the_time_limit(chat: ChatServer) -> None:
    """A model that does not answer costs its time limit and no more."""
    model = ChatModel(ChatEndpoint(chat.url, None, seconds_max=0.3), "m", seconds_max=0.3)
    chat.release.clear()
    try:
        async with asyncio.timeout(5):
            with pytest.raises(ModelError):
                await model.object_for("system", '{"clusters": []}')
    finally:
        chat.release.set()
        await model.close()


async def test_a_reader_who_leaves_does_not_end_the_build(written: Api, seeds: Seeds, chat: ChatServer) -> None:
    """The build continues for the other readers and is stored, though the reader that started it has left."""
    ids = await seeds.channel("m4", 5)
    await seeds.rebuild("moe", [cluster("a", ids)])
    chat.release.clear()
    calls = len(chat.calls)
    async with written.client() as http:
        leaving = asyncio.create_task(http.get("/api/users/moe/feed"))
        await eventually(lambda: _true(len(chat.calls) > calls), "the model is asked")
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        chat.release.set()
        assert (await http.get("/api/users/moe/feed")).status_code == 200
    assert len(chat.calls) == calls + 1
