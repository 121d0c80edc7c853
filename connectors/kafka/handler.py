"""What a sink, worker or materializer is to the consumer framework, and what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import asyncpg

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.streams.clock import Clock


class Handler(Protocol):
    """What a sink, worker or materializer says of itself. `prepare` gathers and decides, `apply` stores.

    One with an attribute `gather_seconds` has its batch gathered for so long from its first record on, or until it is full.
    One with an attribute `tombstones`, names of topics, is also handed their records without a value, as events that are empty.
    """

    group: str
    topics: tuple[str, ...]
    batch_max: int

    async def prepare(self, events: Sequence[Event]) -> Any:
        """Everything slow or outside PostgreSQL, before the transaction."""

    async def apply(self, tx: Connection, events: Sequence[Event], prepared: Any) -> Sequence[DeadLetter]:
        """The effects, in the transaction that also moves the positions; returns what cannot be processed."""

    async def settle(self, prepared: Any) -> None:
        """What is to be released once the transaction has ended, whichever way."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every consumer of a process shares."""

    pool: asyncpg.Pool[asyncpg.Record]
    client: dict[str, str]
    admin: Admin
    registry: Registry
    codec: Codec
    clock: Clock
