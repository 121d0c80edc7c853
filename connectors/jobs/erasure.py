"""What an erasure of users removes from jobs: the users' jobs, their decks, and their calls.

Invariant: it erases alone (`connectors/identity/erasures.py`), while writers of jobs wait. Watchers of a job in
progress are notified that it ended, and its checkpoint is deleted; a worker that still holds it finds it gone and
stores nothing. Usage stays, also of a job in progress: it was paid, and names no user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from highwater.connectors.erasure import ErasureStep
from highwater.connectors.jobs import counting, redactions
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.jobs.store import job_of
from highwater.connectors.kafka import outbox
from highwater.connectors.kafka.outbox import OutboxRow
from highwater.connectors.models.call_rows import erase_calls
from highwater.connectors.pages import surrogate_keys
from highwater.connectors.postgres.pool import Connection
from highwater.schemas.codec import Codec
from highwater.schemas.jobs import CHECKPOINT_SAVED, PROGRESS, USAGE_RECORDED, UsageRecorded
from highwater.schemas.positions import Cause, parse_position
from highwater.streams.jobs.jobs import Job, revoked
from highwater.streams.jobs.progress import ERROR, ProgressReport, progress_events
from highwater.streams.jobs.states import ENDED

_SOURCE, ERASED = "/connectors/sinks/users", "the user was erased"
_ERASED = (QUERIES["erase_presentations"], QUERIES["erase_presentation_shares"], QUERIES["erase_jobs"])


async def erase_jobs(tx: Connection, codec: Codec, erased: Mapping[str, Cause], now_ms: int) -> None:
    """Erase users in the transaction of their erasures (`erased`: user to event), under its locks, and publish the changes."""
    users = sorted(erased)
    rows = await tx.fetch(QUERIES["jobs_to_erase"], users, [erased[user_id].arrived_ms for user_id in users])
    jobs = list(map(job_of, rows))
    await redactions.withdraw_users(tx, users)
    usages: dict[str, UsageRecorded] = {}
    if jobs:
        job_ids = [job.id for job in jobs]
        going = await counting.with_totals(tx, [job for job in jobs if job.status not in ENDED])
        usages = await counting.count(tx, [counting.Ended(job, now_ms) for job in going])
        await erase_calls(tx, job_ids)
        for statement in _ERASED:
            await tx.execute(statement, job_ids)
        await surrogate_keys.untag(tx, [f"deck:{job_id}" for job_id in job_ids])
    await outbox.add(
        tx, [row for job in jobs for row in _told(codec, job, usages.get(job.id), erased[job.user_id], now_ms)]
    )


def _told(codec: Codec, job: Job, usage: UsageRecorded | None, cause: Cause, now_ms: int) -> list[OutboxRow]:
    """Return the events that a job ended by the erasure, if it had not ended, with its usage; and that it has no checkpoint."""
    at = parse_position(cause.position)
    rows = [outbox.tombstone_row(CHECKPOINT_SAVED, job.id, source=_SOURCE, now_ms=now_ms, caused_by=at)]
    if usage is not None:
        rows.append(outbox.event_row(codec, USAGE_RECORDED, usage, source=_SOURCE, now_ms=now_ms, caused_by=at))
    if job.status not in ENDED:
        ended = replace(revoked(job, ERASED, now_ms), seq=job.seq + 1)
        told = progress_events(ended, [ProgressReport(ERROR, error_message=ERASED)], now_ms)
        rows += [outbox.event_row(codec, PROGRESS, one, source=_SOURCE, now_ms=now_ms, caused_by=at) for one in told]
    return rows


ERASURE = ErasureStep(erase_jobs)
