"""Counts the usage of jobs at each of their ends with the common meter (`connectors/identity/metering.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from highwater.connectors.identity import metering
from highwater.connectors.identity.metering import Used
from highwater.connectors.models.call_rows import totals_of
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.jobs import UsageRecorded
from highwater.streams.jobs.jobs import Job, cents


class Ended(NamedTuple):
    """A job that has ended, with the totals of its calls; its result, if that is to be counted. `now_ms`: its end."""

    job: Job
    now_ms: int
    presentations: int = 0
    slides: int = 0


async def with_totals(tx: Connection, jobs: Sequence[Job]) -> list[Job]:
    """Return the same jobs with the total usage of their calls."""
    totals = await totals_of(tx, [job.id for job in jobs])
    return [replace(job, **totals[job.id]._asdict()) if job.id in totals else job for job in jobs]


async def count(tx: Connection, ended: Iterable[Ended]) -> dict[str, UsageRecorded]:
    """Count the usage of jobs that was not counted before; return the events of those with usage, by job."""
    return await metering.count(tx, [_used(one) for one in ended])


def _used(one: Ended) -> Used:
    made = one.presentations, one.slides
    return Used(one.job.organization_id, one.job.id, one.now_ms, one.job.tokens, cents(one.job.cost_usd), *made)
