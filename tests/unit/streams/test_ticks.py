"""Which ticks are admitted, and what a worker says of clocks that differ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.streams import Tick
from highwater.streams.driver import Driver
from highwater.streams.feeds.state import decode_user
from highwater.streams.ticks import AHEAD_MS_MAX, Admission, Clocks, LastTick, Verdict, admit, agreed_error_ms

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
HOUR, MINUTE = 3_600_000, 60_000
LAST = LastTick(number=1, now=NOON - 30_000, offset=7)


def tick(now: int, number: int = 2, clock_offset_ms: int = 0) -> Tick:
    """A tick."""
    return {"number": number, "now": now, "clock_offset_ms": clock_offset_ms}


@pytest.mark.parametrize(
    ("told", "appended_ms", "offset", "last", "admission"),
    [
        (tick(NOON), NOON, 8, LAST, Admission.ADMITTED),
        (tick(NOON), NOON, 8, LastTick(), Admission.ADMITTED),
        (tick(NOON), None, 8, LAST, Admission.ADMITTED),
        (tick(NOON + HOUR), None, 8, LAST, Admission.ADMITTED),  # no broker, no bound
        (tick(NOON + AHEAD_MS_MAX), NOON, 8, LAST, Admission.ADMITTED),
        (tick(NOON + AHEAD_MS_MAX + 1), NOON, 8, LAST, Admission.REFUSED),
        (tick(NOON + HOUR), NOON, 8, LAST, Admission.REFUSED),
        (tick(NOON + HOUR, clock_offset_ms=HOUR), NOON, 8, LAST, Admission.ADMITTED),  # a rehearsal
        (tick(NOON), NOON + HOUR, 8, LAST, Admission.ADMITTED),  # taken late, by a broker that was silent
        (tick(NOON), NOON, 8, LastTick(1, NOON + HOUR, 7), Admission.OVERRULES),
        (tick(NOON), NOON, 8, LastTick(1, NOON + AHEAD_MS_MAX + 1, 7), Admission.OVERRULES),
        (tick(NOON), NOON, 8, LastTick(1, NOON + AHEAD_MS_MAX, 7), Admission.EARLIER),
        (tick(NOON), NOON, 8, LastTick(1, NOON + 5, 7), Admission.EARLIER),
        (
            tick(NOON),
            NOON,
            7,
            LastTick(1, NOON + HOUR, 7),
            Admission.REPEATED,
        ),  # a redelivery, after a rehearsal moved on
        (tick(NOON), NOON, 8, LastTick(2, NOON - 5, 7), Admission.REPEATED),
        (tick(NOON), NOON, 7, LastTick(2, NOON, 7), Admission.REPEATED),
    ],
)
def test_what_becomes_of_a_tick(told: Tick, appended_ms: int | None, offset: int, last: LastTick, admission: Admission):
    """The bound is inclusive; nothing but the log is asked."""
    assert admit(told, appended_ms, offset, last).admission is admission


@given(st.lists(st.tuples(st.integers(0, 400_000), st.booleans()), max_size=30))
def test_a_right_tick_is_admitted_after_whatever_came(steps: list[tuple[int, bool]]):
    """After any wrong ticks that were accepted by a moved offset, the next right one that is later than the bound is admitted."""
    last, at = LastTick(), NOON
    for offset, (step_ms, is_wrong) in enumerate(steps):
        at += step_ms
        moved = HOUR if is_wrong else 0
        told = tick(at + moved, (at + moved) // 30_000, moved)
        if admit(told, at, offset, last).is_admitted:
            last = LastTick(told["number"], told["now"], offset)
    right = at + AHEAD_MS_MAX + 30_000
    assert admit(tick(right, right // 30_000), right, len(steps), last).is_admitted


@pytest.mark.parametrize(
    ("before", "measured", "error"),
    [
        (0, 0, 0),
        (0, HOUR, 0),  # one reading alone
        (HOUR, HOUR + 5, HOUR),
        (HOUR, 0, 0),
        (-HOUR - 5, -HOUR, -HOUR),
        (-HOUR, HOUR, 0),
        (AHEAD_MS_MAX, HOUR, 0),  # brokers differ
    ],
)
def test_a_clock_is_wrong_when_two_readings_say_so(before: int, measured: int, error: int):
    """Within the bound nothing is corrected."""
    assert agreed_error_ms(before, measured) == error


def test_a_spell_is_reported_until_a_minute_after_its_last_tick():
    """Right and wrong ticks that alternate are one spell; moved partitions start over."""
    clocks = Clocks()
    refused, admitted = Verdict(Admission.REFUSED, HOUR), Verdict(Admission.ADMITTED)
    clocks.note(3, NOON + HOUR, refused)
    assert "partitions 3, for they are up to 3600 s ahead" in (clocks.degraded or "")
    clocks.note(3, NOON + MINUTE, admitted)
    clocks.note(4, NOON + 2 * MINUTE, admitted)
    assert clocks.degraded is not None
    clocks.note(3, NOON + MINUTE + 1, admitted)
    assert clocks.degraded is None
    clocks.note(3, NOON + HOUR, refused)
    clocks.forget()
    assert clocks.degraded is None


def test_a_wrong_clock_is_corrected_by_partition():
    """The broker of one partition says that the clock is wrong, that of the other does not."""
    clocks = Clocks()
    for _ in range(2):
        clocks.measured(0, HOUR)
        clocks.measured(1, 20)
    assert (clocks.corrected(0, NOON), clocks.corrected(1, NOON), clocks.error_ms) == (NOON - HOUR, NOON, HOUR)
    assert "3600 s ahead" in (clocks.degraded or "")
    clocks.measured(0, 20)
    assert (clocks.corrected(0, NOON), clocks.degraded) == (NOON, None)


CHANGED: dict[str, Any] = {
    "user_id": "u1", "revision": 1, "plan": "free", "last_active_at": NOON, "subscribed": ["c1"], "unsubscribed": [],
    "rebuild_demanded": False, "rebuild_forced": False, "erased": False,
}  # fmt: skip


async def rebuilt(driver: Driver, number: int, at: int) -> None:
    """The answer to the newest request of the user."""
    sent = [one for one in driver.outputs if one.position.topic == "feeds.rebuild-requested"]
    event = {
        "user_id": "u1", "request_position": str(sent[-1].position), "outcome": "rebuilt", "reason": "",
        "cluster_version": number, "hwm": {}, "last_clustered_at": at, "last_checked_at": None, "finished_at": at,
    }  # fmt: skip
    await driver.publish("feeds.rebuild-finished", event)


async def test_ticks_of_the_future_decide_nothing():
    """A worker whose clock is an hour ahead publishes ticks for a while; the others decide in between, and at once afterwards."""
    driver = Driver("users")
    await driver.publish("feeds.user-changed", CHANGED)
    await driver.tick(NOON + HOUR, appended_ms=NOON)
    assert (driver.sent("feeds.rebuild-requested"), list(driver.tables["ticks"].rows())) == ([], [])
    await driver.tick(NOON + 30_000, appended_ms=NOON + 30_000)
    assert [one["planned_at"] for one in driver.sent("feeds.rebuild-requested")] == [NOON + 30_000]


async def test_a_tick_of_the_future_that_was_taken_is_overruled():
    """Its rows block nothing: neither request in flight, cooldown and interval, nor a flush of usage or a rating."""
    driver = Driver("users", "usage", "namespaces")
    await driver.publish("feeds.user-changed", CHANGED)
    await driver.tick(NOON + HOUR)  # as before there was a bound
    await rebuilt(driver, 1, NOON + HOUR)
    usage = {
        "organization_id": "o", "period": "2026-11", "seq": 1, "job_id": "j", "presentations": 1, "slides": 3, "tokens": 5,
        "cost_cents": 7, "at": NOON, "kind": "generation",
    }  # fmt: skip
    known = set(driver.codec.field_names("jobs.usage-recorded"))
    await driver.publish("jobs.usage-recorded", {name: value for name, value in usage.items() if name in known})
    await driver.publish("chunks.queries-served", {"ns": "n", "queries": 10_000, "since": NOON, "at": NOON})
    driver.restart()
    event = {"heads": [{"channel_id": "c1", "head": 500, "users": ["u1"]}]}
    await driver.publish("feeds.novelty", event, partition=driver.partition_of("u1"))
    await driver.tick(NOON + 30_000, appended_ms=NOON + 30_000)
    first, second = driver.sent("feeds.rebuild-requested")
    assert (second["planned_at"], second["trigger"]) == (NOON + 30_000, "novelty")
    assert decode_user(driver.row("users", "u1")).last_enqueued_at == NOON + 30_000
    await driver.tick(NOON + 15 * MINUTE, appended_ms=NOON + 15 * MINUTE)
    assert [one["at"] for one in driver.sent("jobs.usage-flushed")] == [NOON + 15 * MINUTE]
    await driver.tick(NOON + HOUR, appended_ms=NOON + HOUR)
    assert [one["decided_at"] for one in driver.sent("chunks.namespace-rated")] == [NOON + HOUR]
    assert first["planned_at"] == NOON + HOUR
