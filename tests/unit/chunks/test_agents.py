"""The agents of chunks without a broker: which events are sent when, and that no row is written before the acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from highwater.schemas.chunks import INGEST_DECIDED, INGEST_PROGRESSED, NAMESPACE_RATED, QUERIES_SERVED, SWEEP_REQUESTED
from highwater.schemas.codec import Codec
from highwater.schemas.topics import TOPICS
from highwater.streams.agents import TableAgent, Wiring
from highwater.streams.chunks import agents, completion
from highwater.streams.chunks.agents import IngestAgent, NamespaceAgent
from highwater.streams.chunks.completion import ABANDONED_MS, KEPT_MS
from highwater.streams.chunks.passports import load_passports
from highwater.streams.chunks.temperature import DAY_MS, HOUR_MS
from highwater.streams.heartbeat import Heartbeats
from highwater.streams.intake import Intake
from tests.unit.chunks.test_completion import progress
from tests.unit.chunks.test_temperature import served
from tests.unit.rows import Record, Table

TICK = "streams.tick"
NOON = 1_794_484_800_000  # 2026-11-12T12:00:00Z
MINUTE = 60_000
CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})


def namespaces(*given: Any) -> NamespaceAgent:
    """The agent of namespaces with the passports that come with the product."""
    return NamespaceAgent(load_passports(), *given)


@dataclass
class Case:
    """One agent with its rows of one partition and what it sent; acknowledgements come when `acknowledge` is set."""

    make: Callable[..., TableAgent]
    partition: int = 0
    rows: Table = field(default_factory=Table)
    ticks: Table = field(default_factory=Table)
    sent: list[tuple[str, Any, str]] = field(default_factory=list)
    acknowledge: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    offset: int = 0

    def __post_init__(self) -> None:
        self.acknowledge.set()
        self.restart()

    def restart(self) -> None:
        """Another worker takes over: rows and ticks as they were written, nothing else."""
        names = [IngestAgent.name, NamespaceAgent.name]
        wiring = Wiring(CODEC, self.send, Heartbeats(names), pytest.fail, lambda noted: None)
        self.agent = self.make(wiring, Intake("test", CODEC, self.learn, self.send), self.rows, self.ticks)

    async def learn(self, schema_id: int) -> None:
        """Nothing to learn."""

    async def send(self, topic: str, *, key: Any, value: Any, headers: Any, partition: Any = None) -> Any:
        """Note it; the acknowledgement waits."""
        event = None if topic.endswith(".dlq") else CODEC.decode(topic, value)
        if event is not None:
            assert key.decode() == TOPICS[topic].key_of(event)
        self.sent.append((topic, event, str(dict(headers).get("ce_id"))))
        self.asked.set()
        return self.acknowledge.wait()

    async def take(self, topic: str, event: Any, offset: int | None = None) -> None:
        """One event of the partition; at an earlier offset when it comes again."""
        if offset is None:
            offset = self.offset = self.offset + 1
        value = CODEC.encode(topic, event)
        await self.agent._deal_with(Record(topic, value, offset, partition=self.partition))

    async def tick(self, now: int) -> None:
        """A tick."""
        await self.take(TICK, {"number": now // 30_000, "now": now})

    def published(self, topic: str) -> list[Any]:
        """The events sent to a topic."""
        return [event for sent, event, _ in self.sent if sent == topic]


# -- ingests -------------------------------------------------------------------------------------------------------------


def outcomes(case: Case) -> list[tuple[str, int, str]]:
    """The decisions: ingest, revision, outcome."""
    return [(told["ingest_id"], told["revision"], told["outcome"]) for told in case.published(INGEST_DECIDED)]


async def test_an_ingest_is_decided_when_its_counts_are_reached():
    """It is decided without a tick and once, even if its progress is repeated, also by a restarted worker."""
    case = Case(IngestAgent)
    for revision, seen in ((1, 3), (2, 9), (3, 10)):
        await case.take(INGEST_PROGRESSED, progress(revision, seen=seen))
    assert outcomes(case) == [("i-1", 3, "complete")]
    for restart in (False, True):
        if restart:
            case.restart()
        for revision, seen in ((1, 3), (3, 10), (2, 9)):
            await case.take(INGEST_PROGRESSED, progress(revision, seen=seen))
    await case.tick(NOON + ABANDONED_MS)
    assert outcomes(case) == [("i-1", 3, "complete")]


async def test_what_comes_after_a_decision_is_decided_on():
    """A chunk that was refused late: the decision that stands is the one of the last revision."""
    case = Case(IngestAgent)
    await case.take(INGEST_PROGRESSED, progress(3))
    await case.take(INGEST_PROGRESSED, progress(4, failed=1))
    assert outcomes(case) == [("i-1", 3, "complete"), ("i-1", 4, "failed")]


async def test_a_silent_ingest_is_abandoned_at_a_tick():
    """It is decided once, also by a worker that took over meanwhile; later progress of it is still decided."""
    case = Case(IngestAgent)
    await case.take(INGEST_PROGRESSED, progress(1, seen=3))
    await case.tick(NOON + ABANDONED_MS - 1)
    case.restart()
    assert outcomes(case) == []
    for _ in range(2):
        await case.tick(NOON + ABANDONED_MS + case.offset * MINUTE)
    assert outcomes(case) == [("i-1", 1, "abandoned")]
    await case.take(INGEST_PROGRESSED, progress(2, seen=10))
    assert outcomes(case)[1:] == [("i-1", 2, "complete")]


async def test_silent_ingests_of_a_source_are_told_at_two_ticks():
    """Each with an id of its own, so that neither is taken for a repeat of the other."""
    case = Case(IngestAgent)
    for name in ("a", "b"):
        await case.take(INGEST_PROGRESSED, progress(1, seen=3, ingest_id=name))
    await case.tick(NOON + ABANDONED_MS)
    assert outcomes(case) == [("a", 1, "abandoned")]
    await case.tick(NOON + ABANDONED_MS + 30_000)
    assert outcomes(case) == [("a", 1, "abandoned"), ("b", 1, "abandoned")]
    assert len({ce_id for _, _, ce_id in case.sent}) == 2


async def test_rows_of_ingests_do_not_pile_up():
    """An ingest is forgotten a day after its decision; one that continues is not."""
    case = Case(IngestAgent)
    await case.take(INGEST_PROGRESSED, progress())
    await case.tick(NOON + KEPT_MS - 1)
    assert len(case.rows) == 1
    await case.take(INGEST_PROGRESSED, progress(1, seen=1, ingest_id="later", at=NOON + KEPT_MS - 1))
    case.restart()
    await case.tick(NOON + KEPT_MS)
    kept = [completion.decode_row(data) for data in case.rows.values()]
    assert [row.ingest_id for row in kept if row is not None] == ["later"]
    await case.tick(NOON + KEPT_MS - 1 + ABANDONED_MS)
    assert outcomes(case)[1:] == [("later", 1, "abandoned")]


@pytest.mark.parametrize("at_a_tick", [False, True])
async def test_an_ingest_is_written_after_the_acknowledgement(at_a_tick: bool):
    """Until the broker has the decision the row is as it was: a crash before repeats it, under the same id."""
    case = Case(IngestAgent)
    await case.take(INGEST_PROGRESSED, progress(1, seen=3))
    before, ticks = dict(case.rows), dict(case.ticks)
    case.acknowledge.clear()
    event = (
        (TICK, {"number": 1, "now": NOON + ABANDONED_MS}, 9)
        if at_a_tick
        else (INGEST_PROGRESSED, progress(2, seen=10), 9)
    )
    waiting = asyncio.create_task(case.take(*event))
    await case.asked.wait()
    assert (dict(case.rows), dict(case.ticks)) == (before, ticks)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    case.restart()
    case.acknowledge.set()
    await case.take(*event)
    assert dict(case.rows) != before
    assert len(case.sent) == 2
    assert case.sent[0] == case.sent[1]


async def test_a_row_is_written_though_nothing_changed():
    """A redelivery may be there because the changelog lost the first write."""
    case = Case(IngestAgent)
    await case.take(INGEST_PROGRESSED, progress())
    kept = dict(case.rows)
    written: list[tuple[bytes, bytes]] = []
    case.rows.__class__ = type("Noting", (Table,), {"__setitem__": lambda _, key, value: written.append((key, value))})
    await case.take(INGEST_PROGRESSED, progress())
    assert written == [*kept.items()]


async def test_a_tick_touches_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch):
    """The rest is reported at the next tick."""
    monkeypatch.setattr(agents, "ROWS_PER_TICK_MAX", 10)
    case = Case(IngestAgent)
    for number in range(13):
        await case.take(INGEST_PROGRESSED, progress(1, seen=3, source_id=f"{number}.md"))
    await case.tick(NOON + ABANDONED_MS)
    assert len(case.published(INGEST_DECIDED)) == 10
    await case.tick(NOON + ABANDONED_MS + 30_000)
    assert (
        len({told["source_id"] for told in case.published(INGEST_DECIDED)}) == len(case.published(INGEST_DECIDED)) == 13
    )


# -- namespaces ----------------------------------------------------------------------------------------------------------


def ratings(case: Case) -> list[tuple[str, bool, float]]:
    """The reported ratings: namespace, whether it is hot, searches per day."""
    return [(told["ns"], told["is_hot"], told["queries_per_day"]) for told in case.published(NAMESPACE_RATED)]


async def test_a_namespace_is_rated_when_a_tick_crosses_an_hour():
    """Not before it, and not again while nothing changes but the hour."""
    case = Case(namespaces)
    await case.tick(NOON + MINUTE)
    await case.take(QUERIES_SERVED, served(700))
    await case.take(QUERIES_SERVED, served(69, ns="quiet"))
    await case.tick(NOON + 59 * MINUTE)
    assert ratings(case) == []
    await case.tick(NOON + HOUR_MS + 5_000)
    assert sorted(ratings(case)) == [("docs", True, 100.0), ("quiet", False, 69 / 7)]
    await case.tick(NOON + 2 * HOUR_MS)
    assert len(ratings(case)) == 2


async def test_what_was_asked_is_known_after_a_restart():
    """Though nothing is asked after it; searches that come again are not counted again."""
    case = Case(namespaces)
    await case.tick(NOON)
    await case.take(QUERIES_SERVED, served(350), offset=100)
    await case.take(QUERIES_SERVED, served(350), offset=101)
    case.restart()
    await case.take(QUERIES_SERVED, served(350), offset=101)
    await case.tick(NOON + HOUR_MS)
    assert ratings(case) == [("docs", True, 100.0)]
    case.restart()
    await case.tick(NOON + 9 * DAY_MS)
    assert ratings(case)[1:] == [("docs", False, 0.0)]
    assert dict(case.rows) == {}


async def test_a_sweep_is_asked_for_once_an_hour():
    """The first tick in each hour requests it, on one partition only; hours without a worker are not caught up."""
    case, other = Case(namespaces), Case(namespaces, partition=1)
    for at_ms in (NOON, NOON + 30_000, NOON + HOUR_MS - 1, NOON + HOUR_MS, NOON + 5 * HOUR_MS + MINUTE):
        await case.tick(at_ms)
        await other.tick(at_ms)
        case.restart()
    assert [(told["sweep"], told["now"] - NOON) for told in case.published(SWEEP_REQUESTED)] == [
        ("2026-11-12T12:00:00Z", 0),
        ("2026-11-12T13:00:00Z", HOUR_MS),
        ("2026-11-12T17:00:00Z", 5 * HOUR_MS + MINUTE),
    ]
    assert other.published(SWEEP_REQUESTED) == []


async def test_a_sweep_is_asked_for_again_until_the_broker_has_it():
    """The tick is not written before, so it is admitted again."""
    case = Case(namespaces)
    case.acknowledge.clear()
    tick = (TICK, {"number": 1, "now": NOON}, 1)
    waiting = asyncio.create_task(case.take(*tick))
    await case.asked.wait()
    assert dict(case.ticks) == {}
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    case.restart()
    case.acknowledge.set()
    for _ in range(2):
        await case.take(*tick)
    assert len(case.sent) == 2
    assert case.sent[0] == case.sent[1]


async def test_a_rating_is_written_after_the_acknowledgement():
    """Until the broker has acknowledged it, the row says that it must be reported."""
    case = Case(namespaces, partition=1)
    await case.take(QUERIES_SERVED, served(700))
    before = dict(case.rows)
    case.acknowledge.clear()
    waiting = asyncio.create_task(case.tick(NOON + HOUR_MS))
    await case.asked.wait()
    assert (dict(case.rows), dict(case.ticks)) == (before, {})
    case.acknowledge.set()
    await waiting
    assert dict(case.rows) != before
    assert ratings(case) == [("docs", True, 100.0)]


async def test_searches_that_are_none_are_put_aside():
    """They do not stop the others."""
    case = Case(namespaces)
    await case.take(QUERIES_SERVED, served(1, ns="a|b"))
    await case.take(QUERIES_SERVED, served(7))
    await case.tick(NOON)
    assert [topic for topic, _, _ in case.sent] == [f"{QUERIES_SERVED}.dlq", SWEEP_REQUESTED, NAMESPACE_RATED]
