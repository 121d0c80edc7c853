"""The feed document: built on read, served by version, never a stale 304 beyond the stated bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from connectors.llm.chat import ChatModel, ModelError
from connectors.stores.redis import TRUSTED_MS, Head, ResourceCache, open_redis
from streams.retry import RetryPolicy
from tests.integration.api_server import Api, Seeds, cluster, eventually, make_database, running_api
from tests.integration.chat_server import ChatServer


def _redis_url(stack) -> str:
    return f"{stack.redis.rsplit('/', 1)[0]}/6"


@pytest.fixture(scope="module")
async def seeds(stack) -> Seeds:
    """A database of this module's own."""
    return Seeds(await make_database(stack.database, "feed_test"))


@pytest.fixture(scope="module")
def api(stack, seeds: Seeds) -> Iterator[Api]:
    """An API whose feeds are extractive."""
    with running_api(stack.settings(DATABASE_URL=seeds.url, REDIS_URL=_redis_url(stack))) as running:
        yield running


@pytest.fixture
async def http(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with api.client() as client:
        yield client


@pytest.fixture
async def redis(stack) -> AsyncIterator[Any]:
    """A client of the Redis number of this module."""
    client = Redis.from_url(_redis_url(stack))
    yield client
    await client.aclose()


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatServer]:
    """A language model that misbehaves on order."""
    server = ChatServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def written(stack, seeds: Seeds, chat: ChatServer) -> Iterator[Api]:
    """An API whose feeds are written by that model."""
    settings = stack.settings(DATABASE_URL=seeds.url, REDIS_URL=_redis_url(stack), LLM_BASE_URL=chat.url)
    with running_api(settings) as running:
        yield running


async def _version_settles(http: httpx.AsyncClient, path: str, version: int) -> httpx.Response:
    found: list[httpx.Response] = []

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
    assert ids[0] not in str(item)
    assert item["representative"]["insight_id"] in ids[1:]


async def test_a_hundred_readers_cost_one_build(http, seeds: Seeds) -> None:
    """Concurrent first reads store one document and all get it."""
    ids = await seeds.channel("f3", 5)
    await seeds.rebuild("fred", [cluster("a", ids)])
    async with httpx.AsyncClient(base_url=http.base_url, limits=httpx.Limits(max_connections=100), timeout=30) as many:
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


async def test_a_mirrored_bump_of_the_clusters_shows_at_once_in_the_feed(stack, http, seeds: Seeds) -> None:
    """As soon as Redis knows of newer clusters, the feed made of older ones is no longer good, however fresh its entry."""
    link = await open_redis(_redis_url(stack))
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
    """With X-Min-Position versions come from PostgreSQL: a bump committed this instant is seen."""
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
        await http.get("/api/users/gwen/clusters")  # fills Redis
        await seeds.rebuild("gwen", [cluster(f"w{number}", ids)])
        headers = {"X-Min-Position": f"{topic}/{partition}/{offset}"}
        for path in ("clusters", "feed"):
            response = await http.get(f"/api/users/gwen/{path}", headers=headers)
            assert response.json()["cluster_version"] == number * 2


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


async def test_redis_away_changes_speed_and_nothing_else(stack, seeds: Seeds) -> None:
    """With no Redis every read answers from PostgreSQL with the same tags and versions."""
    ids = await seeds.channel("f10", 5)
    await seeds.rebuild("ivy", [cluster("a", ids)])
    settings = stack.settings(DATABASE_URL=seeds.url, REDIS_URL="redis://127.0.0.1:1/0")
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
            assert (await http.get("/readyz")).json()["not_ready"] == ["redis"]
            assert (await http.get("/readyz?exclude=redis")).status_code == 200


async def test_redis_never_goes_back(stack) -> None:
    """An older version is refused, a newer one clears the payload and origin of the one before."""
    link = await open_redis(_redis_url(stack))
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
    """After an erasure feed and clusters are empty under other tags, though Redis still holds what was there."""
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
        assert [(item["title"], item["summary"]) for item in items] == [("On a", "3 things"), ("On b", "2 things")]
        assert items[0]["representative"]["insight_id"] == ids[0]
        await http.get("/api/users/max/feed")
    assert len(chat.calls) == calls + 1


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


async def _answers(http: httpx.AsyncClient, user: str) -> bool:
    return (await http.get(f"/api/users/{user}/feed")).status_code == 200


@pytest.mark.parametrize("step", ["500", "401", "html", "broken", "half", "prose"])
async def test_every_kind_of_nonsense_is_one_error(chat: ChatServer, step: str) -> None:
    """Error pages, half documents and prose all end in ModelError, whatever the client library makes of them."""
    model = ChatModel(chat.url, None, "m", policy=RetryPolicy(first_ms=1, most_ms=1, attempts_max=2))
    chat.script.extend([step, step])
    with pytest.raises(ModelError):
        await model.object_for("system", '{"clusters": []}')
    chat.script.clear()
    await model.close()


async def test_silence_ends_at_the_time_limit(chat: ChatServer) -> None:
    """A model that does not answer costs its time limit and no more."""
    model = ChatModel(chat.url, None, "m", seconds_max=0.3)
    chat.release.clear()
    try:
        async with asyncio.timeout(5):
            with pytest.raises(ModelError):
                await model.object_for("system", '{"clusters": []}')
    finally:
        chat.release.set()
        await model.close()


async def test_a_reader_who_leaves_does_not_end_the_build(written: Api, seeds: Seeds, chat: ChatServer) -> None:
    """The build goes on for the others and is stored, though the reader that started it is gone."""
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
