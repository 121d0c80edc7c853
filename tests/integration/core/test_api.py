"""The HTTP API over real parts: publishing, reads, conditions, freshness, identifiers in paths, roles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from confluent_kafka import Consumer, TopicPartition

from highwater.api.core.freshness import SUBSCRIPTION_TOPICS
from highwater.connectors.kafka.murmur2 import murmur2_partition
from highwater.schemas.envelope import header
from highwater.schemas.positions import parse_position
from highwater.schemas.topics import TOPICS
from highwater.streams.settings import read_settings
from tests.integration.api_server import NOW, Api, Seeds, cluster, eventually, running_api
from tests.integration.connecting import free_port, until
from tests.integration.jobs.watching import store_job
from tests.integration.queries.pipeline import store_run
from tests.integration.records import ends, record_at

KEYS = "admin:root-key,editor:pen-key,viewer:eye-key,editor:ada-key:ada"


def _insight(insight_id: str, channel: str = "ch") -> dict[str, Any]:
    return {"insight_id": insight_id, "channel_id": channel, "ts": "2026-11-20T12:00:00Z", "text": "hello"}


def _problem(response: httpx2.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    return document


async def test_it_starts_without_its_parts_and_names_them() -> None:
    """With every service unavailable the API runs, names them, and answers 503 with Retry-After instead of hanging."""
    port = free_port()
    settings = read_settings(
        {
            "KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
            "SCHEMA_REGISTRY_URL": f"http://127.0.0.1:{port}",
            "DATABASE_URL": f"postgresql://x@127.0.0.1:{port}/x",
            "REDIS_URL": f"redis://127.0.0.1:{port}",
        }
    )
    with running_api(settings, is_awaited=False) as running:
        async with running.client() as client:
            assert (await client.get("/healthz")).status_code == 200
            document = _problem(await client.get("/readyz"), 503)
            assert document["not_ready"] == ["database", "kafka", "schema_registry"]
            assert list(document["degraded"]) == ["redis"]
            for path in ("/api/users/ada/feed", "/api/channels"):
                response = await client.get(path)
                _problem(response, 503)
                assert int(response.headers["retry-after"]) >= 1
            _problem(await client.post("/api/users/ada/activity"), 503)
            assert (await client.get("/")).status_code == 200


async def test_a_restore_in_progress_is_told(http, seeds: Seeds) -> None:
    """While a database is being restored the API is ready and says that its answers may be old; afterwards no more."""

    async def published() -> str | None:
        document = (await http.get("/readyz")).json()
        assert document["ready"]
        found: str | None = document["degraded"].get("restore")
        return found

    async def is_told() -> bool:
        return "a restore from /backups/1 is in progress" in (await published() or "")

    async def is_over() -> bool:
        return await published() is None

    await seeds.run("INSERT INTO restore_progress (began_at, source) VALUES (now(), '/backups/1')")
    try:
        await until(is_told, "the restore is told")
    finally:
        await seeds.run("DELETE FROM restore_progress")
    await until(is_over, "it is told no more")


async def test_an_event_is_produced_with_its_key_headers_and_schema(stack, http, codec) -> None:
    """POST of one event answers 202 with the position of a record that carries the topic's key and CloudEvents headers."""
    response = await http.post("/api/events/feeds.insight-ingested", json=_insight("i-1", "aio-libs/aiokafka"))
    assert response.status_code == 202, response.text
    (text,) = response.json()["positions"]
    message = record_at(stack, text)
    assert message.key() == b"aio-libs/aiokafka"
    assert codec.decode("feeds.insight-ingested", message.value())["insight_id"] == "i-1"
    assert header(message.headers(), "ce_type") == "feeds.insight-ingested"
    assert header(message.headers(), "ce_source") == "/api"


LINES = {"Content-Type": "application/x-ndjson"}


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "application/json"])
async def test_lines_keep_their_order_per_key(http, content_type: str) -> None:
    """NDJSON, named or recognised, is produced in order: one key's offsets rise with its lines."""
    body = "\n".join(json.dumps(_insight(f"o-{n}", "ordered")) for n in range(20)) + "\n"
    headers = {"content-type": content_type}
    response = await http.post("/api/events/feeds.insight-ingested", content=body, headers=headers)
    offsets = [parse_position(text).offset for text in response.json()["positions"]]
    assert offsets == sorted(offsets)
    assert len(set(offsets)) == 20


async def test_one_bad_line_keeps_all_from_being_produced(stack, http) -> None:
    """A line that breaks a rule is named with its number and field, and no line of that request is produced."""
    before = ends(stack, "feeds.insight-ingested")
    good = json.dumps(_insight("good"))
    for bad, field in (
        ({**_insight("bad"), "ts": "yesterday"}, "ts"),
        ({**_insight("bad"), "channel_id": ""}, "channel_id"),
        ({**_insight("bad"), "colour": 1}, "colour"),
        ({**_insight("bad"), "embedding": [1.0, 2.0]}, "embedding"),
    ):
        body = f"{good}\n\n{json.dumps(bad)}\n"
        response = await http.post("/api/events/feeds.insight-ingested", content=body, headers=LINES)
        document = _problem(response, 422)
        assert (document["line"], document["field"]) == (3, field)
    assert ends(stack, "feeds.insight-ingested") == before


async def test_what_cannot_be_published_is_refused(http) -> None:
    """Unknown topics are 404, internal ones 403, text that is not JSON 422, more than 16 MiB 413, other methods 405."""
    _problem(await http.post("/api/events/nope", json={}), 404)
    _problem(await http.post("/api/events/feeds.novelty", json={}), 403)
    _problem(await http.post("/api/events/feeds.user-active", content=b"{", headers=LINES), 422)
    _problem(await http.post("/api/events/feeds.user-active", content=b""), 422)
    _problem(
        await http.post("/api/events/feeds.user-active", content=b"x" * (16 * 1024 * 1024 + 1), headers=LINES), 413
    )

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * 1024 * 1024

    _problem(await http.post("/api/events/feeds.user-active", content=drip(), headers=LINES), 413)
    _problem(await http.get("/api/events/feeds.user-active"), 405)
    _problem(await http.get("/api/nothing"), 404)


@pytest.mark.parametrize("channel", ["aio-libs/aiokafka", "a b", "grün/日本", "100%25", "x?y#z", "a+b;c=d", "%2F"])
async def test_an_identifier_is_one_segment_however_it_is_spelled(http, seeds: Seeds, channel: str) -> None:
    """A percent-encoded id reaches the store as it is: slashes, spaces, percent signs and other scripts."""
    from urllib.parse import quote

    (insight_id,) = await seeds.channel(channel, 1)
    name = quote(channel, safe="")
    response = await http.get(f"/api/channels/{name}")
    assert response.json()["channel_id"] == channel
    insight = await http.get(f"/api/insights/{name}/{quote(insight_id, safe='')}")
    assert insight.json()["insight_id"] == insight_id
    if "/" in channel:
        _problem(await http.get(f"/api/channels/{channel}"), 404)


async def test_a_path_that_is_not_utf8_is_refused(http) -> None:
    """Bytes that are no text are a 422, not a 500."""
    _problem(await http.get("/api/channels/%ff"), 422)


async def test_subscriptions_are_an_event_first(stack, http, codec, seeds: Seeds) -> None:
    """PUT of subscriptions is produced as the set given without repeats, and GET reads what the sink stored."""
    response = await http.put("/api/users/su%2Fb/subscriptions", json={"channels": ["b", "a", "b"]})
    assert response.status_code == 202
    message = record_at(stack, response.json()["positions"][0])
    event = codec.decode("feeds.subscriptions-replaced", message.value())
    assert (message.key(), event["channels"]) == (b"su/b", ["b", "a"])
    await seeds.user("su/b", ["a", "b", "c"])
    page = (await http.get("/api/users/su%2Fb/subscriptions?limit=2")).json()
    assert page["channels"] == ["a", "b"]
    rest = (await http.get(f"/api/users/su%2Fb/subscriptions?cursor={page['next_cursor']}")).json()
    assert (rest["channels"], rest["next_cursor"]) == (["c"], None)


@pytest.mark.parametrize(("method", "subscribed"), [("PUT", True), ("DELETE", False)])
async def test_one_subscription_is_an_event(stack, http, codec, method: str, subscribed: bool) -> None:
    """A channel of the path is subscribed to, or unsubscribed from, without the others; one that is too long is a 422."""
    response = await http.request(method, "/api/users/su%2Fb/subscriptions/apache%2Fkafka")
    assert response.status_code == 202
    message = record_at(stack, response.json()["positions"][0])
    event = codec.decode("feeds.subscription-changed", message.value())
    assert (message.key(), event["channel_id"], event["subscribed"]) == (b"su/b", "apache/kafka", subscribed)
    _problem(await http.request(method, f"/api/users/u/subscriptions/{'x' * 513}"), 422)


@pytest.mark.parametrize("channels", [["a\u0000b"], [""], [f"c{n}" for n in range(1_001)], ["x" * 513]])
async def test_subscriptions_are_bounded(http, channels: list[str]) -> None:
    """Control characters, empty and long ids, and more than 1,000 channels are a 422 that names the field."""
    assert (
        _problem(await http.put("/api/users/u/subscriptions", json={"channels": channels}), 422)["field"] == "channels"
    )


async def test_a_body_of_another_form_names_its_field(http) -> None:
    """A missing, mistyped or unknown field of a JSON body is a 422 that names it."""
    assert _problem(await http.put("/api/users/u/plan", json={}), 422)["field"] == "plan"
    assert _problem(await http.put("/api/users/u/plan", json={"plan": 3}), 422)["field"] == "plan"
    unknown = _problem(await http.put("/api/users/u/plan", json={"plan": "gold"}), 422)
    assert (unknown["field"], "free" in unknown["detail"]) == ("plan", True)
    assert _problem(await http.put("/api/users/u/plan", json={"plan": "pro", "x": 1}), 422)["field"] == "x"


@pytest.mark.parametrize(
    ("method", "path", "topic"),
    [
        ("PUT", "plan", "feeds.plan-changed"),
        ("POST", "activity", "feeds.user-active"),
        ("POST", "rebuild", "feeds.rebuild-demanded"),
        ("DELETE", "data", "feeds.user-erased"),
    ],
)
async def test_each_write_is_an_event_of_its_topic(
    stack, http, codec, seeds: Seeds, method: str, path: str, topic: str
) -> None:
    """Plan, activity, rebuild and erasure are each an event keyed by the user."""
    await seeds.user("wanda", [])
    body = {"plan": "pro"} if path == "plan" else None
    response = await http.request(method, f"/api/users/wanda/{path}", json=body)
    assert response.status_code == 202
    position = parse_position(response.json()["positions"][0])
    message = record_at(stack, position)
    assert (position.topic, message.key()) == (topic, b"wanda")
    assert codec.decode(topic, message.value())["user_id"] == "wanda"


async def test_a_mistyped_user_is_not_rebuilt(stack, http, seeds: Seeds) -> None:
    """404 names the user and nothing is published; while the sink of users is behind it is the sink that decides."""
    before, partition = ends(stack, "feeds.rebuild-demanded"), murmur2_partition(b"nobody", 8)
    for topic in SUBSCRIPTION_TOPICS | {"feeds.user-active", "feeds.plan-changed"}:
        if end := ends(stack, topic)[partition]:
            await seeds.account_for(f"{topic}/{partition}/{end - 1}")
    assert "nobody" in _problem(await http.post("/api/users/nobody/rebuild"), 404)["detail"]
    assert ends(stack, "feeds.rebuild-demanded") == before
    assert (await http.put("/api/users/nobody/plan", json={"plan": "pro"})).status_code == 202
    assert (await http.post("/api/users/nobody/rebuild")).status_code == 202  # no sink reads here


async def test_a_repeat_with_other_content_is_told_at_once(http, seeds: Seeds) -> None:
    """`X-Conflicts` counts and `conflicts` names the events whose id is known with other content, within the body too."""
    await seeds.insert(
        "insights", insight_id="known", channel_id="ch", seq=1, ts=NOW, arrived_at=NOW, text="first", source_partition=0,
        source_offset=10**9,
    )  # fmt: skip
    new = _insight("quite-new")
    lines = [
        _insight("known"),
        {**_insight("known"), "ts": NOW.isoformat(), "text": "first"},
        new,
        {**new, "text": "other"},
        new,
    ]
    response = await http.post(
        "/api/events/feeds.insight-ingested", content="\n".join(map(json.dumps, lines)), headers=LINES
    )
    document = response.json()
    assert (response.status_code, response.headers["x-conflicts"]) == (202, "2")
    assert document["conflicts"] == [document["positions"][0], document["positions"][3]]
    same = await http.post("/api/events/feeds.insight-ingested", json=_insight("said-once"))
    assert ("x-conflicts" in same.headers, "conflicts" in same.json()) == (False, False)


@pytest.mark.parametrize("topic", ["queries.query-submitted", "jobs.job-submitted"])
async def test_a_job_or_query_that_repeats_with_other_content_is_told_at_once(http, seeds: Seeds, topic: str) -> None:
    """`X-Conflicts` and `conflicts`, as for insights: compared with the stored one, and within the body; an equal repeat is not
    a conflict.
    """
    user = "11111111-1111-4111-8111-111111111111"
    of_topic = {
        "queries.query-submitted": lambda name, said: {"request_id": name, "user_id": user, "query": said, "ts": 1},
        "jobs.job-submitted": lambda name, said: {
            "job_id": name, "kind": "generation", "organization_id": "acme", "user_id": user, "ts": 1, "expires_at": None,
            "args": json.dumps({"query": said}),
        },
    }[topic]  # fmt: skip
    if topic == "queries.query-submitted":
        known = await store_run(seeds, user, user_query="first")
    else:
        known = await store_job(seeds, organization_id="acme", user_id=user, args='{"query": "first", "slides": 10}')
    new = str(uuid.uuid4())
    said = [(known, "other"), (known, "first"), (new, "one"), (new, "two"), (new, "one")]
    lines = "\n".join(json.dumps(of_topic(*one)) for one in said)
    response = await http.post(f"/api/events/{topic}", content=lines, headers=LINES)
    document = response.json()
    assert (response.status_code, response.headers.get("x-conflicts")) == (202, "2"), document
    assert document["conflicts"] == [document["positions"][0], document["positions"][3]]
    same = await http.post(f"/api/events/{topic}", json=of_topic(known, "first"))
    assert ("x-conflicts" in same.headers, "conflicts" in same.json()) == (False, False)


@pytest.mark.parametrize("channel", ["a1-*", "?", ".."])
async def test_a_pattern_is_no_channel(http, channel: str) -> None:
    """422 with the field, for a subscription and for an insight."""
    put = await http.put("/api/users/ada/subscriptions", json={"channels": ["ch", channel]})
    assert _problem(put, 422)["field"] == "channels"
    post = await http.post("/api/events/feeds.insight-ingested", json=_insight("i", channel))
    assert _problem(post, 422)["field"] == "channel_id"


async def test_what_became_of_a_rebuild_is_asked_by_its_position(http, seeds: Seeds) -> None:
    """`Location` of the demand; one that is not stored yet is 503, never 404; a position that is not a demand of the user is
    404 or 400, by its form.
    """
    await seeds.user("w/1", [])
    answer = await http.post("/api/users/w%2F1/rebuild?if_new=true")
    position, where = answer.json()["positions"][0], answer.headers["location"]
    assert where == f"/api/users/w%2F1/rebuilds/{position.replace('/', '%2F')}"
    _problem(await http.get(where, headers={"X-Max-Wait-Ms": "0"}), 503)
    await seeds.run(
        f"INSERT INTO rebuild_demands (position, user_id, revision, demanded_at) VALUES ('{position}', 'w/1', 1, now())"
    )
    found = (await http.get(where)).json()
    assert (found["user_id"], found["position"], found["status"]) == ("w/1", position, "pending")
    await seeds.run(
        "UPDATE rebuild_demands SET outcome = 'skipped', reason = 'nothing_new', cluster_version = 3, finished_at = now()"
    )
    found = (await http.get(f"/api/users/w%2F1/rebuilds/{position}")).json()
    assert (found["status"], found["reason"], found["cluster_version"]) == ("skipped", "nothing_new", 3)
    assert found["finished_at"].endswith("Z")
    for wrong, status in (
        ("feeds.rebuild-demanded/0/999999999", 404),
        ("feeds.rebuild-demanded/999/0", 404),
        ("feeds.user-active/0/0", 400),
        ("nonsense", 400),
    ):
        _problem(await http.get(f"/api/users/w%2F1/rebuilds/{wrong}"), status)


@pytest.mark.requirement("R0.12")
async def test_pending_is_the_formula_over_current_subscriptions(http, api: Api, seeds: Seeds) -> None:
    """Pending = head minus high-water mark over the current subscriptions, never negative; due and trigger follow the rules."""
    for name, insights in (("p1", 12), ("p2", 3), ("p3", 9), ("p4", 2)):
        await seeds.channel(name, insights)
    await seeds.user("pen", ["p1", "p2", "p3", "p4"], plan="pro")
    await seeds.run("UPDATE subscriptions SET subscribed = false WHERE user_id = 'pen' AND channel_id = 'p3'")
    await seeds.run(
        "INSERT INTO user_cluster_hwm VALUES ('pen', 'p1', 2, true), ('pen', 'p2', 0, true), ('pen', 'p4', 7, true)"
    )
    document = (await http.get("/api/users/pen/pending")).json()
    assert (document["pending"], document["by_channel"]) == (13, {"p1": 10, "p2": 3, "p4": 0})
    assert (document["due"], document["trigger"], document["in_flight"]) == (False, None, False)
    assert (document["waits_for"], document["due_at"]) == ("activity", None)
    now = NOW.fromtimestamp(api.clock() / 1000, NOW.tzinfo)
    await seeds.user("pen", [], last_active_at=now, last_clustered_at=now)
    document = (await http.get("/api/users/pen/pending")).json()
    assert (document["due"], document["waits_for"], document["due_at"] > document["last_clustered_at"]) == (
        False,
        "time",
        True,
    )
    await seeds.channel("p2", 30)
    document = (await http.get("/api/users/pen/pending")).json()
    assert (document["due"], document["trigger"]) == (True, "novelty")
    assert (document["waits_for"], document["due_at"]) == (None, None)
    # A skip a moment ago: its cooldown counts as that of a rebuild does.
    await seeds.run("UPDATE user_stats SET last_enqueued_at = $1 WHERE user_id = 'pen'", now)
    assert (await http.get("/api/users/pen/pending")).json()["due"] is False
    await seeds.run("UPDATE user_stats SET last_enqueued_at = NULL WHERE user_id = 'pen'")
    await seeds.run("UPDATE user_cluster_hwm SET last_seq = 30 WHERE user_id = 'pen'")
    document = (await http.get("/api/users/pen/pending")).json()
    assert (document["due"], document["changed"]) == (False, False)
    for change in (
        "UPDATE channels SET retractions = 1 WHERE channel_id = 'p1'",
        "UPDATE user_cluster_hwm SET retractions = 1, is_shown = channel_id <> 'p4' WHERE user_id = 'pen'",
        "UPDATE subscriptions SET subscribed = channel_id <> 'p2' WHERE user_id = 'pen'",
    ):
        await seeds.run(change)
        document = (await http.get("/api/users/pen/pending")).json()
        assert (document["due"], document["trigger"], document["changed"]) == (True, "novelty", True)
    await seeds.user("pen", [], in_flight="feeds.rebuild-requested/0/1", in_flight_until=now + timedelta(hours=1))
    document = (await http.get("/api/users/pen/pending")).json()
    assert (document["due"], document["in_flight"], document["waits_for"]) == (False, True, "answer")
    assert document["last_clustered_at"].endswith("Z")
    assert document["delayed"] is None
    await seeds.user("pen", [], delayed_at=now, delay_reason="the start made no progress", delays=2)
    delayed = (await http.get("/api/users/pen/pending")).json()["delayed"]
    assert (delayed["reason"], delayed["times"], delayed["at"][-1]) == ("the start made no progress", 2, "Z")
    assert (await http.get("/api/users/unsubscribed/pending")).json()["waits_for"] == "subscription"


async def test_clusters_are_conditional_and_earlier_versions_stay(http, seeds: Seeds) -> None:
    """Each version has its own tag; If-None-Match in any form of RFC 9110 is 304 with the same headers and no body."""
    ids = await seeds.channel("cl", 4)
    await seeds.rebuild("clara", [cluster("first", ids[:2])])
    first = await http.get("/api/users/clara/clusters")
    assert first.json()["cluster_version"] == 1
    assert first.headers["x-caused-by"] == "feeds.rebuild-requested/0/1"
    tag = first.headers["etag"]
    for field in (tag, tag.removeprefix("W/"), "*", f'"other", {tag}', f'W/"a,b",{tag}'):
        again = await http.get("/api/users/clara/clusters", headers={"If-None-Match": field})
        assert (again.status_code, again.content) == (304, b"")
        for name in ("etag", "cache-control", "x-resource-version", "x-caused-by"):
            assert again.headers[name] == first.headers[name]
    for field in ('"other"', "unquoted", ""):
        assert (await http.get("/api/users/clara/clusters", headers={"If-None-Match": field})).status_code == 200
    await seeds.rebuild("clara", [cluster("second", ids), cluster("third", ids[:1]), cluster("fourth", [])])
    old = await http.get("/api/users/clara/clusters?version=1")
    assert old.json()["clusters"] == first.json()["clusters"]
    _problem(await http.get("/api/users/clara/clusters?version=9"), 404)
    page = (await http.get("/api/users/clara/clusters?version=2&limit=2")).json()
    rest = (await http.get(f"/api/users/clara/clusters?limit=2&cursor={page['next_cursor']}")).json()
    names = [one["cluster_id"] for one in page["clusters"] + rest["clusters"]]
    assert (names, rest["next_cursor"]) == (["second", "third", "fourth"], None)
    _problem(await http.get("/api/users/clara/clusters?cursor=zzz"), 400)


async def test_insights_and_channels_are_conditional(http, seeds: Seeds) -> None:
    """A channel's version is its head; an insight is 410 once retracted; what never came is 404."""
    first, _ = await seeds.channel("cond", 2)
    response = await http.get("/api/channels/cond")
    assert response.json()["current_seq"] == 2
    assert response.headers["x-caused-by"] == "feeds.insight-ingested/0/2"
    again = await http.get("/api/channels/cond", headers={"If-None-Match": response.headers["etag"]})
    assert again.status_code == 304
    path = f"/api/insights/cond/{first.replace('#', '%23')}"
    insight = await http.get(path)
    assert insight.status_code == 200
    # Another installation may have the same version, or the same position, with other bytes: that is another tag.
    await seeds.run("UPDATE insights SET text = 'other' WHERE insight_id = $1", first)
    await seeds.run("UPDATE channels SET last_insight_ts = $1 WHERE channel_id = 'cond'", NOW + timedelta(hours=1))
    for before in (response, insight):
        other = await http.get(before.request.url, headers={"If-None-Match": before.headers["etag"]})
        assert (other.status_code, other.headers["x-caused-by"]) == (200, before.headers["x-caused-by"])
        assert other.headers["etag"] != before.headers["etag"]
    await seeds.run("UPDATE insights SET retracted_at = $2 WHERE insight_id = $1", first, NOW)
    _problem(await http.get(path), 410)
    _problem(await http.get("/api/insights/cond/nope"), 404)
    _problem(await http.get("/api/channels/never"), 404)


async def test_channels_are_paged(http, seeds: Seeds) -> None:
    """Pages of channels join without gap or repeat."""
    for n in range(5):
        await seeds.channel(f"page-{n}", 1)
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await http.get(f"/api/channels?limit=2{cursor}")).json()
        seen += [channel["channel_id"] for channel in page["channels"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(seen) == len(set(seen))
    assert {f"page-{n}" for n in range(5)} <= set(seen)


async def test_a_read_waits_until_its_position_is_accounted_for(http, seeds: Seeds) -> None:
    """X-Min-Position holds the answer back until the sink has moved past it; without that, 503 with Retry-After."""
    written = await http.post("/api/users/fresh/activity")
    position = parse_position(written.json()["positions"][0])
    headers = {"X-Min-Position": str(position), "X-Max-Wait-Ms": "50"}
    response = await http.get("/api/users/fresh/feed", headers=headers)
    _problem(response, 503)
    assert "retry-after" in response.headers
    waiting = asyncio.create_task(http.get("/api/users/fresh/feed", headers={**headers, "X-Max-Wait-Ms": "20000"}))
    await asyncio.sleep(0)
    await seeds.account_for(position, "users")
    answered = await waiting
    assert answered.status_code == 200
    assert answered.headers["x-pending"] == "0"
    assert (await http.get("/api/users/fresh/clusters", headers=headers)).headers["x-pending"] == "0"


async def test_a_position_that_can_never_be_seen_is_refused(http) -> None:
    """Malformed positions, topics that do not feed the endpoint, and offsets past the end of the log are 400 at once."""
    written = await http.post("/api/users/late/activity")
    position = parse_position(written.json()["positions"][0])
    beyond = position._replace(offset=position.offset + 1_000)
    for path, text in (
        ("/api/users/late/feed", "garbage"),
        ("/api/users/late/feed", f"{position}, x/1"),
        ("/api/users/late/feed", str(beyond)),
        ("/api/users/late/feed", "feeds.user-active/99/0"),
        ("/api/users/late/feed", "streams.tick/0/0"),
        ("/api/channels/x", str(position)),
        ("/api/users/late/subscriptions", "feeds.insight-ingested/0/0"),
    ):
        _problem(await http.get(path, headers={"X-Min-Position": text}), 400)
    bad_wait = {"X-Min-Position": str(position), "X-Max-Wait-Ms": "soon"}
    _problem(await http.get("/api/users/late/feed", headers=bad_wait), 400)


async def test_roles_and_bound_users(guarded: Api, seeds: Seeds) -> None:
    """No key is 401 with a challenge; a viewer does not publish; a bound key touches its own user only; an admin everything."""
    async with guarded.client() as nobody:
        response = await nobody.get("/api/channels")
        _problem(response, 401)
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert (await nobody.get("/healthz")).status_code == 200
    async with guarded.client("wrong") as stranger:
        _problem(await stranger.get("/api/channels"), 401)
    async with guarded.client("eye-key") as viewer:
        assert (await viewer.get("/api/users/ada/feed")).status_code == 200
        _problem(await viewer.post("/api/users/ada/activity"), 403)
        _problem(await viewer.post("/api/events/feeds.user-active", json={"user_id": "a", "ts": 1}), 403)
    async with guarded.client("ada-key") as ada:
        assert (await ada.get("/api/users/ada/feed")).status_code == 200
        _problem(await ada.get("/api/users/bob/feed"), 403)
        assert (await ada.post("/api/users/ada/activity")).status_code == 202
        _problem(await ada.post("/api/users/bob/activity"), 403)
        _problem(await ada.post("/api/events/feeds.user-active", json={"user_id": "bob", "ts": 1}), 403)
        _problem(await ada.post("/api/events/feeds.insight-ingested", json=_insight("x")), 403)
        _problem(await ada.post("/api/users/ada/rebuild"), 403)
    async with guarded.client("pen-key") as editor:
        _problem(await editor.post("/api/users/ada/rebuild"), 403)
        body = {"user_id": "ada", "ts": 1}
        _problem(await editor.post("/api/events/feeds.user-erased", json=body), 403)
    async with guarded.client("root-key") as admin:
        await seeds.user("ada", [])
        assert (await admin.post("/api/users/ada/rebuild")).status_code == 202


@pytest.mark.requirement("R0.7")
async def test_a_read_as_a_user_is_activity_at_most_once_in_five_minutes(stack, guarded: Api, codec) -> None:
    """Ten reads with ada's key make one activity event; five minutes later the next read makes another (R0.7)."""

    def count() -> int:
        consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": "count", "enable.auto.commit": False})
        topic = "feeds.user-active"
        consumer.assign([TopicPartition(topic, p, 0) for p in range(TOPICS[topic].partitions)])
        found = 0
        while messages := consumer.consume(500, 1.0):
            found += sum(m.key() == b"ada" and header(m.headers(), "ce_source") == "/api" for m in messages)
        consumer.close()
        return found

    guarded.clock.offset_ms += 301_000
    before = await asyncio.to_thread(count)
    async with guarded.client("ada-key") as ada:
        for _ in range(10):
            await ada.get("/api/users/ada/feed")
        await eventually(lambda: asyncio.to_thread(lambda: count() == before + 1), "one event")
        guarded.clock.offset_ms += 301_000
        await ada.get("/api/users/ada/feed")
        await eventually(lambda: asyncio.to_thread(lambda: count() == before + 2), "a second event")


async def test_changes_are_resumable(stack, http, codec) -> None:
    """A stream of changes that resumes with the id of its last event continues right after it: nothing is lost or repeated."""
    from highwater.connectors.kafka.producer import AsyncProducer

    producer = AsyncProducer({"bootstrap.servers": stack.kafka}, client_id="test")

    async def bump(n: int) -> None:
        key = f"feed:sse-{n}"
        event = {"key": key, "version": n, "etag": f"feed-{n}", "caused_by": "", "bumped_at": 0}
        await producer.publish("cache.version-bumped", codec.encode("cache.version-bumped", event), key=key)

    async def read(response: httpx2.Response, number: int) -> tuple[list[str], str]:
        keys: list[str] = []
        last = ""
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                last = line[4:]
            if line.startswith("data: "):
                key = json.loads(line[6:])["key"]
                if key.startswith("feed:sse-"):
                    keys.append(key)
                if len(keys) == number:
                    return keys, last
            if number == 0 and last:
                return keys, last
        raise AssertionError("the stream ended")

    async with http.stream("GET", "/api/changes") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        _, last = await read(response, 0)
    for n in range(6):
        await bump(n)
    async with http.stream("GET", "/api/changes", headers={"Last-Event-ID": last}) as response:
        first, last = await read(response, 4)
    async with http.stream("GET", "/api/changes", headers={"Last-Event-ID": last}) as response:
        second, _ = await read(response, 2)
    await producer.close()
    assert sorted(first + second) == [f"feed:sse-{n}" for n in range(6)]
    _problem(await http.get("/api/changes", headers={"Last-Event-ID": "nonsense"}), 400)


async def test_changes_show_what_the_caller_may_read(stack, guarded: Api, codec) -> None:
    """Keys of others, of administrators and of closed namespaces do not reach a key that is bound to a user."""
    from highwater.connectors.kafka.producer import AsyncProducer

    producer = AsyncProducer({"bootstrap.servers": stack.kafka}, client_id="test")
    own = ["feed:ada", "clusters:ada", "predictions:user:ada", "league:table:seen", "ns:docs"]
    others = ["feed:bob", "clusters:bob", "achievements:bob", "predictions:user:bob", "admin:stats", "ns:closed", "x:y"]
    seen: dict[str, set[str]] = {"ada-key": set(), "root-key": set()}
    async with (
        guarded.client("ada-key") as ada,
        guarded.client("root-key") as root,
        ada.stream("GET", "/api/changes") as of_ada,
        root.stream("GET", "/api/changes") as of_root,
    ):
        streams = {"ada-key": of_ada.aiter_lines(), "root-key": of_root.aiter_lines()}
        for lines in streams.values():
            assert (await anext(lines)).startswith("id: ")
        for key in (*others, *own):
            event = {"key": key, "version": 1, "etag": "e", "caused_by": "", "bumped_at": 0}
            await producer.publish("cache.version-bumped", codec.encode("cache.version-bumped", event), key=key)
        for token, wanted in (("ada-key", set(own)), ("root-key", {*own, *others})):
            async for line in streams[token]:
                if line.startswith("data: "):
                    seen[token].add(json.loads(line[6:])["key"])
                if wanted <= seen[token]:
                    break
    await producer.close()
    assert not seen["ada-key"] & set(others)


# A value for each form of an id in a path; resources with it are missing, except in some lists.
_IDS = {"uuid": "0b0b0b0b-0b0b-4b0b-8b0b-0b0b0b0b0b0b", "^[0-9a-f]{64}$": "0" * 64}
_STREAMS = ("/api/changes", "/api/jobs/{job_id}/events")
_VALIDATORS = ("etag", "x-resource-version", "x-caused-by", "x-pending", "x-stale", "age")


def _sample(path: str, operation: dict[str, Any]) -> str:
    forms = {one["name"]: one["schema"] for one in operation.get("parameters", ()) if one["in"] == "path"}
    for name, form in forms.items():
        value = _IDS.get(form.get("format", form.get("pattern", "")), "ada")
        path = path.replace(f"{{{name}}}", value)
    return path


async def test_every_get_has_a_head_and_sends_what_is_documented(guarded: Api, seeds: Seeds) -> None:
    """HEAD answers as GET does, without content; fields of versions are in the document; a stream ends with its head."""
    ids = await seeds.channel("ada", 3)
    await seeds.rebuild("ada", [cluster("a", ids)])
    answered = set()
    async with guarded.client("root-key") as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        for path, operation in ((path, item["get"]) for path, item in paths.items() if "get" in item):
            address = _sample(path, operation) + "?ns=ada&q=ada&user=ada&period=2026-01"
            head = await http.head(address)
            assert (head.status_code, head.content) != (405, b""), path
            assert head.content == b"", path
            if path in _STREAMS:
                continue
            get = await http.get(address)
            answered.add(get.status_code)
            assert (path, head.status_code, set(head.headers)) == (path, get.status_code, set(get.headers))
            documented = {name.lower() for name in operation["responses"][str(get.status_code)].get("headers", {})}
            assert not {name for name in _VALIDATORS if name in get.headers} - documented, path
            if "304" in operation["responses"] and get.status_code == 200:
                assert "etag" in get.headers, path
                again = await http.head(address, headers={"If-None-Match": get.headers["etag"]})
                assert again.status_code == 304, path
        for path in ("/docs", "/openapi.json", "/login", "/"):
            assert (await http.head(path)).status_code == (await http.get(path)).status_code < 400, path
        refused = await http.head("/api/sessions")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        refused = await http.post("/api/channels/ada")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert {200, 404} <= answered
    changes = guarded.app.state.services.changes
    await eventually(lambda: asyncio.sleep(0, changes._places.count == 0), "the stream of changes is let go")


async def test_an_open_stream_does_not_hold_up_the_end(own_settings) -> None:
    """A server that receives the signal ends its streams of changes at once instead of waiting for them."""
    with running_api(own_settings()) as running:
        async with running.client() as client, client.stream("GET", "/api/changes") as response:
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("id: ")
            started = time.monotonic()
            running.stop()
            with contextlib.suppress(httpx2.RemoteProtocolError):
                async for _ in lines:
                    pass
            await asyncio.to_thread(running.thread.join, 30)
            assert time.monotonic() - started < 6


async def test_the_description_and_metrics_speak_of_templates(http) -> None:
    """OpenAPI lists the endpoints of the contract, and metrics are by route template, never by path."""
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path in ("/api/events/{topic}", "/api/users/{user}/feed", "/api/insights/{channel}/{insight}", "/api/sessions"):
        assert path in paths
    await http.get("/api/users/very-special/feed")
    await http.get("/api/insights/very%2Fspecial/an%20insight")
    await http.head("/api/users/very-special/pending")
    text = (await http.get("/metrics")).text
    assert "special" not in text
    for method, route in (
        ("GET", "/api/users/{user}/feed"),
        ("GET", "/api/insights/{channel}/{insight}"),
        ("HEAD", "/api/users/{user}/pending"),
    ):
        assert f'method="{method}",route="{route}"' in text
    assert (await http.get("/docs")).status_code == 200
