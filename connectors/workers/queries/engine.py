"""The engine: works on the runs that this process holds, each in a task of its own, through all stages that follow.

Law: nothing here waits in a consumer, and no wait is slept through: what is due later is put aside in PostgreSQL and taken from
there by whoever looks. A stage is stored together with the capture of the next one, so that a run changes hands only when it
must. A call is written down before it is made and its answer stored before anything follows, so only a call under way at a kill
is made again, under the same key.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, TypeVar

from connectors.llm.calls import CallFailedError, ChatAnswer, ChatCall, ChatPort
from connectors.patience import patiently
from connectors.stores.group_commit import GroupCommit
from connectors.stores.runs import Call, CallEnd, Change, Runs, StoredCall
from connectors.workers.queries.stages import Ask, Concluded, NoPromptError, Stages, conclude
from schemas.errors import UnavailableError
from streams.clock import Clock, monotonic_seconds
from streams.queries.analysis import UnusableAnswerError, clean_text
from streams.queries.costs import Prices
from streams.queries.retries import Again, Failure, GiveUp, after_failure
from streams.queries.runs import Run, begun, captured, failed, failed_event, waiting_until
from streams.queries.states import Stage, Status
from streams.telemetry import (
    LLM_CALLS,
    LLM_COST_USD,
    LLM_TOKENS,
    QUERIES_FENCED,
    QUERY_CONTEXT_CHARACTERS,
    QUERY_CONTEXT_FOUND,
    QUERY_RUNS,
    QUERY_STAGE_SECONDS,
    get_log,
)

T = TypeVar("T")

_ANSWERED = "answered"
# A stop waits so long for calls under way; what is left is given back and begun again by somebody else.
STOP_SECONDS = 5.0
# Of an unforeseen error: a line for the user, and of its stack what fits a screen or two (its end says where).
_MESSAGE_CHARACTERS_MAX, _STACK_CHARACTERS_MAX = 500, 8_000

_log = get_log("queries")


class FencedRunError(Exception):
    """The run is no longer as it was taken: somebody else has it, or somebody cancelled it. What was made of it is dropped."""


class Outcome(NamedTuple):
    """What came of one attempt: what it gave, or how it failed."""

    concluded: Concluded | None = None
    failure: Failure | None = None
    detail: str = ""
    retry_after_ms: int | None = None


class Engine:
    """Works on runs until it is stopped; `slots` bounds how many at once."""

    def __init__(
        self,
        runs: Runs,
        stages: Stages,
        port: ChatPort,
        prices: Prices,
        clock: Clock,
        *,
        worker: int,
        lease_ms: int,
        slots: int,
    ) -> None:
        self.runs = runs
        self.worker = worker
        self.lease_ms = lease_ms
        self._stages = stages
        self._port = port
        self._prices = prices
        self._clock = clock
        self._changes: GroupCommit[Change, bool] = GroupCommit(runs.store)
        self._ends: GroupCommit[CallEnd, bool] = GroupCommit(runs.end_calls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = slots
        self._reserved = 0
        self._freed = asyncio.Event()
        self._freed.set()
        self._is_stopping = False

    @property
    def free(self) -> int:
        """Runs that may be taken now."""
        return max(0, self._slots - len(self._tasks) - self._reserved)

    @contextmanager
    def reserved(self, most: int) -> Iterator[int]:
        """Slots kept for runs that are about to be captured and taken; how many, perhaps none."""
        count = min(most, self.free)
        self._reserved += count
        try:
            yield count
        finally:
            self._reserved -= count
            self._freed.set()

    async def wait_for_slot(self) -> None:
        """Wait until a run may be taken.

        Raises:
            UnavailableError: this process ends and takes none any more.
        """
        while not (self.free or self._is_stopping):
            self._freed.clear()
            await self._freed.wait()
        if self._is_stopping:
            raise UnavailableError("this worker ends")

    def take(self, runs: Iterable[Run]) -> None:
        """Work on runs that are held by this process."""
        for run in runs:
            task = asyncio.create_task(self._guarded(run), name=f"run-{run.id}")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._freed.set()

    async def stop(self) -> None:
        """Let calls under way come to their end for a moment, then give back what is left."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._freed.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        try:
            await self.runs.hand_over(self.worker, now_ms=self._clock())
        except UnavailableError as error:
            _log.warning("runs_not_handed_over", reason=str(error))  # they are found lost, and begun again
        await self._port.close()

    # -- one run ----------------------------------------------------------------------------------------------------------

    async def _guarded(self, run: Run) -> None:
        try:
            await self._work(run)
        except FencedRunError:
            QUERIES_FENCED.inc()
            _log.info("run_is_elsewhere", run=run.id)
        except Exception:  # noqa: BLE001 (not even its failure could be stored; its lease ends and it is begun again)
            _log.exception("run_left", run=run.id)

    async def _work(self, run: Run) -> None:
        """Stage after stage, until the run has ended or waits."""
        while (stage := run.stage) is not None and run.worker is not None:
            started = monotonic_seconds()
            try:
                run = await self._attempt(run, stage)
            except FencedRunError:
                raise
            except Exception as error:  # noqa: BLE001 (R1.35: whatever it is, the run ends and somebody is told)
                run = await self._fail_unforeseen(run, stage, error)
            QUERY_STAGE_SECONDS.labels(stage).observe(monotonic_seconds() - started)

    async def _attempt(self, run: Run, stage: Stage) -> Run:
        """One attempt of a stage: the run as it was stored after it."""
        outcome = None
        if run.attempt == 0:
            held, run = run, begun(run)
        else:  # begun before, by us or by a worker that ended: its call may have been made
            held = run
            found = await patiently(lambda: self.runs.find_call(held, stage))
            outcome = None if found is None else self._recalled(run, stage, found)
        if outcome is None:
            ask = await patiently(lambda: self._stages.ask(run, stage))
            run = await self._begin(held, ask)
            outcome = await self._call(run, stage, ask.call)
        if outcome.concluded is not None:
            return await self._go_on(run, stage, outcome.concluded)
        return await self._after_failure(run, stage, outcome)

    async def _begin(self, held: Run, ask: Ask) -> Run:
        """Store what the call is made from (R1.21), and that it is made."""
        call = Call(ask.call.stage, ask.run.attempt, ask.call.model, ask.prompt_ids)
        return await self._store(held, ask.run, call=call)

    async def _call(self, run: Run, stage: Stage, call: ChatCall) -> Outcome:
        """Make the call, and store what became of it before anything else."""
        answer = None
        try:
            answer = await self._port.complete(call)
        except CallFailedError as error:
            outcome = Outcome(failure=error.failure, detail=str(error), retry_after_ms=error.retry_after_ms)
        else:
            outcome = self._concluded(run, stage, answer.text)
        if not await self._end_call(run, stage, call.model, outcome, answer):
            # Somebody else had sent it too and was answered first: what follows follows from what is stored.
            found = await patiently(lambda: self.runs.find_call(run, stage))
            outcome = outcome if found is None else self._recalled(run, stage, found)
        return outcome

    def _concluded(self, run: Run, stage: Stage, text: str) -> Outcome:
        try:
            return Outcome(conclude(run, stage, text, self._clock()))
        except UnusableAnswerError as error:
            return Outcome(failure=Failure.UNUSABLE, detail=str(error))

    def _recalled(self, run: Run, stage: Stage, found: StoredCall) -> Outcome:
        """What the answer of a call that was stored before says; it is not made again."""
        if found.outcome == _ANSWERED:
            return self._concluded(run, stage, found.answer or "")
        return Outcome(failure=Failure(found.outcome), detail=found.error or found.outcome)

    async def _end_call(self, run: Run, stage: Stage, model: str, outcome: Outcome, answer: ChatAnswer | None) -> bool:
        told = _ANSWERED if outcome.failure is None else str(outcome.failure)
        LLM_CALLS.labels(stage, told).inc()
        cost = None
        if answer is not None:
            model = answer.model
            cost = self._prices.cost_usd(model, answer.prompt_tokens, answer.completion_tokens)
            LLM_TOKENS.labels(model, "prompt").inc(answer.prompt_tokens)
            LLM_TOKENS.labels(model, "completion").inc(answer.completion_tokens)
            LLM_COST_USD.labels(model).inc(float(cost or 0))
        return await self._ends(
            CallEnd(
                run.id,
                stage,
                run.attempt,
                self._clock(),
                told,
                None if answer is None else answer.text,
                outcome.detail or None,
                model,
                None if answer is None else answer.prompt_tokens,
                None if answer is None else answer.completion_tokens,
                cost,
            )
        )

    async def _go_on(self, run: Run, stage: Stage, concluded: Concluded) -> Run:
        """Store what the stage gave, together with the capture of the next one."""
        after = concluded.run
        now_ms = self._clock()
        steps = [after]
        if after.stage is not None:
            steps.append(captured(after, worker=self.worker, lease_ms=self.lease_ms, now_ms=now_ms))
        stored = await self._store_steps(Change(run, tuple(steps), now_ms, memory=concluded.memory))
        if stage is Stage.ANALYZER:
            QUERY_CONTEXT_FOUND.labels(str(bool((after.analysis or {}).get("context_found"))).lower()).inc()
        elif stage is Stage.ASSEMBLER:
            QUERY_CONTEXT_CHARACTERS.observe(len(after.payload or ""))
        elif stage is Stage.RESPONDER:
            QUERY_RUNS.labels(Status.COMPLETED).inc()
        return stored

    async def _after_failure(self, run: Run, stage: Stage, outcome: Outcome) -> Run:
        assert outcome.failure is not None
        following = after_failure(
            outcome.failure,
            outcome.detail,
            attempt=run.attempt,
            unusable=run.unusable,
            retry_after_ms=outcome.retry_after_ms,
        )
        _log.warning(
            "call_failed",
            run=run.id,
            stage=stage,
            attempt=run.attempt,
            failure=outcome.failure,
            detail=outcome.detail[:300],
        )
        if isinstance(following, GiveUp):
            return await self._fail(run, stage, following, str(outcome.failure), "")
        return await self._again(run, following, is_unusable=outcome.failure is Failure.UNUSABLE)

    async def _again(self, run: Run, following: Again, *, is_unusable: bool) -> Run:
        """The next attempt: at once, or put aside until it is due."""
        if following.wait_ms == 0:
            return begun(replace(run, unusable=run.unusable + is_unusable))
        return await self._store(run, waiting_until(run, self._clock() + following.wait_ms))

    async def _fail(self, run: Run, stage: Stage, why: GiveUp, reason: str, stack: str) -> Run:
        now_ms = self._clock()
        is_archive = stage is Stage.ARCHIVIST
        is_alert = why.is_alert or is_archive  # R1.28
        after = failed(run, why.message, now_ms)
        told = failed_event(run, stage, reason, why.message, stack, now_ms, is_alert=is_alert)
        stored = await self._store_steps(
            Change(run, (after,), now_ms, failure=told, archive_error=why.message if is_archive else None)
        )
        _log.error("run_failed", run=run.id, stage=stage, reason=reason, error=why.message[:300])
        if not is_archive:
            QUERY_RUNS.labels(Status.FAILED).inc()
        return stored

    async def _fail_unforeseen(self, run: Run, stage: Stage, error: Exception) -> Run:
        """R1.35: the whole stack is logged, somebody is told, and it is not tried again."""
        stack = "".join(traceback.format_exception(error))
        reason = "no_prompt" if isinstance(error, NoPromptError) else "unforeseen"
        _log.error("run_broke", run=run.id, stage=stage, stack=stack)
        message = str(error) if isinstance(error, NoPromptError) else f"{type(error).__name__}: {error}"
        why = GiveUp(clean_text(message)[:_MESSAGE_CHARACTERS_MAX], is_alert=True)
        return await self._fail(run, stage, why, reason, clean_text(stack)[-_STACK_CHARACTERS_MAX:])

    async def _store(self, before: Run, after: Run, *, call: Call | None = None) -> Run:
        return await self._store_steps(Change(before, (after,), self._clock(), call=call))

    async def _store_steps(self, change: Change) -> Run:
        if not await self._changes(change):
            raise FencedRunError
        return change.after
