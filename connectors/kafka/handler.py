"""What a sink, worker or materializer is to the consumer framework, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import asyncpg

from highwater.connectors.kafka.admin import Admin
from highwater.connectors.kafka.records import DeadLetter, Event
from highwater.connectors.kafka.registry import Registry
from highwater.connectors.kafka.resting import Doorbell
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.topic_names import EventT, ReadTopic
from highwater.streams.clock import Clock

# What `prepare` hands to `apply`.
Prepared = TypeVar("Prepared")


class Handler(ABC, Generic[EventT, Prepared]):
    """What a sink, worker or materializer says of itself. `prepare` gathers and decides, `apply` stores.

    `EventT` is the record type of its topics, or their union. Its state is its own: the framework calls one batch at a time,
    but for `prepares_ahead`.
    """

    # The consumer group, also the name under which its positions are stored.
    group: str
    topics: Sequence[ReadTopic[EventT]]
    # Events in one transaction at most.
    batch_max: int
    # Where events come closely one after the other, a batch waits for so long for more (`linger.py`). Not longer here: a query
    # passes through five consumers, and each would add it.
    linger_seconds: float = 0.01
    # A batch is gathered for so long from its first record on, or until it is full.
    gather_seconds: float = 0.0
    # Whether `prepare` depends on nothing that `apply` stores, and takes nothing that `settle` releases: a batch may
    # then be prepared while the one before it is stored.
    prepares_ahead: bool = False
    # Topics whose records without a value are handed over too, as events that are empty.
    tombstones: Collection[str] = ()

    @abstractmethod
    async def prepare(self, events: Sequence[Event[EventT]]) -> Prepared:
        """Everything slow or outside PostgreSQL, before the transaction."""

    @abstractmethod
    async def apply(self, tx: Connection, events: Sequence[Event[EventT]], prepared: Prepared) -> Sequence[DeadLetter]:
        """The effects, in the transaction that also moves the positions; returns what cannot be processed."""

    async def settle(self, prepared: Prepared) -> None:
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
    # None: consumers go on fetching while nothing comes.
    doorbell: Doorbell | None = None
