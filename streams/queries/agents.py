"""The agent of queries: it keeps a row per user and requests each run in its turn.

The invariant is that of `streams/agents.py`: send, await the acknowledgement, then write the row. A repeated request is
harmless, since a run is claimed by a conditional update (R1.6); a lost one blocks its user, so none is skipped.
"""

from __future__ import annotations

from typing import Any

from highwater.schemas.queries import (
    PIPELINE_STAGE,
    RUN_ARCHIVED,
    STAGE_REQUESTED,
    PipelineStage,
    RunArchived,
    StageRequested,
)
from highwater.schemas.streams import TICK, Tick
from highwater.streams.agents import TableAgent, Wiring, on
from highwater.streams.due import DueIndex
from highwater.streams.intake import Intake, Record, position_of
from highwater.streams.queries.orders import (
    Decision,
    Waiting,
    archived,
    decode_order,
    encode_order,
    is_of_interest,
    staged,
)
from highwater.streams.telemetry import DECISIONS


class RunAgent(TableAgent):
    """The rows of users; the next run of a user is requested when the one before has released it (R1.2). Ticks only
    show that the agent is alive.
    """

    name = "runs"
    topics = (PIPELINE_STAGE, RUN_ARCHIVED, TICK)
    shared_topics = (TICK,)

    def __init__(self, wiring: Wiring, intake: Intake, rows: Any, ticks: Any) -> None:
        super().__init__(wiring, intake, rows, ticks)
        self.handlers = dict(
            (on(PIPELINE_STAGE, self._on_stage), on(RUN_ARCHIVED, self._on_archived), on(TICK, self._on_tick))
        )

    async def _on_stage(self, event: PipelineStage, record: Record) -> None:
        if is_of_interest(event):
            key = event["user_id"].encode()
            await self._apply(key, staged(decode_order(self._rows.get(key)), event), event, record)

    async def _on_archived(self, event: RunArchived, record: Record) -> None:
        key = event["user_id"].encode()
        await self._apply(key, archived(decode_order(self._rows.get(key)), event), event, record)

    async def _apply(self, key: bytes, decision: Decision, event: PipelineStage | RunArchived, record: Record) -> None:
        order, run = decision
        if run is not None:
            request = _request(run, event, queued=len(order.queue))
            ack = await self._send(STAGE_REQUESTED, event["user_id"], request, position_of(record), event["at"])
            await ack
            DECISIONS.labels("stage-requested").inc()
        # Written even if nothing changed: this may be a redelivery because the changelog lost the first write.
        self._rows[key] = encode_order(order)

    async def _on_tick(self, tick: Tick, record: Record) -> None:
        self._applied(tick, record, is_admitted=self._admit(tick, record))

    def _derive_index(self, partition: int) -> DueIndex:
        return DueIndex()  # no run becomes due at a tick


def _request(run: Waiting, event: PipelineStage | RunArchived, *, queued: int) -> StageRequested:
    return {
        "request_id": run.request_id,
        "user_id": event["user_id"],
        "stage": run.stage,
        "status": run.status,
        "ordinal": run.ordinal,
        "revision": run.revision,
        "queued": queued,
        "requested_at": event["at"],
    }
