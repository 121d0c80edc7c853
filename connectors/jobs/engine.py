"""The engine of jobs: their steps, and what is stored with each.

Invariant: each step is stored with its checkpoint before the next begins, so that the worker that takes over continues
after it and repeats nothing (R2.15). A step is counted before anything of it is read: one that ends its worker three times
ends its job, and no other job. The rest is the same for runs of queries: `connectors/engines/engine.py`.
"""

from __future__ import annotations

import traceback
from dataclasses import replace

from highwater.connectors.engines.changes import Call
from highwater.connectors.engines.engine import MESSAGE_CHARACTERS_MAX, Engine
from highwater.connectors.jobs.steps import Ask, Done, Step, Steps, Wait
from highwater.connectors.jobs.store import Change, Jobs
from highwater.connectors.jobs.turns import Turns
from highwater.connectors.models.calls import ChatCall
from highwater.connectors.models.recorded_calls import ModelCalls
from highwater.connectors.waiting import retry_until_available
from highwater.schemas.errors import HighwaterError
from highwater.streams.clock import Clock
from highwater.streams.engines.work import begun
from highwater.streams.jobs.approval import awaiting_approval, overdue_text
from highwater.streams.jobs.jobs import Job, failed, finished, step_begun, stepped
from highwater.streams.jobs.progress import ERROR, ProgressReport, done_report
from highwater.streams.jobs.states import JobStatus
from highwater.streams.models.answers import clean_text
from highwater.streams.models.retries import Failure, GiveUp
from highwater.streams.telemetry import JOB_STEP_SECONDS, JOBS_ENDED, JOBS_FENCED, get_log


class JobEngine(Engine[Job, Change]):
    """Processes jobs of one kind until it is stopped. `calls` None: this kind needs no language model."""

    noun = "job"
    log = get_log("jobs")
    step_seconds = JOB_STEP_SECONDS

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
        turns: Turns | None = None,
    ) -> None:
        """`turns`: those of all engines of the process; None: it has no other."""
        super().__init__(jobs, calls, clock, worker=worker, lease_ms=lease_ms, slots=slots)
        self._steps = steps
        self._turns = turns or Turns()

    def step_label(self, work: Job) -> str:
        """Return the kind of the job."""
        return work.kind

    def _count_fenced(self, job: Job) -> None:
        JOBS_FENCED.labels(job.kind).inc()

    def _moved(self, before: Job, after: Job) -> Change:
        return Change(before, after, self._clock())

    async def _step(self, work: Job) -> Job:
        """Do one step, or one attempt of it, and return the job as it was stored after it."""
        async with self._turns.begun(is_alone=work.begun > 0):
            begun = await self._store(self._moved(work, step_begun(work)))
            following = await retry_until_available(lambda: self._steps.next(begun))
        job = replace(begun, begun=0)
        if isinstance(following, Ask):
            return await self._ask(job, following)
        if isinstance(following, Step):
            return await self._go_on(job, following)
        if isinstance(following, Wait):
            return await self._wait(job, following)
        return await self._finish(job, following)

    async def _ask(self, job: Job, ask: Ask) -> Job:
        """Make one attempt of a call, and the step from its answer."""
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
        return await self._after_failure(job, ask.stage, outcome)

    async def _begin(self, claimed: Job, job: Job, ask: Ask) -> Job:
        """Store that the call is made; watchers are notified of the first."""
        told = ask.told if claimed.attempt == 0 else ()
        now_ms = self._clock()
        after = replace(job, lease_until_ms=now_ms + self.lease_ms)
        return await self._store(Change(claimed, after, now_ms, told, Call(ask.stage, job.attempt, ask.model)))

    async def _go_on(self, job: Job, step: Step) -> Job:
        """Store the result of a step, with its checkpoint."""
        now_ms = self._clock()
        after = stepped(
            job, step.checkpoint, step.done, step.total, lease_until_ms=now_ms + self.lease_ms, now_ms=now_ms
        )
        return await self._store(Change(job, after, now_ms, step.told, events=step.events, apply=step.apply))

    async def _wait(self, job: Job, wait: Wait) -> Job:
        """Let the job wait for approval; it fails if its deadline has passed."""
        now_ms = self._clock()
        after = awaiting_approval(job, wait.timeout_ms, now_ms)
        if after is None:
            return await self._fail(job, overdue_text(job))
        told = wait.told if job.approval_until_ms is None else ()
        return await self._store(Change(job, after, now_ms, told))

    async def _finish(self, job: Job, done: Done) -> Job:
        """Store the job's result and its end."""
        now_ms = self._clock()
        told = (*done.told, done_report(job.kind))
        after = finished(job, done.result, now_ms, steps=None if done.deck is None else len(done.deck.slides))
        change = Change(job, after, now_ms, told, events=done.events, apply=done.apply, deck=done.deck)
        stored = await self._store(change)
        if done.afterwards is not None:
            try:
                await done.afterwards(stored)
            except HighwaterError as error:  # the job is complete without it
                self.log.warning("not_done_afterwards", job=job.id, reason=str(error))
            await retry_until_available(lambda: self.store.count_late(job.id, self._clock()))  # the usage of that
        return stored

    async def _give_up(self, work: Job, stage: str, why: GiveUp, failure: Failure) -> Job:
        return await self._fail(work, why.message)

    async def _fail_unforeseen(self, work: Job, error: Exception) -> Job:
        """Fail the job: an expected error is reported as it is; for any other the whole stack is logged."""
        if isinstance(error, HighwaterError):
            return await self._fail(work, str(error))
        self.log.error("job_broke", job=work.id, stack="".join(traceback.format_exception(error)))
        return await self._fail(work, f"{type(error).__name__}: {error}")

    async def _fail(self, job: Job, error: str) -> Job:
        message = clean_text(error)[:MESSAGE_CHARACTERS_MAX]
        now_ms = self._clock()
        told = (ProgressReport(ERROR, error_message=message),)
        self.log.error("job_failed", job=job.id, error=message[:300])
        return await self._store(Change(job, failed(job, message, now_ms), now_ms, told))

    async def _store(self, change: Change) -> Job:
        stored = await super()._store(change)
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
