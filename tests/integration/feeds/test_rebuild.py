"""The rebuild worker on real parts: what it stores is one version of one snapshot, and every request is answered once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from highwater.connectors.feeds import pool as pool_module
from highwater.connectors.feeds.demands import PENDING, demand_at
from highwater.connectors.feeds.pool import ClusterPool
from highwater.connectors.feeds.read_model import clusters_since, has_all_changes, pending_by_channel, unread_clusters
from highwater.connectors.feeds.statements import QUERIES
from highwater.connectors.feeds.userlock import UserLock
from highwater.connectors.feeds.worker_rebuild import RebuildWorker
from highwater.connectors.identity.sink_users import UsersSink
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.redis.keys import USER_LOCK, key
from highwater.connectors.redis.link import RedisLink, open_redis
from highwater.connectors.slices import ERASURE
from highwater.schemas.feeds import CLUSTER_EVOLVED, CLUSTERS_REBUILT, REBUILD_REQUESTED, USER_ERASED
from highwater.streams.clock import to_datetime
from highwater.streams.feeds.basis import UNFITTED_ID
from highwater.streams.feeds.policy import load_policy
from highwater.streams.feeds.starts import MACHINE
from highwater.streams.progress import WorkLimit
from tests.conftest import Stack
from tests.integration.connecting import event, fresh, in_transaction
from tests.integration.feeds.making import DAY_MS, NOW_MS, Case


@pytest.fixture
def case(stack: Stack, shared: tuple[ProcessContext, RedisLink, ClusterPool]) -> Case:
    """A user and a channel of the test's own."""
    return Case(stack, *shared)


def measured() -> list[float]:
    """Ended rebuilds, and the sums of their seconds and insights, as this process measures them."""
    ended = REGISTRY.get_sample_value("highwater_rebuilds_total", {"outcome": "rebuilt"})
    sums = [REGISTRY.get_sample_value(f"highwater_rebuild_{name}_sum") for name in ("seconds", "insights")]
    return [value or 0.0 for value in (ended, *sums)]


@pytest.mark.requirement("R0.36", "R0.39")
async def test_a_request_becomes_a_version(case: Case):
    """Clusters are stored, the version grows by exactly one, the mark is the snapshot, and three events say so."""
    await case.user_is()
    await case.insights(60)
    before = measured()
    answer = await case.rebuild()
    counted, seconds, insights = (now - former for now, former in zip(measured(), before, strict=True))
    assert (counted, seconds > 0, insights) == (1, True, 60)
    assert ("rebuilt", "", 1, {case.channel: 60}) == tuple(
        answer[name] for name in ("outcome", "reason", "cluster_version", "hwm")
    )
    assert await case.state() == (1, 60, 1)
    (rebuilt,) = await case.answers(CLUSTERS_REBUILT)
    assert (rebuilt["dataset_size"], rebuilt["omitted"], rebuilt["clusters"]) == (60, 0, 2)
    await case.insights(5)
    assert (await case.rebuild())["cluster_version"] == 2
    assert await case.state() == (2, 65, 2)
    version = "SELECT version FROM resource_versions WHERE key = $1"
    assert await case.sql(version, f"clusters:{case.user}") >= 2


@pytest.mark.requirement("R0.37")
async def test_what_arrives_meanwhile_stays_pending(case: Case):
    """Insights stored between the snapshot and the commit are not accounted for."""
    await case.user_is()
    await case.insights(30)
    worker = case.worker()
    prepared = await worker.prepare([case.request()])
    await case.insights(7)
    async with case.context.pool.acquire() as tx, tx.transaction():
        await worker.apply(tx, [], prepared)
    await worker.settle(prepared)
    assert await case.state() == (1, 30, 1)
    assert await case.sql(QUERIES["read_pending_sum"], case.user) == 7


async def test_a_redelivered_request_is_void(case: Case):
    """A request at or before the last one answered does nothing and is not answered again."""
    await case.user_is()
    await case.insights(30)
    await case.rebuild()
    await in_transaction(case.context, case.worker(), [case.request(offset=1)])
    assert await case.state() == (1, 30, 1)
    assert len(await case.answers()) == 1


@pytest.mark.requirement("R0.33", "R0.34")
@pytest.mark.parametrize(
    ("trigger", "pending", "columns", "reason"),
    [
        ("novelty", 49, {}, "below_threshold"),
        ("novelty", 0, {}, "nothing_new"),
        ("time", 0, {}, "nothing_new"),
        ("time", 5, {"last_clustered_at": to_datetime(NOW_MS - 1_000)}, "not_due"),
        ("novelty", 500, {"last_active_at": to_datetime(NOW_MS - 8 * DAY_MS)}, "inactive"),
    ],
)
async def test_a_skip_says_why_and_changes_nothing(
    case: Case, trigger: str, pending: int, columns: dict[str, Any], reason: str
):
    """Judged again with PostgreSQL's numbers: skipped with its reason; only a look is remembered where nothing was new."""
    await case.user_is(**columns)
    await case.sql("INSERT INTO user_cluster_hwm VALUES ($1, $2, 0, true)", case.user, case.channel)
    await case.insights(pending)
    answer = await case.rebuild(trigger)
    assert ("skipped", reason, 0) == (answer["outcome"], answer["reason"], answer["cluster_version"])
    assert await case.state() == (0, 0, 0)
    checked = await case.sql("SELECT last_checked_at FROM user_stats WHERE user_id = $1", case.user)
    assert (reason == "nothing_new") == (checked is not None)


@pytest.mark.requirement("R0.34")
@pytest.mark.parametrize("trigger", ["novelty", "time", "manual"])
async def test_nothing_new_is_a_skip(case: Case, trigger: str):
    """This holds for every cause but a demand that must be met: the version is unchanged while a rebuild would show the same."""
    await case.user_is()
    await case.insights(30)
    await case.rebuild()
    last = await case.rebuild(trigger, forced=False)
    assert (last["outcome"], last["reason"]) == ("skipped", "nothing_new")
    assert await case.state() == (1, 30, 1)


@pytest.mark.requirement("R0.35")
async def test_a_demand_that_changes_nothing_keeps_version_and_tag(case: Case):
    """At 0 pending it is still rebuilt; an equal result is not a new version, and clients still get 304 (R0.35)."""
    await case.user_is()
    await case.insights(60)
    await case.rebuild()
    tag = "SELECT version || etag FROM resource_versions WHERE key = $1"
    before = await case.sql(tag, f"clusters:{case.user}")
    answer = await case.rebuild()
    assert (answer["outcome"], answer["reason"], answer["cluster_version"]) == ("rebuilt", "unchanged", 1)
    assert await case.state() == (1, 60, 1)
    assert await case.sql(tag, f"clusters:{case.user}") == before
    assert len(await case.answers(CLUSTERS_REBUILT)) == 1
    await case.insights(1)
    assert (await case.rebuild())["cluster_version"] == 2


@pytest.mark.parametrize("trigger", ["novelty", "time", "manual"])
async def test_channels_that_were_left_leave_the_version(case: Case, trigger: str):
    """For every cause, one left channel of two is a change, then the last one; an empty version is stored once."""
    other = fresh("left")
    await case.user_is()
    await case.subscribes(other)
    await case.insights(30)
    await case.insights(30, channel=other)
    await case.rebuild()
    await case.subscribes(other, subscribed=False)
    answer = await case.rebuild(trigger, forced=False)
    assert (answer["outcome"], answer["retractions"]) == ("rebuilt", {case.channel: 0})
    shown = "SELECT clusters::text || outside::text FROM user_clusters WHERE user_id = $1 ORDER BY cluster_version DESC"
    assert other not in await case.sql(shown, case.user)
    await case.subscribes(case.channel, subscribed=False)
    assert (await case.rebuild(trigger, forced=False))["cluster_version"] == 3
    assert await case.members() == set()
    assert (await case.rebuild(trigger, forced=False))["reason"] == "nothing_new"


async def test_a_joined_channel_is_a_change(case: Case):
    """Its insights are shown though they are fewer than N; joined again after leaving, its former insights are shown again."""
    other = fresh("joined")
    await case.user_is()
    await case.insights(30)
    await case.rebuild()
    await case.insights(3, channel=other)
    await case.subscribes(other)
    assert (await case.rebuild("novelty"))["cluster_version"] == 2
    for number, subscribed in enumerate((False, True), start=3):
        await case.subscribes(other, subscribed=subscribed)
        assert (await case.rebuild("novelty"))["cluster_version"] == number
    sizes = [rebuilt["dataset_size"] for rebuilt in await case.answers(CLUSTERS_REBUILT)]
    assert sizes == [30, 33, 30, 33]
    await case.subscribes(fresh("empty"))
    assert (await case.rebuild("novelty"))["reason"] == "nothing_new"


@pytest.mark.parametrize("trigger", ["novelty", "time", "manual"])
async def test_a_retraction_is_a_change(case: Case, trigger: str):
    """For every cause, of an insight in the version; one of an insight in no version yet is not a change."""
    await case.user_is()
    await case.insights(40)
    await case.rebuild()
    await case.retracts(7)
    answer = await case.rebuild(trigger, forced=False)
    assert (answer["outcome"], answer["retractions"]) == ("rebuilt", {case.channel: 1})
    assert 7 not in await case.members()
    await case.insights(1)
    await case.retracts(41)
    assert (await case.rebuild("novelty"))["reason"] == "below_threshold"


@pytest.mark.parametrize("trigger", ["novelty", "time", "manual"])
async def test_what_left_the_window_leaves_the_version(case: Case, trigger: str):
    """For every cause, with the user's own channels quiet."""
    await case.user_is()
    await case.insights(30)
    await case.rebuild()
    later = case.at(NOW_MS + 31 * DAY_MS)
    await case.sql("UPDATE user_stats SET last_active_at = $2 WHERE user_id = $1", case.user, to_datetime(later.now_ms))
    assert (await later.rebuild(trigger, forced=False))["cluster_version"] == 2
    assert await case.members() == set()
    assert (await later.rebuild(trigger, forced=False))["reason"] == "nothing_new"


@pytest.mark.parametrize("trigger", ["novelty", "time"])
async def test_vectors_that_are_missing_make_no_version(case: Case, trigger: str):
    """While nothing can be clustered a request is a skip, and no look: the next one finds what came. A demand makes none."""
    await case.user_is()
    await case.insights(60, embedded=False)
    for _ in range(2):
        answer = await case.rebuild(trigger)
        assert (answer["outcome"], answer["reason"]) == ("skipped", "vectors_missing")
    assert (await case.rebuild())["cluster_version"] == 0
    assert (await case.state())[::2] == (0, 0)
    assert await case.sql("SELECT last_checked_at FROM user_stats WHERE user_id = $1", case.user) is None
    assert await case.sql("SELECT version FROM resource_versions WHERE key = $1", f"clusters:{case.user}") is None


async def test_vectors_that_are_missing_take_nothing_away(case: Case):
    """The served version is unchanged to the byte while a service is unavailable; insights before the gap are clustered."""
    await case.user_is()
    await case.insights(30)
    await case.rebuild()
    await case.insights(60, embedded=False)
    assert (await case.rebuild("novelty"))["reason"] == "vectors_missing"
    assert (await case.rebuild())["reason"] == "unchanged"
    # A row whose vector was lost later than it was clustered holds back nothing that was shown.
    await case.sql("UPDATE insights SET embedding = NULL WHERE insight_id = $1", f"{case.channel}-5")
    assert (await case.rebuild())["hwm"] == {case.channel: 30}
    assert (await case.answers(CLUSTERS_REBUILT))[-1]["dataset_size"] == 29


@pytest.mark.requirement("R0.9")
async def test_the_cooldown_counts_from_a_skip_too(case: Case):
    """The row has the time of the user's last request, for any outcome: `/pending` is due no earlier than the planner (R0.9)."""
    await case.user_is()
    await case.rebuild("novelty")
    enqueued = "SELECT last_enqueued_at FROM user_stats WHERE user_id = $1"
    assert await case.sql(enqueued, case.user) == to_datetime(NOW_MS)
    later = case.at(NOW_MS + 5)
    await case.redis.client.set(key(USER_LOCK, user_id=case.user), f"{REBUILD_REQUESTED}/0/999")
    assert (await later.rebuild())["reason"] == "locked"
    assert await case.sql(enqueued, case.user) == to_datetime(NOW_MS + 5)


async def test_a_demand_is_told_what_became_of_it(case: Case):
    """Those up to the revision that a request serves, each once; a later one waits for its own."""
    await case.user_is()
    await case.insights(30)
    query = "INSERT INTO rebuild_demands (position, user_id, revision, demanded_at) VALUES ($1, $2, $3, $4)"
    places = [f"feeds.rebuild-demanded/0/{case.user}{n}" for n in range(4)]
    for revision, place in enumerate(places, start=1):
        await case.sql(query, place, case.user, revision, to_datetime(NOW_MS))
    for revision, forced in ((2, True), (3, True), (4, False)):
        request = case.request(forced=forced, revision=revision)
        await in_transaction(case.context, case.worker(), [request])
    found = [await demand_at(case.context.pool, case.user, place) for place in places]
    told = [(one.status, one.reason, one.cluster_version) for one in found if one is not None]
    assert told == [("rebuilt", "", 1), ("rebuilt", "", 1), ("unchanged", "", 1), ("skipped", "nothing_new", 1)]
    assert await demand_at(case.context.pool, "another", places[0]) is None


async def test_another_basis_alone_is_nothing_new(case: Case):
    """A demand after a change of basis only is a skip: nothing happened for the user, and readers keep their 304."""
    await case.user_is()
    await case.insights(30)
    await case.rebuild()
    before = await case.sql("SELECT changed_at FROM active_basis")
    try:
        await case.sql("UPDATE active_basis SET changed_at = $1", to_datetime(NOW_MS + 1))
        await case.rebuild(forced=False)
    finally:
        await case.sql("UPDATE active_basis SET changed_at = $1", before)
    assert (await case.answers())[-1]["reason"] == "nothing_new"


async def test_a_demand_takes_another_basis_alone(case: Case):
    """A demand makes a version of the new vectors, which says that it is regrouped; one for what is new does not."""
    await case.user_is()
    await case.insights(60)
    await case.rebuild()
    await case.sql("UPDATE user_clusters SET basis_id = 'older' WHERE user_id = $1", case.user)
    plain = await case.rebuild(forced=False)
    assert (plain["outcome"], plain["reason"], plain["cluster_version"]) == ("skipped", "nothing_new", 1)
    assert (await case.rebuild())["cluster_version"] == 2
    assert (await case.rebuild())["reason"] == "unchanged"
    regrouped = "SELECT array_agg(regrouped ORDER BY cluster_version) FROM user_clusters WHERE user_id = $1"
    assert await case.sql(regrouped, case.user) == [False, True]


async def test_an_unknown_user_is_answered(case: Case):
    """A request for an unknown user is skipped, and the outcome reports it."""
    assert (await case.rebuild())["reason"] == "unknown_user"


@pytest.mark.requirement("R0.26", "R0.32")
async def test_a_locked_user_is_answered(case: Case):
    """While another request holds the lock this one is skipped; the other's lock stays."""
    await case.user_is()
    await case.insights(30)
    name = key(USER_LOCK, user_id=case.user)
    another = f"{REBUILD_REQUESTED}/0/999"
    await case.redis.client.set(name, another)
    assert (await case.rebuild())["reason"] == "locked"
    assert await case.redis.client.get(name) == another.encode()
    await case.redis.client.delete(name)
    assert (await case.rebuild())["outcome"] == "rebuilt"
    assert await case.redis.client.exists(name) == 0


@pytest.mark.requirement("R0.26")
@pytest.mark.parametrize("where", ["redis", "postgres"])
async def test_a_lock_whose_request_has_ended_refuses_nobody(case: Case, where: str):
    """A deleted lock may return (Redis carries out an old SET when it continues; a worker died): once its request is answered,
    or for a token without a request, the next one rebuilds, in Redis and in PostgreSQL, and removes the lock.
    """
    link = case.redis if where == "redis" else await open_redis(None)
    tokens = [f"{REBUILD_REQUESTED}/99/{number}" for number in (7, 8)]
    left, mine = (UserLock(link, case.context.pool, case.user, token=token) for token in tokens)
    assert await left.acquire(840)
    assert not await mine.acquire(840)
    await case.sql("INSERT INTO positions VALUES ('rebuild', $1, 99, 'id', 8)", REBUILD_REQUESTED)
    try:
        assert await mine.acquire(840)
        assert await mine.acquire(840), "its own, of a redelivery"
        assert await left.acquire(840) is False, "what was answered does not come back over a live one"
    finally:
        await case.sql("DELETE FROM positions WHERE partition = 99")
    await mine.release()
    assert await UserLock(link, case.context.pool, case.user, token="nobody's").acquire(840)
    await case.user_is()
    await case.insights(30)
    worker = RebuildWorker(case.context, case.stack.settings(), load_policy(), link, case.pool)
    prepared = await worker.prepare([case.request()])
    assert [work.outcome for work in prepared] == ["rebuilt"]
    await worker.settle(prepared)
    assert await case.redis.client.exists(key(USER_LOCK, user_id=case.user)) == 0
    assert await case.sql("SELECT count(*) FROM leases WHERE kind = 'user-rebuild' AND name = $1", case.user) == 0


async def test_a_redelivered_request_finds_its_own_lock(case: Case):
    """A worker that crashed left its lock: the same request continues with it."""
    await case.user_is()
    await case.insights(30)
    await case.redis.client.set(key(USER_LOCK, user_id=case.user), f"{REBUILD_REQUESTED}/0/1", ex=60)
    assert (await case.rebuild())["outcome"] == "rebuilt"


@pytest.mark.requirement("R0.38")
async def test_a_process_that_keeps_being_killed_is_a_delay(case: Case):
    """After a bounded number of attempts the request is answered as delayed, and nothing of the user has changed."""
    await case.user_is()
    await case.insights(30)
    retries = REGISTRY.get_sample_value("highwater_rebuild_retries_total") or 0.0
    task = asyncio.create_task(case.rebuild())
    while not task.done():
        for process_id in case.pool.process_ids:
            os.kill(process_id, signal.SIGKILL)
        await asyncio.wait({task}, timeout=0.05)
    answer = await task
    assert (answer["outcome"], answer["cluster_version"]) == ("delayed", 0)
    assert (REGISTRY.get_sample_value("highwater_rebuild_retries_total") or 0.0) > retries
    assert await case.state() == (0, None, 0)
    assert await case.sql("SELECT in_flight FROM user_stats WHERE user_id = $1", case.user) is None
    assert await case.redis.client.exists(key(USER_LOCK, user_id=case.user)) == 0


async def test_a_machine_that_fails_costs_a_user_nothing(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A process that does not start is tried a bounded number of times, then another user is rebuilt; the request counts for
    no cooldown and answers no demand, and the reason is stored until a rebuild succeeds.
    """
    program, starts, before_ms = pool_module._PROGRAM, tmp_path / "starts", NOW_MS - 3_600_000
    hangs = f"import time; open({str(starts)!r}, 'a').write('.'); time.sleep(600)"
    monkeypatch.setattr(pool_module, "_PROGRAM", hangs)
    async with ClusterPool(start_limit=WorkLimit(quiet_seconds_max=1.0, total_seconds_max=600.0)) as pool:
        first, other = (Case(case.stack, case.context, case.redis, pool, enqueued_ms=before_ms) for _ in range(2))
        place = f"feeds.rebuild-demanded/0/{first.user}"
        demand = "INSERT INTO rebuild_demands (position, user_id, revision, demanded_at) VALUES ($1, $2, 1, $3)"
        await case.sql(demand, place, first.user, to_datetime(NOW_MS))
        for one in (first, other):
            await one.user_is(last_enqueued_at=to_datetime(before_ms))
            await one.insights(60)
        await in_transaction(case.context, first.worker(), [first.request(revision=1)])
        (answer,) = await first.answers()
        assert 1 <= len(starts.read_text()) <= MACHINE.attempts_max
        assert (answer["outcome"], answer["last_enqueued_at"], answer["demanded_revision"]) == ("delayed", before_ms, 1)
        row, _ = await pending_by_channel(case.context.pool, first.user)
        assert (row.last_enqueued_at, row.in_flight_until) == (before_ms, None)
        assert row.delay is not None
        assert (row.delay.reason, row.delay.times) == (answer["reason"], 1)
        assert "made no progress for 1 s" in row.delay.reason
        waiting = await demand_at(case.context.pool, first.user, place)
        assert waiting is not None
        assert waiting.status == PENDING
        monkeypatch.setattr(pool_module, "_PROGRAM", program)
    for one in (other, first):
        one.pool = case.pool
        assert (await one.rebuild("novelty"))["outcome"] == "rebuilt"
    assert (await pending_by_channel(case.context.pool, first.user))[0].delay is None


async def test_a_vector_of_another_length_is_left_out(case: Case):
    """One insight embedded before a change of dimensions is left out and counted; all others are clustered."""
    await case.user_is()
    await case.insights(30)
    await case.sql(
        "UPDATE insights SET embedding = $2 WHERE insight_id = $1", f"{case.channel}-3", b"\x00\x00\x80?" * 7
    )
    assert (await case.rebuild())["outcome"] == "rebuilt"
    (rebuilt,) = await case.answers(CLUSTERS_REBUILT)
    assert (rebuilt["dataset_size"], rebuilt["left_out"]) == (29, 1)
    assert 3 not in await case.members()
    assert await case.state() == (1, 30, 1)


async def test_vectors_of_two_bases_are_not_compared(case: Case):
    """A window whose insights come from two models is clustered in the one that most of them have; the version names it."""
    await case.user_is()
    await case.insights(30)
    await case.sql("UPDATE insights SET embedding_model = 'mine' WHERE channel_id = $1 AND seq > 4", case.channel)
    await case.rebuild()
    (rebuilt,) = await case.answers(CLUSTERS_REBUILT)
    assert (rebuilt["basis_id"], rebuilt["dataset_size"], rebuilt["left_out"]) == ("mine", 26, 4)
    assert min(await case.members()) > 4


async def test_what_became_of_each_cluster_is_told_and_kept(case: Case):
    """Every change is an event and a row of the history, written with the version; a version like the last adds none."""
    await case.user_is()
    await case.insights(40)
    await case.rebuild()
    await case.insights(20)
    await case.rebuild()
    await case.rebuild()
    told = [
        (one["cluster_version"], one["kind"], one["size"], one["joined"]) for one in await case.answers(CLUSTER_EVOLVED)
    ]
    assert told == [(1, "born", 20, 20), (1, "born", 20, 20), (2, "grew", 30, 10), (2, "grew", 30, 10)]
    assert len({one["cluster_id"] for one in await case.answers(CLUSTER_EVOLVED)}) == 2
    rows = await case.context.pool.fetch(
        "SELECT cluster_version, kind, size, joined, caused_by FROM cluster_history WHERE user_id = $1"
        " ORDER BY cluster_version, cluster_id",
        case.user,
    )
    assert [tuple(row)[:4] for row in rows] == told
    assert {row["caused_by"] for row in rows} == {f"{REBUILD_REQUESTED}/0/1", f"{REBUILD_REQUESTED}/0/2"}


async def test_ids_and_neighbours_are_handed_on(case: Case):
    """The second version carries the ids of the first; what saves the next rebuild its search is kept for the newest only."""
    await case.user_is()
    await case.insights(40)
    await case.rebuild()
    await case.insights(2)
    await case.rebuild()
    rows = await case.context.pool.fetch(
        "SELECT clusters, neighbours IS NOT NULL AS has_neighbours FROM user_clusters WHERE user_id = $1"
        " ORDER BY cluster_version",
        case.user,
    )
    ids = [{one["cluster_id"] for one in json.loads(row["clusters"])} for row in rows]
    assert ids[0] == ids[1]
    assert [row["has_neighbours"] for row in rows] == [False, True]
    entered = {since for one in json.loads(rows[1]["clusters"]) for since in one["since"]}
    assert entered == {1, 2}


async def test_history_is_kept_as_far_as_it_is_asked_for(case: Case):
    """Changes of versions past the setting go, but the birth of a cluster that is alive stays."""
    await case.user_is()
    await case.insights(40)
    for _ in range(4):
        await case.rebuild(HIGHWATER_CLUSTER_HISTORY_VERSIONS=2)
        await case.insights(2)
    rows = await case.context.pool.fetch(
        "SELECT cluster_version, kind FROM cluster_history WHERE user_id = $1 ORDER BY 1, 2", case.user
    )
    assert {tuple(row) for row in rows} == {(1, "born"), (3, "grew"), (4, "grew")}


async def test_what_was_forgotten_stays_so_when_the_setting_moves(case: Case):
    """A setting that is raised brings nothing back, and one that is lowered forgets: both are said by `complete`."""
    await case.user_is()
    await case.insights(40)
    told: list[list[bool]] = []
    for kept in (2, 2, 2, 2, 50, 50, 1):
        version = (await case.rebuild(HIGHWATER_CLUSTER_HISTORY_VERSIONS=kept))["cluster_version"]
        await case.insights(2)
        found = [
            await clusters_since(case.context.pool, case.user, None, since, case.now_ms) for since in range(version)
        ]
        told.append([has_all_changes(changes, since) for since, changes in enumerate(found)])
    # By version: whether all changes after versions 0, 1, … up to the one before it are reported.
    assert told[3] == [False, False, True, True]
    assert told[4] == [False, False, True, True, True]
    assert told[5] == [False, False, True, True, True, True]
    assert told[6] == [False] * 6 + [True]


async def test_versions_after_an_erasure_follow_those_before_it(case: Case):
    """A reader of an earlier version gets the answer that all is new and the changes are incomplete; later versions work as
    usual.
    """
    await case.user_is()
    await case.insights(40)
    before = (await case.rebuild())["cluster_version"]
    users = UsersSink(case.context.codec, lambda: case.now_ms, ERASURE, dimensions=384)
    await in_transaction(case.context, users, [event(USER_ERASED, {"user_id": case.user, "ts": 1}, offset=1)])
    await case.user_is()
    after = (await case.rebuild())["cluster_version"]
    assert (before, after > before) == (1, True)
    pool = case.context.pool
    for since, is_complete in ((before, False), (after, True)):
        changes = await clusters_since(pool, case.user, None, since, case.now_ms)
        assert (bool(unread_clusters(changes.found, since)), has_all_changes(changes, since)) == (
            not is_complete,
            is_complete,
        )
    await case.insights(40)
    assert (await case.rebuild())["cluster_version"] == after + 1
    assert has_all_changes(await clusters_since(pool, case.user, None, after, case.now_ms), after)
    assert not has_all_changes(await clusters_since(pool, case.user, None, before, case.now_ms), before)


async def test_an_overtaken_rebuild_is_void(case: Case):
    """Another version was stored meanwhile: this one stores nothing and says so."""
    await case.user_is()
    await case.insights(30)
    worker = case.worker()
    prepared = await worker.prepare([case.request()])
    await case.sql("UPDATE user_stats SET cluster_version = 5 WHERE user_id = $1", case.user)
    async with case.context.pool.acquire() as tx, tx.transaction():
        await worker.apply(tx, [], prepared)
    await worker.settle(prepared)
    last = (await case.answers())[-1]
    assert (last["outcome"], last["reason"]) == ("skipped", "overtaken")
    assert await case.state() == (5, None, 0)


async def test_a_rebuild_from_before_an_erasure_is_void(case: Case):
    """Its user is known again and has no version, as when it was read: nothing that was erased is stored again."""
    await case.user_is()
    await case.insights(30)
    worker = case.worker()
    prepared = await worker.prepare([case.request()])
    users = UsersSink(case.context.codec, lambda: case.now_ms, ERASURE, dimensions=384)
    await in_transaction(case.context, users, [event(USER_ERASED, {"user_id": case.user, "ts": 1}, offset=1)])
    await case.sql("INSERT INTO user_stats (user_id) VALUES ($1)", case.user)
    async with case.context.pool.acquire() as tx, tx.transaction():
        await worker.apply(tx, [], prepared)
    await worker.settle(prepared)
    last = (await case.answers())[-1]
    assert (last["outcome"], last["reason"]) == ("skipped", "overtaken")
    assert await case.sql("SELECT count(*) FROM user_clusters WHERE user_id = $1", case.user) == 0


@pytest.mark.requirement("R0.35")
async def test_the_bound_is_recorded(case: Case):
    """Only the newest take part, the rest is recorded as omitted, and the mark moves over all."""
    await case.user_is()
    await case.insights(40, age_days=5)
    await case.insights(30, age_days=1)
    await case.rebuild(HIGHWATER_REBUILD_INSIGHTS_MAX=30)
    (rebuilt,) = await case.answers(CLUSTERS_REBUILT)
    assert (rebuilt["dataset_size"], rebuilt["omitted"]) == (30, 40)
    assert min(await case.members()) > 40
    assert await case.state() == (1, 70, 1)


async def test_the_window_counts_from_when_an_insight_was_first_shown(case: Case):
    """An old insight stays as long as a young one: for the window's length from the version that first contained it."""
    await case.user_is()
    await case.insights(30, age_days=90)
    await case.rebuild()
    await case.insights(20, age_days=1)
    await case.rebuild()
    later = case.at(NOW_MS + 20 * DAY_MS)
    await later.insights(1, age_days=80)
    await later.rebuild()
    last = later.at(NOW_MS + 31 * DAY_MS)
    await last.insights(1)
    await last.rebuild()
    assert [rebuilt["dataset_size"] for rebuilt in await case.answers(CLUSTERS_REBUILT)] == [30, 50, 51, 2]
    marks = "SELECT count(*) FROM user_cluster_marks WHERE user_id = $1"
    assert await case.sql(marks, case.user) == 3


async def test_retracted_insights_are_left_out(case: Case):
    """An insight that was retracted is in no later version, and keeps its number."""
    await case.user_is()
    await case.insights(40)
    await case.sql("UPDATE insights SET retracted_at = ts WHERE insight_id = $1", f"{case.channel}-7")
    await case.rebuild()
    assert 7 not in await case.members()
    assert await case.state() == (1, 40, 1)


@pytest.mark.requirement("R0.14")
async def test_a_missing_vector_holds_back_the_snapshot(case: Case):
    """The snapshot ends before the first insight whose vector is being computed; once that one is excluded it continues."""
    await case.user_is()
    await case.insights(30)
    await case.insights(1, embedded=False)
    await case.insights(10)
    assert (await case.rebuild())["hwm"] == {case.channel: 30}
    await case.sql("UPDATE insights SET excluded_at = ts WHERE insight_id = $1", f"{case.channel}-31")
    assert (await case.rebuild())["hwm"] == {case.channel: 41}


async def test_a_vector_in_the_active_basis_alone_holds_nothing_back(case: Case):
    """A row whose only vector is one that a roll-out made in the basis that is active now takes part at once."""
    await case.user_is()
    await case.insights(30)
    await case.insights(1, embedded=False)
    await case.sql(
        "UPDATE insights SET next_embedding = (SELECT embedding FROM insights WHERE insight_id = $2), next_model = $3"
        " WHERE insight_id = $1",
        f"{case.channel}-31", f"{case.channel}-1", UNFITTED_ID,
    )  # fmt: skip
    assert (await case.rebuild())["hwm"] == {case.channel: 31}
    assert 31 in await case.members()


@pytest.mark.requirement("R0.20")
async def test_old_versions_are_dropped(case: Case):
    """The last few versions are kept and no more."""
    await case.user_is()
    for _ in range(4):
        await case.insights(3)
        await case.rebuild(HIGHWATER_CLUSTER_VERSIONS_KEPT=2)
    assert await case.state() == (4, 12, 2)


@pytest.mark.requirement("R0.38")
async def test_too_few_points_are_a_version_too(case: Case):
    """Nothing to cluster: an empty list is stored, the version grows and the mark moves."""
    await case.user_is()
    await case.insights(1)
    assert (await case.rebuild())["outcome"] == "rebuilt"
    assert await case.state() == (1, 1, 1)
    assert set() == await case.members()


@pytest.mark.requirement("R0.42")
async def test_without_redis_the_lock_is_postgresqls(case: Case):
    """With Redis unavailable rebuilds continue, one per user: a lease replaces the lock, and is released afterwards."""
    await case.user_is()
    await case.insights(30)
    away = await open_redis(None)
    worker = RebuildWorker(case.context, case.stack.settings(), load_policy(), away, case.pool)
    first = await worker.prepare([case.request()])
    second = await worker.prepare([case.request()])
    assert [(w.outcome, w.reason) for w in (*first, *second)] == [("rebuilt", ""), ("skipped", "locked")]
    await worker.settle([*first, *second])
    (third,) = await worker.prepare([case.request()])
    assert third.outcome == "rebuilt"
    await worker.settle([third])
