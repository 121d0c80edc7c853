"""Decisions repeated: each kind stands on its recorded inputs, and none stands on others."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.connectors.kafka.records import Record
from highwater.connectors.verify.decisions import judge_one
from highwater.connectors.verify.judging import DECISIONS, DecisionInputs, LeftOpenError, Rules
from highwater.connectors.verify.report import Checked
from highwater.schemas.topics import TOPICS
from highwater.streams.driver import Delivered, Driver
from highwater.streams.feeds.policy import load_policy
from tests.unit.chunks.test_completion import progress

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
JUDGES = {decision.topic: decision.judge for decision in DECISIONS}
RULES = Rules(load_policy(None))


def judged(driver: Driver, topic: str, told: DecisionInputs, **changes: Any) -> Any:
    """The verdict on the last decision that a driver sent to a topic, some of it changed."""
    sent = next(one for one in reversed(driver.outputs) if one.position.topic == topic)
    record = Record(*sent.position, NOON, sent.key, sent.value, list(sent.headers))
    return JUDGES[topic]({**(sent.event or {}), **changes}, record, told, RULES)


class Telling(Driver):
    """A driver that notes its inputs as published."""

    def __init__(self, *agents: str) -> None:
        self.told = DecisionInputs({})
        super().__init__(*agents)

    async def deliver(self, record: Any) -> None:
        """Let the agents deal with it, and note it."""
        event = self.codec.decode(record.topic, record.value)
        at = Record(record.topic, record.partition, record.offset, NOON, record.key, record.value, [])
        self.told.note(at, event)
        await super().deliver(record)


def changed(**more: Any) -> dict[str, Any]:
    """An active user who subscribes to a channel."""
    event = {
        "user_id": "u1", "revision": 1, "plan": "free", "last_active_at": NOON, "subscribed": ["c1"], "unsubscribed": [],
        "rebuild_demanded": False, "rebuild_forced": False, "erased": False,
    }  # fmt: skip
    return {**event, **more}


async def with_request() -> Telling:
    """A user for whom a rebuild was requested."""
    driver = Telling("users")
    await driver.publish("feeds.user-changed", changed())
    heads = {"heads": [{"channel_id": "c1", "head": 500, "users": ["u1"]}]}
    await driver.publish("feeds.novelty", heads, partition=driver.partition_of("u1"))
    await driver.tick(NOON)
    return driver


async def test_a_request_stands_on_its_inputs_only():
    """The rule is asked again: less novelty, a cooldown, or another time would not have made it."""
    driver = await with_request()
    topic = "feeds.rebuild-requested"
    assert judged(driver, topic, driver.told) is None
    assert judged(driver, topic, driver.told, pending=0)[0] == "decision"
    assert judged(driver, topic, driver.told, trigger="time")[0] == "decision"
    assert judged(driver, topic, driver.told, last_enqueued_at=NOON - 1)[0] == "decision"
    assert judged(driver, topic, driver.told, planned_at=NOON + 1) == ("planned_at", NOON, NOON + 1)
    with pytest.raises(LeftOpenError, match="another policy"):
        judged(driver, topic, driver.told, policy_hash="other")


@pytest.mark.parametrize(("outcome", "requested"), [("delayed", ["u1", "u2", "u1"]), ("failed", ["u1", "u2"])])
async def test_a_user_whom_the_machine_failed_is_requested_again_without_a_cooldown(outcome: str, requested: list[str]):
    """By the next tick, behind another user who became due meanwhile, and by no tick twice; both decisions can be repeated.

    A rebuild that failed for another reason has its cooldown.
    """
    driver = await with_request()
    partition = driver.partition_of("u1")
    (request,) = driver.sent("feeds.rebuild-requested")
    (place,) = [one.position for one in driver.outputs if one.position.topic == "feeds.rebuild-requested"]
    answer = {
        "user_id": "u1", "request_position": str(place), "outcome": outcome, "reason": "no progress", "cluster_version": 0,
        "hwm": {}, "last_clustered_at": None, "last_checked_at": None, "finished_at": NOON,
        "last_enqueued_at": request["last_enqueued_at"],
    }  # fmt: skip
    await driver.publish("feeds.rebuild-finished", answer)
    other = next(user for user in map("other{}".format, range(99)) if driver.partition_of(user) == partition)
    await driver.publish("feeds.user-changed", changed(user_id=other, rebuild_demanded=True))
    heads = {"heads": [{"channel_id": "c1", "head": 600, "users": ["u1"]}]}
    await driver.publish("feeds.novelty", heads, partition=partition)
    assert len(driver.sent("feeds.rebuild-requested")) == 1, "the tick of the first request asks nobody twice"
    await driver.tick(NOON + 30_000)
    found = ["u1" if event["user_id"] == "u1" else "u2" for event in driver.sent("feeds.rebuild-requested")]
    assert sorted(found) == sorted(requested)
    assert judged(driver, "feeds.rebuild-requested", driver.told) is None


async def test_a_tick_that_the_log_has_no_longer_leaves_a_request_open():
    """It was kept for a week; an unknown input is not called a difference."""
    driver = await with_request()
    first, times = driver.told.ticks[driver.partition_of("u1")]
    driver.told.ticks[driver.partition_of("u1")] = (first + 5, times)
    with pytest.raises(LeftOpenError, match="no longer has its tick"):
        judged(driver, "feeds.rebuild-requested", driver.told)


async def test_inputs_that_the_log_lost_are_no_difference():
    """In a partition without its beginning a right decision is compared, a wrong one is left out with the topic."""
    driver = Telling("channels")
    await driver.publish("feeds.channel-advanced", {"channel_id": "c1", "head": 3, "arrived_at": NOON})
    await driver.tick(NOON)
    topic = "feeds.channel-dirty"
    sent = next(one for one in driver.outputs if one.position.topic == topic)
    record = Record(*sent.position, NOON, sent.key, sent.value, list(sent.headers))
    decision = next(one for one in DECISIONS if one.topic == topic)
    gone, other = ("feeds.channel-advanced", record.partition), ("feeds.channel-advanced", record.partition + 1)
    lost_text = "the log of feeds.channel-advanced no longer has its beginning"
    stands, lost, planted = (Checked("decisions", topic) for _ in range(3))
    judge_one(stands, decision, record, sent.event or {}, driver.told, RULES, {gone: lost_text})
    assert (stands.compared, stands.differences_count, stands.left_out) == (1, 0, {})
    judge_one(lost, decision, record, {**(sent.event or {}), "head": 9}, driver.told, RULES, {gone: lost_text})
    assert (lost.compared, lost.differences_count) == (0, 0)
    assert list(lost.left_out) == [f"its inputs: {lost_text}"]
    judge_one(planted, decision, record, {**(sent.event or {}), "head": 9}, driver.told, RULES, {other: lost_text})
    assert (planted.compared, planted.differences_count) == (1, 1)


async def test_a_dirty_channel_names_a_head_that_was_told():
    """And is dirty since an advance."""
    driver, topic = Telling("channels"), "feeds.channel-dirty"
    for head in (3, 8):
        await driver.publish("feeds.channel-advanced", {"channel_id": "c1", "head": head, "arrived_at": NOON + head})
    await driver.tick(NOON)
    assert judged(driver, topic, driver.told) is None
    assert judged(driver, topic, driver.told, head=9) == ("head", "a reported one; the newest is 8", 9)
    assert judged(driver, topic, driver.told, dirty_since=1)[::2] == ("dirty_since", 1)
    # The second advance cannot have made a head dirty that was published before it.
    assert judged(driver, topic, driver.told, head=3, dirty_since=NOON + 8)[0] == "dirty_since"
    assert judged(driver, topic, driver.told, now=NOON - 1)[0] == "now"


async def test_an_ingest_is_decided_by_its_counts():
    """Which are those of the progress that it names."""
    driver, topic = Telling("ingests"), "chunks.ingest-decided"
    await driver.publish("chunks.ingest-progressed", progress(3))
    assert judged(driver, topic, driver.told) is None
    assert judged(driver, topic, driver.told, outcome="failed") == ("outcome", "complete", "failed")
    assert judged(driver, topic, driver.told, marks_orphans=False)[0] == "marks_orphans"
    assert judged(driver, topic, driver.told, seen=7)[0] == "seen"
    assert judged(driver, topic, driver.told, revision=4)[0] == "revision"


async def test_a_change_of_a_match_names_its_documents():
    """A row that knows the change may publish fewer of them, and is left open; more of them are a difference."""
    driver, topic = Telling("seasons"), "league.refresh-requested"
    event = {
        "match_id": "m1", "season": "s", "changed": ["score"], "kickoff": NOON, "status": "scheduled", "state": "live",
        "home": "A", "away": "B", "former_teams": [], "home_goals": 1, "away_goals": 0, "finalized_at": None, "revision": 1,
    }  # fmt: skip
    at = await driver.publish("league.match-changed", event)
    assert judged(driver, topic, driver.told) is None
    keys = list(driver.sent(topic)[-1]["keys"])
    assert judged(driver, topic, driver.told, keys=[*keys, "league:table:s"])[0] == "keys"
    value = driver.codec.encode("league.match-changed", event)
    await Driver.deliver(driver, Delivered(at.topic, at.partition, at.offset, b"s", value, ()))
    assert len(driver.sent(topic)[-1]["keys"]) < len(keys)
    with pytest.raises(LeftOpenError, match="requested again"):
        judged(driver, topic, driver.told)


def test_totals_are_the_sum_of_what_was_recorded():
    """They are compared up to their number; an unrecorded number is named."""
    told, topic = DecisionInputs({}), "jobs.usage-flushed"
    amounts = {"presentations": 1, "slides": 2, "tokens": 3, "cost_cents": 4}
    for seq in (1, 2):
        record = Record("jobs.usage-recorded", 0, seq, NOON, b"o", b"", [])
        told.note(record, {"organization_id": "o", "period": "2026-11", "seq": seq, **amounts})
    flushed = {"organization_id": "o", "period": "2026-11", "upto_seq": 2, **{n: 2 * v for n, v in amounts.items()}}
    at = Record(topic, 0, 0, NOON, b"o", b"", [])
    judge = JUDGES[topic]
    assert judge(flushed, at, told, RULES) is None
    assert judge({**flushed, "tokens": 5}, at, told, RULES) == ("tokens", 6, 5)
    assert judge({**flushed, "upto_seq": 3}, at, told, RULES)[0] == "upto_seq"
    # A number beyond a missing one may be in the totals of the agent or not: which one it had read is not in the log.
    recorded = {"organization_id": "o", "period": "2026-11", **amounts}
    at_four = Record("jobs.usage-recorded", 0, 3, NOON, b"o", b"", [])
    told.note(at_four, {**recorded, "seq": 4})
    with pytest.raises(LeftOpenError, match="beyond a missing one"):
        judge(flushed, at, told, RULES)
    told.note(at_four, {**recorded, "seq": 4, "tokens": 99})  # the first of a number counts
    told.note(at_four, {**recorded, "seq": 3})
    four = {**flushed, "upto_seq": 4, **{n: 4 * v for n, v in amounts.items()}}
    assert judge(four, at, told, RULES) is None
    assert judge(flushed, at, told, RULES) is None


def test_a_stage_is_that_of_a_run_that_was_told():
    """In the status that waits for it, at that revision."""
    told, topic = DecisionInputs({("stage", "r1", 4, "ANALYZED"): True}), "queries.stage-requested"
    request = {"request_id": "r1", "stage": "assembler", "status": "ANALYZED", "revision": 4}
    at = Record(topic, 0, 0, NOON, b"u", b"", [])
    judge = JUDGES[topic]
    assert judge(request, at, told, RULES) is None
    assert judge({**request, "stage": "responder"}, at, told, RULES) == ("stage", "assembler", "responder")
    assert judge({**request, "revision": 5}, at, told, RULES)[0] == "status"


def test_every_judge_is_of_a_topic_of_the_catalogue():
    """So are the topics of its inputs."""
    assert {topic for one in DECISIONS for topic in (one.topic, *one.sources)} <= set(TOPICS)
