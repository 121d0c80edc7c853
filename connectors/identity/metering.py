"""The meter: counts the usage of paid work once for the organization that pays, in the order of its month (R2.36).

Invariant. Usage is counted in the transaction that ends the work, for every outcome: failed or revoked work was paid
too. The usage of a search is counted in the transaction that accounts for its event (`sink_tokens.py`). Work that ends
again, since it was restarted or its last call was answered late, counts only its additional usage. So the limits of
plans, `/usage` and the log have one source, for jobs, queries and searches. Tokens of the built-in model are counted
among the others and apart, since they cost nothing and no plan limits them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from highwater.connectors.identity.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.jobs import UsageRecorded
from highwater.streams.clock import to_datetime
from highwater.streams.jobs.jobs import period_of


class Used(NamedTuple):
    """The total usage and output of a job, a query or a search. `now_ms`: its end, in ms since 1970."""

    organization_id: str
    work_id: str
    now_ms: int
    tokens: int
    cost_cents: int
    presentations: int = 0
    slides: int = 0


async def count(tx: Connection, used: Iterable[Used]) -> dict[str, UsageRecorded]:
    """Count what was not counted before; return the events of work with any usage, by its id."""
    # Places are locked in this order.
    ordered = sorted(used, key=lambda one: (one.organization_id, period_of(one.now_ms), one.work_id))
    if not ordered:
        return {}
    rows = await tx.fetch(QUERIES["counted_of_work"], [one.work_id for one in ordered])
    before = {row["work_id"]: (row["tokens"], row["cost_cents"]) for row in rows}
    events: dict[str, UsageRecorded] = {}
    for one in ordered:
        event = _event(one, *before.get(one.work_id, (0, 0)))
        amounts = event["presentations"], event["slides"], event["tokens"], event["cost_cents"]
        if any(amounts):
            charged = event["organization_id"], event["period"], event["job_id"]
            row = await tx.fetchrow(QUERIES["count_usage"], *charged, *amounts, to_datetime(one.now_ms))
            assert row is not None  # an insert
            event["seq"], event["built_in_tokens"] = row["seq"], row["built_in_tokens"]
            events[one.work_id] = event
    return events


def _event(one: Used, tokens_before: int, cents_before: int) -> UsageRecorded:
    return {
        "organization_id": one.organization_id,
        "job_id": one.work_id,
        "period": period_of(one.now_ms),
        "seq": 0,
        "presentations": one.presentations,
        "slides": one.slides,
        "tokens": max(0, one.tokens - tokens_before),
        "cost_cents": max(0, one.cost_cents - cents_before),
        "built_in_tokens": 0,
        "at": one.now_ms,
    }
