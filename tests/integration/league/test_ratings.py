"""The worker of ratings on real services: a rating compares the timely votes with the results, for any number of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from highwater.connectors.kafka.records import Event
from highwater.connectors.league.rows import match_of
from highwater.connectors.league.worker_ratings import RUN_MS, RatingsWorker
from highwater.schemas.positions import Cause
from highwater.streams.league.ratings import Prediction, Rating, Stake, Vote, rate
from highwater.streams.league.resources import resource
from tests.conftest import Stack
from tests.integration.connecting import in_transaction, until
from tests.integration.databases import own_database
from tests.integration.league.making import KICKOFF_MS, League

BEFORE, AFTER = KICKOFF_MS - 1, KICKOFF_MS
SEED = 20_181_110


@pytest.fixture
async def league(stack: Stack) -> AsyncIterator[League]:
    """A season on an empty database: a run rates all users there are."""
    async with own_database(stack) as context:
        yield League(context)


def changed(league: League, match_id: str, *parts: str, state: str = "final") -> Event:
    """A match-changed as the worker reads it."""
    return league.says("league.match-changed", {"match_id": league.match(match_id), "changed": parts, "state": state})


def tick(league: League, now_ms: int, *, appended_ms: int | None = None) -> Event:
    """A tick; by the broker's clock of another time, if that is given."""
    event = {"number": now_ms // 30_000, "now": now_ms, "clock_offset_ms": 0}
    return league.says("streams.tick", event, at=now_ms if appended_ms is None else appended_ms)


async def ratings(league: League) -> dict[str, tuple[int, int, int, int]]:
    """Points, exact, correct and judged by user."""
    rows = await league.context.pool.fetch("SELECT user_id, points, exact, correct, judged FROM league_ratings")
    return {row["user_id"]: (row["points"], row["exact"], row["correct"], row["judged"]) for row in rows}


async def test_points_of_a_match(league: League):
    """Three for the exact result, one for the outcome, none else; a prediction before a vote; nothing said after kickoff."""
    await league.stores(league.scheduled("a"))
    await league.stores(
        league.predicted("a", "exact", 2, 1, ts=BEFORE), league.voted("a", "exact", "away", ts=BEFORE),
        league.predicted("a", "outcome", 1, 0, ts=BEFORE), league.voted("a", "voter", "home", ts=BEFORE),
        league.predicted("a", "wrong", 0, 0, ts=BEFORE), league.voted("a", "wrong", "home", ts=BEFORE),
        league.voted("a", "late", "home", ts=AFTER), league.predicted("a", "late", 2, 1, ts=AFTER),
        league.predicted("a", "half late", 2, 1, ts=AFTER), league.voted("a", "half late", "home", ts=BEFORE),
    )  # fmt: skip
    result = league.finalized("a", 2, 1)
    await league.stores(result)
    await league.rates(changed(league, "a", "result"))
    assert await ratings(league) == {
        "exact": (3, 1, 1, 1), "outcome": (1, 0, 1, 1), "voter": (1, 0, 1, 1), "wrong": (0, 0, 0, 1),
        "half late": (1, 0, 1, 1),
    }  # fmt: skip
    found = await league.context.pool.fetch("SELECT DISTINCT position FROM league_ratings")
    assert [row["position"] for row in found] == [str(result.record.position)]


async def test_only_a_result_rates(league: League):
    """A score in play and a date of a match without result rate no user and request nothing."""
    await league.stores(league.scheduled("a"))
    await league.stores(league.voted("a", "u", "home", ts=BEFORE))
    await league.stores(league.updated("a", 1, 0))
    await league.rates(changed(league, "a", "score", state="live"), changed(league, "a", "schedule", state="scheduled"))
    assert (await ratings(league), await league.asked("ratings")) == ({}, [])


@pytest.mark.requirement("R4.34")
async def test_a_corrected_result_rates_anew(league: League):
    """After a correction the ratings are those of the new result; read again, nothing changes."""
    await league.stores(league.scheduled("a"), league.scheduled("b"))
    await league.stores(
        league.predicted("a", "u", 1, 0, ts=BEFORE), league.predicted("a", "v", 1, 1, ts=BEFORE),
        league.voted("b", "u", "draw", ts=BEFORE),
    )  # fmt: skip
    await league.stores(league.finalized("a", 1, 0), league.finalized("b", 0, 0))
    await league.rates(changed(league, "a", "result"), changed(league, "b", "result"))
    assert await ratings(league) == {"u": (4, 1, 2, 2), "v": (0, 0, 0, 1)}
    await league.stores(league.finalized("a", 1, 1))
    for _ in range(2):
        await league.rates(changed(league, "a", "result"))
        assert await ratings(league) == {"u": (1, 0, 1, 2), "v": (3, 1, 1, 1)}


async def test_a_new_date_of_a_final_match_rates_anew(league: League):
    """The date decides whether a vote was in time: moved before it, the vote no longer counts, and its rating is removed."""
    await league.stores(league.scheduled("a"))
    await league.stores(league.voted("a", "u", "home", ts=BEFORE))
    await league.stores(league.finalized("a", 1, 0))
    await league.rates(changed(league, "a", "result"))
    assert await ratings(league) == {"u": (1, 0, 1, 1)}
    await league.stores(league.scheduled("a", kickoff=BEFORE))
    await league.rates(changed(league, "a", "schedule"))
    assert await ratings(league) == {}


async def test_what_is_stored_after_the_result_is_rated_with_it(league: League):
    """A word said in time that came late counts in the rating as on the user's own page, and so does one that replaces it."""
    await league.stores(league.scheduled("a"))
    await league.stores(league.finalized("a", 1, 0))
    await league.rates(changed(league, "a", "result"))
    word = league.predicted("a", "u", 1, 0, ts=BEFORE)
    await league.stores(word, league.voted("a", "v", "home", ts=BEFORE), league.voted("a", "late", "home", ts=AFTER))
    assert await ratings(league) == {"u": (3, 1, 1, 1), "v": (1, 0, 1, 1)}
    (asked,) = await league.asked("ratings")
    assert (asked["keys"], asked["dropped"], asked["reason"]) == (["lb:1"], [], "votes")
    await league.stores(league.predicted("a", "u", 0, 0, ts=BEFORE), league.voted("a", "v", "away", ts=AFTER))
    assert await ratings(league) == {"u": (0, 0, 0, 1)}
    await league.stores(league.voted("a", "late", "draw", ts=AFTER))
    assert len(await league.asked("ratings")) == 2


async def test_documents_of_the_rating_are_asked_for(league: League):
    """One request per batch: the first page is rebuilt, and the users' own pages are removed."""
    await league.stores(league.scheduled("a"), league.scheduled("b"), league.scheduled("nobody's"))
    crowd = [league.voted("b", f"u{n:03}", "home", ts=BEFORE) for n in range(101)]
    await league.stores(league.voted("a", "u", "home", ts=BEFORE), *crowd)
    await league.stores(league.finalized("a", 1, 0), league.finalized("b", 1, 0), league.finalized("nobody's", 1, 0))
    for user, kind in (("u", "predictions_user"), ("u007", "achievements"), ("u100", "predictions_user")):
        await store_document(league, resource(kind, user).key)
    for match_id in ("a", "b", "nobody's"):
        await league.rates(changed(league, match_id, "result"))
    few, many = await league.asked("ratings")
    assert (few["reason"], few["keys"], few["dropped"]) == ("ratings", ["lb:1"], ["predictions:user:u"])
    assert many["dropped"] == ["achievements:u007", "predictions:user:u100"]


async def store_document(league: League, key: str) -> None:
    """Store a document as after a read."""
    await league.context.pool.execute(
        "INSERT INTO documents (key, version, coming, payload, built_at) VALUES ($1, 1, 1, '', to_timestamp(0))", key
    )


@pytest.mark.requirement("R4.22")
async def test_all_are_rated_once_in_six_hours_of_ticks(league: League):
    """The first tick of each six hours rates everybody and asks for the first page; the others do nothing (R4.22)."""
    await league.stores(league.scheduled("a"))
    await league.stores(league.finalized("a", 1, 0))
    start = 100 * RUN_MS
    await league.rates(tick(league, start))
    await league.stores(league.voted("a", "u", "home", ts=BEFORE))
    await league.context.pool.execute("DELETE FROM league_ratings")  # lost: no result and no vote will publish it again
    for now_ms in (start, start + RUN_MS - 1, start - 1):
        await league.rates(tick(league, now_ms))
    assert (await ratings(league), len(await league.asked("ratings"))) == ({}, 2)
    await league.rates(tick(league, start + RUN_MS - 1), tick(league, start + RUN_MS))
    assert await ratings(league) == {"u": (1, 0, 1, 1)}
    assert [asked["keys"][0] for asked in await league.asked("ratings")] == ["lb:1"] * 3
    assert await league.context.pool.fetchval("SELECT count(*) FROM league_rating_runs") == 1


async def test_a_clock_that_is_wrong_holds_up_no_run(league: League):
    """A tick of the future begins none, and one that was begun by such a tick does not hold up the next."""
    start = 1_000 * RUN_MS
    await league.rates(tick(league, start))
    await league.rates(tick(league, start + 9 * RUN_MS, appended_ms=start))
    await league.rates(tick(league, start + RUN_MS))
    assert await league.context.pool.fetchval("SELECT number FROM league_rating_runs") == 1_001
    await league.context.pool.execute("UPDATE league_rating_runs SET number = 9999")
    await league.rates(tick(league, start + 2 * RUN_MS))
    assert await league.context.pool.fetchval("SELECT number FROM league_rating_runs") == 1_002
    await league.rates(tick(league, start + RUN_MS + 1))
    assert await league.context.pool.fetchval("SELECT number FROM league_rating_runs") == 1_002


async def test_a_run_finds_ratings_that_nothing_stands_behind(league: League):
    """A user who has a rating and said nothing loses it at the next run."""
    await league.context.pool.execute("INSERT INTO league_ratings VALUES ('ghost', 9, 3, 3, 3, 't/0/0')")
    await league.rates(tick(league, RUN_MS))
    assert await ratings(league) == {}


async def test_one_transaction_rates_at_a_time(league: League):
    """A second one waits for the first, so that it sees every result that was committed before it rates."""
    await league.stores(league.scheduled("a"), league.scheduled("b"))
    await league.stores(*(league.predicted(match, "u", 1, 0, ts=BEFORE) for match in "ab"))
    await league.stores(league.finalized("a", 1, 0))
    worker = RatingsWorker(league.context.codec, lambda: 1)
    first, second = [changed(league, "a", "result")], [changed(league, "b", "result")]
    prepared = await worker.prepare(first)
    async with league.context.pool.acquire() as tx:
        async with tx.transaction():
            await worker.apply(tx, first, prepared)
            await league.stores(league.finalized("b", 1, 0))
            rating = asyncio.create_task(in_transaction(league.context, worker, second))
            query = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            await until(lambda: rating.done() or league.context.pool.fetchval(query), "the second waits")
            assert not rating.done()
        await rating
    assert await ratings(league) == {"u": (6, 2, 2, 2)}


async def test_ratings_are_those_of_the_rules(league: League):
    """For any votes of any users, the statement rates as the rules do; two workers at once do no harm."""
    draw = np.random.default_rng(SEED)
    matches, users = [f"m{n}" for n in range(6)], [f"u{n}" for n in range(25)]
    await league.stores(*(league.scheduled(match) for match in matches))
    said: list[Event] = []

    def goals() -> int:
        return int(draw.integers(3))

    for user in users:
        for match in matches:
            ts = int(draw.choice((BEFORE, BEFORE, AFTER)))
            if draw.random() < 0.6:
                said.append(league.voted(match, user, str(draw.choice(("home", "draw", "away"))), ts=ts))
            if draw.random() < 0.5:
                said.append(league.predicted(match, user, goals(), goals(), ts=ts))
    await league.stores(*said)
    await league.stores(*(league.finalized(match, goals(), goals()) for match in matches[:5]))
    worker = RatingsWorker(league.context.codec, lambda: 1)
    await asyncio.gather(
        *(in_transaction(league.context, worker, [changed(league, match, "result")]) for match in matches[:5])
    )
    expected = {user: rate(await stakes(league, said, user)) for user in users}
    assert {
        user: (r.points, r.exact, r.correct, r.judged) for user, r in expected.items() if r != Rating()
    } == await ratings(league)
    assert len({r.points for r in expected.values()}) > 3


async def stakes(league: League, said: list[Event], user: str) -> list[Stake]:
    """A user's stakes on each match, as input of the rules."""
    of_match: dict[str, dict[str, Any]] = {}
    for record, value in said:
        if value["user_id"] != user:
            continue
        cause = Cause(record.arrived_ms, str(record.position))
        stake = of_match.setdefault(value["match_id"].split("/")[1], {})
        if "choice" in value:
            stake["vote"] = Vote(value["choice"], value["ts"], cause)
        else:
            stake["prediction"] = Prediction(value["home_goals"], value["away_goals"], value["ts"], cause)
    return [Stake(match_of(await league.row(match_id)), **stake) for match_id, stake in of_match.items()]
