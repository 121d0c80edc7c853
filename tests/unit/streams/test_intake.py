"""The intake of an agent: a run of garbage of any length is put aside and reported, and never ends the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from structlog.testing import capture_logs

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


@dataclass
class Case:
    """An intake, and where its dead letters went."""

    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.intake = Intake("worker", None, self._learn, self._send)  # type: ignore[arg-type]

    async def _learn(self, _schema_id: int) -> None:
        """Nothing to learn."""

    async def _send(self, topic: str, **_: Any) -> Awaitable[Any]:
        self.sent.append(topic)
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


async def test_a_good_event_ends_the_run_of_its_partition():
    """Runs are counted by partition: a good event elsewhere ends nothing."""
    case = Case()
    for _ in range(DEAD_LETTERS_REPORTED):
        await case.intake.dead_letter(Bad(3), POISON)
    case.intake.accept(Bad(4))
    assert list(case.intake.degraded) == [f"{TOPIC}/3"]
    case.intake.accept(Bad(3))
    assert case.intake.degraded == {}
