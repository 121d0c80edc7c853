"""Recorded calls of the language model: made once, their outcome stored before anything follows, and counted.

Invariant: a call with a known outcome is not repeated; only one in progress at a kill is, under the same key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from highwater.connectors.models.call_rows import CallEnd, Calls, StoredCall
from highwater.connectors.models.calls import CallFailedError, ChatAnswer, ChatCall, ChatPort, OnDelta, count_answer
from highwater.connectors.postgres.group_commit import GroupCommit
from highwater.connectors.waiting import retry_until_available
from highwater.streams.clock import Clock
from highwater.streams.models.answers import UnusableAnswerError
from highwater.streams.models.completion import cut_off, cut_off_mark
from highwater.streams.models.costs import Prices
from highwater.streams.models.retries import Failure
from highwater.streams.telemetry import LLM_CALLS

C = TypeVar("C")
# A worker of an older release, which may read the call, knows this one.
_AS_STORED = {Failure.TOO_LONG: Failure.UNUSABLE}

_ANSWERED = "answered"


class Outcome(NamedTuple, Generic[C]):
    """The outcome of one attempt: the parsed answer, or its failure."""

    concluded: C | None = None
    failure: Failure | None = None
    detail: str = ""
    retry_after_ms: int | None = None


class Sent(NamedTuple, Generic[C]):
    """The outcome of one attempt that is not stored yet, and what to store."""

    outcome: Outcome[C]
    end: CallEnd


class ModelCalls:
    """Makes calls through a port. `conclude` parses an answer, or raises `UnusableAnswerError`."""

    def __init__(self, calls: Calls, port: ChatPort, prices: Prices, clock: Clock) -> None:
        self._calls = calls
        self._port = port
        self._prices = prices
        self._clock = clock
        self._ends: GroupCommit[CallEnd, bool] = GroupCommit(calls.end)

    async def close(self) -> None:
        """Close the port."""
        await self._port.close()

    @property
    def are_paid(self) -> bool:
        """Return whether a repeated call costs again: then its end must be stored at once."""
        return self._port.is_paid

    async def recalled(self, run_id: str, stage: str, attempt: int, conclude: Callable[[str], C]) -> Outcome[C] | None:
        """Return the result of a stored answer; None if there is none."""
        found = await retry_until_available(lambda: self._calls.find(run_id, stage, attempt))
        return None if found is None else _recalled(found, conclude)

    async def make(self, run_id: str, attempt: int, call: ChatCall, conclude: Callable[[str], C]) -> Outcome[C]:
        """Make a recorded call, and store its outcome before anything else."""
        return await self.store(await self.sent(run_id, attempt, call, conclude), conclude)

    async def sent(
        self,
        run_id: str,
        attempt: int,
        call: ChatCall,
        conclude: Callable[[str], C],
        on_delta: OnDelta | None = None,
    ) -> Sent[C]:
        """Make a recorded call; the caller stores its end, separately (`store`) or, if unpaid, with what follows."""
        answer = None
        try:
            answer = await self._port.complete(call, on_delta)
        except CallFailedError as error:
            outcome: Outcome[C] = Outcome(failure=error.failure, detail=str(error), retry_after_ms=error.retry_after_ms)
        else:
            if answer.is_cut and not call.is_json:
                mark = cut_off_mark(answer.text, call.tokens_max)
                answer = dataclasses.replace(answer, text=answer.text + mark)
                if on_delta is not None:
                    on_delta(mark)
            outcome = _concluded(answer.text, conclude)
            if answer.is_cut and outcome.failure is not None:
                outcome = outcome._replace(detail=cut_off(call.tokens_max))
        return Sent(outcome, self._ended(run_id, attempt, call, outcome, answer))

    async def store(self, sent: Sent[C], conclude: Callable[[str], C]) -> Outcome[C]:
        """Store the end of a call separately; return its result, or the result of an outcome that another worker stored first."""
        outcome, end = sent
        if not await self._ends(end):
            outcome = await self.recalled(end.run_id, end.stage, end.attempt, conclude) or outcome
        return outcome

    def _ended(
        self, run_id: str, attempt: int, call: ChatCall, outcome: Outcome[C], answer: ChatAnswer | None
    ) -> CallEnd:
        told = _ANSWERED if outcome.failure is None else str(_AS_STORED.get(outcome.failure, outcome.failure))
        LLM_CALLS.labels(call.stage.partition("-")[0], told).inc()  # slides are one stage, however many
        model, cost = call.model, None
        if answer is not None:
            model = answer.model
            cost = count_answer(answer, self._prices)
        return CallEnd(
            run_id,
            call.stage,
            attempt,
            self._clock(),
            told,
            None if answer is None else answer.text,
            outcome.detail or None,
            model,
            None if answer is None else answer.prompt_tokens,
            None if answer is None else answer.completion_tokens,
            cost,
        )


def _concluded(text: str, conclude: Callable[[str], C]) -> Outcome[C]:
    try:
        return Outcome(conclude(text))
    except UnusableAnswerError as error:
        return Outcome(failure=Failure.UNUSABLE, detail=str(error))


def _recalled(found: StoredCall, conclude: Callable[[str], C]) -> Outcome[C]:
    if found.outcome == _ANSWERED:
        return _concluded(found.answer or "", conclude)
    return Outcome(failure=Failure(found.outcome), detail=found.error or found.outcome)
