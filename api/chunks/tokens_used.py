"""Publishes the tokens that searches have embedded: an event for the paying organization, which the sink `tokens`
counts (R2.36).

Invariants. A search never waits for its event. Events that Kafka did not accept are published again under the same id,
so that each is counted once even if the first attempt was accepted. A killed process loses only unacknowledged events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

from highwater.schemas.errors import HighwaterError
from highwater.schemas.jobs import TokensUsed
from highwater.streams.clock import Clock
from highwater.streams.telemetry import get_log

# An attempt itself waits for the broker (`DELIVERY_MS_MAX`); this pause applies to refusals that come at once.
RETRY_SECONDS = 1.0
# Records per attempt: a few hundred kB of the producer's queue.
BATCH_MAX = 1_000
# Some 5 MB: ten paid searches a second for a quarter of an hour without Kafka. Beyond that an outage loses counts, not
# the process.
WAITING_MAX = 10_000

_log = get_log("api")


class UsedTokens:
    """Uses of this process that Kafka has not accepted yet, in order."""

    def __init__(
        self,
        clock: Clock,
        publish: Callable[[Sequence[TokensUsed]], Awaitable[Any]],
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._clock = clock
        self._publish = publish
        self._retry_seconds = retry_seconds
        self._waiting: dict[str, TokensUsed] = {}
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    def note(self, organization_id: str, tokens: int, cost_cents: int) -> None:
        """Queue the tokens that an organization used for publishing, without waiting."""
        event: TokensUsed = {
            "organization_id": organization_id,
            "use_id": str(uuid4()),
            "tokens": tokens,
            "cost_cents": cost_cents,
            "ts": self._clock(),
        }
        if len(self._waiting) >= WAITING_MAX:
            _lost([event], f"{WAITING_MAX:,} wait for Kafka already")
            return
        self._waiting[event["use_id"]] = event
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._publish_waiting(), name="used-tokens")

    async def _publish_waiting(self) -> None:
        while self._waiting:
            some = list(islice(self._waiting.values(), BATCH_MAX))
            try:
                await self._publish(some)
            except HighwaterError as error:
                if self._ending.is_set():
                    _lost(list(self._waiting.values()), str(error))
                    return
                _log.warning("used tokens are published later", uses=len(self._waiting), reason=str(error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), self._retry_seconds)
            else:
                for event in some:
                    del self._waiting[event["use_id"]]

    async def close(self) -> None:
        """Publish the remaining events, once."""
        self._ending.set()
        if self._task is not None:
            await self._task


def _lost(events: Sequence[TokensUsed], reason: str) -> None:
    """Log the uses that were not counted, so that an operator can add them by hand."""
    for event in events:
        _log.error("tokens of a search are not charged", reason=reason, **event)
