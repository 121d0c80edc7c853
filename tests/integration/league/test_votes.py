"""Votes on real parts: stored and published once per window, counted correctly, with any crash in the middle of one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka import consumer
from highwater.connectors.kafka.consumer import BatchConsumer
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.league.sink_fixtures import FixturesSink
from highwater.connectors.league.sink_votes import VotesSink
from highwater.connectors.pages.statements import QUERIES
from highwater.connectors.slices import ERASURE
from highwater.streams.clock import to_datetime
from tests.conftest import Stack
from tests.integration.children import SESSION_MS, child
from tests.integration.connecting import fresh, in_transaction, running, until
from tests.integration.kafka.making import Case, names
from tests.integration.kafka.tally import own_topic
from tests.integration.league.making import League, reasons

VOTE, PREDICTION = "league.vote-cast", "league.prediction-made"


@pytest.fixture
async def league(context: ProcessContext) -> League:
    """A season of the test's own with two matches."""
    made = League(context)
    await made.stores(made.scheduled("a"), made.scheduled("b"))
    return made


async def choices(league: League, match_id: str = "a") -> dict[str, str]:
    """The votes of a match by user."""
    query = "SELECT user_id, choice FROM league_votes WHERE match_id = $1"
    return {row["user_id"]: row["choice"] for row in await league.context.pool.fetch(query, league.match(match_id))}


# -- stored and published votes --------------------------------------------------------------------------------------


@pytest.mark.requirement("R4.4")
async def test_a_window_is_one_request_a_match(league: League):
    """Votes and predictions of a batch: one row a user, exact counts, one request a match with the users' documents."""
    await league.stores(
        league.voted("a", "u", "home"), league.voted("a", "v", "draw"), league.voted("a", "u", "away"),
        league.predicted("a", "w", 2, 1), league.voted("b", "u", "home"),
    )  # fmt: skip
    assert await choices(league) == {"u": "away", "v": "draw"}
    assert (await league.counts("a"), await league.counts("b")) == ((0, 1, 1), (1, 0, 0))
    (asked,) = await league.asked(league.match("a"))
    assert (asked["scope"], asked["reason"], asked["dropped"]) == (league.match("a"), "votes", [])
    documents = {f"{kind}:{user}" for user in "uvw" for kind in ("predictions:user", "achievements")}
    assert set(asked["keys"]) == {f"md:{league.match('a')}:live", "predictions:active:6d", "admin:stats", *documents}
    assert len(asked["keys"]) == len(set(asked["keys"]))
    assert len(await league.asked(league.match("b"))) == 1


async def test_the_last_vote_counts_over_batches(league: League):
    """A later vote replaces, an older one and a repeat change nothing; of two with one broker's time offset 10 is later."""
    late = league.voted("a", "u", "draw", at=9_000, offset=10)
    await league.stores(league.voted("a", "u", "home"))
    await league.stores(late)
    await league.stores(league.voted("a", "u", "away", at=9_000, offset=9))
    await league.stores(league.voted("a", "u", "away", at=8_000), late)
    assert (await choices(league), await league.counts("a")) == ({"u": "draw"}, (0, 1, 0))
    assert len(await league.asked(league.match("a"))) == 2


async def test_a_vote_that_changes_nothing_tells_nobody(league: League):
    """The same choice again is remembered, so that an older one cannot undo it, and asks for nothing."""
    await league.stores(league.voted("a", "u", "home", ts=11), league.predicted("a", "u", 1, 0))
    await league.stores(league.voted("a", "u", "home", at=9_000, ts=99), league.predicted("a", "u", 1, 0, at=9_000))
    await league.stores(league.voted("a", "u", "away", at=8_000), league.predicted("a", "u", 5, 5, at=8_000))
    row = await league.context.pool.fetchrow("SELECT * FROM league_votes WHERE match_id = $1", league.match("a"))
    assert (row["choice"], row["cast_at"], row["cast_ms"]) == ("home", to_datetime(11), 9_000)
    row = await league.context.pool.fetchrow("SELECT * FROM league_predictions WHERE match_id = $1", league.match("a"))
    assert (row["home_goals"], row["away_goals"], row["made_ms"]) == (1, 0, 9_000)
    assert len(await league.asked(league.match("a"))) == 1


async def test_bad_votes_are_dead_and_those_around_them_count(league: League):
    """An invalid choice is refused by name, its neighbours are stored."""
    dead = await league.stores(
        league.voted("a", "u", "home"), league.voted("a", "v", "both"), league.predicted("a", "v", 1, -1),
        league.voted("a", "w", "home"),
    )  # fmt: skip
    assert reasons(dead) == ["bad_choice", "bad_score"]
    assert await league.counts("a") == (2, 0, 0)


async def test_counts_are_exact_under_concurrent_batches(league: League):
    """Many consumers' batches over the same matches in different orders: every vote is counted, and once."""
    batches = [
        [league.voted(match, f"u{n}-{k}", "home") for k in range(5) for match in ("ab" if n % 2 else "ba")]
        for n in range(12)
    ]
    sink = VotesSink(league.context, window_seconds=5.0)
    await asyncio.gather(*(in_transaction(league.context, sink, batch) for batch in batches))
    assert (await league.counts("a"), await league.counts("b")) == ((60, 0, 0), (60, 0, 0))


# -- erasure ---------------------------------------------------------------------------------------------------------

TABLES = ("league_votes", "league_predictions", "league_comments", "league_ratings")


async def left_of(league: League, user: str) -> dict[str, int]:
    """Rows of a user in each table, and documents."""
    pool = league.context.pool
    found = {t: await pool.fetchval(f"SELECT count(*) FROM {t} WHERE user_id = $1", user) for t in TABLES}
    keys = [f"predictions:user:{user}", f"achievements:{user}"]
    for table in ("documents", "resource_versions"):
        found[table] = await pool.fetchval(f"SELECT count(*) FROM {table} WHERE key = ANY ($1::text[])", keys)
    return {table: count for table, count in found.items() if count}


async def test_an_erasure_takes_all_that_a_user_said(league: League):
    """Votes, predictions, comments, rating and documents of the user are removed, counts follow, and the changed pages are
    published.
    """
    user, other, pool = fresh("u"), fresh("v"), league.context.pool
    await league.stores(*(league.voted("a", who, "home") for who in (user, other)), league.predicted("b", user, 1, 0))
    await league.stores(league.commented("b", user, "hello"), league.commented("b", other, "hi"))
    for who in (user, other):
        await pool.execute("INSERT INTO league_ratings VALUES ($1, 3, 1, 1, 1, 't/0/0')", who)
        for key in (f"predictions:user:{who}", f"achievements:{who}"):
            await pool.execute(QUERIES["put_document"], key, 7, b"{}", to_datetime(1), 0)
            await pool.execute("INSERT INTO resource_versions VALUES ($1, 7, 'e', 't/0/0', $2)", key, to_datetime(1))
    kept = await left_of(league, other)
    await league.stores(league.erased(user))
    assert (await left_of(league, user), await left_of(league, other)) == ({}, kept)
    assert (await league.counts("a"), await league.texts("b")) == ((1, 0, 0), ["hi"])
    assert await pool.fetchval("SELECT value FROM version_floor") > 7
    last = {scope: (await league.asked(league.match(scope)))[-1] for scope in "ab"}
    assert f"md:{league.match('a')}:live" in last["a"]["keys"]
    assert (last["b"]["keys"], last["a"]["reason"]) == ([f"md:{league.match('b')}:comments"], "erased")
    (own,) = await league.asked(user)
    assert (own["keys"], own["dropped"]) == ([], [f"predictions:user:{user}", f"achievements:{user}"])
    assert (await league.asked("ratings"))[-1]["keys"] == ["lb:1"]


async def test_what_was_said_before_an_erasure_stays_void(league: League):
    """A vote or comment from before the erasure that is read after it is not stored; one from after it is."""
    user = fresh("u")
    early = [league.voted("a", user, "home"), league.predicted("a", user, 1, 0)]
    comment = league.commented("a", user, "too late")
    erased = league.erased(user)
    await league.stores(erased)
    await league.stores(*early, league.voted("a", "neighbour", "draw"))
    await league.stores(comment)
    assert (await left_of(league, user), await league.counts("a")) == ({}, (0, 1, 0))
    await league.stores(league.voted("a", user, "away"))
    await league.stores(erased)
    assert (await choices(league), await league.counts("a")) == ({user: "away", "neighbour": "draw"}, (0, 1, 1))


async def test_an_erasure_waits_for_a_window_under_way(league: League):
    """Votes that are being stored while their user is erased are gone afterwards: nothing slips between the two."""
    user = fresh("u")
    votes = [league.voted("a", user, "home"), league.voted("a", "v", "home")]
    erased = league.erased(user)
    sink = VotesSink(league.context, window_seconds=5.0)
    users = UsersSink(league.context.codec, lambda: 1, ERASURE, dimensions=384)
    prepared = await sink.prepare(votes)
    async with league.context.pool.acquire() as tx:
        async with tx.transaction():
            await sink.apply(tx, votes, prepared)
            erasing = asyncio.create_task(in_transaction(league.context, users, [erased]))
            query = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            await until(lambda: erasing.done() or league.context.pool.fetchval(query), "the erasure waits")
            assert not erasing.done()
        await erasing
    assert (await left_of(league, user), await league.counts("a")) == ({}, (1, 0, 0))


async def test_erasures_and_votes_never_wait_for_each_other(league: League):
    """Windows, comments, results and erasures of the same users and matches at once: none fails, counts stay exact."""
    people = [fresh("u") for _ in range(4)]
    sink = VotesSink(league.context, window_seconds=5.0)
    users = UsersSink(league.context.codec, lambda: 1, ERASURE, dimensions=384)
    work: list[Any] = []
    for n in range(10):
        order, order_users = "ab"[:: 1 if n % 2 else -1], people[:: 1 if n % 2 else -1]
        work.append(
            in_transaction(league.context, sink, [league.voted(m, who, "home") for m in order for who in order_users])
        )
        work.append(in_transaction(league.context, users, [league.erased(who) for who in order_users[n % 3 :]]))
        work.append(league.stores(*(league.commented(m, who, "t") for m in order for who in order_users)))
        work.append(league.stores(*(league.updated(m, n, 0) for m in order)))
    await asyncio.gather(*work)
    # `counts` compares them with the votes that are left.
    await league.counts("a")
    await league.counts("b")
    await league.stores(*(league.erased(who) for who in people))
    assert (await league.counts("a"), await league.counts("b")) == ((0, 0, 0), (0, 0, 0))


# -- windows ---------------------------------------------------------------------------------------------------------


async def accounted(context: ProcessContext) -> None:
    """Wait until the schedules of all tests are accounted for, and the votes group is where its log ends."""
    async with running(
        BatchConsumer(FixturesSink(context.codec, context.clock), context),
        BatchConsumer(VotesSink(context, window_seconds=0.05), context),
    ):
        await until(lambda: is_read(context, "votes", (VOTE, PREDICTION)), "votes of other tests are accounted for")


async def is_read(context: ProcessContext, group: str, topics: Sequence[str]) -> bool:
    """Whether a group's positions are at the ends of its topics."""
    places = [(topic, partition) for topic in topics for partition in range(8)]
    ends = await context.admin.log_ranges(places)
    rows = await context.pool.fetch('SELECT topic, partition, next FROM positions WHERE "group" = $1', group)
    reached = {(row["topic"], row["partition"]): row["next"] for row in rows}
    return all(reached.get(place, 0) >= end.high for place, end in ends.items())


def vote(league: League, user: str, choice: str) -> dict[str, Any]:
    """The value of a vote on match a."""
    return {"match_id": league.match("a"), "user_id": user, "choice": choice, "ts": 1}


@pytest.mark.requirement("R4.33")
async def test_votes_of_a_window_are_flushed_once(league: League, stack: Stack, context: ProcessContext):
    """Votes that come one by one within a window are one batch: stored together, published once, all positions moved."""
    await accounted(context)
    async with running(BatchConsumer(VotesSink(context, window_seconds=3.0), context)):
        for number in range(8):
            await asyncio.to_thread(league.publish, stack.kafka, VOTE, vote(league, f"u{number}", "home"))
            assert await league.counts("a") == (0, 0, 0)
        await until(lambda: is_read(context, "votes", (VOTE, PREDICTION)), "the window is stored")
    assert (await league.counts("a"), len(await league.asked(league.match("a")))) == ((8, 0, 0), 1)


async def test_a_full_window_ends_early(league: League, stack: Stack, context: ProcessContext):
    """A window is bounded: as many votes as a batch may hold are stored without waiting for its time."""
    await accounted(context)
    sink = VotesSink(context, window_seconds=600.0)
    sink.batch_max = 20
    async with running(BatchConsumer(sink, context)):
        league.publish(stack.kafka, VOTE, *(vote(league, f"u{n}", "away") for n in range(40)))
        await until(lambda: is_read(context, "votes", (VOTE, PREDICTION)), "both windows are stored")
    assert await league.counts("a") == (0, 0, 40)


async def test_a_stop_in_a_window_is_quick_and_loses_nothing(league: League, stack: Stack, context: ProcessContext):
    """A consumer that is stopped in the middle of a window stops at once; the next one stores its votes once."""
    await accounted(context)
    sink = VotesSink(context, window_seconds=600.0)
    member = BatchConsumer(sink, context)
    begun = asyncio.Event()
    gather = member._gather

    async def announce(*arguments: Any) -> Any:
        begun.set()
        return await gather(*arguments)

    member._gather = announce  # type: ignore[method-assign]
    stop = asyncio.Event()
    task = asyncio.create_task(member.run(stop))
    await until(lambda: member.problem is None, "ready")
    league.publish(stack.kafka, VOTE, vote(league, "u", "home"))
    await asyncio.wait_for(begun.wait(), 20)
    stop.set()
    await asyncio.wait_for(task, 10)
    assert await league.counts("a") == (0, 0, 0)
    await accounted(context)
    assert await league.counts("a") == (1, 0, 0)


@pytest.mark.requirement("R4.33")
async def test_a_kill_in_a_window_loses_and_doubles_nothing(
    league: League, stack: Stack, context: ProcessContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Kill -9 in the middle of a window: nothing of it was stored, and the next consumer stores and publishes all of it once."""
    await accounted(context)
    monkeypatch.setattr(consumer, "SESSION_MS", SESSION_MS)
    log = [vote(league, f"u{n % 10}", ("home", "draw", "away")[n % 3]) for n in range(30)]
    with child(stack, "tests.integration.league.making", str(tmp_path), folder=tmp_path) as process:
        league.publish(stack.kafka, VOTE, *log[:15])
        await until((tmp_path / "gathering").exists, "a window has begun", 60)
        league.publish(stack.kafka, VOTE, *log[15:])
        predictions = [{**vote(league, f"u{n}", ""), "home_goals": n, "away_goals": 0} for n in range(5)]
        for value in predictions:
            del value["choice"]
        league.publish(stack.kafka, PREDICTION, *predictions)
        process.kill()
        process.wait()
    assert (await league.counts("a"), await league.asked(league.match("a"))) == ((0, 0, 0), [])
    await accounted(context)
    last = {value["user_id"]: value["choice"] for value in log}
    counted = Counter(last.values())
    assert await choices(league) == last
    assert await league.counts("a") == (counted["home"], counted["draw"], counted["away"])
    query = "SELECT count(*) FROM league_predictions WHERE match_id = $1"
    assert await context.pool.fetchval(query, league.match("a")) == 5


async def test_a_rebalance_in_a_window_loses_and_doubles_nothing(
    stack: Stack, context: ProcessContext, monkeypatch: pytest.MonkeyPatch
):
    """Members that come and go while others gather: each event is stored once, and windows after it are gathered again."""
    monkeypatch.setattr(consumer, "SESSION_MS", SESSION_MS)
    topic = fresh("test.windows")
    async with own_topic(context, topic) as made:
        case = Case(stack, made, topic)
        expected: list[str] = []
        first = case.tally(who="first", batch_max=1_000)
        first.gather_seconds = 1.0  # type: ignore[attr-defined]
        async with running(BatchConsumer(first, made)):
            for turn in range(3):
                batch = names(60, f"t{turn}-")
                for partition in (0, 1):
                    case.send(batch[partition::2], partition)
                second = case.tally(who="second", batch_max=1_000)
                second.gather_seconds = 1.0  # type: ignore[attr-defined]
                joining = BatchConsumer(second, made)
                async with running(joining):
                    late = names(20, f"late{turn}-")
                    for partition in (0, 1):
                        case.send(late[partition::2], partition)
                expected += batch + late
            await case.all_stored(expected)
        assert max(first.batches) > 1
