"""The interface of sinks, workers and materializers to the consumer framework, and what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
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

# What `prepare` passes to `apply`.
Prepared = TypeVar("Prepared")


class Handler(ABC, Generic[EventT, Prepared]):
    """A sink, worker or materializer. `prepare` gathers and decides, `apply` stores.

    `EventT` is the record type of its topics, or their union. It may keep state: the framework calls it for one batch
    at a time, except with `prepares_ahead`.
    """

    # The consumer group, also the name under which its positions are stored.
    group: str
    topics: Sequence[ReadTopic[EventT]]
    # Limit of events in one transaction.
    batch_max: int
    # When events come closely one after the other, a batch waits this long for more (`linger.py`). Not longer: a query
    # passes through five consumers, and each would add it.
    linger_seconds: float = 0.01
    # A batch is collected for this long after its first record, or until it is full.
    gather_seconds: float = 0.0
    # Whether `prepare` depends on nothing that `apply` stores or `settle` releases: a batch may then be prepared while
    # the previous one is stored.
    prepares_ahead: bool = False
    # Topics whose records without a value are also passed on, as empty events.
    tombstones: Collection[str] = ()

    @abstractmethod
    async def prepare(self, events: Sequence[Event[EventT]]) -> Prepared:
        """Do everything slow or outside PostgreSQL, before the transaction."""

    @abstractmethod
    async def apply(self, tx: Connection, events: Sequence[Event[EventT]], prepared: Prepared) -> Sequence[DeadLetter]:
        """Store the effects, in the transaction that also moves the positions; return what cannot be processed."""

    async def settle(self, prepared: Prepared) -> None:
        """Release what `prepare` took once the transaction has ended, after every outcome."""


def _never() -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What all consumers of a process share."""

    pool: asyncpg.Pool[asyncpg.Record]
    client: dict[str, str]
    admin: Admin
    registry: Registry
    codec: Codec
    clock: Clock
    # None: consumers keep fetching while nothing comes.
    doorbell: Doorbell | None = None
    # When the database last caught up with the log, in ms since 1970: after a change positions in memory are ahead of it.
    caught_up_ms: Callable[[], int | None] = _never
