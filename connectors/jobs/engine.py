"""The engine of jobs: works on the jobs that this process holds, each in a task of its own, step by step.

Law: nothing here waits in a consumer, and no wait is slept through. Each step is stored with its checkpoint before the next
begins, so that whoever takes the job goes on after it and makes nothing twice (R2.15); only a call under way at a kill is made
again, under the same key. A part that is away changes no status.
"""

from __future__ import annotations

import traceback
from dataclasses import replace

from highwater.connectors.engines.slots import ElsewhereError, Slots
from highwater.connectors.jobs.steps import Ask, Done, Step, Steps, Wait
from highwater.connectors.jobs.store import Call, Change, Jobs
from highwater.connectors.models.calls import ChatCall
from highwater.connectors.models.recorded_calls import ModelCalls, Outcome
from highwater.connectors.patience import patiently
from highwater.connectors.postgres.group_commit import GroupCommit
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.jobs.approval import awaiting_approval, overdue_text
from highwater.streams.jobs.jobs import Job, begun, failed, finished, stepped, waiting_until
from highwater.streams.jobs.progress import ERROR, Told, done_told
from highwater.streams.jobs.states import JobStatus
from highwater.streams.models.answers import clean_text
from highwater.streams.models.retries import Again, Failure, GiveUp, after_failure
from highwater.streams.telemetry import JOB_STEP_SECONDS, JOBS_ENDED, JOBS_FENCED, get_log

# Of an unforeseen error: a line for the user.
_MESSAGE_CHARACTERS_MAX = 500

_log = get_log("jobs")


class JobEngine(Slots[Job]):
    """Works on jobs of one kind until it is stopped. `calls` None: this kind asks no language model."""

    def __init__(
        self,
        jobs: Jobs,
        steps: Steps,
        calls: ModelCalls | None,
        clock: Clock,
        *,
        worker: int,
        lease_ms: int,
        slots: int,
    ) -> None:
        super().__init__(clock, worker=worker, lease_ms=lease_ms, slots=slots)
        self.jobs = jobs
        self._steps = steps
        self._calls = calls
        self._changes: GroupCommit[Change, Job | None] = GroupCommit(jobs.store)

    async def _hand_over(self) -> None:
        await self.jobs.hand_over(self.worker, now_ms=self._clock())

    async def _close(self) -> None:
        if self._calls is not None:
            await self._calls.close()

    async def _found_elsewhere(self, held: Job) -> None:
        """Count it, and what its last call used if the job has ended meanwhile: that was paid too."""
        JOBS_FENCED.labels(held.kind).inc()
        _log.info("job_is_elsewhere", job=held.id)
        if self._calls is not None:
            await patiently(lambda: self.jobs.count_late(held.id, self._clock()))

    async def _work(self, held: Job) -> None:
        """Step after step, until the job has ended or waits."""
        job = held
        while job.worker is not None:
            started = monotonic_seconds()
            try:
                job = await self._step(job)
            except ElsewhereError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever it is, the job ends and its user is told)
                job = await self._fail_by(job, error)
            JOB_STEP_SECONDS.labels(job.kind).observe(monotonic_seconds() - started)

    async def _step(self, job: Job) -> Job:
        """One step, or one attempt of it: the job as it was stored after it."""
        following = await patiently(lambda: self._steps.next(job))
        if isinstance(following, Ask):
            return await self._ask(job, following)
        if isinstance(following, Step):
            return await self._go_on(job, following)
        if isinstance(following, Wait):
            return await self._wait(job, following)
        return await self._finish(job, following)

    async def _ask(self, job: Job, ask: Ask) -> Job:
        """One attempt of a call, and the step that its answer gives."""
        assert self._calls is not None
        held, outcome = job, None
        if job.attempt == 0:
            job = begun(job)
        else:  # begun before, by us or by a worker that ended: its call may have been made
            outcome = await self._calls.recalled(job.id, ask.stage, job.attempt, ask.conclude)
            if job.tries == 0 and outcome is not None and outcome.failure is not None:
                job, outcome = begun(job), None  # the job failed by it, and was restarted since
        if outcome is None:
            job = await self._begin(held, job, ask)
            outcome = await self._calls.make(job.id, job.attempt, _call(job, ask), ask.conclude)
        if outcome.concluded is not None:
            return await self._go_on(job, outcome.concluded)
        return await self._after_failure(job, ask, outcome)

    async def _begin(self, held: Job, job: Job, ask: Ask) -> Job:
        """Store that the call is made; watchers are told of the first."""
        told = ask.told if held.attempt == 0 else ()
        now_ms = self._clock()
        after = replace(job, lease_until_ms=now_ms + self.lease_ms)
        return await self._store(Change(held, after, now_ms, told, Call(ask.stage, job.attempt, ask.model)))

    async def _go_on(self, job: Job, step: Step) -> Job:
        """Store what a step made, with its checkpoint."""
        now_ms = self._clock()
        after = stepped(
            job, step.checkpoint, step.done, step.total, lease_until_ms=now_ms + self.lease_ms, now_ms=now_ms
        )
        return await self._store(Change(job, after, now_ms, step.told, events=step.events, apply=step.apply))

    async def _wait(self, job: Job, wait: Wait) -> Job:
        """Put the job aside until somebody approves it; it fails where its deadline has come."""
        now_ms = self._clock()
        after = awaiting_approval(job, wait.timeout_ms, now_ms)
        if after is None:
            return await self._fail(job, overdue_text(job))
        told = wait.told if job.approval_until_ms is None else ()
        return await self._store(Change(job, after, now_ms, told))

    async def _finish(self, job: Job, done: Done) -> Job:
        """Store what the job made, and that it has come to its end."""
        now_ms = self._clock()
        told = (*done.told, done_told(job.kind))
        after = finished(job, done.result, now_ms, steps=None if done.deck is None else len(done.deck.slides))
        change = Change(job, after, now_ms, told, events=done.events, apply=done.apply, deck=done.deck)
        stored = await self._store(change)
        if done.afterwards is not None:
            try:
                await done.afterwards(stored)
            except HighwaterError as error:  # the job is complete without it
                _log.warning("not_done_afterwards", job=job.id, reason=str(error))
            await patiently(lambda: self.jobs.count_late(job.id, self._clock()))  # what that used
        return stored

    async def _after_failure(self, job: Job, ask: Ask, outcome: Outcome[Step]) -> Job:
        assert outcome.failure is not None
        following = after_failure(
            outcome.failure,
            outcome.detail,
            attempt=job.tries,
            unusable=job.unusable,
            retry_after_ms=outcome.retry_after_ms,
        )
        _log.warning(
            "call_failed",
            job=job.id,
            stage=ask.stage,
            attempt=job.attempt,
            failure=outcome.failure,
            detail=outcome.detail[:300],
        )
        if isinstance(following, GiveUp):
            return await self._fail(job, following.message)
        return await self._again(job, following, is_unusable=outcome.failure is Failure.UNUSABLE)

    async def _again(self, job: Job, following: Again, *, is_unusable: bool) -> Job:
        """The next attempt: at once, or put aside until it is due."""
        if following.wait_ms == 0:
            return begun(replace(job, unusable=job.unusable + is_unusable))
        now_ms = self._clock()
        return await self._store(Change(job, waiting_until(job, now_ms + following.wait_ms), now_ms))

    async def _fail_by(self, job: Job, error: Exception) -> Job:
        """What is foreseen is told as it is; of anything else the whole stack is logged."""
        if isinstance(error, HighwaterError):
            return await self._fail(job, str(error))
        _log.error("job_broke", job=job.id, stack="".join(traceback.format_exception(error)))
        return await self._fail(job, f"{type(error).__name__}: {error}")

    async def _fail(self, job: Job, error: str) -> Job:
        message = clean_text(error)[:_MESSAGE_CHARACTERS_MAX]
        now_ms = self._clock()
        told = (Told(ERROR, error_message=message),)
        _log.error("job_failed", job=job.id, error=message[:300])
        return await self._store(Change(job, failed(job, message, now_ms), now_ms, told))

    async def _store(self, change: Change) -> Job:
        stored = await self._changes(change)
        if stored is None:
            raise ElsewhereError
        if change.has_ended:
            JOBS_ENDED.labels(stored.kind, JobStatus(stored.status)).inc()
        return stored


def _call(job: Job, ask: Ask) -> ChatCall:
    return ChatCall(
        stage=ask.stage,
        key=job.call_key(ask.stage),
        model=ask.model,
        system=ask.system,
        user=ask.user,
        temperature=ask.temperature,
        tokens_max=ask.tokens_max,
        is_json=True,
    )
