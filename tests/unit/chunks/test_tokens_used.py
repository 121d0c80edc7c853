"""Tokens embedded by searches until they are in the log: none is lost, and none gets another id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from highwater.api.chunks import tokens_used
from highwater.api.chunks.tokens_used import UsedTokens
from highwater.schemas.errors import UnavailableError
from highwater.schemas.jobs import TokensUsed

NOW = 1_700_000_000_000


class Log:
    """Takes events; while it is `silent` it takes them too, and never acknowledges."""

    def __init__(self) -> None:
        self.silent = True
        self.attempts: list[list[TokensUsed]] = []
        self.asked_twice = asyncio.Event()

    async def publish(self, events: Sequence[TokensUsed]) -> None:
        """One attempt."""
        self.attempts.append(list(events))
        if len(self.attempts) == 2:
            self.asked_twice.set()
        await asyncio.sleep(0)
        if self.silent:
            raise UnavailableError("Kafka did not take the event")


async def test_what_was_not_acknowledged_is_published_again_under_its_id():
    """Before what came meanwhile, until the log acknowledges; then nothing more."""
    log = Log()
    used = UsedTokens(lambda: NOW, log.publish, retry_seconds=0.0)
    used.note("acme", 12, 3)
    await log.asked_twice.wait()
    used.note("other", 5, 0)
    log.silent = False
    await used.close()
    (first,) = log.attempts[0]
    assert {**first, "use_id": ""} == {
        "organization_id": "acme",
        "use_id": "",
        "tokens": 12,
        "cost_cents": 3,
        "ts": NOW,
    }
    assert all(attempt[0] == first for attempt in log.attempts[:-1])
    taken = [one for attempt in log.attempts for one in attempt]
    assert {one["organization_id"]: one["use_id"] for one in taken}.keys() == {"acme", "other"}
    assert len({one["use_id"] for one in taken}) == 2
    asked = len(log.attempts)
    await used.close()
    assert len(log.attempts) == asked


async def test_without_kafka_an_end_waits_for_one_attempt_and_memory_is_bounded(monkeypatch):
    """Usage that does not fit is counted for no organization, and so is the rest at the end; both are logged with their cost."""
    monkeypatch.setattr(tokens_used, "WAITING_MAX", 2)
    lost: list[TokensUsed] = []
    monkeypatch.setattr(tokens_used, "_lost", lambda events, _reason: lost.extend(events))
    log = Log()
    used = UsedTokens(lambda: NOW, log.publish, retry_seconds=60.0)
    for tokens in (1, 2, 3):
        used.note("acme", tokens, 0)
    assert [one["tokens"] for one in lost] == [3]
    await used.close()
    assert ([one["tokens"] for one in lost], [len(one) for one in log.attempts]) == ([3, 1, 2], [2])
