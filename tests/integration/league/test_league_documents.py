"""The league documents as they are made from PostgreSQL's rows: what each says, which event is behind it, and its bytes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
import pytest

from highwater.connectors.league.documents import DAYS_MAX, Built, builders
from highwater.connectors.league.rows import MATCH_COLUMNS, match_of
from highwater.connectors.league.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.positions import Cause
from highwater.streams.clock import to_datetime
from highwater.streams.league.documents import COMMENTS_MAX, PAGE_USERS
from highwater.streams.league.matches import Match, Status
from highwater.streams.league.ratings import Prediction, Rating, Stake, Vote, rate
from highwater.streams.league.resources import KINDS
from highwater.streams.league.stats import TOP_MATCHES
from highwater.streams.league.windows import WindowOptions
from tests.conftest import Stack
from tests.integration.databases import own_database
from tests.unit.league.facts import DAY_MS, HOUR_MS, KICKOFF_MS, SEASON, final, live, real_season, scheduled

NOW_MS = KICKOFF_MS + HOUR_MS
BUILDERS = builders(WindowOptions())


class Database:
    """An empty database's connection, with rows put in as a test needs them."""

    def __init__(self, tx: Connection) -> None:
        self.tx = tx

    async def put(self, *matches: Match) -> None:
        """Store matches, in place of those that are there."""
        for season in sorted({match.season for match in matches}):
            await self.tx.execute("INSERT INTO league_seasons (season) VALUES ($1) ON CONFLICT DO NOTHING", season)
        places = ", ".join(f"${number}" for number in range(1, len(MATCH_COLUMNS) + 1))
        changed = ", ".join(f"{name} = excluded.{name}" for name in MATCH_COLUMNS)
        await self.tx.executemany(
            f"INSERT INTO league_matches ({', '.join(MATCH_COLUMNS)}) VALUES ({places}) "
            f"ON CONFLICT (match_id) DO UPDATE SET {changed}",
            [row_of(match) for match in matches],
        )

    async def vote(self, match_id: str, user_id: str, choice: str, *, said_ms: int, offset: int) -> None:
        """Store a vote."""
        position = f"league.vote-cast/0/{offset}"
        await self.tx.execute(
            "INSERT INTO league_votes VALUES ($1, $2, $3, $4, $5, $6)",
            *(match_id, user_id, choice, to_datetime(said_ms), offset, position),
        )

    async def predict(self, match_id: str, user_id: str, goals: tuple[int, int], *, said_ms: int, offset: int) -> None:
        """Store a prediction."""
        position = f"league.prediction-made/0/{offset}"
        await self.tx.execute(
            "INSERT INTO league_predictions VALUES ($1, $2, $3, $4, $5, $6, $7)",
            *(match_id, user_id, *goals, to_datetime(said_ms), offset, position),
        )

    async def built(self, kind: str, about: str = "", now_ms: int = NOW_MS) -> Built | None:
        """The document of the builder."""
        return await BUILDERS[kind](self.tx, about, now_ms)

    async def document(self, kind: str, about: str = "", now_ms: int = NOW_MS) -> dict[str, Any]:
        """The document that is there."""
        built = await self.built(kind, about, now_ms)
        assert built is not None
        found: dict[str, Any] = orjson.loads(built.payload)
        return found

    async def cause(self, kind: str, about: str = "", now_ms: int = NOW_MS) -> str:
        """The event behind it."""
        built = await self.built(kind, about, now_ms)
        assert built is not None
        return built.caused_by


def row_of(match: Match) -> tuple[Any, ...]:
    """The values of `MATCH_COLUMNS`."""

    def time(ms: int | None) -> datetime | None:
        return None if ms is None else to_datetime(ms)

    causes = [part or (None, None) for part in (match.schedule_by, match.score_by, match.result_by)]
    return (
        match.match_id, match.season, match.round, time(match.kickoff_ms), match.time_unknown, match.status,
        match.home, match.away, match.home_goals, match.away_goals, match.minute, time(match.finalized_ms),
        *(value for cause in causes for value in cause), *(match.extra_time or (None, None)), *(match.penalties or (None, None)),
    )  # fmt: skip


@pytest.fixture(scope="module")
async def empty(stack: Stack) -> AsyncIterator[Any]:
    """A database of the module's own, without rows."""
    async with own_database(stack) as context:
        yield context.pool


@pytest.fixture
async def db(empty: Any) -> AsyncIterator[Database]:
    """A transaction on it that leaves nothing behind."""
    async with empty.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            yield Database(connection)
        finally:
            await transaction.rollback()


@pytest.mark.requirement("R4.21")
async def test_every_kind_that_is_served_has_a_builder():
    """The catalogue and the builders name the same kinds, except for the one without readers."""
    assert set(KINDS) - {"predictions_legacy"} == set(BUILDERS)


async def test_the_columns_are_those_of_the_table(db: Database):
    """As the migration has them, in its order."""
    rows = await db.tx.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'league_matches' ORDER BY ordinal_position"
    )
    assert list(MATCH_COLUMNS) == [row["column_name"] for row in rows]


async def test_a_match_comes_back_as_it_was(db: Database):
    """To the millisecond, also in the year 1 and the year 9999, with the event behind each part."""
    held = [
        scheduled("A", "B", kickoff_ms=-62_135_596_799_999, time_unknown=True, status=Status.POSTPONED),
        live("C", "D", 0, 1, minute=None, kickoff_ms=253_402_300_799_999),
        final("E", "F", 2, 1, score_by=Cause(2, "u/0/1"), finalized_ms=KICKOFF_MS + 7),
        final("G", "H", 2, 2, extra_time=(3, 3), penalties=(4, 2)),
    ]
    await db.put(*held)
    rows = await db.tx.fetch("SELECT * FROM league_matches ORDER BY match_id")
    assert held == [match_of(row) for row in rows]


async def test_the_table_follows_the_rules_of_its_season(db: Database):
    """Its cause is the event of the rules; another season has none."""
    await db.put(final("A", "B", 1, 0), final("A", "B", 1, 0, match_id="other", season="other"))
    rules = {
        "deductions": [{"team": "A", "points": 4, "reason": "debts"}], "tie_breaks": [], "withdrawn": [],
        "rounds_counted": [], "rounds_not_counted": [],
    }  # fmt: skip
    put = "INSERT INTO league_rules VALUES ($1, $2, $3, $4)"
    await db.tx.execute(put, SEASON, orjson.dumps(rules).decode(), 99, "league.rules-changed/0/1")
    found = await db.document("league_table", SEASON)
    assert [(row["team"], row["points"]) for row in found["table"]] == [("B", 0), ("A", -1)]
    assert found["table"][1]["deductions"] == [{"points": 4, "reason": "debts"}]
    assert await db.cause("league_table", SEASON) == "league.rules-changed/0/1"
    assert [row["points"] for row in (await db.document("league_table", "other"))["table"]] == [3, 0]


async def test_nothing_is_there(db: Database):
    """A document about one match, season or club is missing; one about all, or about a user, is empty."""
    by_id = {kind for kind, found in KINDS.items() if found.has_id} & set(BUILDERS)
    always = {"predictions_user", "achievements", "predictions_active", "leaderboard"}
    assert by_id - always == {kind for kind in by_id if await db.built(kind, "1") is None}
    assert {""} == {await db.cause(kind, "1") for kind in always}
    assert await db.document("matches_live") == {"matches": []}
    assert await db.document("ads") == {"ads": []}
    assert await db.document("match_window") == {"windows": {}}
    assert await db.document("predictions_user", "1") == {"user_id": "1", "predictions": []}
    assert await db.document("leaderboard", "1") == {"page": 1, "users": [], "next_cursor": None}
    assert {0} == set((await db.document("admin_stats")).values())


@pytest.mark.parametrize("about", ["0", "01", "-1", "+1", " 1", "1.0", "x", "", "1" * 40, "\u0661", str(DAYS_MAX + 1)])
async def test_what_is_no_number_names_nothing(db: Database, about: str):
    """A page of the rating and a number of days are written in one way, and bounded; there is no page after the last."""
    assert (await db.built("predictions_active", about), await db.built("leaderboard", about)) == (None, None)


@pytest.mark.parametrize("kind", sorted(kind for kind in BUILDERS if KINDS[kind].has_id))
async def test_odd_names(db: Database, kind: str):
    """A name that no store holds, and quotes and emoji, make no builder fail."""
    assert await db.built(kind, "a\x00b") is None
    assert await db.built(kind, "'; DROP TABLE league_matches; -- \N{SOCCER BALL}%s{}") is None or kind in (
        "predictions_user",
        "achievements",
    )


async def test_pages_of_a_real_season(db: Database):
    """All pages of a whole season agree with each other; rows in another order give the same bytes."""
    season = real_season()
    await db.put(*season)
    about = season[0].season
    before = {kind: await db.built(kind, about) for kind in BUILDERS if kind.startswith("league_")}
    table = orjson.loads(before["league_table"].payload)
    assert (table["table"][0]["team"], table["table"][0]["points"], len(table["table"])) == ("Manchester City", 98, 20)
    assert len((await db.document("league_results", about))["results"]) == 380
    assert [len(one["matches"]) for one in (await db.document("league_schedule", about))["rounds"]] == [10] * 38
    stats = await db.document("league_stats", about)
    assert (stats["played"], stats["goals"], len(stats["biggest_wins"])) == (380, 1072, TOP_MATCHES)
    assert (await db.document("league_bracket", about))["rounds"] == []
    assert (await db.document("league_stats_live", about))["matches"] == []
    await db.tx.execute("DELETE FROM league_matches")
    await db.put(*season[::-1])
    assert before == {kind: await db.built(kind, about) for kind in before}


async def test_a_goal_in_play(db: Database):
    """It changes the live page and the clubs' pages, names its event there, and does not change the other pages."""
    before_goal = live("A", "B", 0, 0)
    ended = final("C", "D", 1, 0, kickoff_ms=KICKOFF_MS - DAY_MS)
    await db.put(before_goal, ended)
    about = dict.fromkeys([k for k in BUILDERS if k.startswith("league_")], before_goal.season) | {
        "match_meta": "A-B", "match_live": "A-B", "match_comments": "A-B", "predictions_active": "6",
        "club_matches": "B", "matches_live": "", "match_window": "", "admin_stats": "",
    }  # fmt: skip
    before = {kind: await db.built(kind, about[kind]) for kind in about}
    goal = Cause(9, "league.match-updated/2/17")
    await db.put(replace(before_goal, home_goals=1, minute=70, score_by=goal))
    after = {kind: await db.built(kind, about[kind]) for kind in about}
    changed = {kind for kind in about if before[kind].payload != after[kind].payload}
    assert {"league_stats_live", "match_live", "club_matches", "matches_live"} == changed
    assert {goal.position} == {after[kind].caused_by for kind in changed}
    untouched = set(about) - changed - {"admin_stats"}
    assert {kind: before[kind].caused_by for kind in untouched} == {kind: after[kind].caused_by for kind in untouched}


async def test_a_result(db: Database):
    """It is the event behind every page of its season and its clubs, also where it took the match away."""
    playing = live("A", "B", 1, 0)
    result = Cause(9, "league.match-finalized/2/17")
    await db.put(playing)
    assert [match["match_id"] for match in (await db.document("matches_live"))["matches"]] == ["A-B"]
    decided = {"home_goals": 1, "away_goals": 1, "minute": None, "finalized_ms": NOW_MS, "result_by": result}
    await db.put(replace(playing, **decided))
    assert (await db.document("matches_live"))["matches"] == []
    season = {kind: playing.season for kind in BUILDERS if kind.startswith("league_")}
    others = {"match_meta": "A-B", "match_live": "A-B", "club_matches": "A", "matches_live": "", "match_window": ""}
    caused = {kind: await db.cause(kind, about) for kind, about in {**season, **others, "admin_stats": ""}.items()}
    assert dict.fromkeys(caused, result.position) == caused
    assert (await db.document("match_meta", "A-B"))["result"] == {"home_goals": 1, "away_goals": 1}


async def test_the_result_of_a_long_match_is_behind_its_absence(db: Database):
    """One that lasted longer than a match was in play until then."""
    result = Cause(9, "league.match-finalized/2/17")
    long = {"kickoff_ms": NOW_MS - 3 * HOUR_MS}
    await db.put(live("A", "B", 1, 0, **long), live("C", "D", 1, 0))
    await db.put(final("A", "B", 1, 0, result_by=result, **long))
    assert [match["match_id"] for match in (await db.document("matches_live"))["matches"]] == ["C-D"]
    assert await db.cause("matches_live") == result.position


@pytest.mark.requirement("R4.25")
async def test_matches_in_play_of_all_seasons(db: Database):
    """Live by event and not over by any measure, or begun by the clock; one without further events is dropped."""
    await db.put(
        live("A", "B", 1, 0, kickoff_ms=NOW_MS - 3 * HOUR_MS, season="other"),
        live("I", "J", 1, 0, kickoff_ms=NOW_MS - 100 * DAY_MS, season="old"),
        scheduled("C", "D", kickoff_ms=NOW_MS - 1),
        scheduled("E", "F", kickoff_ms=NOW_MS + 1),
        scheduled("G", "H", kickoff_ms=NOW_MS - 2 * HOUR_MS),
    )
    assert [match["match_id"] for match in (await db.document("matches_live"))["matches"]] == ["A-B", "C-D"]


async def test_votes_of_a_match(db: Database):
    """Counts stand beside the score and the matches to come; the last vote is the event behind them."""
    await db.put(scheduled("A", "B", kickoff_ms=NOW_MS + DAY_MS), scheduled("C", "D", kickoff_ms=NOW_MS + 8 * DAY_MS))
    none = {"home": 0, "draw": 0, "away": 0}
    assert none == (await db.document("match_live", "A-B"))["votes"]
    await db.tx.execute("INSERT INTO league_vote_counts VALUES ('A-B', 5, 3, 2, 50, 'league.vote-cast/1/8')")
    votes = {"home": 5, "draw": 3, "away": 2}
    assert votes == (await db.document("match_live", "A-B"))["votes"]
    assert [match["match_id"] for match in (await db.document("predictions_active", "6"))["matches"]] == ["A-B"]
    shown = (await db.document("predictions_active", "9"))["matches"]
    assert [("A-B", votes), ("C-D", none)] == [(match["match_id"], match["votes"]) for match in shown]
    for kind, about in (("match_live", "A-B"), ("predictions_active", "6"), ("admin_stats", "")):
        assert await db.cause(kind, about) == "league.vote-cast/1/8"


@pytest.mark.requirement("R4.18")
async def test_comments_of_a_match(db: Database):
    """The latest 120, the newest first; of one batch offset 10 is after 9; before the first, the date is behind them."""
    await db.put(scheduled("A", "B"))
    assert await db.document("match_comments", "A-B") == {"match_id": "A-B", "comments": []}
    assert await db.cause("match_comments", "A-B") == "league.match-scheduled/0/1"
    await db.tx.executemany(
        "INSERT INTO league_comments VALUES ('A-B', $1, $2, 'u', $3, $4)",
        [(7, f"league.comment-posted/0/{n}", str(n), to_datetime(NOW_MS)) for n in range(COMMENTS_MAX + 5)],
    )
    found = (await db.document("match_comments", "A-B"))["comments"]
    assert [str(n) for n in range(COMMENTS_MAX + 4, 4, -1)] == [comment["text"] for comment in found]
    assert found[0] == {"user_id": "u", "text": "124", "posted_at": "2018-08-25T13:30:00Z"}
    assert await db.cause("match_comments", "A-B") == "league.comment-posted/0/124"


async def test_what_a_user_predicted(db: Database):
    """A vote alone, a prediction alone and both are each one entry; their outcome counts as an achievement."""
    played = final("A", "B", 2, 1, score_by=Cause(2, "league.match-updated/0/1"))
    await db.put(played, scheduled("C", "D", kickoff_ms=NOW_MS + DAY_MS), final("E", "F", 0, 0))
    await db.vote("A-B", "u", "draw", said_ms=KICKOFF_MS - 1, offset=11)
    await db.predict("A-B", "u", (2, 1), said_ms=KICKOFF_MS - 1, offset=12)
    await db.vote("C-D", "u", "away", said_ms=NOW_MS, offset=13)
    await db.predict("E-F", "u", (0, 0), said_ms=KICKOFF_MS, offset=14)
    await db.vote("E-F", "u", "draw", said_ms=KICKOFF_MS, offset=10)
    await db.vote("C-D", "somebody", "home", said_ms=NOW_MS, offset=99)
    found = (await db.document("predictions_user", "u"))["predictions"]
    assert [
        (one["match_id"], one["vote"], (one["prediction"] or {}).get("home_goals"), one["points"]) for one in found
    ] == [("C-D", "away", None, None), ("A-B", "draw", 2, 3), ("E-F", "draw", 0, None)]
    reached = [one["name"] for one in (await db.document("achievements", "u"))["achievements"] if one["reached"]]
    assert reached == ["first vote", "first prediction", "first correct outcome", "first exact result"]
    for kind in ("predictions_user", "achievements"):
        assert await db.cause(kind, "u") == "league.prediction-made/0/14"
    counts = {"seasons": 1, "matches": 3, "final": 2, "live": 0, "predictions": 2, "votes": 0}
    assert counts.items() <= (await db.document("admin_stats")).items()


async def test_pages_of_the_rating(db: Database):
    """Ranks continue over pages, a tie over the edge of a page keeps its rank, and the last page has no next."""
    count = 2 * PAGE_USERS + 3
    await db.tx.executemany(
        "INSERT INTO league_ratings VALUES ($1, $2, 0, $2, $2, $3)",
        [(f"u{n:03}", 1_000 - n // 4, f"league.match-finalized/0/{n}") for n in range(count)],
    )
    pages = [await db.document("leaderboard", str(page)) for page in (1, 2, 3)]
    assert [page["next_cursor"] for page in pages] == ["2", "3", None]
    users = [user for page in pages for user in page["users"]]
    assert [(f"u{n:03}", n // 4 * 4 + 1) for n in range(count)] == [(user["user_id"], user["rank"]) for user in users]
    assert await db.built("leaderboard", "4") is None
    assert await db.cause("leaderboard", "3") == f"league.match-finalized/0/{count - 1}"
    newest = "league.match-finalized/0/3"
    await db.put(
        final("A", "B", 1, 0, result_by=Cause(9, newest)),
        final("C", "D", 1, 0, result_by=Cause(8, "league.match-finalized/0/4")),
    )
    assert await db.cause("leaderboard", "1") == newest


async def test_ratings_in_sql_are_those_of_the_core(db: Database):
    """Every combination of result, vote and prediction, in time or late, is rated by SQL as `ratings.rate` rates it."""
    held: dict[str, list[Stake]] = {}
    said = [None, KICKOFF_MS - 1, KICKOFF_MS]
    results = [(2, 1), (1, 1), (0, 2), None]
    for number, (result, choice, voted_ms, predicted, predicted_ms) in enumerate(
        itertools.product(results, ["home", "draw", "away"], said, [(2, 1), (3, 3), (0, 2), (0, 1)], said)
    ):
        match = live("A", "B", 2, 1, match_id=f"m{number}")
        if result is not None:
            match = final("A", "B", *result, match_id=f"m{number}", result_by=Cause(number, f"r/0/{number}"))
        user = f"u{number % 40:02}"
        await db.put(match)
        vote = prediction = None
        if voted_ms is not None:
            vote = Vote(choice, voted_ms, Cause(1, "v/0/1"))
            await db.vote(match.match_id, user, choice, said_ms=voted_ms, offset=1)
        if predicted_ms is not None:
            prediction = Prediction(*predicted, predicted_ms, Cause(1, "p/0/1"))
            await db.predict(match.match_id, user, predicted, said_ms=predicted_ms, offset=1)
        held.setdefault(user, []).append(Stake(match, vote, prediction))
    await db.tx.fetch(QUERIES["rate_users"], sorted(held))
    rows = await db.tx.fetch("SELECT user_id, points, exact, correct, judged FROM league_ratings")
    found = {row["user_id"]: Rating(row["points"], row["exact"], row["correct"], row["judged"]) for row in rows}
    assert found == {user: rating for user, stakes in held.items() if (rating := rate(stakes)).judged}
    assert len(found) > 20


async def test_advertisements(db: Database):
    """Those that are there by id; the one taken away last is the event behind them, an earlier one is not."""
    put = "INSERT INTO league_ads VALUES ($1, $2, $3, $4, $5)"
    at = to_datetime(NOW_MS)
    for ad_id, payload, offset in (("b", '{"n": 1}', 9), ("a", "[1.50]", 8), ("gone", None, 7)):
        await db.tx.execute(put, ad_id, payload, at, 1, f"league.ad-changed/0/{offset}")
    assert (
        await db.built("ads")
    ).payload == b'{"ads":[{"ad_id":"a","payload":[1.50]},{"ad_id":"b","payload":{"n": 1}}]}'
    assert await db.cause("ads") == "league.ad-changed/0/9"
    await db.tx.execute(put, "last", None, at, 1, "league.ad-changed/0/10")
    assert await db.cause("ads") == "league.ad-changed/0/10"


@pytest.mark.requirement("R4.25")
async def test_a_club_over_all_seasons(db: Database):
    """The latest first, at home and away."""
    await db.put(
        final("A", "B", 1, 0, season="1", kickoff_ms=KICKOFF_MS - 300 * DAY_MS),
        scheduled("B", "A", season="2"),
        final("B", "C", 4, 0, season="2"),
    )
    assert [match["match_id"] for match in (await db.document("club_matches", "A"))["matches"]] == ["B-A", "A-B"]


@pytest.mark.requirement("R4.11")
async def test_match_windows(db: Database):
    """Merged by season in order, the same bytes at any moment inside; a distant match is in none."""
    await db.put(
        scheduled("A", "B", season="z"),
        scheduled("C", "D", season="z", kickoff_ms=KICKOFF_MS + HOUR_MS),
        scheduled("E", "F", season="a", kickoff_ms=KICKOFF_MS + DAY_MS),
        scheduled("G", "H", season="later", kickoff_ms=KICKOFF_MS + 30 * DAY_MS),
    )
    minute = 60_000
    begin, end = KICKOFF_MS - 45 * minute, KICKOFF_MS + HOUR_MS + 150 * minute
    found = await db.document("match_window")
    assert {"a": [[begin + DAY_MS, KICKOFF_MS + DAY_MS + 150 * minute]], "z": [[begin, end]]} == found["windows"]
    assert list(found["windows"]) == ["a", "z"]
    assert await db.built("match_window") == await db.built("match_window", now_ms=NOW_MS + 20 * minute)
