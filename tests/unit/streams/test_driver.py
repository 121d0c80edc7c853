"""The test driver: the worker's own agents, with no broker and with virtual time."""

from __future__ import annotations

import asyncio
import inspect
import re
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from types import FunctionType
from typing import Any

import pytest

from highwater.streams.driver import AgentFailedError, Driver
from highwater.streams.feeds.policy import PlanPolicy, make_policy
from highwater.streams.feeds.state import decode_user
from highwater.streams.ticks import FRESH_MS_MAX
from tests import ROOT

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
MINUTE = 60_000
CHANGED, NOVELTY, REQUESTED, FINISHED = (
    "feeds.user-changed", "feeds.novelty", "feeds.rebuild-requested", "feeds.rebuild-finished",
)  # fmt: skip


GUIDE = ROOT / "docs" / "driver.md"


async def test_the_guide_runs():
    """Every block of the documentation as it stands, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        code = compile(block, str(GUIDE), "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = FunctionType(code, names)()
        if inspect.isawaitable(done):
            await done
    assert len(blocks) == 5
    assert names["letter"].position.topic == "feeds.user-changed.dlq"


def changed(user_id: str = "u1", revision: int = 1, **more: Any) -> dict[str, Any]:
    """An active user who subscribes to a channel."""
    event = {
        "user_id": user_id, "revision": revision, "plan": "free", "last_active_at": NOON, "subscribed": ["c1"],
        "unsubscribed": [], "rebuild_demanded": False, "rebuild_forced": False, "erased": False,
    }  # fmt: skip
    return {**event, **more}


async def with_novelty(driver: Driver, head: int, user_id: str = "u1", appended_ms: int | None = None) -> None:
    """Subscribers of a channel are notified of its head."""
    event = {"heads": [{"channel_id": "c1", "head": head, "users": [user_id]}]}
    known = set(event["heads"][0])
    assert known == {"channel_id", "head", "users"}
    await driver.publish(NOVELTY, event, partition=driver.partition_of(user_id), appended_ms=appended_ms)


async def finished(driver: Driver, hwm: int) -> None:
    """The first request was answered by a version up to a head."""
    request = next(one for one in driver.outputs if one.position.topic == REQUESTED)
    event = {
        "user_id": "u1", "request_position": str(request.position), "outcome": "rebuilt", "reason": "", "cluster_version": 1,
        "hwm": {"c1": hwm}, "last_clustered_at": NOON, "last_checked_at": None, "finished_at": NOON, "retractions": {"c1": 0},
    }  # fmt: skip
    await driver.publish(FINISHED, event)


async def test_novelty_after_a_tick_is_judged_by_that_tick():
    """No second tick is needed: the request names the tick that published the channel."""
    driver = Driver("users")
    await driver.tick(NOON)
    await driver.publish(CHANGED, changed())
    await with_novelty(driver, 500)
    (request,) = driver.sent(REQUESTED)
    place = driver.partition_of("u1")
    assert (request["planned_at"], request["tick_position"]) == (NOON, f"streams.tick/{place}/0")
    await driver.tick(NOON + MINUTE)
    assert len(driver.sent(REQUESTED)) == 1


async def test_a_tick_asks_for_a_user_once():
    """An event after the answer to its request is judged at the next tick: two requests of one tick would look like a repeat."""
    policy = make_policy({"free": PlanPolicy(3, 3_600, 86_400, 0)})
    driver = Driver("users", policy=policy)
    await driver.tick(NOON)
    await driver.publish(CHANGED, changed())
    await with_novelty(driver, 5)
    await finished(driver, 5)
    await with_novelty(driver, 10)
    assert [request["planned_at"] for request in driver.sent(REQUESTED)] == [NOON]
    await driver.tick(NOON + MINUTE)
    assert [request["planned_at"] for request in driver.sent(REQUESTED)] == [NOON, NOON + MINUTE]


@pytest.mark.requirement("R0.27")
async def test_a_lost_request_is_repeated_after_300_seconds():
    """A request that nothing answers, such as one that the log lost, blocks its user no longer, and no shorter."""
    driver = Driver("users", policy=make_policy({"free": PlanPolicy(3, 3_600, 86_400, 0)}))
    await driver.tick(NOON)
    await driver.publish(CHANGED, changed())
    await with_novelty(driver, 5)
    await driver.tick(NOON + 299_000)
    assert [request["planned_at"] for request in driver.sent(REQUESTED)] == [NOON]
    await driver.tick(NOON + 300_000)
    assert [request["planned_at"] for request in driver.sent(REQUESTED)] == [NOON, NOON + 300_000]


@pytest.mark.parametrize(("late_ms", "asked_at"), [(FRESH_MS_MAX, [NOON]), (FRESH_MS_MAX + 1, [])])
async def test_a_tick_that_is_old_judges_nobody(late_ms: int, asked_at: list[int]):
    """After a pause of the worker its last tick is old: a cooldown that began then would be over too early."""
    driver = Driver("users")
    await driver.tick(NOON, appended_ms=NOON)
    await driver.publish(CHANGED, changed())
    await with_novelty(driver, 500, appended_ms=NOON + late_ms)
    assert [request["planned_at"] for request in driver.sent(REQUESTED)] == asked_at


async def test_an_insight_becomes_a_request():
    """Head, dirty channel, novelty, request: the decisions of a tick, with what they were made from."""
    driver = Driver("channels", "users")
    await driver.publish("feeds.channel-advanced", {"channel_id": "c1", "head": 500, "arrived_at": NOON})
    await driver.publish(CHANGED, changed())
    await with_novelty(driver, 500)
    await driver.tick(NOON)
    assert [dirty["head"] for dirty in driver.sent("feeds.channel-dirty")] == [500]
    (request,) = driver.sent(REQUESTED)
    assert (request["trigger"], request["pending"], request["planned_at"]) == ("novelty", 500, NOON)
    sent = next(one for one in driver.outputs if one.position.topic == REQUESTED)
    assert decode_user(driver.row("users", "u1")).requested_offset == sent.position.offset
    assert sent.position.partition == driver.partition_of("u1")


async def test_tables_outlive_a_restart():
    """Another worker continues from the rows: a request in flight is not repeated, a second tick is processed once."""
    driver = Driver("users")
    await driver.publish(CHANGED, changed())
    await with_novelty(driver, 500)
    await driver.tick(NOON)
    driver.restart()
    await driver.tick(NOON)
    await driver.advance(NOON + 2 * MINUTE)
    assert len(driver.sent(REQUESTED)) == 1


async def test_nothing_is_written_before_it_was_acknowledged():
    """While acknowledgements are held an agent waits; what it wrote for other events before stays."""
    driver = Driver("users")
    await driver.publish(CHANGED, changed(rebuild_demanded=True))
    driver.hold()
    tick = asyncio.create_task(driver.tick(NOON))
    await driver.until_sent()
    await asyncio.sleep(0)
    assert not tick.done()
    assert decode_user(driver.row("users", "u1")).requested_offset == -1
    driver.release()
    await tick
    assert decode_user(driver.row("users", "u1")).requested_offset == 0
    assert len(driver.sent(REQUESTED)) == 1


async def test_poison_is_put_aside_with_its_bytes():
    """Invalid bytes go to the dead-letter topic with a reason, and the stream continues."""
    driver = Driver("users")
    await driver.publish(CHANGED, b"\xff", partition=0)
    await driver.publish(CHANGED, changed())
    (letter,) = driver.dead_letters(CHANGED)
    assert (letter.value, dict(letter.headers)["dlq_reason"]) == (b"\xff", b"not_wire_format")
    assert driver.row("users", "u1") is not None


async def test_an_agent_that_cannot_go_on_says_so():
    """A row that the program cannot read ends a worker; the driver raises."""
    driver = Driver("users")
    await driver.publish(CHANGED, changed())
    users = driver.tables["users"]
    for rows in users.partitions.values():
        rows[b"u1"] = b"[99,{}]"
    with pytest.raises(AgentFailedError, match="version 99"):
        await driver.publish(CHANGED, changed(revision=2))


async def test_every_agent_of_the_worker_is_driven():
    """A tick reaches all of them, in every partition, and leaves its mark for each."""
    driver = Driver()
    await driver.tick(NOON)
    marks = {key for _, key, _ in driver.tables["ticks"].rows()}
    assert marks == {b"channels", b"users", b"seasons", b"runs", b"usage", b"ingests", b"namespaces"}


def test_an_unknown_agent_is_refused():
    """With the existing names."""
    with pytest.raises(ValueError, match="there is no agent nobody; there are channels, users"):
        Driver("nobody")
