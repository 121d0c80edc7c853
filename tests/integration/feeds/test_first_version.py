"""The first version of a user waits for the vectors of the configured model, or is preliminary and replaced once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from highwater.connectors.feeds.pool import ClusterPool
from highwater.connectors.feeds.read_model import clusters_since, has_all_changes, pending_by_channel
from highwater.connectors.kafka.handler import ProcessContext
from highwater.connectors.redis.link import RedisLink
from highwater.streams.clock import to_datetime
from highwater.streams.feeds.basis import UNFITTED_ID
from highwater.streams.feeds.readiness import VECTORS_WAIT_MS
from highwater.streams.telemetry import REBUILDS
from tests.conftest import Stack
from tests.integration.feeds.making import NOW_MS, Case

MODEL = "model@384"
VERSIONS = (
    "SELECT array_agg(basis_id || CASE WHEN preliminary THEN ' preliminary' ELSE '' END ORDER BY cluster_version)"
    " FROM user_clusters WHERE user_id = $1"
)


@pytest.fixture
def case(stack: Stack, shared: tuple[ProcessContext, RedisLink, ClusterPool]) -> Case:
    """A user and a channel of the test's own, where a model reads the texts."""
    return Case(stack, *shared, basis_id=MODEL)


@pytest.mark.parametrize("trigger", ["novelty", "time", "manual"])
async def test_the_first_version_waits_for_the_model(case: Case, trigger: str):
    """No version of stand-ins is made where a minute is enough: the request is given back, and says why; then it is final."""
    await case.user_is()
    await case.insights(60)
    await case.model_reads(MODEL, upto=59)
    counted = [REBUILDS.labels(name)._value.get() for name in ("vectors_awaited", "delayed")]
    answer = await case.rebuild(trigger)
    assert (answer["outcome"], answer["reason"], answer["cluster_version"]) == ("delayed", "vectors_awaited", 0)
    # An alert counts what the machine has delayed.
    now = [REBUILDS.labels(name)._value.get() for name in ("vectors_awaited", "delayed")]
    assert now == [counted[0] + 1, counted[1]]
    row, _ = await pending_by_channel(case.context.pool, case.user)
    assert (row.vectors_awaited_since, row.last_enqueued_at, row.delay) == (NOW_MS, None, None)
    await case.model_reads(MODEL)
    assert (await case.rebuild(trigger))["cluster_version"] == 1
    assert await case.sql(VERSIONS, case.user) == [MODEL]
    row, _ = await pending_by_channel(case.context.pool, case.user)
    assert row.vectors_awaited_since is None


async def test_a_model_that_is_late_is_replaced_once(case: Case):
    """After a minute a preliminary version is made; when all is read the next request of any kind replaces it, though nothing
    is new.
    """
    await case.user_is()
    await case.insights(60)
    await case.rebuild("novelty")
    late = case.at(NOW_MS + VECTORS_WAIT_MS)
    assert (await late.rebuild("novelty"))["cluster_version"] == 1
    assert (await late.rebuild("time", forced=False))["reason"] == "nothing_new"
    await late.model_reads(MODEL)
    assert (await late.rebuild("time", forced=False))["cluster_version"] == 2
    assert (await late.rebuild("time", forced=False))["reason"] == "nothing_new"
    assert await case.sql(VERSIONS, case.user) == [f"{UNFITTED_ID} preliminary", MODEL]
    assert await case.sql("SELECT bool_or(regrouped) FROM user_clusters WHERE user_id = $1", case.user) is False
    changes = await clusters_since(case.context.pool, case.user, None, 1, NOW_MS)
    assert not has_all_changes(changes, 1)  # what a preliminary version became is not reported


async def test_too_much_to_read_is_not_waited_for(case: Case):
    """More than the model reads in a minute: the first version is made at once, as preliminary."""
    await case.user_is()
    await case.insights(60)
    since = to_datetime(NOW_MS - VECTORS_WAIT_MS + 50)  # for the rest of the minute there are too many
    await case.sql("UPDATE user_stats SET vectors_awaited_since = $2 WHERE user_id = $1", case.user, since)
    assert (await case.rebuild("novelty"))["cluster_version"] == 1
    assert await case.sql(VERSIONS, case.user) == [f"{UNFITTED_ID} preliminary"]


async def test_a_version_of_the_model_stays_one(case: Case):
    """Later insights are clustered when the model has read them: the others are not accounted for, and those shown stay."""
    await case.user_is()
    await case.insights(60)
    await case.model_reads(MODEL)
    await case.rebuild()
    await case.insights(60)
    answer = await case.rebuild("novelty")
    assert (answer["outcome"], answer["reason"]) == ("delayed", "vectors_awaited")
    assert (await case.rebuild())["reason"] == "vectors_awaited"  # a demand takes what was published before it
    late = case.at(NOW_MS + VECTORS_WAIT_MS)
    assert (await late.rebuild("novelty"))["reason"] == "vectors_missing"
    assert (await late.rebuild())["reason"] == "vectors_awaited"  # that answer began another minute
    late = late.at(NOW_MS + 2 * VECTORS_WAIT_MS)
    assert (await late.rebuild())["reason"] == "unchanged"
    await case.model_reads(MODEL, upto=112)
    answer = await late.rebuild("novelty")
    assert (answer["cluster_version"], answer["hwm"]) == (2, {case.channel: 112})
    assert await case.sql(VERSIONS, case.user) == [MODEL, MODEL]
    # What the version shows is being read again: it waits, however long.
    await case.sql("UPDATE insights SET next_embedding = NULL WHERE channel_id = $1 AND seq = 5", case.channel)
    assert (await late.at(NOW_MS + 10 * VECTORS_WAIT_MS).rebuild())["reason"] == "vectors_awaited"


async def test_another_model_is_one_switch(case: Case):
    """Until it has read all insights of the window, the version keeps the model that it has; then it is regrouped."""
    await case.user_is()
    await case.insights(60)
    await case.sql("UPDATE insights SET embedding_model = $2 WHERE channel_id = $1", case.channel, MODEL)
    await case.rebuild()
    await case.insights(60)
    await case.sql("UPDATE insights SET embedding_model = $2 WHERE channel_id = $1", case.channel, MODEL)
    other = replace(case, basis_id="other@384")
    assert (await other.rebuild("novelty"))["cluster_version"] == 2
    await case.model_reads("other@384")
    assert (await other.rebuild())["cluster_version"] == 3
    assert await case.sql(VERSIONS, case.user) == [MODEL, MODEL, "other@384"]
    regrouped = "SELECT array_agg(regrouped ORDER BY cluster_version) FROM user_clusters WHERE user_id = $1"
    assert await case.sql(regrouped, case.user) == [False, False, True]
