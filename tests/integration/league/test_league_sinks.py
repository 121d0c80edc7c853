"""The sinks of matches and posts on real parts: the last event wins, and an event without a change publishes nothing."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest
from asyncpg import UniqueViolationError

from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.kafka.known import KnownIds
from highwater.connectors.kafka.records import Event
from highwater.connectors.league import sink_posts as posts
from highwater.connectors.league.known_matches import SCHEDULES, KnownMatches
from highwater.connectors.league.rows import match_of
from highwater.connectors.league.sink_fixtures import FixturesSink
from highwater.connectors.league.sink_results import ResultsSink
from highwater.schemas.errors import UnavailableError
from highwater.schemas.positions import Cause
from tests.conftest import Stack
from tests.integration.connecting import fresh, in_transaction, running, until
from tests.integration.league.making import KICKOFF_MS, League, reasons

CHANGED = "league.match-changed"


@pytest.fixture
def league(context: ProcessContext) -> League:
    """A season of the test's own."""
    return League(context)


# -- schedules and results -------------------------------------------------------------------------------------------


async def test_a_schedule_makes_a_season_and_tells_each_match(league: League):
    """A batch is one row and one event a match, and the season's revision counts them."""
    first, second = league.scheduled("a"), league.scheduled("b", time_unknown=True, status="postponed")
    assert await league.stores(first, second) == []
    row = await league.row("b")
    assert (row["season"], row["time_unknown"], row["status"], row["schedule_position"]) == (
        league.season, True, "postponed", str(second.record.position),
    )  # fmt: skip
    told = await league.published(CHANGED)
    assert [(e["match_id"], e["revision"], e["changed"], e["state"]) for e in told] == [
        (league.match("a"), 1, ["schedule"], "scheduled"), (league.match("b"), 2, ["schedule"], "scheduled"),
    ]  # fmt: skip
    assert (told[0]["kickoff"], told[0]["home_goals"], await league.revision()) == (KICKOFF_MS, None, 2)


async def test_a_season_knows_the_event_that_brought_it(league: League):
    """The event of its first match, in any later state; a restored season has the event of the next schedule."""
    select = "SELECT created_ms, position FROM league_seasons WHERE season = $1"
    first, second = league.scheduled("a"), league.scheduled("b")
    await league.stores(second, first)
    await league.stores(league.finalized("a", 1, 0))
    await league.stores(league.scheduled("a", kickoff=KICKOFF_MS + 1), league.scheduled("c"))
    expected = (first.record.arrived_ms, str(first.record.position))
    assert tuple(await league.context.pool.fetchrow(select, league.season)) == expected
    await league.context.pool.execute(
        "UPDATE league_seasons SET created_ms = NULL, position = NULL WHERE season = $1", league.season
    )
    await league.stores(league.finalized("b", 1, 0))
    assert tuple(await league.context.pool.fetchrow(select, league.season)) == (None, None)
    last = league.scheduled("d")
    await league.stores(last)
    assert await league.context.pool.fetchval(select.replace("created_ms, ", ""), league.season) == str(
        last.record.position
    )


async def test_what_is_stored_is_what_was_folded(league: League):
    """Every part of a match is read unchanged from its row, with the event behind it."""
    schedule = league.scheduled("a")
    await league.stores(schedule)
    score, result = league.updated("a", 1, 0, minute=33), league.finalized("a", 2, 1)
    await league.stores(score)
    live = match_of(await league.row("a"))
    assert (live.state, live.minute, live.home_goals) == ("live", 33, 1)
    await league.stores(result)
    match = match_of(await league.row("a"))
    assert [match.schedule_by, match.score_by, match.result_by] == [
        Cause(e.record.arrived_ms, str(e.record.position)) for e in (schedule, score, result)
    ]
    assert (match.finalized_ms, match.home_goals, match.away_goals, match.minute) == (KICKOFF_MS + 1, 2, 1, None)
    more = {"home_goals_extra_time": 3, "away_goals_extra_time": 3, "home_penalties": 4, "away_penalties": 2}
    await league.stores(league.finalized("a", 2, 2, **more))
    match = match_of(await league.row("a"))
    assert (match.home_goals, match.extra_time, match.penalties) == (2, (3, 3), (4, 2))
    assert (await league.published(CHANGED))[-1].items() >= {"home_goals": 2, **more}.items()


async def test_a_batch_of_a_match_is_one_change(league: League):
    """Scores and a result of one batch are one event: the union of what changed, caused by the last that changed anything."""
    await league.stores(league.scheduled("a"))
    events = [
        league.updated("a", 1, 0),
        league.updated("a", 1, 1),
        league.finalized("a", 2, 1),
        league.updated("a", 9, 9),
    ]
    await league.stores(*reversed(events))
    last = (await league.published(CHANGED))[-1]
    assert (last["changed"], last["home_goals"], last["finalized_at"], last["revision"]) == (
        ["score", "result"], 2, KICKOFF_MS + 1, 2,
    )  # fmt: skip
    query = "SELECT headers FROM outbox WHERE topic = $1 AND key = $2 ORDER BY id DESC LIMIT 1"
    headers = await league.context.pool.fetchval(query, CHANGED, league.season.encode())
    caused_by = {name: base64.b64decode(value).decode() for name, value in orjson.loads(headers)}["ce_causedby"]
    assert caused_by == str(events[2].record.position)


async def test_what_changes_nothing_is_neither_written_nor_told(league: League):
    """The same batch again, the same result again and an older event leave rows, revision and outbox as they are."""
    batch = [league.scheduled("a"), league.scheduled("b")]
    await league.stores(*batch)
    result = league.finalized("a", 2, 1)
    await league.stores(result)
    query = "SELECT xmin::text, * FROM league_matches WHERE season = $1 ORDER BY match_id"
    season = "SELECT xmin::text, revision FROM league_seasons WHERE season = $1"

    async def state() -> Any:
        pool = league.context.pool
        return (
            await pool.fetch(query, league.season), await pool.fetch(season, league.season), await league.published(CHANGED),
        )  # fmt: skip

    before = await state()
    await league.stores(*batch)
    await league.stores(result, league.finalized("a", 2, 1), league.updated("a", 0, 0))
    await league.stores(league.scheduled("b", at=5, kickoff=1))
    assert before == await state()


async def test_events_sent_together_count_in_their_order(league: League):
    """If two events have one broker's time the one with the higher offset counts, offset 10 after offset 9."""
    nine = league.scheduled("a", at=7_000, offset=9, kickoff=9)
    ten = league.scheduled("a", at=7_000, offset=10, kickoff=10)
    await league.stores(nine)
    await league.stores(ten)
    await league.stores(nine)
    assert match_of(await league.row("a")).kickoff_ms == 10


async def test_a_match_keeps_its_season(league: League):
    """A schedule, a score or a result under another season is dead, those around it count, and no season is made."""
    other = fresh("other")
    await league.stores(league.scheduled("a"))
    dead = await league.stores(
        league.scheduled("a", season=other), league.scheduled("a", kickoff=77), league.scheduled("b"),
        league.scheduled("b", season=other),
    )  # fmt: skip
    dead += await league.stores(
        league.finalized("a", 1, 1, season=other), league.updated("a", 3, 0), league.updated("b", 1, 0, season=other)
    )
    assert reasons(dead) == ["wrong_season"] * 4
    assert (match_of(await league.row("a")).kickoff_ms, await league.score("a")) == (77, (3, 0))
    assert await league.context.pool.fetchval("SELECT 1 FROM league_seasons WHERE season = $1", other) is None


async def test_one_match_scheduled_in_two_seasons_at_once(context: ProcessContext):
    """Two consumers that schedule one match in two seasons at one time: one of them has it, the other gets an error."""
    league, other = League(context), League(context)
    same = {**other.schedule("a"), "match_id": league.match("a")}
    events = [league.scheduled("a"), other.says("league.match-scheduled", same)]
    sinks = [FixturesSink(context.codec, lambda: 1) for _ in events]

    async def store(number: int) -> list[str]:
        while True:
            try:
                return reasons(await in_transaction(context, sinks[number], [events[number]]))
            except (UnavailableError, UniqueViolationError):
                continue  # an error for which the framework repeats a batch

    outcomes = await asyncio.gather(store(0), store(1))
    assert sorted(outcomes) == [[], ["wrong_season"]]


async def test_bad_events_are_dead_and_those_around_them_count(league: League):
    """Each bad event is refused by name, its neighbours are stored."""
    dead = await league.stores(league.scheduled("a"), league.scheduled("b", away="home of b"), league.scheduled("c"))
    dead += await league.stores(league.finalized("a", 1, 0), league.finalized("c", -1, 0))
    assert reasons(dead) == ["same_team", "bad_score"]
    assert (await league.score("a"), await league.score("c"), await league.row("b")) == ((1, 0), (None, None), None)


async def test_matches_of_seasons_change_side_by_side(context: ProcessContext):
    """Batches over the same seasons and matches in different orders neither deadlock nor lose a change."""
    leagues = [League(context) for _ in range(3)]
    for league in leagues:
        await league.stores(*(league.scheduled(name) for name in "abcd"))
    sinks = [ResultsSink(context), FixturesSink(context.codec, lambda: 1)]
    rounds = []
    for number in range(12):
        order = leagues[number % 3 :] + leagues[: number % 3]
        names = "abcd"[number % 4 :] + "abcd"[: number % 4]
        goals = [league.updated(name, number, 0) for league in order for name in names]
        dates = [league.scheduled(name, kickoff=number) for league in reversed(order) for name in names]
        rounds += [in_transaction(context, sinks[0], goals), in_transaction(context, sinks[1], dates)]
    await asyncio.gather(*rounds)
    for league in leagues:
        told = await league.published(CHANGED)
        assert [event["revision"] for event in told] == list(range(1, await league.revision() + 1))
        assert {await league.score(name) for name in "abcd"} == {(11, 0)}
        assert {match_of(await league.row(name)).kickoff_ms for name in "abcd"} == {11}


# -- unknown matches -------------------------------------------------------------------------------------------------


async def test_a_result_waits_for_its_schedule(league: League, stack: Stack, context: ProcessContext):
    """A result that is read while schedules wait to be stored is stored once they are, and nothing is dead-lettered."""
    league.publish(stack.kafka, "league.match-finalized", league.result("a", 3, 2))
    league.publish(stack.kafka, "league.match-scheduled", league.schedule("a"))
    results = BatchConsumer(ResultsSink(context), context)
    stop = asyncio.Event()
    task = asyncio.create_task(results.run(stop))
    try:
        await until(lambda: "schedules behind" in (results.problem or ""), "results waits and says why")
        assert await league.row("a") is None
        async with running(BatchConsumer(FixturesSink(context.codec, context.clock), context)):

            async def is_final() -> bool:
                row = await league.row("a")
                return row is not None and row["result_ms"] is not None

            await until(is_final, "the result is stored")
    finally:
        stop.set()
        await task
    assert await league.score("a") == (3, 2)
    assert await dead_letters(league, "league.match-finalized") == []


async def test_a_result_of_no_match_is_dead_and_those_around_it_count(
    league: League, stack: Stack, context: ProcessContext
):
    """Once all schedules are accounted for, a result without one is `unknown_match`, and its neighbours are stored."""
    names = ["a", "b", "nowhere", "c"]
    league.publish(stack.kafka, "league.match-scheduled", *(league.schedule(name) for name in "abc"))
    league.publish(stack.kafka, "league.match-finalized", *(league.result(name, 1, 0) for name in names))
    async with running(
        BatchConsumer(FixturesSink(context.codec, context.clock), context), BatchConsumer(ResultsSink(context), context)
    ):

        async def all_final() -> bool:
            rows = [await league.row(name) for name in "abc"]
            return all(row is not None and row["result_ms"] is not None for row in rows)

        await until(all_final, "the others are stored")
    (letter,) = await dead_letters(league, "league.match-finalized")
    assert (letter["dlq_reason"], letter["dlq_group"]) == ("unknown_match", "results")


async def test_the_broker_is_asked_only_for_a_match_that_is_missing(league: League, monkeypatch: pytest.MonkeyPatch):
    """Known matches cost one read; the ends of the log are read once per batch, for any number of missing ones."""
    await league.stores(league.scheduled("a"))
    asked = []

    class Counting:
        """The admin, counting."""

        async def log_ranges(self, places: Any) -> Any:
            asked.append(1)
            return await league.context.admin.log_ranges(places)

        async def topic_ids(self, names: Any) -> Any:
            return await league.context.admin.topic_ids(names)

    matches = KnownMatches(league.context.pool, Counting())  # type: ignore[arg-type]
    known = league.finalized("a", 1, 0)
    assert (await matches.split([known]), asked) == (([known], []), [])


async def test_a_match_that_is_stored_while_it_is_looked_for_is_known(league: League):
    """Between the first check and the verdict the schedule may be stored: it is checked again."""
    events = [league.finalized(name, 1, 0) for name in ("a", "nowhere")]

    class Storing:
        """The admin of a broker whose last schedule is stored at this moment."""

        async def log_ranges(self, _: Any) -> Any:
            await league.stores(league.scheduled("a"))
            return {}

        async def topic_ids(self, names: Any) -> Any:
            return await league.context.admin.topic_ids(names)

    known, dead = await KnownMatches(league.context.pool, Storing()).split(events)  # type: ignore[arg-type]
    assert (known, [letter.record for letter in dead]) == (events[:1], [events[1].record])


async def dead_letters(league: League, topic: str) -> list[dict[str, str]]:
    """Headers of the season's dead letters that wait in the outbox."""
    query = "SELECT headers FROM outbox WHERE topic = $1 AND key = $2"
    rows = await league.context.pool.fetch(query, topic + ".dlq", league.season.encode())
    return [{name: base64.b64decode(value).decode() for name, value in orjson.loads(row["headers"])} for row in rows]


# -- posts -----------------------------------------------------------------------------------------------------------


async def test_a_comment_is_stored_once_and_told_once_a_batch(league: League):
    """Comments of a batch are one request for their match; the same batch again adds and publishes nothing."""
    await league.stores(league.scheduled("a"))
    batch = [league.commented("a", "u", "first"), league.commented("a", "v", "second")]
    await league.stores(*batch)
    await league.stores(*batch)
    assert await league.texts("a") == ["second", "first"]
    (asked,) = await league.asked(league.match("a"))
    assert (asked["keys"], asked["reason"]) == ([f"md:{league.match('a')}:comments"], "comments")


async def test_the_latest_comments_are_kept(league: League, monkeypatch: pytest.MonkeyPatch):
    """A match keeps its latest comments; one that is older than all of them is not even published."""
    monkeypatch.setattr(posts, "COMMENTS_KEPT_MAX", 3)
    await league.stores(league.scheduled("a"), league.scheduled("b"))
    old = [league.commented("a", "u", f"old {n}") for n in range(3)]
    await league.stores(
        *(league.commented("a", "u", f"new {n}") for n in range(4)), league.commented("b", "u", "other")
    )
    assert (await league.texts("a"), await league.texts("b")) == (["new 3", "new 2", "new 1"], ["other"])
    await league.stores(*old)
    assert (await league.texts("a"), len(await league.asked(league.match("a")))) == (["new 3", "new 2", "new 1"], 1)


async def test_a_bad_comment_and_one_of_no_match_are_dead(league: League, stack: Stack):
    """An empty text and an unknown match are refused by name, the comment between them is stored."""
    await league.stores(league.scheduled("a"))
    async with running(BatchConsumer(FixturesSink(league.context.codec, league.context.clock), league.context)):

        async def store() -> list[str]:
            return reasons(
                await league.stores(
                    league.commented("a", "u", " "), league.commented("a", "u", "good"), league.commented("x", "u", "t")
                )
            )

        async def caught_up() -> bool:
            try:
                await KnownIds(league.context.pool, league.context.admin, SCHEDULES).require_all()
            except Exception:  # noqa: BLE001 - not yet
                return False
            return True

        await until(caught_up, "schedules of other tests are accounted for")
        assert await store() == ["empty_text", "unknown_match"]
    assert await league.texts("a") == ["good"]


def ad(league: League, ad_id: str, payload: str | None, *, at: int | None = None, offset: int | None = None) -> Any:
    """An advertisement is put, or taken away."""
    value = {"ad_id": ad_id, "deleted": payload is None, "payload": payload or "", "ts": 1}
    return league.says("league.ad-changed", value, at=at, offset=offset)


@pytest.mark.requirement("R4.24")
async def test_the_last_rules_of_a_season_count(league: League):
    """They replace the former ones, and request the table; equal ones and older ones change nothing."""

    def declared(points: int, at: int) -> Event:
        value = {
            "season": league.season, "deductions": [{"team": "home of a", "points": points, "reason": "debts"}],
            "tie_breaks": [], "withdrawn": [], "rounds_counted": [], "rounds_not_counted": [],
        }  # fmt: skip
        return league.says("league.rules-changed", value, at=at)

    dead = await league.stores(declared(3, 50), declared(0, 51), declared(6, 52))
    assert reasons(dead) == ["bad_points"]
    await league.stores(declared(6, 60))
    await league.stores(declared(9, 40))
    row = await league.context.pool.fetchrow("SELECT * FROM league_rules WHERE season = $1", league.season)
    assert (orjson.loads(row["rules"])["deductions"][0]["points"], row["changed_ms"]) == (6, 52)
    asked = await league.asked(league.season)
    assert [(one["keys"], one["reason"]) for one in asked] == [([f"league:table:{league.season}"], "rules")]


async def test_the_last_word_on_an_advertisement_counts(league: League):
    """Put, changed, removed: the later event counts, also with one broker's time, and nothing older restores it."""
    name = fresh("ad")
    asked = len(await league.asked("ads"))
    put, taken = ad(league, name, '{"n": 1}', at=50, offset=9), ad(league, name, None, at=50, offset=10)

    async def payload() -> Any:
        return await league.context.pool.fetchval("SELECT payload FROM league_ads WHERE ad_id = $1", name)

    await league.stores(put)
    assert await payload() == '{"n": 1}'
    await league.stores(taken)
    await league.stores(put)
    assert await payload() is None
    await league.stores(ad(league, name, '{"n": 2}'), ad(league, name, '{"n": 3}'))
    assert (await payload(), len(await league.asked("ads")) - asked) == ('{"n": 3}', 3)


async def test_an_advertisement_that_stays_as_it_was_is_not_told(league: League):
    """The same payload again, and removing a missing one, publish nothing, but are remembered."""
    name, other = fresh("ad"), fresh("ad")
    await league.stores(ad(league, name, "{}"))
    asked = len(await league.asked("ads"))
    await league.stores(ad(league, name, "{}", at=90_000), ad(league, other, None, at=90_000))
    await league.stores(ad(league, name, '{"old": 1}', at=80_000), ad(league, other, "{}", at=80_000))
    query = "SELECT payload FROM league_ads WHERE ad_id = ANY ($1::text[]) ORDER BY ad_id = $2 DESC"
    found = [row["payload"] for row in await league.context.pool.fetch(query, [name, other], name)]
    assert (found, len(await league.asked("ads"))) == (["{}", None], asked)
