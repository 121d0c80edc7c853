"""Work in PostgreSQL, for workers: requested, claimed, stored, released.

Invariant: a change is stored only if the work is unchanged since the caller claimed it, together with everything that
belongs to it. Requested work waits in the table, and slots are shared between organizations. The statements belong to
the kind of work; their last argument distinguishes the kind from the others in the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import asyncpg

from highwater.connectors.engines import sharing
from highwater.connectors.engines.changes import Change
from highwater.connectors.engines.sharing import Share, Statement
from highwater.connectors.postgres.locks import LockClass
from highwater.connectors.postgres.pool import Connection, Row, reading, transaction
from highwater.schemas.positions import Position, parse_position
from highwater.streams.clock import to_datetime
from highwater.streams.engines.work import Work, WorkT

ChangeT = TypeVar("ChangeT", bound=Change[Any])


class RequestedWork(NamedTuple):
    """Work that is requested, and the command that requests it; `stage`: only if it waits for that one."""

    work_id: str
    command: Position
    stage: str = ""


class Statements(NamedTuple):
    """The texts of the statements of one kind of work; `of_kind` is the last arguments of each except `of_worker` and
    `wanted`.
    """

    has_waiting: str
    waiting: str
    in_progress: str
    wanted: str
    ask_for_forgotten: str
    lost: str
    of_worker: str
    workers: str
    has_unended: str
    of_kind: tuple[Any, ...] = ()


class WorkStore(ABC, Generic[WorkT, ChangeT]):
    """The store of one kind of work."""

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        statements: Statements,
        slots_lock: tuple[LockClass, int],
        share: Share,
    ) -> None:
        """`slots_lock` is held by the process that assigns slots of this kind."""
        self._pool = pool
        self._statements = statements
        self._slots_lock = slots_lock
        self._share = share

    @abstractmethod
    async def ask(self, tx: Connection, requests: Sequence[RequestedWork]) -> None:
        """Let work wait for a slot; work that does not wait is left alone."""

    async def take_due(self, *, worker: int, lease_ms: int, now_ms: int, most: int) -> list[WorkT]:
        """Claim work that waits for a slot; slots are shared by organization."""
        texts = self._statements
        async with reading(self._pool) as connection:
            if not await connection.fetchval(texts.has_waiting, now_ms, *texts.of_kind):
                return []
        async with transaction(self._pool) as tx:
            chosen = await sharing.choose(
                tx,
                self._slots_lock,
                Statement(texts.waiting, (now_ms, most, *texts.of_kind)),
                Statement(texts.in_progress, texts.of_kind),
                slots=most,
                share=self._share,
            )
            rows = await tx.fetch(texts.wanted, chosen, now_ms)
            stored = await self._stored(tx, [self._taken(row, worker, lease_ms, now_ms) for row in rows])
        return [work for work in stored.values() if work.worker is not None]

    async def take_forgotten(
        self, *, worker: int, lease_ms: int, now_ms: int, silent_ms: int, most: int
    ) -> list[WorkT]:
        """Request waiting work that no command has requested (R1.16, R2.41), and return none: it gets its turn like
        other work.
        """
        async with reading(self._pool) as tx:
            texts = self._statements
            await tx.fetch(texts.ask_for_forgotten, to_datetime(now_ms - silent_ms), most, *texts.of_kind)
        return []

    async def give_back_lost(self, dead: Sequence[int], *, now_ms: int, most: int) -> list[WorkT]:
        """Return work whose worker is gone or whose lease has expired: requested again, or failed after too many times (R1.7)."""
        async with transaction(self._pool) as tx:
            texts = self._statements
            rows = await tx.fetch(texts.lost, list(dead), now_ms, most, *texts.of_kind)
            lost = list(map(self._work_of, rows))
            causes = self._causes(lost)
            changes = [self._given_back(work, now_ms, is_cause=work.id in causes) for work in lost]
            await self._stored(tx, changes)
        return [change.after for change in changes]

    async def hand_over(self, worker: int, *, now_ms: int) -> int:
        """Release the work of a worker that ends in order; return how much."""
        async with transaction(self._pool) as tx:
            rows = await tx.fetch(self._statements.of_worker, worker)
            await self._stored(tx, [self._handed_over(self._work_of(row), now_ms) for row in rows])
        return len(rows)

    async def workers(self, tx: Connection) -> list[int]:
        """Return the workers that hold work of this kind."""
        return [row["worker"] for row in await tx.fetch(self._statements.workers, *self._statements.of_kind)]

    async def has_unended(self, tx: Connection) -> bool:
        """Return whether any work of this kind has not ended; otherwise none waits."""
        return bool(await tx.fetchval(self._statements.has_unended, *self._statements.of_kind))

    async def store(self, changes: Sequence[ChangeT]) -> list[WorkT | None]:
        """Store changes in one transaction and return the work as it was stored; None if it had changed since it was
        claimed: nothing of it is stored.
        """
        async with transaction(self._pool) as tx:
            stored = await self._stored(tx, changes)
        return [stored.get(change.before.id) for change in changes]

    @abstractmethod
    async def count_late(self, work_id: str, now_ms: int) -> None:
        """Count the usage of a call of ended work that was answered after its end; nothing if the work continues elsewhere."""

    # -- defined by each kind of work --------------------------------------------------------------------------------

    @abstractmethod
    async def _stored(self, tx: Connection, changes: Sequence[ChangeT]) -> Mapping[str, WorkT]:
        """Store changes of different work and return it as stored, by id; work that has changed since it was claimed is
        left out.
        """

    @abstractmethod
    def _taken(self, row: Row, worker: int, lease_ms: int, now_ms: int) -> ChangeT:
        """Return the change of a row of `wanted`."""

    @abstractmethod
    def _work_of(self, row: Row) -> WorkT:
        """Return the work in a row of `lost` or `of_worker`."""

    @abstractmethod
    def _given_back(self, work: WorkT, now_ms: int, *, is_cause: bool = True) -> ChangeT:
        """Return the change of work that was lost. `is_cause`: it may have ended its worker, which is counted."""

    def _causes(self, lost: Sequence[WorkT]) -> frozenset[str]:
        """Return the ids of the work that may have ended its worker."""
        return frozenset(work.id for work in lost)

    @abstractmethod
    def _handed_over(self, work: WorkT, now_ms: int) -> ChangeT:
        """Return the change of work whose worker ends in order."""


def cause_of(work: Work) -> Position | None:
    """Return the event that requested work last."""
    return parse_position(work.caused_by) if work.caused_by else None
