"""Explanations over a real log: a served result is followed back to the insight, by the library, the API and its roles."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from highwater.api.core import errors
from highwater.api.core.paths import RouteOnRawPath
from highwater.api.explain import routes as explain
from highwater.api.wiring import make_wiring
from highwater.connectors.explain.explaining import Explainer, UnknownResourceError
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.connectors.kafka.producer import PARTITIONER
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.postgres.pool import open_pool
from highwater.schemas.codec import Codec
from highwater.schemas.positions import Position
from highwater.schemas.topics import PARTITIONS
from highwater.streams.clock import ProductClock, to_datetime
from tests.integration.api_server import Seeds, cluster
from tests.integration.connecting import fresh, send, until

NOW_MS = 1_795_000_000_000
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
# Events without a cause, as a foreign producer writes them.
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01".encode()
KINDS = ["insight", "advance", "dirty", "novelty", "request", "rebuild", "bump", "served"]


@pytest.fixture
async def explainer(stack, seeds: Seeds, codec: Codec) -> AsyncIterator[Explainer]:
    """An explainer over the session's log and this module's database."""
    settings = stack.settings()
    registry = Registry(settings.registry_access())
    async with await open_pool(seeds.url, size_max=2) as pool:
        yield Explainer(pool, codec, settings.kafka_client(), registry.text_of)


class Log:
    """Events as the parts of the product would write them."""

    def __init__(self, kafka: str, codec: Codec) -> None:
        self._kafka = kafka
        self._codec = codec

    def add(
        self, topic: str, key: str | None, value: dict[str, Any], cause: Position | None = None, **place: int
    ) -> Position:
        """One event; its position."""
        headers = [("traceparent", TRACEPARENT)] if cause is None else [("ce_causedby", str(cause).encode())]
        record = (None if key is None else key.encode(), self._codec.encode(topic, value), headers)
        partition = place.get("partition")
        return send(
            self._kafka, topic, [record if partition is None else (*record, partition)], partitioner=PARTITIONER
        )[0]


async def _feed(log: Log, seeds: Seeds, user: str, channel: str) -> dict[str, Position]:
    """Publish two insights for the feed of a user, and store them in the log and in PostgreSQL."""
    places: dict[str, Position] = {}
    for seq in (1, 2):
        insight = {
            "insight_id": f"{channel}#{seq}", "channel_id": channel, "ts": NOW_MS, "text": f"commit {seq}", "url": None,
            "embedding": None, "embedding_model": None,
        }  # fmt: skip
        sent_ms = ProductClock()()
        places[f"insight-{seq}"] = cause = log.add("feeds.insight-ingested", channel, insight)
        advanced = {"channel_id": channel, "head": seq, "arrived_at": NOW_MS}
        places[f"advance-{seq}"] = log.add("feeds.channel-advanced", channel, advanced, cause)
        await seeds.run(
            "INSERT INTO insights (insight_id, channel_id, seq, ts, arrived_at, text, source_partition, source_offset) "
            "VALUES ($1, $2, $3, $7, $7, $4, $5, $6)",
            insight["insight_id"], channel, seq, f"commit {seq}", cause.partition, cause.offset,
            to_datetime(sent_ms),
        )  # fmt: skip
    dirty = {"channel_id": channel, "head": 2, "dirty_since": NOW_MS, "tick": 7, "now": NOW_MS}
    places["dirty"] = log.add("feeds.channel-dirty", channel, dirty)
    heads = {"heads": [{"channel_id": channel, "head": 2, "users": [user]}]}
    of_user = murmur2_partition(user.encode(), PARTITIONS)
    places["novelty"] = log.add("feeds.novelty", None, heads, places["dirty"], partition=of_user)
    requested = {
        "user_id": user, "trigger": "novelty", "forced": False, "planned_at": NOW_MS, "tick_position": "streams.tick/0/1",
        "pending": 2, "plan": "pro", "last_active_at": NOW_MS, "last_clustered_at": None, "last_checked_at": None,
        "last_enqueued_at": None, "policy_hash": "h",
    }  # fmt: skip
    places["request"] = request = log.add("feeds.rebuild-requested", user, requested)
    finished = {
        "user_id": user, "request_position": str(request), "outcome": "rebuilt", "reason": "", "cluster_version": 1,
        "hwm": {channel: 2}, "last_clustered_at": NOW_MS, "last_checked_at": None, "finished_at": NOW_MS,
    }  # fmt: skip
    places["rebuild"] = log.add("feeds.rebuild-finished", user, finished, request)
    await seeds.rebuild(user, [cluster("a", [f"{channel}#1", f"{channel}#2"])])
    await seeds.run(
        "UPDATE user_clusters SET hwm = $2, caused_by = $3 WHERE user_id = $1",
        user,
        json.dumps({channel: 2}),
        str(request),
    )
    await seeds.run(
        "INSERT INTO feed_documents (user_id, cluster_version, built_at, ttl_seconds, payload) VALUES ($1, 1, now(), 60, '')",
        user,
    )
    for name, key in (("bump", f"clusters:{user}"), ("served", f"feed:{user}")):
        if name == "served":
            await seeds.run(QUERIES["bump_version"], key, str(request), to_datetime(ProductClock()()), None)
        (row,) = await seeds.run("SELECT version, etag FROM resource_versions WHERE key = $1", key)
        bumped = {**dict(row), "key": key, "caused_by": str(request), "bumped_at": NOW_MS, "reason": ""}
        places[name] = log.add("cache.version-bumped", key, bumped, request)
    return places


async def test_a_feed_leads_back_to_the_first_insight(stack, seeds: Seeds, codec: Codec, explainer: Explainer) -> None:
    """Every step is found at its place in the log, in the order of time; what carries a trace links to it."""
    user, channel = fresh("user"), fresh("channel/with slash")
    places = await _feed(Log(stack.kafka, codec), seeds, user, channel)
    document = (await explainer.feed(user)).document("https://traces.example.org/{trace_id}")
    traced = [step["kind"] for step in document["chain"] if step["trace_id"] == TRACE_ID]
    assert traced == ["insight", "dirty", "request"]
    assert document["chain"][0]["trace_url"] == f"https://traces.example.org/{TRACE_ID}"
    assert [step["trace_url"] for step in document["chain"] if step["trace_id"] is None] == [None] * 5
    assert [step["kind"] for step in document["chain"]] == KINDS
    expected = [places[name] for name in ("insight-1", "advance-1", *KINDS[2:])]
    assert [str(place) for place in expected] == [step["position"] for step in document["chain"]]
    assert [step["missing"] for step in document["chain"]] == [None] * 8
    assert all(step["delay_ms"] >= 0 for step in document["chain"][:-1])
    again = (await explainer.resource(f"clusters:{user}")).document()
    assert again["chain"] == [{**step, "trace_url": None} for step in document["chain"]]
    assert "commit 1" in json.dumps(document)
    await seeds.run("UPDATE insights SET retracted_at = now() WHERE insight_id = $1", f"{channel}#1")
    told = (await explainer.feed(user)).document()
    assert "commit 1" not in json.dumps(told)
    assert [step["position"] for step in told["chain"]] == [step["position"] for step in document["chain"]]


async def test_a_cluster_leads_to_its_rebuild_and_its_insights(
    stack, seeds: Seeds, codec: Codec, explainer: Explainer
) -> None:
    """Each member has its place in the log, under the rebuild in which it entered; a missing cluster is refused."""
    user, channel = fresh("user"), fresh("channel")
    places = await _feed(Log(stack.kafka, codec), seeds, user, channel)
    tree = (await explainer.cluster(user, "a", NOW_MS)).document()["tree"]
    assert (tree["kind"], tree["numbers"]["size"], tree["numbers"]["cluster_version"]) == ("cluster", 2, 1)
    (rebuild,) = tree["causes"]
    assert (rebuild["kind"], rebuild["position"], rebuild["missing"]) == ("rebuild", str(places["request"]), None)
    members = {one["numbers"]["insight_id"]: one["position"] for one in rebuild["causes"]}
    assert members == {f"{channel}#{number}": str(places[f"insight-{number}"]) for number in (1, 2)}
    with pytest.raises(UnknownResourceError, match="no cluster 'zz'"):
        await explainer.cluster(user, "zz", NOW_MS)


async def test_a_user_nobody_has_heard_of_has_an_empty_feed(explainer: Explainer) -> None:
    """As the feed itself does: version 0 and no items."""
    document = (await explainer.feed(fresh("nobody"))).document()
    assert (document["version"], document["etag"], len(document["chain"])) == (0, None, 1)


async def test_a_key_that_nothing_is_stored_under_is_refused(explainer: Explainer) -> None:
    """A page that was never asked for has no version."""
    with pytest.raises(UnknownResourceError, match="league:table:none"):
        await explainer.resource("league:table:none")


async def _page(log: Log, seeds: Seeds, season: str) -> dict[str, Position]:
    finalized = {"match_id": "m", "season": season, "home_goals": 2, "away_goals": 1, "finalized_at": NOW_MS}
    places = {"event": log.add("league.match-finalized", season, finalized)}
    changed = {
        "match_id": "m", "season": season, "changed": ["result"], "kickoff": NOW_MS, "status": "finished", "state": "final",
        "home": "A", "away": "B", "former_teams": [], "home_goals": 2, "away_goals": 1, "finalized_at": NOW_MS, "revision": 4,
    }  # fmt: skip
    places["change"] = log.add("league.match-changed", season, changed, places["event"])
    key = f"league:table:{season}"
    refresh = {"scope": season, "keys": [key], "dropped": [], "reason": "match-changed", "planned_at": NOW_MS}
    places["request"] = log.add("league.refresh-requested", season, refresh, places["change"])
    await seeds.run(QUERIES["bump_version"], key, str(places["event"]), to_datetime(ProductClock()()), None)
    (row,) = await seeds.run("SELECT version, etag FROM resource_versions WHERE key = $1", key)
    bumped = {
        **dict(row),
        "key": key,
        "caused_by": str(places["event"]),
        "bumped_at": NOW_MS,
        "reason": "match-changed",
    }
    places["bump"] = log.add("cache.version-bumped", key, bumped, places["event"])
    return places


async def test_a_page_leads_back_to_the_result(stack, seeds: Seeds, codec: Codec, explainer: Explainer) -> None:
    """Result, change, request, bump; the page is served under the bump's version."""
    season = fresh("season")
    places = await _page(Log(stack.kafka, codec), seeds, season)
    document = (await explainer.resource(f"league:table:{season}")).document()
    assert [step["kind"] for step in document["chain"]] == ["event", "change", "request", "bump", "served"]
    assert [str(place) for place in places.values()] == [step["position"] for step in document["chain"][:-1]]


async def test_a_season_is_read_whole_from_the_log(stack, seeds: Seeds, codec: Codec, explainer: Explainer) -> None:
    """Its changes in order, none of another season of the same partition; an unknown one has none."""
    season, log = fresh("season"), Log(stack.kafka, codec)
    place = (await _page(log, seeds, season))["change"]
    other = {
        "match_id": "x", "season": "other", "changed": ["result"], "kickoff": NOW_MS, "status": "scheduled",
        "state": "scheduled", "home": "A", "away": "B", "former_teams": [], "home_goals": None, "away_goals": None,
        "finalized_at": None, "revision": 5,
    }  # fmt: skip
    log.add("league.match-changed", "other", other, partition=place.partition)
    again = log.add("league.match-changed", season, {**other, "match_id": "m", "season": season})
    found = await explainer.season(season)
    assert [change.by.position for change in found.changes] == [str(place), str(again)]
    assert found.is_complete
    assert (await explainer.season("none")).changes == ()


@pytest.fixture
async def http(stack, seeds: Seeds) -> AsyncIterator[httpx2.AsyncClient]:
    """The routes alone, with a key of each kind."""
    settings = stack.settings(DATABASE_URL=seeds.url, HIGHWATER_API_KEYS="viewer:v,viewer:own:alice,admin:a")
    wiring = make_wiring(settings, ProductClock())
    app = FastAPI()
    app.include_router(explain.router)
    app.add_middleware(RouteOnRawPath)
    errors.install(app)
    wiring.install(app)
    await wiring.start()
    await until(lambda: not wiring.services.not_ready(), "the parts are reached")
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://x", headers={"Authorization": "Bearer a"}
    ) as client:
        yield client
    await wiring.close()


async def test_the_api_answers_the_same(stack, seeds: Seeds, codec: Codec, http: httpx2.AsyncClient) -> None:
    """By path, percent-encoded; a key without a version is 404, and nothing of it may be cached."""
    user, season = fresh("user/a"), fresh("season")
    await _feed(Log(stack.kafka, codec), seeds, user, fresh("channel"))
    await _page(Log(stack.kafka, codec), seeds, season)
    quoted = user.replace("/", "%2F")
    answer = await http.get(f"/api/explain/feed/{quoted}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["chain"][0]["position"].startswith("feeds.insight-ingested/")
    assert answer.headers["cache-control"] == "no-store"
    same = await http.get(f"/api/explain/resource/feed:{quoted}")
    assert same.json()["chain"] == answer.json()["chain"]
    page = await http.get(f"/api/explain/resource/league:table:{season}")
    assert page.json()["chain"][0]["kind"] == "event"
    assert (await http.get("/api/explain/resource/league:table:none")).status_code == 404


async def test_whoever_may_not_read_may_not_have_it_explained(http: httpx2.AsyncClient) -> None:
    """A key bound to a user explains that user's own; pages for administrators are theirs."""
    own, viewer = {"Authorization": "Bearer own"}, {"Authorization": "Bearer v"}
    for path in ("feed/bob", "resource/feed:bob", "resource/clusters:bob", "resource/predictions:user:bob"):
        assert (await http.get(f"/api/explain/{path}", headers=own)).status_code == 403, path
    assert (await http.get("/api/explain/feed/alice", headers=own)).status_code == 200
    assert (await http.get("/api/explain/resource/admin:stats", headers=viewer)).status_code == 403
    assert (await http.get("/api/explain/resource/admin:stats")).status_code == 404
    assert (await http.get("/api/explain/feed/bob", headers={"Authorization": "Bearer no"})).status_code == 401
