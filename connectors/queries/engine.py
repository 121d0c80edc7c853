"""The engine: works on the runs that this process holds, each in a task of its own, through all stages that follow.

Law: nothing here waits in a consumer, and no wait is slept through: what is due later is put aside in PostgreSQL and taken from
there by whoever looks. A stage is stored together with the capture of the next one, so that a run changes hands only when it
must. A call is written down before it is made and its answer stored before anything follows, so only a call under way at a kill
is made again, under the same key; the answer of one that costs nothing (of the built-in model) is stored with what follows.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace

from highwater.connectors.engines.slots import ElsewhereError, Slots
from highwater.connectors.models.call_rows import CallEnd
from highwater.connectors.models.recorded_calls import ModelCalls, Outcome, Sent
from highwater.connectors.patience import patiently
from highwater.connectors.postgres.group_commit import GroupCommit
from highwater.connectors.queries.changes import Call, Change
from highwater.connectors.queries.deltas import DeltaWriter
from highwater.connectors.queries.stages import Ask, Concluded, NoPromptError, Stages, conclude
from highwater.connectors.queries.store import Runs
from highwater.streams.clock import Clock, monotonic_seconds
from highwater.streams.models.answers import clean_text
from highwater.streams.models.retries import Again, Failure, GiveUp, after_failure
from highwater.streams.queries.analysis import finds_context
from highwater.streams.queries.runs import Run, begun, captured, failed, failed_event, waiting_until
from highwater.streams.queries.states import Stage, Status
from highwater.streams.telemetry import (
    QUERIES_FENCED,
    QUERY_CONTEXT_CHARACTERS,
    QUERY_CONTEXT_FOUND,
    QUERY_RUNS,
    QUERY_STAGE_SECONDS,
    get_log,
)

# Of an unforeseen error: a line for the user, and of its stack what fits a screen or two (its end says where).
_MESSAGE_CHARACTERS_MAX, _STACK_CHARACTERS_MAX = 500, 8_000

_log = get_log("queries")


class Engine(Slots[Run]):
    """Works on runs until it is stopped."""

    def __init__(
        self,
        runs: Runs,
        stages: Stages,
        calls: ModelCalls,
        clock: Clock,
        *,
        worker: int,
        lease_ms: int,
        slots: int,
        deltas: DeltaWriter | None = None,
    ) -> None:
        super().__init__(clock, worker=worker, lease_ms=lease_ms, slots=slots)
        self.runs = runs
        self._stages = stages
        self._calls = calls
        self._deltas = deltas
        self._changes: GroupCommit[Change, bool] = GroupCommit(runs.store)

    async def _hand_over(self) -> None:
        await self.runs.hand_over(self.worker, now_ms=self._clock())

    async def _close(self) -> None:
        await self._calls.close()
        if self._deltas is not None:
            await self._deltas.close()

    async def _found_elsewhere(self, held: Run) -> None:
        """Count it, and what its last call used if the run has ended meanwhile: that was paid too."""
        QUERIES_FENCED.inc()
        _log.info("run_is_elsewhere", run=held.id)
        await patiently(lambda: self.runs.count_late(held.id, self._clock()))

    # -- one run ----------------------------------------------------------------------------------------------------------

    async def _work(self, held: Run) -> None:
        """Stage after stage, until the run has ended or waits."""
        run = held
        while (stage := run.stage) is not None and run.worker is not None:
            started = monotonic_seconds()
            try:
                run = await self._attempt(run, stage)
            except ElsewhereError:
                raise
            except Exception as error:  # noqa: BLE001 (R1.35: whatever it is, the run ends and somebody is told)
                run = await self._fail_unforeseen(run, stage, error)
            QUERY_STAGE_SECONDS.labels(stage).observe(monotonic_seconds() - started)

    async def _attempt(self, run: Run, stage: Stage) -> Run:
        """One attempt of a stage: the run as it was stored after it."""

        def concluded(text: str) -> Concluded:
            return conclude(run, stage, text, self._clock())

        outcome = None
        if run.attempt == 0:
            held, run = run, begun(run)
        else:  # begun before, by us or by a worker that ended: its call may have been made
            held = run
            outcome = await self._calls.recalled(run.id, stage, run.attempt, concluded)
        if outcome is None:
            ask = await patiently(lambda: self._stages.ask(run, stage))
            run = await self._begin(held, ask)
            sent = await self._sent(run, ask, concluded)
            stored = await self._go_on_at_once(run, stage, sent)
            if stored is not None:
                return stored
            outcome = await self._calls.store(sent, concluded)
        if outcome.concluded is not None:
            stored = await self._go_on(run, stage, outcome.concluded)
            if stored is None:
                raise ElsewhereError
            return stored
        return await self._after_failure(run, stage, outcome)

    async def _sent(self, run: Run, ask: Ask, concluded: Callable[[str], Concluded]) -> Sent[Concluded]:
        """Make the call; what the Responder writes is told while it is written."""
        if self._deltas is None or ask.call.stage != Stage.RESPONDER:
            return await self._calls.sent(run.id, run.attempt, ask.call, concluded)
        writing = self._deltas.of(run)
        try:
            return await self._calls.sent(run.id, run.attempt, ask.call, concluded, writing)
        finally:
            writing.end()

    async def _begin(self, held: Run, ask: Ask) -> Run:
        """Store what the call is made from (R1.21), and that it is made."""
        call = Call(Stage(ask.call.stage), ask.run.attempt, ask.call.model, ask.prompt_ids)
        return await self._store(held, ask.run, call=call)

    async def _go_on_at_once(self, run: Run, stage: Stage, sent: Sent[Concluded]) -> Run | None:
        """Store the end of a call together with what follows from it, which saves a commit; None: the end is to be stored first.

        Only of a call that costs nothing: what follows may wait for others, and the answer with it, which a kill would lose.
        """
        if self._calls.are_paid or sent.outcome.concluded is None:
            return None
        return await self._go_on(run, stage, sent.outcome.concluded, sent.end)

    async def _go_on(self, run: Run, stage: Stage, concluded: Concluded, end: CallEnd | None = None) -> Run | None:
        """Store what the stage gave with the end of its call and the capture of the next stage; None: the run has moved."""
        after = concluded.run
        now_ms = self._clock()
        steps = [after]
        if after.stage is not None:
            steps.append(captured(after, worker=self.worker, lease_ms=self.lease_ms, now_ms=now_ms))
        change = Change(run, tuple(steps), now_ms, end=end, memory=concluded.memory)
        if not await self._changes(change):
            return None
        if stage is Stage.ANALYZER:
            QUERY_CONTEXT_FOUND.labels(str(finds_context(after.analysis)).lower()).inc()
        elif stage is Stage.ASSEMBLER:
            QUERY_CONTEXT_CHARACTERS.observe(len(after.payload or ""))
        elif stage is Stage.RESPONDER:
            QUERY_RUNS.labels(Status.COMPLETED).inc()
        return change.after

    async def _after_failure(self, run: Run, stage: Stage, outcome: Outcome[Concluded]) -> Run:
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
            raise ElsewhereError
        return change.after
