"""The engine: processes the work that this process has claimed, attempt after attempt, each in a task of its own.

Invariant: nothing here waits in a consumer or sleeps until a later attempt: the work is postponed, and claimed by the
first process that finds it due. An attempt is stored before its call is made, and the result together with its
consequences, so the worker that takes over repeats nothing; only a call whose answer was lost is repeated, with the
same key. An unavailable service changes no status.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Generic

from prometheus_client import Histogram

from highwater.connectors.engines.slots import ElsewhereError, Slots
from highwater.connectors.engines.store import ChangeT, WorkStore
from highwater.connectors.models.recorded_calls import ModelCalls, Outcome
from highwater.connectors.postgres.group_commit import GroupCommit
from highwater.connectors.waiting import retry_until_available
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.engines.work import WorkT, begun, waiting_until
from highwater.streams.models.retries import Failure, GiveUp, after_failure

# The text of an error: a line for the user.
MESSAGE_CHARACTERS_MAX = 500


class Engine(Slots[WorkT], Generic[WorkT, ChangeT]):
    """Processes work of one kind until it is stopped. `calls` None: this kind needs no language model."""

    # The name of its kind in the log, the log, and the durations of steps, by `step_label`.
    noun: ClassVar[str]
    log: ClassVar[Any]
    step_seconds: ClassVar[Histogram]

    def __init__(
        self,
        store: WorkStore[WorkT, ChangeT],
        calls: ModelCalls | None,
        clock: Clock,
        *,
        worker: int,
        lease_ms: int,
        slots: int,
    ) -> None:
        super().__init__(clock, worker=worker, lease_ms=lease_ms, slots=slots)
        self.store = store
        self._calls = calls
        self._changes: GroupCommit[ChangeT, WorkT | None] = GroupCommit(store.store)

    # -- defined by each kind of work --------------------------------------------------------------------------------

    @abstractmethod
    def step_label(self, work: WorkT) -> str:
        """Return the label of its current step in the metric of durations."""

    @abstractmethod
    async def _step(self, work: WorkT) -> WorkT:
        """Do one step, or one attempt of it, and return the work as it was stored after it."""

    @abstractmethod
    async def _fail_unforeseen(self, work: WorkT, error: Exception) -> WorkT:
        """End work after an unexpected error: nothing is retried."""

    @abstractmethod
    async def _give_up(self, work: WorkT, stage: str, why: GiveUp, failure: Failure) -> WorkT:
        """End work whose calls failed permanently."""

    @abstractmethod
    def _moved(self, before: WorkT, after: WorkT) -> ChangeT:
        """Return the change that stores only a move."""

    @abstractmethod
    def _count_fenced(self, work: WorkT) -> None:
        """Count work that another worker has taken over."""

    # -- common to all kinds ------------------------------------------------------------------------------------------

    async def _work(self, claimed: WorkT) -> None:
        """Do step after step, until the work has ended or waits."""
        work = claimed
        while work.worker is not None:
            label, started = self.step_label(work), monotonic_seconds()
            try:
                work = await self._step(work)
            except ElsewhereError:
                raise
            except Exception as error:  # noqa: BLE001 (R1.35, R2.15: after any error, the work ends and its user is notified)
                work = await self._fail_unforeseen(work, error)
            self.step_seconds.labels(label).observe(monotonic_seconds() - started)

    async def _after_failure(self, work: WorkT, stage: str, outcome: Outcome[Any]) -> WorkT:
        """Store the consequence of a failed attempt: the next one, at once or when it is due, or the end."""
        assert outcome.failure is not None
        following = after_failure(
            outcome.failure,
            outcome.detail,
            attempt=work.tries,
            unusable=work.unusable,
            retry_after_ms=outcome.retry_after_ms,
        )
        self.log.warning(
            "call_failed",
            stage=stage,
            attempt=work.attempt,
            failure=outcome.failure,
            detail=outcome.detail[:300],
            **{self.noun: work.id},
        )
        if isinstance(following, GiveUp):
            return await self._give_up(work, stage, following, outcome.failure)
        if following.wait_ms == 0:
            is_unusable = outcome.failure is Failure.UNUSABLE
            return begun(replace(work, unusable=work.unusable + is_unusable))
        return await self._store(self._moved(work, waiting_until(work, self._clock() + following.wait_ms)))

    async def _store(self, change: ChangeT) -> WorkT:
        """Store a change, together with those of other tasks.

        Raises:
            ElsewhereError: the work has changed since it was claimed.
        """
        stored = await self._changes(change)
        if stored is None:
            raise ElsewhereError
        return stored

    async def _found_elsewhere(self, work: WorkT) -> None:
        """Count it, and the usage of its last call if the work has ended meanwhile: that was paid too."""
        self._count_fenced(work)
        event = f"{self.noun}_is_elsewhere"
        self.log.info(event, **{self.noun: work.id})
        if self._calls is not None:
            await retry_until_available(lambda: self.store.count_late(work.id, self._clock()))

    async def _hand_over(self) -> None:
        await self.store.hand_over(self.worker, now_ms=self._clock())

    async def _close(self) -> None:
        if self._calls is not None:
            await self._calls.close()
