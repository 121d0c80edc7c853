"""Usage: each counts once under any redelivery, totals are sums, and they are published each quarter of an hour."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.schemas.codec import Codec
from highwater.schemas.errors import InvalidEventError
from highwater.schemas.jobs import USAGE_FLUSHED, USAGE_RECORDED, UsageRecorded
from highwater.schemas.streams import TICK
from highwater.schemas.topics import TOPICS
from highwater.streams.agents import Wiring
from highwater.streams.heartbeat import Heartbeats
from highwater.streams.intake import Intake
from highwater.streams.jobs.agents import ROWS_PER_TICK_MAX, UsageAgent
from highwater.streams.jobs.usage import (
    AHEAD_MAX,
    FLUSH_MS,
    Totals,
    check_flushed,
    count,
    decode_row,
    encode_row,
    flushed,
    flushed_event,
    month_of,
    next_boundary_ms,
    plan_flush,
)
from tests.unit.rows import Record, Table

NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
MINUTE = 60_000
CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})


def used(seq: int, *, org: str = "acme", period: str = "2026-11", **more: int) -> UsageRecorded:
    """A usage."""
    return {
        "organization_id": org,
        "job_id": f"{org}-{period}-{seq}",
        "period": period,
        "seq": seq,
        "presentations": 1,
        "slides": 15,
        "tokens": 20_000,
        "cost_cents": 29,
        "built_in_tokens": 0,
        "at": NOON,
        **more,
    }  # type: ignore[typeddict-item]


def counted(events: list[UsageRecorded], row: Totals | None = None, now_ms: int = NOON) -> Totals | None:
    """The row after events, written and read again between each two."""
    for event in events:
        row = decode_row(encode_row(count(row, event, now_ms)))
    return row


AMOUNTS = st.fixed_dictionaries(
    {name: st.integers(0, 10**9) for name in ("presentations", "slides", "tokens", "cost_cents")}
)


@st.composite
def deliveries(draw: Any) -> tuple[list[UsageRecorded], list[UsageRecorded]]:
    """Usages of an organization and month, and some order in which each is delivered at least once."""
    amounts = draw(st.lists(AMOUNTS, min_size=1, max_size=12))
    events = [used(seq, **one) for seq, one in enumerate(amounts, start=1)]
    again = draw(st.lists(st.sampled_from(events), max_size=20))
    return events, draw(st.permutations([*events, *again]))


@given(deliveries())
def test_each_usage_counts_once(case: tuple[list[UsageRecorded], list[UsageRecorded]]):
    """Under any redelivery and order the totals are the sums, and every number is accounted for."""
    events, delivered = case
    row = counted(delivered)
    assert row is not None
    assert (row.upto_seq, row.ahead) == (len(events), ())
    for name in ("presentations", "slides", "tokens", "cost_cents"):
        assert getattr(row, name) == sum(event[name] for event in events)  # type: ignore[literal-required]


@given(deliveries(), st.data())
def test_totals_never_fall(case: tuple[list[UsageRecorded], list[UsageRecorded]], data: Any):
    """Along any delivery each amount and the unbroken run only grow, flushes in between change nothing of it."""
    row: Totals | None = None
    before = Totals("acme", "2026-11")
    for event in case[1]:
        row = count(row, event, NOON)
        if data.draw(st.booleans()):
            row = flushed(row)
        grown = [
            getattr(row, name) >= getattr(before, name) for name in ("presentations", "slides", "tokens", "upto_seq")
        ]
        assert all(grown)
        before = row


def test_a_repeat_changes_nothing():
    """A total that was published is not published again for it, not even while it is due."""
    row = counted([used(1)])
    assert row is not None
    told = flushed(row)
    assert count(told, used(1), NOON + FLUSH_MS) == told


def test_a_missing_number_is_waited_for_within_a_bound():
    """Numbers beyond a gap count at once; past the bound the event is dead-lettered, and the row is unchanged."""
    row = counted([used(seq) for seq in range(2, AHEAD_MAX + 2)])
    assert row is not None
    assert (row.upto_seq, len(row.ahead), row.presentations) == (0, AHEAD_MAX, AHEAD_MAX)
    with pytest.raises(InvalidEventError) as refused:
        count(row, used(AHEAD_MAX + 2), NOON)
    assert refused.value.reason == "usage_missing"
    closed = count(row, used(1), NOON)
    assert (closed.upto_seq, closed.ahead) == (AHEAD_MAX + 1, ())


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"seq": 0}, "bad_seq"),
        ({"tokens": -1}, "bad_amount"),
        ({"cost_cents": -29}, "bad_amount"),
        ({"period": "2026-13"}, "bad_period"),
        ({"period": "2026-1"}, "bad_period"),
        ({"period": "0000-01"}, "bad_period"),
        ({"period": "9999-12"}, "bad_period"),
        ({"organization_id": ""}, "empty_id"),
        ({"organization_id": "a\0b"}, "control_character"),
    ],
)
def test_what_no_usage_can_be_is_refused(wrong: dict[str, Any], reason: str):
    """With a reason a program can rely on, at the count and at the flush."""
    event: Any = {**used(1), **wrong}
    with pytest.raises(InvalidEventError) as refused:
        count(None, event, NOON)
    assert refused.value.reason == reason
    if "seq" not in wrong:
        with pytest.raises(InvalidEventError) as refused:
            check_flushed({**flushed_event(Totals("acme", "2026-11"), NOON), **wrong})
        assert refused.value.reason == reason


def test_a_month_ends_where_the_next_begins():
    """Also over the end of a year."""
    assert (month_of("2026-11"), month_of("2026-12")) == (((2026, 11), (2026, 12)), ((2026, 12), (2027, 1)))


@pytest.mark.requirement("R2.37")
@pytest.mark.parametrize(
    ("now_ms", "boundary_ms"),
    [(NOON - 1, NOON), (NOON, NOON + 15 * MINUTE), (NOON + 14 * MINUTE + 59_999, NOON + 15 * MINUTE)],
)
def test_boundaries_are_quarters_of_an_hour(now_ms: int, boundary_ms: int):
    """In UTC; at a boundary the next one is a quarter away."""
    assert next_boundary_ms(now_ms) == boundary_ms


def test_one_period_of_an_organization_is_told_a_tick():
    """The older first, the other waits: an event's id follows from tick and organization."""
    rows = [
        Totals("b", "2026-12", since_ms=NOON),
        Totals("b", "2026-11", since_ms=NOON),
        Totals("a", "2026-12", since_ms=NOON),
        Totals("c", "2026-12", since_ms=NOON + FLUSH_MS),
        Totals("d", "2026-12"),
    ]
    told, left = plan_flush(rows, NOON + FLUSH_MS)
    assert [(row.organization_id, row.period) for row in told] == [("a", "2026-12"), ("b", "2026-11")]
    assert [(row.organization_id, row.period) for row in left] == [("b", "2026-12")]


def test_a_row_of_a_newer_release_stops_the_worker():
    """Rather than be misread."""
    with pytest.raises(ValueError, match="version 2"):
        decode_row(b"[2]")


# -- the agent -----------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One agent with its rows and what it sent; acknowledgements come when `acknowledge` is set."""

    rows: Table = field(default_factory=Table)
    ticks: Table = field(default_factory=Table)
    sent: list[tuple[str, Any, Any]] = field(default_factory=list)
    acknowledge: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    offset: int = 0
    agent: UsageAgent = field(init=False)

    def __post_init__(self) -> None:
        self.acknowledge.set()
        self.restart()

    def restart(self) -> None:
        """Another worker takes over: rows and ticks as they were written, nothing else."""
        wiring = Wiring(CODEC, self.send, Heartbeats(["usage"]), pytest.fail, lambda noted: None)
        self.agent = UsageAgent(wiring, Intake("test", CODEC, self.learn, self.send), self.rows, self.ticks)

    async def learn(self, schema_id: int) -> None:
        """Nothing to learn."""

    async def send(self, topic: str, *, key: Any, value: Any, headers: Any, partition: Any = None) -> Any:
        """Note it; the acknowledgement waits."""
        event = None if topic.endswith(".dlq") else CODEC.decode(topic, value)
        self.sent.append((topic, event, dict(headers).get("ce_id")))
        self.asked.set()
        return self.acknowledge.wait()

    async def take(self, topic: str, event: Any) -> None:
        """One event of the partition."""
        self.offset += 1
        await self.agent._deal_with(Record(topic, CODEC.encode(topic, event), self.offset))

    async def tick(self, now: int) -> None:
        """A tick."""
        await self.take(TICK, {"number": now // 30_000, "now": now})

    def published(self) -> list[tuple[str, int, int]]:
        """The published totals: organization, last number, cents."""
        return [(e["organization_id"], e["upto_seq"], e["cost_cents"]) for t, e, _ in self.sent if t == USAGE_FLUSHED]


async def test_totals_are_told_when_a_tick_crosses_a_quarter():
    """Not before it, once at it, and not again while nothing was used."""
    case = Case()
    await case.tick(NOON + MINUTE)
    for seq in (1, 2):
        await case.take(USAGE_RECORDED, used(seq))
    await case.tick(NOON + 14 * MINUTE)
    assert case.published() == []
    await case.tick(NOON + 15 * MINUTE + 5_000)
    assert case.published() == [("acme", 2, 58)]
    await case.tick(NOON + 30 * MINUTE)
    assert case.published() == [("acme", 2, 58)]
    await case.take(USAGE_RECORDED, used(3))
    await case.tick(NOON + 45 * MINUTE)
    assert case.published() == [("acme", 2, 58), ("acme", 3, 87)]


async def test_restarts_between_flushes_change_nothing():
    """Each job comes three times, with two workers between two boundaries: at the boundary each job is still published once."""
    case = Case()
    await case.tick(NOON + MINUTE)
    for seq in (1, 2, 3):
        for _ in range(3):
            await case.take(USAGE_RECORDED, used(seq))
        if seq < 3:
            case.restart()
            await case.tick(NOON + seq * 2 * MINUTE)
    assert case.published() == []
    await case.tick(NOON + 15 * MINUTE)
    assert case.published() == [("acme", 3, 87)]


async def test_rows_are_written_after_the_acknowledgement():
    """Until the broker has the totals, the row says that they must be published: a crash before repeats them."""
    case = Case()
    await case.take(USAGE_RECORDED, used(1))
    before = dict(case.rows)
    case.acknowledge.clear()
    waiting = asyncio.create_task(case.tick(NOON))
    await case.asked.wait()
    assert (dict(case.rows), dict(case.ticks)) == (before, {})
    case.acknowledge.set()
    await waiting
    assert dict(case.rows) != before


async def test_a_row_is_written_though_nothing_changed():
    """A redelivery may be there because the changelog lost the first write."""
    case = Case()
    await case.take(USAGE_RECORDED, used(1))
    kept = dict(case.rows)
    written: list[tuple[bytes, bytes]] = []
    case.rows.__class__ = type("Noting", (Table,), {"__setitem__": lambda _, key, value: written.append((key, value))})
    await case.take(USAGE_RECORDED, used(1))
    assert written == [*kept.items()]


async def test_two_months_of_an_organization_are_told_in_two_ticks():
    """Each with an id of its own, so that neither is taken for a repeat of the other."""
    case = Case()
    await case.take(USAGE_RECORDED, used(1, period="2026-11"))
    await case.take(USAGE_RECORDED, used(1, period="2026-12"))
    await case.tick(NOON)
    assert [event["period"] for topic, event, _ in case.sent if topic == USAGE_FLUSHED] == ["2026-11"]
    await case.tick(NOON + 30_000)
    assert [event["period"] for topic, event, _ in case.sent if topic == USAGE_FLUSHED] == ["2026-11", "2026-12"]
    assert len({ce_id for _, _, ce_id in case.sent}) == 2


async def test_a_tick_touches_no_more_than_its_bound():
    """The rest is published at the next tick."""
    case = Case()
    for number in range(ROWS_PER_TICK_MAX + 3):
        await case.take(USAGE_RECORDED, used(1, org=f"org-{number:05d}"))
    await case.tick(NOON)
    assert len(case.published()) == ROWS_PER_TICK_MAX
    await case.tick(NOON + 30_000)
    assert len(case.published()) == len(set(case.published())) == ROWS_PER_TICK_MAX + 3


async def test_a_row_that_was_left_over_is_not_put_off():
    """If it is used again before the next tick, it is still published at that tick."""
    case = Case()
    await case.tick(NOON - MINUTE)
    for number in range(ROWS_PER_TICK_MAX + 1):
        await case.take(USAGE_RECORDED, used(1, org=f"org-{number:05d}"))
    await case.tick(NOON)
    (left,) = {f"org-{number:05d}" for number in range(ROWS_PER_TICK_MAX + 1)} - {org for org, _, _ in case.published()}
    await case.take(USAGE_RECORDED, used(2, org=left))
    await case.tick(NOON + 30_000)
    assert case.published()[-1] == (left, 2, 58)


async def test_what_is_to_be_told_is_known_after_a_restart():
    """Though nothing is used after it."""
    case = Case()
    await case.tick(NOON + MINUTE)
    await case.take(USAGE_RECORDED, used(1))
    await case.take(USAGE_RECORDED, used(1, org="umbrella"))
    case.restart()
    await case.tick(NOON + 14 * MINUTE)
    assert case.published() == []
    await case.tick(NOON + 15 * MINUTE)
    assert sorted(case.published()) == [("acme", 1, 29), ("umbrella", 1, 29)]


async def test_a_usage_that_is_none_is_put_aside():
    """It does not stop the others."""
    case = Case()
    await case.take(USAGE_RECORDED, used(0))
    await case.take(USAGE_RECORDED, used(1))
    await case.tick(NOON)
    assert [topic for topic, _, _ in case.sent] == [f"{USAGE_RECORDED}.dlq", USAGE_FLUSHED]
