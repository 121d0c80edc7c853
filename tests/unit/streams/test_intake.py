"""The intake of an agent: a run of invalid records of any length is dead-lettered and reported, and never ends the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from structlog.testing import capture_logs

from highwater.schemas.envelope import REQUIRED_ATTRIBUTES
from highwater.schemas.errors import InvalidEventError
from highwater.streams.intake import DEAD_LETTERS_REPORTED, Intake

TOPIC = "feeds.user-changed"
POISON = InvalidEventError("not_wire_format", "no event")


@dataclass
class Bad:
    """A record of the agent's topic."""

    partition: int
    offset: int = 0
    topic: str = TOPIC
    key: bytes | None = b"k"
    value: bytes | None = b"garbage"
    headers: Any = field(default_factory=list)
    timestamp: float | None = 1.0


@dataclass
class Case:
    """An intake, and where its dead letters went."""

    sent: list[str] = field(default_factory=list)
    headers: Any = None

    def __post_init__(self) -> None:
        self.intake = Intake("worker", None, self._learn, self._send)  # type: ignore[arg-type]

    async def _learn(self, _schema_id: int) -> None:
        """Nothing to learn."""

    async def _send(self, topic: str, *, headers: Any, **_: Any) -> Awaitable[Any]:
        self.sent.append(topic)
        self.headers = headers
        return asyncio.sleep(0)


async def test_garbage_without_end_is_put_aside_and_reported():
    """Five thousand bad records are five thousand dead letters; the partition is named once in the log, with what to do."""
    case = Case()
    with capture_logs() as logs:
        for offset in range(5_000):
            await case.intake.dead_letter(Bad(3, offset), POISON)
    assert case.sent == [f"{TOPIC}.dlq"] * 5_000
    assert list(case.intake.degraded) == [f"{TOPIC}/3"]
    assert f"`highwater dlq list {TOPIC}`" in case.intake.degraded[f"{TOPIC}/3"]
    assert len([entry for entry in logs if entry["event"] == "only_bad_events"]) == 1


async def test_a_dead_letter_is_an_event_of_cloudevents():
    """It keeps the attributes of its origin, and gets the others from its dead-lettering."""
    case = Case()
    await case.intake.dead_letter(Bad(3, 7, headers=[("ce_type", b"theirs"), ("other", None)]), POISON)
    headers = dict(case.headers)
    assert {name: headers[name] for name in (*REQUIRED_ATTRIBUTES, "content-type", "ce_time")} == {
        "ce_specversion": b"1.0",
        "ce_id": f"{TOPIC}/3/7".encode(),
        "ce_type": b"theirs",
        "ce_source": b"/dead-letters/worker",
        "content-type": b"application/octet-stream",
        "ce_time": b"1970-01-01T00:00:01Z",
    }
    assert headers["dlq_added"] == b"ce_specversion,content-type,ce_id,ce_source,ce_time"


async def test_a_good_event_ends_the_run_of_its_partition():
    """Runs are counted by partition: a good event elsewhere ends nothing."""
    case = Case()
    for _ in range(DEAD_LETTERS_REPORTED):
        await case.intake.dead_letter(Bad(3), POISON)
    case.intake.accept(Bad(4))
    assert list(case.intake.degraded) == [f"{TOPIC}/3"]
    case.intake.accept(Bad(3))
    assert case.intake.degraded == {}
