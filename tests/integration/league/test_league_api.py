"""Leagues over HTTP on real parts: pages, conditions, codings, writes, prewarm and the verdict."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from functools import partial
from typing import Any

import brotli
import httpx2
import pytest

from highwater.schemas.codec import Codec
from highwater.schemas.positions import parse_position
from highwater.streams.clock import to_datetime
from tests.integration.api_server import Api, Seeds, eventually, running_api
from tests.integration.records import record_at

KEYS = "admin:root-key,editor:pen-key,viewer:eye-key,viewer:ada-key:ada,editor:bob-key:bob,assistant:ref-key:ref"
SEASON, TOKEN = "eng/2026", "t\u00f6ken"
PATH = "/api/league/eng%2F2026"
MATCH_COLUMNS = (
    "match_id, season, round, kickoff, time_unknown, status, home, away, home_goals, away_goals, minute, finalized_at, "
    "schedule_ms, schedule_position, score_ms, score_position, result_ms, result_position"
)


@pytest.fixture(scope="module")
def own_settings(own_settings):
    """Many live requests are allowed."""
    return partial(own_settings, HIGHWATER_LIVE_REQUESTS_MAX=10_000, CACHE_PREWARM_TOKEN=TOKEN)


@pytest.fixture(scope="module")
async def seeds(seeds: Seeds) -> Seeds:
    """With a season of three matches: final, in play, and tomorrow."""
    await seeds.run("INSERT INTO league_seasons (season) VALUES ($1), ('old'), ('ger')", SEASON)
    return seeds


@pytest.fixture(scope="module")
async def league(api: Api, seeds: Seeds) -> None:
    """Matches as the sinks store them: final, in play, and tomorrow; of other seasons one of three days ago and one long ago."""
    now = to_datetime(api.clock())
    for match_id, season, kickoff, home, away, score, result in (
        ("m-final", SEASON, now - timedelta(hours=2), "Leeds", "York", None, (2, 1)),
        ("m-live", SEASON, now - timedelta(minutes=50), "Hull", "Leeds", (1, 0), None),
        ("m-next", SEASON, now + timedelta(days=1), "York", "Hull", None, None),
        ("m-past", "ger", now - timedelta(days=3), "Ulm", "Jena", None, (0, 0)),
        ("m-old", "old", now - timedelta(days=400), "Hull", "York", None, (0, 0)),
    ):
        goals = result or score or (None, None)
        values = [match_id, season, "Matchday 1", kickoff, False, "scheduled", home, away, *goals]
        values += [50 if score else None, kickoff + timedelta(minutes=105) if result else None]
        values += [1, f"league.match-scheduled/0/{len(match_id)}"]
        values += [2, "league.match-updated/1/4"] if score else [None, None]
        values += [3, "league.match-finalized/1/5"] if result else [None, None]
        places = ", ".join(f"${place}" for place in range(1, 19))
        await seeds.run(f"INSERT INTO league_matches ({MATCH_COLUMNS}) VALUES ({places})", *values)


@pytest.fixture
async def http(http: httpx2.AsyncClient, league: None) -> httpx2.AsyncClient:
    """It takes bodies as they are."""
    http.headers["Accept-Encoding"] = "identity"
    return http


def _event(stack, codec: Codec, text: str) -> tuple[bytes, dict[str, Any]]:
    message = record_at(stack, text)
    return message.key(), codec.decode(message.topic(), message.value())


def _problem(response: httpx2.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return response.json()


PAGES = [
    (f"{PATH}/table", "table"), (f"{PATH}/schedule", "rounds"), (f"{PATH}/results", "results"), (f"{PATH}/stats", "season"),
    (f"{PATH}/stats/live", "season"), (f"{PATH}/bracket", "rounds"), ("/api/matches/live", "matches"),
    ("/api/matches/m-live", "meta"), ("/api/matches/m-live/comments", "comments"), ("/api/clubs/Leeds/matches", "matches"),
    ("/api/leaderboard", "users"), ("/api/predictions", "matches"), ("/api/predictions?user=ada", "predictions"),
    ("/api/users/ada/achievements", "achievements"), ("/api/league/admin/stats", None), ("/api/ads", "ads"),
    ("/api/league", "seasons"),
]  # fmt: skip


@pytest.mark.requirement("R4.2")
@pytest.mark.parametrize(("path", "member"), PAGES)
async def test_every_page_is_conditional(http, path: str, member: str | None) -> None:
    """Tag, version, cause and life on the 200; the same on the 304, which has no body; HEAD says the same of no body."""
    first = await http.get(path)
    assert first.status_code == 200, first.text
    if member is not None:
        assert member in first.json()
    for wanted in (
        first.headers["etag"],
        first.headers["etag"].removeprefix("W/"),
        f'"x", {first.headers["etag"]}',
        "*",
    ):
        again = await http.get(path, headers={"If-None-Match": wanted})
        assert (again.status_code, again.content) == (304, b"")
        for name in ("etag", "x-resource-version", "x-caused-by", "vary"):
            assert again.headers.get(name) == first.headers.get(name), name
        assert again.headers["cache-control"].partition(",")[0] == first.headers["cache-control"].partition(",")[0]
    assert (await http.get(path, headers={"If-None-Match": '"x"'})).status_code == 200
    assert int(first.headers["x-resource-version"]) >= 1
    head = await http.head(path)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", first.headers["etag"])
    assert head.headers["content-length"] == first.headers["content-length"]


async def test_what_a_cache_is_told(http) -> None:
    """A page may be kept and must be asked about; what belongs to a user is private; lives are those of the server."""
    table = (await http.get(f"{PATH}/table")).headers
    assert table["vary"] == "Accept-Encoding, X-Min-Position"
    assert table["cache-control"] == "no-cache"
    assert table["cdn-cache-control"] == "public, max-age=0, stale-while-revalidate=120, stale-if-error=120"
    assert 0 <= int(table["age"]) < 30
    assert "x-stale" not in table
    old = (await http.get("/api/league/old/table")).headers["cdn-cache-control"]
    assert old == "public, max-age=0, stale-while-revalidate=3600, stale-if-error=3600"
    for path in ("/api/predictions?user=ada", "/api/users/ada/achievements", "/api/league/admin/stats"):
        answer = await http.get(path)
        assert (answer.headers["cache-control"], answer.headers.get("cdn-cache-control")) == ("private, no-cache", None)


@pytest.mark.requirement("R4.5")
async def test_a_body_comes_in_the_coding_that_was_asked_for(http) -> None:
    """Brotli, gzip or identity, all under one ETag; none left is 406, also for a client with the version."""
    for path in (f"{PATH}/table", "/api/matches/m-live"):
        plain = await http.get(path)
        assert "content-encoding" not in plain.headers
        wanted = {"gzip": gzip.decompress} if "matches" in path else {"gzip": gzip.decompress, "br": brotli.decompress}
        for coding, decode in wanted.items():
            headers = {"Accept-Encoding": f"deflate, {coding}"}
            async with (
                httpx2.AsyncClient(base_url=http.base_url) as raw,
                raw.stream("GET", path, headers=headers) as response,
            ):
                body = b"".join([part async for part in response.aiter_raw()])
            assert response.headers["content-encoding"] == coding
            assert (decode(body), response.headers["etag"]) == (plain.content, plain.headers["etag"])
        for condition in ({}, {"If-None-Match": plain.headers["etag"]}):
            refused = await http.get(path, headers={"Accept-Encoding": "identity;q=0", **condition})
            _problem(refused, 406)


async def test_the_table_counts_what_is_final(http) -> None:
    """Rows are as the contract says; a match in play counts nothing, its teams are there."""
    document = (await http.get(f"{PATH}/table")).json()
    rows = {row["team"]: row for row in document["table"]}
    assert document["season"] == SEASON
    assert (rows["Leeds"]["points"], rows["York"]["points"], rows["Hull"]["played"]) == (3, 0, 0)


async def test_what_is_not_there_is_404_whatever_the_condition(http) -> None:
    """An unknown season, match, club or page of the rating, also for `*`; an invalid id is 422."""
    for path in (
        "/api/league/nope/table",
        "/api/matches/nope",
        "/api/matches/nope/comments",
        "/api/clubs/nope/matches",
        "/api/leaderboard?page=77",
    ):
        _problem(await http.get(path, headers={"If-None-Match": "*"}), 404)
    for path in (
        "/api/league/%01/table",
        "/api/clubs/%20/matches",
        f"/api/matches/{'x' * 513}",
        "/api/predictions?days=31",
    ):
        _problem(await http.get(path), 422)
    for path in ("/api/predictions?days=0", "/api/leaderboard?page=0", "/api/leaderboard?limit=3"):
        _problem(await http.get(path), 422)
    assert _problem(await http.get("/api/leaderboard?page=1&cursor=2"), 422)["field"] == "cursor"


@pytest.mark.requirement("R4.3")
async def test_a_match_is_composed_of_two_documents(http, seeds: Seeds) -> None:
    """Its tag holds the tags of both and its version is their sum, so that it grows with either."""
    response = await http.get("/api/matches/m-live")
    document = response.json()
    assert (document["meta"]["home"], document["live"]["home_goals"], document["live"]["minute"]) == ("Hull", 1, 50)
    rows = await seeds.run("SELECT key, version, etag FROM resource_versions WHERE key LIKE 'md:m-live:%e%'")
    found = {row["key"]: row for row in rows}
    meta, live = found["md:m-live:meta"], found["md:m-live:live"]
    assert response.headers["etag"] == f'W/"{meta["etag"]}+{live["etag"]}"'
    assert response.headers["x-resource-version"] == str(meta["version"] + live["version"])
    assert response.headers["x-caused-by"].startswith("league.")


@pytest.mark.requirement("R4.17")
async def test_a_match_of_days_ago_has_no_live_part(http) -> None:
    """Three hours after the match it is null (R4.17), and the page is conditional as before; HEAD says the same."""
    for path in ("/api/matches/m-past", "/api/matches/m-old"):
        first = await http.get(path)
        assert (first.status_code, first.json()["live"], "result" in first.json()["meta"]) == (200, None, True)
        assert int(first.headers["x-resource-version"]) >= 1
        again = await http.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.headers["etag"]) == (304, first.headers["etag"])
        assert (await http.head(path)).headers["etag"] == first.headers["etag"]


async def test_a_short_cut_and_the_usual_way_say_the_same(http, api: Api) -> None:
    """On a real server the 304 from memory has the headers of the 304 that FastAPI sends."""
    tag = (await http.get("/api/ads")).headers["etag"]
    answers = []
    cut = api.app.short_cut

    async def both_at_one_age() -> bool:
        del answers[:]
        for short_cut in (cut, None):
            api.app.short_cut = short_cut
            answers.append(await http.get("/api/ads", headers={"If-None-Match": tag}))
        api.app.short_cut = cut
        names = [[(name, value) for name, value in answer.headers.items() if name != "date"] for answer in answers]
        return names[0] == names[1]

    await eventually(both_at_one_age, "both say the same within one second")
    assert [answer.status_code for answer in answers] == [304, 304]


async def test_seasons_are_paged(http, seeds: Seeds) -> None:
    """In order of their ids, by cursor; a new season is a new version of every page."""
    first = await http.get("/api/league?limit=2")
    assert [one["season"] for one in first.json()["seasons"]] == [SEASON, "ger"]
    rest = await http.get(f"/api/league?limit=2&cursor={first.json()['next_cursor']}")
    assert ([one["season"] for one in rest.json()["seasons"]], rest.json()["next_cursor"]) == (["old"], None)
    await seeds.run("INSERT INTO league_seasons (season) VALUES ('zzz')")
    again = await http.get("/api/league?limit=2", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 200
    assert int(again.headers["x-resource-version"]) == int(first.headers["x-resource-version"]) + 1
    await seeds.run("DELETE FROM league_seasons WHERE season = 'zzz'")


@pytest.mark.requirement("R4.20")
async def test_private_pages_are_their_users(guarded: Api, league: None) -> None:
    """A request without a key is refused; another user's are 403; a bound key without `user` reads the public list; counts need
    an admin.
    """

    async def status(token: str | None, path: str, **headers: str) -> tuple[int, str]:
        async with guarded.client(token) as client:
            response = await client.get(path, headers=headers)
            return response.status_code, response.headers["cache-control"].partition(",")[0]

    assert await status(None, f"{PATH}/table") == (401, "no-store")
    assert await status("eye-key", f"{PATH}/table") == (200, "private")
    assert await status("ada-key", "/api/predictions") == (200, "private")
    assert await status("ada-key", "/api/predictions?user=ada") == (200, "private")
    for path in ("/api/predictions?user=bob", "/api/users/bob/achievements"):
        assert await status("ada-key", path, **{"If-None-Match": "*"}) == (403, "no-store")
    assert (await status("eye-key", "/api/league/admin/stats"))[0] == 403
    assert (await status("root-key", "/api/league/admin/stats"))[0] == 200


async def test_a_read_with_a_position_waits_for_its_sink(http, seeds: Seeds) -> None:
    """A topic that does not feed the page is 400, an event that is not stored yet 503; then the page is built from the facts."""
    answer = await http.post("/api/events/league.ad-changed", json={
        "ad_id": "one", "deleted": False, "payload": "{}", "ts": "2026-11-20T12:00:00Z"
    })  # fmt: skip
    (text,) = answer.json()["positions"]
    position = parse_position(text)
    headers = {"X-Min-Position": text, "X-Max-Wait-Ms": "50"}
    _problem(await http.get(f"{PATH}/table", headers=headers), 400)
    _problem(await http.get("/api/ads", headers=headers), 503)
    before = await http.get("/api/ads")
    values = (position.partition, position.offset + 1)
    await seeds.run("INSERT INTO positions VALUES ('posts', 'league.ad-changed', $1, 'id', $2)", *values)
    await seeds.run("INSERT INTO league_ads VALUES ('one', '{\"a\": [1]}', now(), 5, $1)", text)
    after = await http.get("/api/ads", headers={**headers, "If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert after.json()["ads"] == [{"ad_id": "one", "payload": {"a": [1]}}]
    assert after.headers["x-caused-by"] == text
    assert int(after.headers["x-resource-version"]) > int(before.headers["x-resource-version"])


WRITES = [
    ("POST", "/api/matches/m-live/finalize", {"home_goals": 2, "away_goals": 2}, "league.match-finalized", SEASON,
     {"match_id": "m-live", "season": SEASON, "home_goals": 2, "away_goals": 2}),
    ("POST", "/api/matches/m-live/score", {"home_goals": 1, "away_goals": 1, "minute": 60}, "league.match-updated", SEASON,
     {"match_id": "m-live", "season": SEASON, "home_goals": 1, "away_goals": 1, "minute": 60}),
    ("POST", "/api/matches/m-next/votes", {"choice": "draw", "user_id": "ada"}, "league.vote-cast", "m-next",
     {"match_id": "m-next", "user_id": "ada", "choice": "draw"}),
    ("PUT", "/api/predictions/m-next", {"home_goals": 0, "away_goals": 3, "user_id": "ada"}, "league.prediction-made", "m-next",
     {"match_id": "m-next", "user_id": "ada", "home_goals": 0, "away_goals": 3}),
    ("POST", "/api/matches/m-old/comments", {"text": "nil-nil", "user_id": "ada"}, "league.comment-posted", "m-old",
     {"match_id": "m-old", "user_id": "ada", "text": "nil-nil"}),
    ("PUT", "/api/ads/a%2F1", {"shown": [1, None]}, "league.ad-changed", "a/1", {"ad_id": "a/1", "deleted": False}),
    ("PUT", f"{PATH}/rules", {"tie_breaks": ["won"]}, "league.rules-changed", SEASON,
     {"season": SEASON, "deductions": [], "tie_breaks": ["won"], "withdrawn": []}),
    ("DELETE", "/api/ads/a%2F1", None, "league.ad-changed", "a/1", {"ad_id": "a/1", "deleted": True, "payload": ""}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "topic", "key", "expected"), WRITES)
async def test_each_write_is_an_event_of_its_topic(
    stack, http, api, codec, method, path, body, topic, key, expected
) -> None:
    """202 with the position of an event with the topic's key and the time of now."""
    started = api.clock()
    response = await http.request(method, path, json=body)
    assert response.status_code == 202, response.text
    (text,) = response.json()["positions"]
    found_key, event = _event(stack, codec, text)
    assert (text.partition("/")[0], found_key) == (topic, key.encode())
    assert {name: event[name] for name in expected} == expected
    told = event.get("ts", event.get("finalized_at"))
    assert topic in ("league.match-updated", "league.rules-changed") or started <= told <= api.clock()
    if method == "PUT" and "ads" in path:
        assert json.loads(event["payload"]) == body


async def test_who_speaks_after_kickoff_is_told(http) -> None:
    """A vote or prediction that cannot count for the rating is taken, and its answer says so with the kickoff that is known."""
    for match, is_in_time in (("m-next", True), ("m-live", False), ("m-old", False)):
        vote = await http.post(f"/api/matches/{match}/votes", json={"choice": "draw", "user_id": "tardy"})
        goals = {"home_goals": 1, "away_goals": 1, "user_id": "tardy"}
        prediction = await http.put(f"/api/predictions/{match}", json=goals)
        meta = (await http.get(f"/api/matches/{match}")).json()["meta"]
        for answer in (vote, prediction):
            assert answer.status_code == 202, answer.text
            assert (answer.json()["in_time"], answer.json()["kickoff"]) == (is_in_time, meta["kickoff"])


async def test_writes_that_break_a_rule_are_refused(http) -> None:
    """Unknown matches are 404; what the schema of the body or the event forbids is 422 and names the field."""
    for method, path, body, *_ in WRITES[:5]:
        _problem(await http.request(method, path.replace("m-", "nope-"), json=body), 404)
    for path, body, field in (
        ("/api/matches/m-live/finalize", {"home_goals": -1, "away_goals": 0}, "home_goals"),
        ("/api/matches/m-live/finalize", {"home_goals": 1, "away_goals": 1000}, "away_goals"),
        ("/api/matches/m-live/finalize", {"home_goals": "1", "away_goals": 0}, "home_goals"),
        ("/api/matches/m-live/finalize", {"home_goals": True, "away_goals": 0}, "home_goals"),
        ("/api/matches/m-live/finalize", {"away_goals": 0}, "home_goals"),
        ("/api/matches/m-live/score", {"home_goals": 1, "away_goals": 0, "minute": -1}, "minute"),
        ("/api/matches/m-next/votes", {"choice": "both", "user_id": "ada"}, "choice"),
        ("/api/matches/m-next/votes", {"choice": "home"}, "user_id"),
        ("/api/matches/m-next/votes", {"choice": "home", "user_id": ""}, "user_id"),
        ("/api/matches/m-next/comments", {"text": " ", "user_id": "ada"}, "text"),
        ("/api/matches/m-next/comments", {"text": "x" * 9000, "user_id": "ada"}, "text"),
    ):
        assert _problem(await http.post(path, json=body), 422)["field"] == field, (path, body)
    _problem(await http.put("/api/league/nope/rules", json={}), 404)
    deduction = {"team": "Leeds", "points": 1, "reason": "debts"}
    for body, field in (
        ({"deductions": [{**deduction, "team": "Leads"}]}, "deductions"),
        ({"deductions": [{**deduction, "points": 0}]}, "deductions"),
        ({"withdrawn": [{"team": "Ulm", "reason": "another season"}]}, "withdrawn"),
        ({"tie_breaks": ["points"]}, "tie_breaks"),
        ({"rounds_not_counted": ["Final"]}, "rounds_not_counted"),
    ):
        assert _problem(await http.put(f"{PATH}/rules", json=body), 422)["field"] == field, body
    kind = {"Content-Type": "application/json"}
    for content, field in ((b"{", "body"), (b"\xff", "body"), (b"", "body"), (b'"%s"' % (b"x" * 70_000), "payload")):
        assert _problem(await http.put("/api/ads/a", content=content, headers=kind), 422)["field"] == field


async def test_who_may_write_what(guarded: Api, league: None) -> None:
    """Results need an admin or assistant, ads an admin, scores an assistant or an unbound editor; users vote as themselves,
    named or not, and never as others.
    """
    goals = {"home_goals": 1, "away_goals": 0}
    vote = {"choice": "home"}
    cases = [
        (
            "POST",
            "/api/matches/m-live/finalize",
            goals,
            {"eye-key": 403, "pen-key": 403, "root-key": 202, "ref-key": 202, None: 401},
        ),
        (
            "POST",
            "/api/matches/m-live/score",
            goals,
            {"eye-key": 403, "bob-key": 403, "pen-key": 202, "root-key": 202, "ref-key": 202},
        ),
        ("PUT", f"{PATH}/rules", {}, {"pen-key": 403, "root-key": 202, "ref-key": 403}),
        ("PUT", "/api/ads/x", {}, {"pen-key": 403, "root-key": 202, "ref-key": 403}),
        ("POST", "/api/events/league.match-finalized", {}, {"pen-key": 403, "ref-key": 403}),
        ("DELETE", "/api/ads/x", None, {"pen-key": 403, "root-key": 202}),
        (
            "POST",
            "/api/matches/m-next/votes",
            vote,
            {"ada-key": 202, "bob-key": 202, "pen-key": 422, "eye-key": 403, None: 401},
        ),
        (
            "POST",
            "/api/matches/m-next/votes",
            {**vote, "user_id": "ada"},
            {"ada-key": 202, "bob-key": 403, "pen-key": 202, "eye-key": 403},
        ),
        ("PUT", "/api/predictions/m-next", {**goals, "user_id": "ada"}, {"ada-key": 202, "bob-key": 403}),
        ("POST", "/api/matches/m-next/comments", {"text": "hi", "user_id": "ada"}, {"ada-key": 202, "bob-key": 403}),
        ("POST", "/api/cache/invalidate", {"keys": ["ads:all"]}, {"pen-key": 403, "root-key": 202}),
    ]
    for method, path, body, expected in cases:
        for token, status in expected.items():
            async with guarded.client(token) as client:
                response = await client.request(method, path, json=body)
            assert response.status_code == status, (path, body, token, response.text)


async def test_a_prewarm_asks_for_the_pages_of_seasons_about_to_be_read(stack, http, codec, guarded: Api) -> None:
    """202 names seasons with a match in its window or within seven days, not one that is over, and their four pages."""
    response = await http.post("/api/cache/prewarm", headers={"x-prewarm-token": TOKEN.encode()})
    assert response.status_code == 202, response.text
    document = response.json()
    assert document["seasons"] == [SEASON]
    assert document["keys"] == [f"league:{page}:{SEASON}" for page in ("table", "schedule", "results", "stats")]
    (text,) = document["positions"]
    key, event = _event(stack, codec, text)
    assert (key, event["season"], event["reason"]) == (SEASON.encode(), SEASON, "endpoint")
    for headers in ({}, {"x-prewarm-token": "token"}, {"x-prewarm-token": b"t\xf6ken"}, {"x-prewarm-token": ""}):
        _problem(await http.post("/api/cache/prewarm", headers=headers), 401)
    async with guarded.client() as client:
        assert (await client.post("/api/cache/prewarm", headers={"x-prewarm-token": TOKEN.encode()})).status_code == 202


async def test_an_invalidation_names_keys_of_documents(stack, http, codec) -> None:
    """One event a key, each key once; a key that no document has is 422 and nothing is produced."""
    response = await http.post("/api/cache/invalidate", json={"keys": ["ads:all", f"league:table:{SEASON}", "ads:all"]})
    assert response.status_code == 202
    events = [_event(stack, codec, text) for text in response.json()["positions"]]
    assert [event["key"] for _, event in events] == ["ads:all", f"league:table:{SEASON}"]
    assert [key.decode() for key, _ in events] == [event["key"] for _, event in events]
    for keys in (["ads:all", "feed:ada"], ["league:table:"], ["__v:ads:all"], ["lb:\u0001"], []):
        assert _problem(await http.post("/api/cache/invalidate", json={"keys": keys}), 422)["field"] == "keys"


@pytest.mark.requirement("R4.40")
async def test_the_verdict_tells_what_the_parts_count(http, guarded: Api) -> None:
    """Redis, PostgreSQL and this process with the names of R4.40; the same as metrics; for administrators."""
    document = (await http.get("/api/cache/verdict")).json()
    assert document["should_upgrade"] in (False, True)
    assert set(document["redis"]) >= {"hit_ratio", "evicted_keys", "used_memory_bytes", "connected_clients"}
    assert document["redis"]["connected_clients"] >= 1
    assert document["database"]["pool"]["size"] >= 1
    assert document["database"]["transactions"] > 0
    assert (document["redis"]["is_up"], document["database"]["is_up"]) == (True, True)
    assert document["database"]["slow_statements"] >= 0
    assert all(value is not None for part in ("redis", "database", "http") for value in document[part].values())
    assert set(document["http"]) == {"requests", "error_ratio", "p95_seconds", "p99_seconds"}
    metrics = (await http.get("/metrics")).text
    for name in ("redis_memory_bytes", "database_transactions", "http_quantile_seconds", "upgrade_advised"):
        assert f"\nhighwater_{name}" in metrics
    async with guarded.client("pen-key") as client:
        _problem(await client.get("/api/cache/verdict"), 403)


@pytest.mark.requirement("R4.32")
async def test_without_a_token_set_prewarm_is_refused(stack, seeds: Seeds, league: None) -> None:
    """This holds for any token, an empty one too."""
    url = f"{stack.redis.rsplit('/', 1)[0]}/11"
    with running_api(stack.settings(DATABASE_URL=seeds.url, REDIS_URL=url)) as running:
        async with running.client() as client:
            for headers in ({}, {"x-prewarm-token": ""}, {"x-prewarm-token": "None"}):
                _problem(await client.post("/api/cache/prewarm", headers=headers), 401)
