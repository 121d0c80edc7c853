"""What was submitted under the ids of jobs that are stored: what a repeat is compared with, by the sink and by the API."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.connectors.engines.submissions import Known
from highwater.connectors.jobs.statements import QUERIES
from highwater.connectors.postgres.pool import Connection
from highwater.streams.jobs.args import Submission, parse_args
from highwater.streams.jobs.states import Kind


async def known_submissions(tx: Connection, job_ids: Sequence[str]) -> dict[str, Known[Submission]]:
    """What was submitted under these ids, those that are stored."""
    return {
        row["job_id"]: Known(
            Submission(
                Kind(row["kind"]),
                row["organization_id"],
                row["user_id"],
                parse_args(row["kind"], row["args"]),
                row["expires_ms"],
            ),
            row["position"],
        )
        for row in await tx.fetch(QUERIES["known_submissions"], list(job_ids))
    }
