"""The services of the routes of jobs, besides the common ones: watchers, uploads, views of decks, a reader of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from socket import gethostname
from typing import Annotated

from fastapi import Depends, Request

from highwater.api.core.services import Services
from highwater.api.jobs.stream import JobHub
from highwater.api.jobs.uploads import Uploads
from highwater.connectors.documents.reading import DocumentReader
from highwater.connectors.jobs import read_model as job_reads
from highwater.connectors.jobs.streams import JobStreams
from highwater.connectors.jobs.views import ViewCounts
from highwater.streams.clock import fresh_id


@dataclass(frozen=True)
class JobServices:
    """The services of the routes of jobs."""

    watchers: JobHub
    streams: JobStreams
    uploads: Uploads
    views: ViewCounts
    reader: DocumentReader

    async def end(self) -> None:
        """End every stream of events, which would otherwise end only with its job."""
        await self.watchers.end()

    async def close(self) -> None:
        """Stop reading the jobs' events."""
        await self.watchers.close()


def make_jobs(core: Services) -> JobServices:
    """Create them."""

    async def read_jobs(job_ids: Sequence[str]) -> Mapping[str, job_reads.JobRead]:
        return await job_reads.jobs(core.database.require(), job_ids)

    streams = JobStreams(core.link)
    # Readable for operators, and another one after a restart: the sockets of a killed process stay its own.
    server_id = f"{gethostname()}-{fresh_id()[-8:]}"
    return JobServices(
        watchers=JobHub(streams, read_jobs, core.clock, server_id=server_id),
        streams=streams,
        uploads=Uploads(),
        views=ViewCounts(core.link),
        reader=DocumentReader(),
    )


async def jobs_of(request: Request) -> JobServices:
    """Return those of the request's application."""
    jobs: JobServices = request.app.state.jobs
    return jobs


WiredJobs = Annotated[JobServices, Depends(jobs_of)]
