"""The engine of queries: processes a run through all following stages.

Invariant: a stage is stored together with the claim of the next one, so that a run changes workers only if necessary.
The answer of a free call (of the built-in model) is stored with its consequences. The rest is the same for jobs:
`connectors/engines/engine.py`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from highwater.connectors.engines.changes import Call
from highwater.connectors.engines.engine import MESSAGE_CHARACTERS_MAX, Engine
from highwater.connectors.engines.slots import ElsewhereError
from highwater.connectors.models.call_rows import CallEnd
from highwater.connectors.models.recorded_calls import ModelCalls, Sent
from highwater.connectors.queries.changes import Change
from highwater.connectors.queries.deltas import DeltaWriter
from highwater.connectors.queries.stages import Ask, Concluded, NoPromptError, Stages, conclude
from highwater.connectors.queries.store import Runs
from highwater.connectors.waiting import retry_until_available
from highwater.streams.clock import Clock
from highwater.streams.engines.work import begun
from highwater.streams.models.answers import clean_text
from highwater.streams.models.retries import Failure, GiveUp
from highwater.streams.queries.analysis import finds_context
from highwater.streams.queries.runs import Run, captured, failed, failed_event
from highwater.streams.queries.states import Stage, Status
from highwater.streams.queries.users import user_key
from highwater.streams.telemetry import (
    QUERIES_FENCED,
    QUERY_CONTEXT_CHARACTERS,
    QUERY_CONTEXT_FOUND,
    QUERY_RUNS,
    QUERY_STAGE_SECONDS,
    get_log,
)

# Of the stack of an unexpected error, the part that fits a screen or two; its end shows the place.
_STACK_CHARACTERS_MAX = 8_000


class QueryEngine(Engine[Run, Change]):
    """Processes runs until it is stopped."""

    noun = "run"
    log = get_log("queries")
    step_seconds = QUERY_STAGE_SECONDS

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
        super().__init__(runs, calls, clock, worker=worker, lease_ms=lease_ms, slots=slots)
        self._model = calls
        self._stages = stages
        self._deltas = deltas

    def step_label(self, work: Run) -> str:
        """Return the stage that it is in."""
        return _stage_of(work)

    def _count_fenced(self, run: Run) -> None:
        QUERIES_FENCED.inc()

    def _moved(self, before: Run, after: Run) -> Change:
        return Change(before, (after,), self._clock())

    async def _close(self) -> None:
        await super()._close()
        if self._deltas is not None:
            await self._deltas.close()

    # -- one run
    # --------------------------------------------------------------------------------------------------------

    async def _step(self, work: Run) -> Run:
        """Do one attempt of a stage, and return the run as it was stored after it."""
        run, stage = work, _stage_of(work)

        def concluded(text: str) -> Concluded:
            return conclude(run, stage, text, self._clock())

        outcome = None
        if run.attempt == 0:
            held, run = run, begun(run)
        else:  # begun before, by us or by a worker that ended: its call may have been made
            held = run
            outcome = await self._model.recalled(run.id, stage, run.attempt, concluded)
        if outcome is None:
            ask = await retry_until_available(lambda: self._stages.ask(run, stage))
            run = await self._begin(held, ask)
            sent = await self._sent(run, ask, concluded)
            stored = await self._go_on_at_once(run, stage, sent)
            if stored is not None:
                return stored
            outcome = await self._model.store(sent, concluded)
        if outcome.concluded is not None:
            stored = await self._go_on(run, stage, outcome.concluded)
            if stored is None:
                raise ElsewhereError
            return stored
        return await self._after_failure(run, stage, outcome)

    async def _sent(self, run: Run, ask: Ask, concluded: Callable[[str], Concluded]) -> Sent[Concluded]:
        """Make the call; the Responder's text is published while it is written."""
        if self._deltas is None or ask.call.stage != Stage.RESPONDER:
            return await self._model.sent(run.id, run.attempt, ask.call, concluded)
        writing = self._deltas.of(run)
        try:
            return await self._model.sent(run.id, run.attempt, ask.call, concluded, writing)
        finally:
            writing.end()

    async def _begin(self, run: Run, ask: Ask) -> Run:
        """Store the input of the call (R1.21), and that it is made."""
        call = Call(ask.call.stage, ask.run.attempt, ask.call.model, ask.prompt_ids, user_key(ask.run.user_id))
        return await self._store(Change(run, (ask.run,), self._clock(), call=call))

    async def _go_on_at_once(self, run: Run, stage: Stage, sent: Sent[Concluded]) -> Run | None:
        """Store the end of a call together with its consequences, which saves a commit; None: the end is to be stored
        first.

        Only for a free call: the consequences may wait for other transactions, and the answer with them, which a kill
        would lose.
        """
        if self._model.are_paid or sent.outcome.concluded is None:
            return None
        return await self._go_on(run, stage, sent.outcome.concluded, sent.end)

    async def _go_on(self, run: Run, stage: Stage, concluded: Concluded, end: CallEnd | None = None) -> Run | None:
        """Store the result of the stage with the end of its call and the claim of the next stage; None: the run has moved."""
        after = concluded.run
        now_ms = self._clock()
        steps = [after]
        if after.stage is not None:
            steps.append(captured(after, worker=self.worker, lease_ms=self.lease_ms, now_ms=now_ms))
        change = Change(run, tuple(steps), now_ms, end=end, memory=concluded.memory)
        stored = await self._changes(change)
        if stored is None:
            return None
        if stage is Stage.ANALYZER:
            QUERY_CONTEXT_FOUND.labels(str(finds_context(after.analysis)).lower()).inc()
        elif stage is Stage.ASSEMBLER:
            QUERY_CONTEXT_CHARACTERS.observe(len(after.payload or ""))
        elif stage is Stage.RESPONDER:
            QUERY_RUNS.labels(Status.COMPLETED).inc()
        return stored

    async def _give_up(self, work: Run, stage: str, why: GiveUp, failure: Failure) -> Run:
        return await self._fail(work, Stage(stage), why, str(failure), "")

    async def _fail(self, run: Run, stage: Stage, why: GiveUp, reason: str, stack: str) -> Run:
        now_ms = self._clock()
        is_archive = stage is Stage.ARCHIVIST
        is_alert = why.is_alert or is_archive  # R1.28
        after = failed(run, why.message, now_ms)
        told = failed_event(run, stage, reason, why.message, stack, now_ms, is_alert=is_alert)
        stored = await self._store(
            Change(run, (after,), now_ms, failure=told, archive_error=why.message if is_archive else None)
        )
        self.log.error("run_failed", run=run.id, stage=stage, reason=reason, error=why.message[:300])
        if not is_archive:
            QUERY_RUNS.labels(Status.FAILED).inc()
        return stored

    async def _fail_unforeseen(self, work: Run, error: Exception) -> Run:
        """Log the whole stack and alert an operator; nothing is retried (R1.35)."""
        run, stage = work, _stage_of(work)
        stack = "".join(traceback.format_exception(error))
        reason = "no_prompt" if isinstance(error, NoPromptError) else "unforeseen"
        self.log.error("run_broke", run=run.id, stage=stage, stack=stack)
        message = str(error) if isinstance(error, NoPromptError) else f"{type(error).__name__}: {error}"
        why = GiveUp(clean_text(message)[:MESSAGE_CHARACTERS_MAX], is_alert=True)
        return await self._fail(run, stage, why, reason, clean_text(stack)[-_STACK_CHARACTERS_MAX:])


def _stage_of(run: Run) -> Stage:
    stage = run.stage
    assert stage is not None  # it is held, so it has not ended
    return stage
