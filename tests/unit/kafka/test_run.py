"""How `connect` keeps its connectors running: what ends one for an unavailable part is answered by another run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest
from confluent_kafka import KafkaError, KafkaException

from highwater.connectors.run import is_passing, keep_running
from highwater.schemas.errors import UnavailableError

AWAY = (
    UnavailableError("Kafka is away"),
    TimeoutError(),
    asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
    KafkaException(KafkaError(KafkaError._TIMED_OUT)),
)


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_what_passes(error: Exception) -> None:
    """A part that is unavailable, whichever client says so; a broker's fatal error and a fault of the program do not pass."""
    assert is_passing(error)
    assert not is_passing(KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True)))
    assert not is_passing(ValueError("no vector"))


class Failing:
    """A connector that ends with one error after the other, then in order."""

    group = "failing"
    problem: str | None = None

    def __init__(self, errors: Sequence[Exception], waiting: dict[str, str]) -> None:
        self._errors = list(errors)
        self._waiting = waiting
        self.runs = 0

    async def run(self, stop: asyncio.Event) -> None:
        """End; while it runs it waits for nothing."""
        assert not stop.is_set()
        assert self._waiting == {}
        self.runs += 1
        if self._errors:
            raise self._errors.pop(0)


async def test_a_connector_that_ended_for_an_unavailable_part_is_run_again() -> None:
    """However deep in groups the error is; readiness says why until it runs."""
    waiting: dict[str, str] = {}
    group = ExceptionGroup(
        "unhandled errors", [ExceptionGroup("unhandled errors", [UnavailableError("Kafka is away")])]
    )
    connector = Failing([group], waiting)
    running = asyncio.create_task(keep_running(connector, waiting, asyncio.Event()))
    await asyncio.sleep(0)  # it has failed once, and pauses
    assert waiting == {"failing": "ended, and is started again: Kafka is away"}
    await running
    assert (connector.runs, waiting) == (2, {})


async def test_a_fault_of_the_program_ends_it() -> None:
    """This holds beside a transient error too: the process must not continue without the failed task."""
    group = ExceptionGroup("unhandled errors", [UnavailableError("Kafka is away"), ValueError("no vector")])
    connector = Failing([group], {})
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await keep_running(connector, {}, asyncio.Event())
    assert connector.runs == 1
