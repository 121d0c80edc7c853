"""League from the outside: a real season imported, pages served by version, windows, finalizations, two API processes."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from highwater.deploy.local.stack import Addresses, LocalStack
from highwater.streams.clock import ProductClock, to_datetime
from tests import ROOT
from tests.product import Product

SEASON = ROOT / "api" / "sample" / "season.json.gz"
SCHEDULED, FINALIZED = "league.match-scheduled", "league.match-finalized"
TOKEN = "a token of this test"
MATCHES = 50


@pytest.fixture(scope="module")
def league(shared_registry: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A product of this module's own: its clock is moved, its parts are killed."""
    folder: Path = tmp_path_factory.mktemp("league")
    with LocalStack(folder / "parts", shared_registry) as local:
        product = Product(folder / "data", local)
        product.environment["CACHE_PREWARM_TOKEN"] = TOKEN
        with product:
            yield product


@contextlib.contextmanager
def second_api(product: Product) -> Iterator[tuple[httpx2.Client, int]]:
    """Another API process over the same parts, and its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).parent / "highwater"), "api"]
    with (product.data_dir / "second-api.log").open("ab") as log:
        process = subprocess.Popen(command, env={**product.environment, "HIGHWATER_PORT": str(port)}, stderr=log)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as http:
            product.until(lambda: http.get("/readyz").status_code == 200, "the second API is not ready")
            yield http, process.pid
    finally:
        process.terminate()
        process.wait(30)


def table_of(matches: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The final table by the rules, computed from the file alone."""
    teams: dict[str, list[int]] = {}
    for match in matches:
        for team in (match["team1"], match["team2"]):
            teams.setdefault(team, [0] * 6)
        result = (match.get("score") or {}).get("ft")
        if not result:
            continue
        for team, own, other in ((match["team1"], *result), (match["team2"], *reversed(result))):
            row = teams[team]
            for place, value in enumerate((1, own > other, own == other, own < other, own, other)):
                row[place] += value
    rows = [(3 * r[1] + r[2], r[4] - r[5], r[4], team, *r) for team, r in teams.items()]
    return sorted(rows, key=lambda row: (-row[0], -row[1], -row[2], row[3]))


def served(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of the served table in the same form."""
    names = ("points", "goal_difference", "goals_for", "team", "played", "won", "drawn", "lost")
    return (*(row[name] for name in names), row["goals_for"], row["goals_against"])


def schedule(season: str, count: int, kickoff: datetime, *, apart: timedelta = timedelta(0)) -> list[dict[str, Any]]:
    """Matches of as many pairs of teams."""
    return [
        {
            "match_id": hashlib.sha256(f"{season}|{number}".encode()).hexdigest()[:20],
            "season": season, "round": f"Matchday {number // 10 + 1}",
            "kickoff": (kickoff + number * apart).isoformat().replace("+00:00", "Z"),
            "home": f"Home {number}", "away": f"Away {number}",
        }
        for number in range(count)
    ]  # fmt: skip


def counter(http: httpx2.Client, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in http.get("/metrics").text.splitlines()
        if re.match(rf"{name}(_total)?\{{", line) and all(one in line for one in wanted)
    )


def is_at_rest(answer: httpx2.Response) -> bool:
    """Whether a page is fresh and was made three seconds ago or more."""
    return "x-stale" not in answer.headers and int(answer.headers["age"]) >= 3


def page_when(http: httpx2.Client, path: str, condition: Callable[[Any], bool], product: Product) -> httpx2.Response:
    """A page once its body is as it should be."""

    def look() -> httpx2.Response | None:
        answer = http.get(path)
        return answer if answer.status_code == 200 and condition(answer.json()) else None

    found: httpx2.Response = product.until(look, f"{path} is not as expected")
    return found


def test_a_real_season_has_its_table(league: Product) -> None:
    """Imported, the served table is the one computed from the file; imported again, nothing moves; its own tag is a 304."""
    matches = json.loads(gzip.decompress(SEASON.read_bytes()))["matches"]
    league.cli("import", "openfootball", str(SEASON), "--season", "real")
    want = table_of(matches)
    played = sum(row[4] for row in want)
    answer = page_when(
        league.http, "/api/league/real/table", lambda b: sum(r["played"] for r in b["table"]) == played, league
    )
    assert [served(row) for row in answer.json()["table"]] == want
    assert [row["position"] for row in answer.json()["table"]] == list(range(1, len(want) + 1))
    assert answer.headers["x-caused-by"].startswith(f"{FINALIZED}/")
    etag = answer.headers["etag"]
    assert league.get("/api/league/real/table", If_None_Match=etag).status_code == 304
    league.cli("import", "openfootball", str(SEASON), "--season", "real")
    ends = [
        f"{topic}/{p}/{end - 1}" for topic in (SCHEDULED, FINALIZED) for p, end in league.ends(topic).items() if end
    ]
    again = league.get(
        "/api/league/real/table", If_None_Match=etag, X_Min_Position=",".join(ends), X_Max_Wait_Ms="30000"
    )
    assert (again.status_code, again.headers["etag"]) == (304, etag)
    assert league.get("/api/league/none-such/table").status_code == 404


def test_the_other_pages_of_a_season(league: Product) -> None:
    """Schedule, results, stats and bracket are served with the whole season in them, each under its own tag."""
    total = len(json.loads(gzip.decompress(SEASON.read_bytes()))["matches"])
    pages = {name: league.get(f"/api/league/real/{name}") for name in ("schedule", "results", "stats", "bracket")}
    assert {answer.status_code for answer in pages.values()} == {200}
    assert sum(len(one["matches"]) for one in pages["schedule"].json()["rounds"]) == total
    assert len(pages["results"].json()["results"]) == total
    assert pages["bracket"].json()["rounds"] == []
    match = pages["results"].json()["results"][0]
    found = league.get(f"/api/matches/{match['match_id']}").json()
    assert (found["meta"]["home"], found["meta"]["result"]["home_goals"]) == (match["home"], match["home_goals"])
    assert found["live"] is None  # its live part ended three hours after the match, years ago
    club = league.get(f"/api/clubs/{match['home'].replace(' ', '%20')}/matches").json()
    assert len(club["matches"]) == 38
    for path in (f"/api/matches/{match['match_id']}", f"/api/matches/{match['match_id']}/comments", "/api/league"):
        assert league.own_token(path).startswith("league.")


@pytest.mark.requirement("R4.2")
def test_a_304_reads_no_payload(league: Product) -> None:
    """Two hundred conditional reads: no GET of a payload, and at most one question to Redis each."""
    etag = league.get("/api/league/real/schedule").headers["etag"]
    with redis.Redis.from_url(league.environment["REDIS_CACHE_URL"]) as client:
        before = client.info("commandstats")
        answers = {league.get("/api/league/real/schedule", If_None_Match=etag).status_code for _ in range(200)}
        after = client.info("commandstats")
    assert answers == {304}

    def calls(command: str) -> int:
        name = f"cmdstat_{command}"
        return int(after.get(name, {}).get("calls", 0)) - int(before.get(name, {}).get("calls", 0))

    assert calls("get") <= 5  # other roles' own keys; never one a read
    assert calls("hmget") <= 200


@pytest.mark.requirement("R4.27")
def test_two_hundred_reads_of_an_expired_page_load_it_once(league: Product) -> None:
    """Over two API processes; all are answered at once with the former copy."""
    path = "/api/league/real/stats"
    with second_api(league) as (other, _):
        sides = (league.http, other)
        for http in sides:
            assert http.get(path).status_code == 200
        load = {"kind": "league_stats"}
        before = sum(counter(http, "highwater_document_loads", **load) for http in sides)
        league.move_clock(3_600 + 60)
        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda number: sides[number % 2].get(path), range(200)))
        assert {answer.status_code for answer in answers} == {200}
        assert any(answer.headers.get("x-stale") == "true" for answer in answers)
        league.until(lambda: "x-stale" not in league.get(path).headers, "it was not made anew")
        after = sum(counter(http, "highwater_document_loads", **load) for http in sides)
        kept = sum(counter(http, "highwater_document_loads", outcome="kept", **load) for http in sides)
    assert after - before - kept == 1


def now(product: Product) -> datetime:
    """The product's time."""
    return to_datetime(ProductClock(product.clock_file)())


@pytest.mark.requirement("R4.14")
def test_a_page_of_seven_days_obeys_the_short_life_in_a_window(league: Product) -> None:
    """Written days before a match, a page is valid for days; once the window is open it is rebuilt after 30 seconds."""
    path = "/api/league/windowed/table"
    kickoff = now(league) + timedelta(days=3)
    league.publish(SCHEDULED, schedule("windowed", 2, kickoff))
    page_when(league.http, path, lambda body: len(body["table"]) == 4, league)
    # Later changes of the schedule (standings, documents) rebuild the page; then nothing does for some seconds.
    league.until(lambda: is_at_rest(league.get(path)), "never fresh")
    league.move_clock(86_400)
    answer = league.get(path)
    assert "x-stale" not in answer.headers
    assert int(answer.headers["age"]) >= 86_400
    etag = answer.headers["etag"]
    before = counter(league.http, "highwater_document_loads", kind="league_table")
    league.move_clock(2 * 86_400 - 40 * 60)  # five minutes into the window of 45 minutes before kickoff

    def is_made_anew() -> bool:
        # The agent prewarms at the start of the window; with or without it a reader gets a page made in the window.
        found = league.get(path, If_None_Match=etag)
        assert found.status_code == 304  # nothing happened, so nothing is new
        return int(found.headers["age"]) < 30 and "x-stale" not in found.headers

    league.until(is_made_anew, "the page of seven days lives on in the window")
    league.move_clock(40)
    league.get(path)
    league.until(
        lambda: counter(league.http, "highwater_document_loads", kind="league_table") > before, "it was not made anew"
    )
    assert "stale-while-revalidate" in league.get(path).headers["cdn-cache-control"]


@pytest.mark.requirement("R4.30")
def test_no_new_tag_ever_comes_with_an_old_body(league: Product) -> None:
    """Two API processes polled without pause during fifty finalizations: one body a tag, one tag a body, never back."""
    season, path = "final", "/api/league/final/table"
    matches = schedule(season, MATCHES, now(league) - timedelta(hours=3))
    league.publish(SCHEDULED, matches)
    page_when(league.http, path, lambda body: len(body["table"]) == 2 * MATCHES, league)
    stop = threading.Event()
    seen: list[list[tuple[int, str, int]]] = [[], []]  # version, tag, played in the body; one list a process

    def poll(http: httpx2.Client, into: list[tuple[int, str, int]]) -> None:
        tag = ""
        while not stop.is_set():
            answer = http.get(path, headers={"If-None-Match": tag})
            if answer.status_code == 304:
                assert answer.headers["etag"] == tag
                continue
            assert answer.status_code == 200, answer.text
            tag = answer.headers["etag"]
            played = sum(row["played"] for row in answer.json()["table"])
            into.append((int(answer.headers["x-resource-version"]), tag, played))

    with second_api(league) as (other, _), httpx2.Client(base_url=league.http.base_url, timeout=30.0) as first:
        threads = [threading.Thread(target=poll, args=pair) for pair in zip((first, other), seen, strict=True)]
        for thread in threads:
            thread.start()
        try:
            positions = []
            for match in matches:
                body = {"home_goals": 1, "away_goals": 0}
                answer = league.http.post(f"/api/matches/{match['match_id']}/finalize", json=body)
                assert answer.status_code == 202, answer.text
                positions += answer.json()["positions"]
            wait = {"X_Min_Position": ",".join(positions), "X_Max_Wait_Ms": "30000"}
            last = league.get(path, **wait)
            assert sum(row["played"] for row in last.json()["table"]) == 2 * MATCHES
            league.until(lambda: all(one and one[-1][2] == 2 * MATCHES for one in seen), "a poller missed the last one")
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
    for one in seen:
        assert one == sorted(one)  # versions and results only grow
    pairs = {(tag, played) for one in seen for _, tag, played in one}
    assert len({tag for tag, _ in pairs}) == len({played for _, played in pairs}) == len(pairs)
    assert len(pairs) > 3


@pytest.mark.requirement("R4.30")
def test_a_finalization_told_twice_changes_nothing(league: Product) -> None:
    """The same result again moves no version; a correction moves it, and the table with it."""
    season, path = "twice", "/api/league/twice/table"
    (match,) = schedule(season, 1, now(league) - timedelta(hours=3))
    league.publish(SCHEDULED, [match])
    page_when(league.http, path, lambda body: len(body["table"]) == 2, league)

    def finalize(home_goals: int, away_goals: int) -> httpx2.Response:
        body = {"home_goals": home_goals, "away_goals": away_goals}
        answer = league.http.post(f"/api/matches/{match['match_id']}/finalize", json=body)
        assert answer.status_code == 202, answer.text
        positions = ",".join(answer.json()["positions"])
        return league.get(path, X_Min_Position=positions, X_Max_Wait_Ms="10000")

    first = finalize(1, 0)
    again = finalize(1, 0)
    corrected = finalize(1, 1)
    assert first.headers["etag"] == again.headers["etag"] != corrected.headers["etag"]
    assert [row["points"] for row in corrected.json()["table"]] == [1, 1]
    refused = league.http.post(f"/api/matches/{match['match_id']}/finalize", json={"home_goals": -1, "away_goals": 0})
    assert (refused.status_code, refused.json()["field"]) == (422, "home_goals")
    unknown = league.http.post("/api/matches/none-such/finalize", json={"home_goals": 1, "away_goals": 0})
    assert unknown.status_code == 404


def test_a_result_for_a_match_never_scheduled_is_put_aside(league: Product) -> None:
    """It is dead-lettered with its reason, and what stood around it is stored."""
    matches = schedule("around", 2, now(league) - timedelta(hours=3))
    league.publish(SCHEDULED, matches)
    moment = now(league).isoformat().replace("+00:00", "Z")
    result = {"season": "around", "home_goals": 2, "away_goals": 0, "finalized_at": moment}
    ids = [matches[0]["match_id"], "never-scheduled", matches[1]["match_id"]]
    league.publish(FINALIZED, [{**result, "match_id": one} for one in ids])
    page_when(league.http, "/api/league/around/table", lambda b: sum(r["played"] for r in b["table"]) == 4, league)

    def letter() -> Any:
        return [m for m in league.records(f"{FINALIZED}.dlq") if ("dlq_reason", b"unknown_match") in m.headers()]

    assert len(league.until(letter, "no dead letter")) == 1


@pytest.mark.requirement("R4.32")
def test_prewarm_makes_pages_that_nobody_asked_for(league: Product) -> None:
    """With its token, and only with it; the pages of a season near its window are there before the first reader."""
    league.publish(SCHEDULED, schedule("warm", 2, now(league) + timedelta(minutes=30)))
    league.until(lambda: league.sql("SELECT 1 FROM league_matches WHERE season = 'warm'"), "not stored")
    refused = league.http.post("/api/cache/prewarm", headers={"x-prewarm-token": "wrong"})
    answer = league.http.post("/api/cache/prewarm", headers={"x-prewarm-token": TOKEN})
    assert (refused.status_code, answer.status_code) == (401, 202)
    assert "warm" in answer.json()["seasons"]
    keys = [f"league:{page}:warm" for page in ("results", "schedule", "stats", "table")]
    assert set(keys) <= set(answer.json()["keys"])
    league.until(lambda: len(league.sql("SELECT 1 FROM documents WHERE key = ANY ($1::text[])", keys)) == 4, "not made")


@pytest.mark.requirement("R4.8")
def test_a_stopped_process_never_serves_what_was_bumped_while_it_slept(league: Product) -> None:
    """An API process under SIGSTOP with a copy in memory, a bump that is acknowledged, SIGCONT: it serves the new page."""
    season, path = "frozen", "/api/league/frozen/table"
    matches = schedule(season, 12, now(league) - timedelta(hours=3))
    league.publish(SCHEDULED, matches)
    page_when(league.http, path, lambda body: len(body["table"]) == 24, league)
    with second_api(league) as (other, pid):
        for number, match in enumerate(matches, start=1):
            before = counter(other, "highwater_document_reads", kind="league_table", source="memory")

            def reads_memory(since: float = before) -> bool:
                assert other.get(path).status_code == 200
                return counter(other, "highwater_document_reads", kind="league_table", source="memory") > since

            league.until(reads_memory, "never from memory")
            with league.frozen(pid):
                body = {"home_goals": 1, "away_goals": 0}
                answer = league.http.post(f"/api/matches/{match['match_id']}/finalize", json=body)
                positions = ",".join(answer.json()["positions"])
                # The read with the position bumps and answers once the bump is acknowledged: the lease of the sleeper ended.
                fresh = league.get(path, X_Min_Position=positions, X_Max_Wait_Ms="10000")
                assert sum(row["played"] for row in fresh.json()["table"]) == 2 * number
            woken = other.get(path)
            assert woken.headers["etag"] == fresh.headers["etag"]


def test_redis_killed_pages_still_answer(league: Product) -> None:
    """With Redis killed pages, 304s and finalizations still work; after an empty restart no version has gone back."""
    season, path = "redisless", "/api/league/redisless/table"
    matches = schedule(season, 4, now(league) - timedelta(hours=3))
    league.publish(SCHEDULED, matches)
    first = page_when(league.http, path, lambda body: len(body["table"]) == 8, league)
    with league.without_redis():
        assert league.get(path, If_None_Match=first.headers["etag"]).status_code == 304
        assert league.get("/api/league/redisless/schedule").status_code == 200
        answer = league.http.post(
            f"/api/matches/{matches[0]['match_id']}/finalize", json={"home_goals": 3, "away_goals": 0}
        )
        assert answer.status_code == 202
        second = page_when(league.http, path, lambda b: sum(r["played"] for r in b["table"]) == 2, league)
    league.until_ready()
    assert int(second.headers["x-resource-version"]) > int(first.headers["x-resource-version"])
    assert league.get(path, If_None_Match=first.headers["etag"]).status_code == 200
    assert league.get(path).headers["etag"] == second.headers["etag"]


def test_postgresql_stopped_pages_are_served_marked(league: Product) -> None:
    """A page that was read is served as stale while PostgreSQL is unavailable; one that never was is 503 with Retry-After."""
    path = "/api/league/real/table"
    etag = league.get(path).headers["etag"]
    league.parts.stop_part("database")
    try:
        kept = league.until(
            lambda: (answer := league.get(path)).headers.get("x-stale") == "true" and answer, "never marked"
        )
        assert (kept.status_code, kept.headers["etag"]) == (200, etag)
        unread = league.get("/api/clubs/Nobody%20Ever/matches")
        assert (unread.status_code, "retry-after" in unread.headers) == (503, True)
    finally:
        league.parts.start_part("database")
    league.until_ready()
    league.until(lambda: "x-stale" not in league.get(path).headers, "stays marked")


@pytest.mark.requirement("R4.33")
def test_votes_are_counted_once_a_user(league: Product) -> None:
    """The last vote of a user counts; one flush publishes once; the page of predictions shows the counts."""
    (match,) = schedule("votes", 1, now(league) + timedelta(days=2))
    league.publish(SCHEDULED, [match])
    path = f"/api/matches/{match['match_id']}"
    league.until(lambda: league.get(path).status_code == 200, "no match")
    positions = []
    for user, choice in (("u1", "home"), ("u2", "away"), ("u1", "draw"), ("u3", "draw"), ("u1", "draw")):
        answer = league.http.post(f"{path}/votes", json={"choice": choice, "user_id": user})
        assert answer.status_code == 202, answer.text
        positions += answer.json()["positions"]
    headers = {"X_Min_Position": ",".join(positions), "X_Max_Wait_Ms": "20000"}
    found = league.get(path, **headers)
    assert found.status_code == 200, found.text
    assert found.json()["live"]["votes"] == {"home": 0, "draw": 2, "away": 1}


@pytest.mark.requirement("R4.36")
def test_live_pages_are_limited(league: Product) -> None:
    """Sixteen requests within ten seconds: the last is 429 with Retry-After."""
    threading.Event().wait(10.1)  # requests of other tests have left the window of ten seconds
    answers = [league.get("/api/matches/live") for _ in range(16)]
    assert [answer.status_code for answer in answers] == [200] * 15 + [429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 10
