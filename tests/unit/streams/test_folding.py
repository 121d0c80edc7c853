"""Records that an agent is given in batches: rows, decisions and dead letters are those of the records one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from highwater.schemas.envelope import Headers, header, make_headers
from highwater.streams import relay_epochs
from highwater.streams.driver import Delivered, Driver
from highwater.streams.folding import BATCH_RECORDS_MAX, WAITING_RECORDS_MAX, Handover, in_batches
from highwater.streams.telemetry import EVENTS_CONSUMED, RECORDS_OVERTAKEN

TOPIC, DIRTY = "feeds.channel-advanced", "feeds.channel-dirty"
NOON = 1_794_484_800_000
TICK_MS = 60_000
PLACE = (TOPIC, 0)


class Advance(NamedTuple):
    """One record; without a channel it is invalid."""

    channel: str | None
    head: int
    arrived_at: int
    retractions: int
    stamp: tuple[int, int] | None  # shard and epoch of its relay


advances = st.builds(
    Advance,
    st.sampled_from(["a", "b", "c", "ä", None]),
    st.integers(0, 6),
    st.integers(1, 9),
    st.integers(0, 2),
    st.none() | st.tuples(st.integers(1, 2), st.integers(1, 3)),
)
# Where records are read again (how many back) or a tick comes, and how many come at once.
steps = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=12)


def log_of(driver: Driver, given: Sequence[Advance]) -> list[Delivered]:
    """The records as they lie in partition 0."""
    records = []
    for offset, one in enumerate(given):
        event = {
            "channel_id": one.channel,
            "head": one.head,
            "arrived_at": one.arrived_at,
            "retractions": one.retractions,
        }
        value = b"\xff no event" if one.channel is None else driver.codec.encode(TOPIC, event)
        headers: Headers = make_headers(event_id=str(offset), event_type=TOPIC, source="x", now_ms=NOON, caused_by=None)
        if one.stamp is not None:
            headers.append((relay_epochs.HEADER, relay_epochs.to_header(*one.stamp)))
        records.append(Delivered(TOPIC, 0, offset, b"k", value, headers))
    return records


async def run(given: Sequence[Advance], moves: Sequence[tuple[int, int, bool, bool]], *, batches: bool) -> object:
    """The results of the agent for a log that is read in such moves: rows, sent events, and counts."""
    driver = Driver("channels")
    records = log_of(driver, given)
    counted = EVENTS_CONSUMED.labels("highwater-feeds", TOPIC), RECORDS_OVERTAKEN.labels("highwater-feeds")
    before = [one._value.get() for one in counted]
    at, now = 0, NOON
    for count, back, is_tick, is_restart in (*moves, (len(records), 0, True, False)):
        at = max(0, at - back)
        taken = records[at : at + count]
        at += len(taken)
        if batches and len(taken) > 1:
            await driver.deliver_batch(taken)
        else:
            for record in taken:
                await driver.deliver(record)
        if is_tick:
            now += TICK_MS
            await driver.tick(now, partitions=[0])
        if is_restart:
            driver.restart()
    letters = [(header(one.headers, "dlq_origin"), one.value) for one in driver.dead_letters(TOPIC)]
    rows = {name: sorted(table.rows()) for name, table in driver.tables.items()}
    return rows, driver.sent(DIRTY), letters, [one._value.get() - was for one, was in zip(counted, before, strict=True)]


@settings(max_examples=100, deadline=None)
@given(st.lists(advances, min_size=2, max_size=30), steps)
@example(
    [Advance("a", 1, 1, 0, (1, 1)), Advance(None, 2, 1, 0, (1, 2)), Advance("a", 3, 1, 0, (1, 1))],
    [(3, 0, False, False)],
)  # a bad event of the next relay: the result of the one before is skipped
def test_a_batch_leaves_what_its_records_leave_one_by_one(
    log: list[Advance], moves: list[tuple[int, int, bool, bool]]
) -> None:
    """In any order, read again or not, with bad events and overtaken relays in between; the bytes are equal."""
    alone = asyncio.run(run(log, moves, batches=False))
    assert asyncio.run(run(log, moves, batches=True)) == alone


def test_batches_hold_consecutive_records_and_one_alone_is_none():
    """Nothing is left out, and no batch is longer than its limit."""
    assert list(in_batches([1])) == [1]
    assert list(in_batches([1, 2, 3])) == [[1, 2, 3]]
    records = list(range(2 * BATCH_RECORDS_MAX + 1))
    *batches, last = in_batches(records)
    assert [len(batch) for batch in batches] == [BATCH_RECORDS_MAX, BATCH_RECORDS_MAX]
    assert [*batches[0], *batches[1], last] == records


def test_a_batch_is_committed_behind_its_last_record_and_after_those_before_it():
    """An acknowledgement behind an unacknowledged batch waits for it."""
    handover = Handover([TOPIC])
    for last, count in ((9, 10), (10, 1), (29, 19)):
        handover.note(PLACE, last, count)
    assert handover.following(PLACE, {10, 29}) is None
    assert handover.following(PLACE, {9, 29}) == 10
    assert handover.following(PLACE, {29}) is None
    assert handover.following(PLACE, {10, 29}) == 30
    assert handover.following(PLACE, {29}) is None
    assert handover.following((TOPIC, 1), {29}) is None


def test_no_more_is_handed_over_while_enough_waits():
    """The limit is per partition; until its agent has acknowledged it, or offsets moved."""
    handover = Handover([TOPIC])
    handover.note(PLACE, 4, WAITING_RECORDS_MAX - 1)
    assert handover.full({}) == set()
    handover.note(PLACE, 5, 1)
    assert handover.full({}) == {PLACE}
    assert handover.full({PLACE: {4}}) == set()
    assert handover.full({PLACE: set()}) == {PLACE}
    handover.forget()
    assert handover.full({}) == set()
    assert handover.following(PLACE, {4, 5}) is None
