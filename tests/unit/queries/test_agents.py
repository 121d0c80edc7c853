"""The agent of the queries without a broker: which events are sent, and that no row is written before the acknowledgement."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from highwater.schemas.codec import Codec
from highwater.schemas.envelope import caused_by
from highwater.schemas.queries import PIPELINE_STAGE, RUN_ARCHIVED, STAGE_REQUESTED
from highwater.schemas.streams import TICK
from highwater.schemas.topics import TOPICS
from highwater.streams.agents import Wiring
from highwater.streams.heartbeat import Heartbeats
from highwater.streams.intake import Intake
from highwater.streams.queries.agents import RunAgent
from tests.unit.queries.test_orders import USER, failed, stage, stored
from tests.unit.rows import Record, Table

CODEC = Codec({name: number for number, name in enumerate(TOPICS, start=1)})


class Watched(Table):
    """A table that counts its reads."""

    touched = 0

    def get(self, key: Any, default: Any = None) -> Any:
        """A read."""
        self.touched += 1
        return super().get(key, default)


@dataclass
class Case:
    """One agent with its rows and what it sent; acknowledgements come when `acknowledge` is set."""

    rows: Watched = field(default_factory=Watched)
    ticks: Table = field(default_factory=Table)
    sent: list[tuple[str, Any, Any]] = field(default_factory=list)
    acknowledge: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    offset: int = 0
    agent: RunAgent = field(init=False)

    def __post_init__(self) -> None:
        self.acknowledge.set()
        wiring = Wiring(CODEC, self.send, Heartbeats(["runs"]), pytest.fail, lambda noted: None)
        self.agent = RunAgent(wiring, Intake("test", CODEC, self.learn, self.send), self.rows, self.ticks)

    async def learn(self, schema_id: int) -> None:
        """Nothing to learn."""

    async def send(self, topic: str, *, key: Any, value: Any, headers: Any, partition: Any = None) -> Any:
        """Note it; the acknowledgement waits."""
        self.sent.append((topic, key, (value if topic.endswith(".dlq") else CODEC.decode(topic, value), headers)))
        self.asked.set()
        return self.acknowledge.wait()

    async def take(self, topic: str, event: Any) -> None:
        """One event of the partition."""
        self.offset += 1
        await self.agent._deal_with(Record(topic, CODEC.encode(topic, event), self.offset))

    def requested(self) -> list[Any]:
        """The requested stages."""
        return [event for topic, _, (event, _) in self.sent if topic == STAGE_REQUESTED]


async def test_a_row_is_written_after_the_acknowledgement():
    """Until the broker has the request, the row is as it was: a crash before repeats the request."""
    case = Case()
    case.acknowledge.clear()
    waiting = asyncio.create_task(case.take(PIPELINE_STAGE, stage(1)))
    await case.asked.wait()
    assert case.rows == {}
    case.acknowledge.set()
    await waiting
    assert set(case.rows) == {USER.encode()}


async def test_a_request_names_its_decision():
    """With the run's stage, place and revision, the run that waits behind it, and its cause."""
    case = Case()
    for ordinal in (1, 2, 3):
        await case.take(PIPELINE_STAGE, {**stage(ordinal, "READY"), "at": 70 + ordinal})
    await case.take(RUN_ARCHIVED, {**stored(1), "at": 99})
    assert [(one["request_id"], one["queued"]) for one in case.requested()] == [("run-1", 0), ("run-2", 1)]
    topic, key, (event, headers) = case.sent[-1]
    assert (topic, key) == (STAGE_REQUESTED, USER.encode())
    assert event == {
        "request_id": "run-2", "user_id": USER, "stage": "responder", "status": "READY", "ordinal": 2, "revision": 1,
        "queued": 1, "requested_at": 99,
    }  # fmt: skip
    assert str(caused_by(headers)) == f"{RUN_ARCHIVED}/0/4"


async def test_a_row_is_written_though_nothing_changed():
    """A redelivery may be there because the changelog lost the first write."""
    case = Case()
    for event in (stage(1), stage(2)):
        await case.take(PIPELINE_STAGE, event)
    kept = dict(case.rows)
    case.rows.clear()
    case.rows.update(kept)
    written = []
    case.rows.__class__ = type(
        "Noting", (Watched,), {"__setitem__": lambda _, key, value: written.append((key, value))}
    )
    await case.take(PIPELINE_STAGE, stage(2))
    await case.take(RUN_ARCHIVED, stored(0))
    assert written == [*kept.items()] * 2
    assert len(case.requested()) == 1


async def test_what_concerns_no_turn_is_not_even_looked_up():
    """Six of the seven events of a run that goes well touch no row."""
    case = Case()
    await case.take(PIPELINE_STAGE, stage(1))
    touched = case.rows.touched
    for revision, status in enumerate(
        ("ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING", "COMPLETED"), start=2
    ):
        await case.take(PIPELINE_STAGE, stage(1, status, revision=revision, waiting=False))
    assert (case.rows.touched, len(case.requested())) == (touched, 1)


async def test_a_failed_run_gives_way():
    """The next one is requested by the failure."""
    case = Case()
    for event in (stage(1), stage(2), failed(1)):
        await case.take(PIPELINE_STAGE, event)
    assert [one["request_id"] for one in case.requested()] == ["run-1", "run-2"]


async def test_a_status_that_is_none_is_put_aside():
    """Poison is a dead letter and the row stays."""
    case = Case()
    await case.take(PIPELINE_STAGE, stage(1, "DREAMING"))
    assert ([topic for topic, *_ in case.sent], case.rows) == ([PIPELINE_STAGE + ".dlq"], {})


async def test_a_tick_only_says_that_it_lives():
    """It is applied once and touches no row."""
    case = Case()
    await case.take(PIPELINE_STAGE, stage(1))
    touched = case.rows.touched
    await case.take(TICK, {"number": 1, "now": 30_000})
    assert (case.rows.touched, set(case.ticks), len(case.sent)) == (touched, {b"runs"}, 1)
