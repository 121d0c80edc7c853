"""Typed records of the jobs events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class CheckpointSaved(TypedDict):
    """Progress of a job, from which another worker can continue. A tombstone means that the result is stored."""

    job_id: str
    presentation_id: str
    status: str
    outline: str
    slides_completed: int
    slides_total: int
    completed_slide_ids: list[str]
    worker_id: str
    epoch: int
    state: str
    at: int


class ExportRequested(TypedDict):
    """A deck is to be written as a file; each kind of job has its own topic."""

    job_id: str
    organization_id: str
    user_id: str
    args: str
    expires_at: int | None
    requested_at: int


class GenerationRequested(TypedDict):
    """A deck is to be generated; each kind of job has its own topic."""

    job_id: str
    organization_id: str
    user_id: str
    args: str
    expires_at: int | None
    requested_at: int


class IngestionRequested(TypedDict):
    """A document is to be cut into chunks; each kind of job has its own topic."""

    job_id: str
    organization_id: str
    user_id: str
    args: str
    expires_at: int | None
    requested_at: int


class JobControl(TypedDict):
    """A job is to be revoked or published to its workers again, or its outline is approved."""

    job_id: str
    action: str
    reason: str
    ts: int
    outline: str | None


class JobProgressed(TypedDict):
    """A step of a job, as its watchers see it."""

    job_id: str
    organization_id: str
    user_id: str
    seq: int
    event_type: str
    slide_number: int | None
    slide_id: str | None
    slide_title: str | None
    progress_pct: int
    error_message: str | None
    at: int


class JobSubmitted(TypedDict):
    """A user requested a job: a deck, the ingest of a document, or the export of a deck."""

    job_id: str
    kind: str
    organization_id: str
    user_id: str
    args: str
    ts: int
    expires_at: int | None


class PlanChanged(TypedDict):
    """An organization's plan or subscription status changed."""

    organization_id: str
    plan: str
    ts: int
    subscription_status: str | None
    period_end: int | None


class RoleChanged(TypedDict):
    """A user's role changed; sessions with the old role become invalid."""

    user_id: str
    role: str
    ts: int


class TokensUsed(TypedDict):
    """Tokens paid for outside jobs and queries: a service embedded the question of a search."""

    organization_id: str
    use_id: str
    tokens: int
    cost_cents: int
    ts: int


class UsageFlushed(TypedDict):
    """An organization's usage in a period so far: absolute totals, so repeated events change nothing."""

    organization_id: str
    period: str
    upto_seq: int
    presentations: int
    slides: int
    tokens: int
    cost_cents: int
    at: int


class UsageRecorded(TypedDict):
    """Usage of a job or a query; each use is counted once."""

    organization_id: str
    job_id: str
    period: str
    seq: int
    presentations: int
    slides: int
    tokens: int
    cost_cents: int
    built_in_tokens: int
    at: int


class ViewRecorded(TypedDict):
    """A public deck was viewed."""

    presentation_id: str
    ts: int


JOB_SUBMITTED: Final = TopicName[JobSubmitted]("jobs.job-submitted")
VIEW_RECORDED: Final = TopicName[ViewRecorded]("jobs.view-recorded")
PLAN_CHANGED: Final = TopicName[PlanChanged]("jobs.plan-changed")
ROLE_CHANGED: Final = TopicName[RoleChanged]("jobs.role-changed")
CONTROL: Final = TopicName[JobControl]("jobs.control")
GENERATION_REQUESTED: Final = TopicName[GenerationRequested]("jobs.generation-requested")
INGESTION_REQUESTED: Final = TopicName[IngestionRequested]("jobs.ingestion-requested")
EXPORT_REQUESTED: Final = TopicName[ExportRequested]("jobs.export-requested")
CHECKPOINT_SAVED: Final = TopicName[CheckpointSaved]("jobs.checkpoint-saved")
PROGRESS: Final = TopicName[JobProgressed]("jobs.progress")
TOKENS_USED: Final = TopicName[TokensUsed]("jobs.tokens-used")
USAGE_RECORDED: Final = TopicName[UsageRecorded]("jobs.usage-recorded")
USAGE_FLUSHED: Final = TopicName[UsageFlushed]("jobs.usage-flushed")
