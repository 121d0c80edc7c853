"""Counts the usage of queries, as that of jobs, for the organizations that pay when their runs end.

Invariant: a run without an organization is the operator's, and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.identity import metering
from highwater.connectors.identity.metering import Used
from highwater.connectors.models.call_rows import totals_of
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.jobs import UsageRecorded
from highwater.streams.jobs.jobs import cents
from highwater.streams.queries.runs import Run


async def count(tx: Connection, ended: Sequence[Run], now_ms: int) -> dict[str, UsageRecorded]:
    """Count runs that have ended at `now_ms`, in ms since 1970; return the events of those with usage, by run."""
    payers = {run.id: run.organization_id for run in ended if run.organization_id is not None}
    if not payers:
        return {}
    totals = await totals_of(tx, list(payers))
    return await metering.count(
        tx,
        [Used(payers[run_id], run_id, now_ms, one.tokens, cents(one.cost_usd)) for run_id, one in totals.items()],
    )
