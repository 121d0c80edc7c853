"""Typed records of the jobs events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class CheckpointSaved(TypedDict):
    """How far a job is: what the next worker goes on from (R2.11). A tombstone says that its result is stored (R2.13)."""

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
    """A job of the kind export is to be worked on; each kind has its own topic (R2.39)."""

    job_id: str
    organization_id: str
    user_id: str
    args: str
    expires_at: int | None
    requested_at: int


class GenerationRequested(TypedDict):
    """A job of the kind generation is to be worked on; each kind has its own topic (R2.39)."""

    job_id: str
    organization_id: str
    user_id: str
    args: str
    expires_at: int | None
    requested_at: int


class IngestionRequested(TypedDict):
    """A job of the kind ingestion is to be worked on; each kind has its own topic (R2.39)."""

    job_id: str
    organization_id: str
    user_id: str
    args: str
    expires_at: int | None
    requested_at: int


class JobControl(TypedDict):
    """A job is to be revoked, restarted or asked for again, or its outline is approved (R2.40, R2.41)."""

    job_id: str
    action: str
    reason: str
    ts: int
    outline: str | None


class JobProgressed(TypedDict):
    """A step of a job, as its watchers are told (R2.17)."""

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
    """Somebody wants a deck made, a document cut into chunks, or a deck written as a file."""

    job_id: str
    kind: str
    organization_id: str
    user_id: str
    args: str
    ts: int
    expires_at: int | None


class PlanChanged(TypedDict):
    """An organization has another plan, or its subscription another status (R2.34)."""

    organization_id: str
    plan: str
    ts: int
    subscription_status: str | None
    period_end: int | None


class RoleChanged(TypedDict):
    """A user has another role; sessions that carry the old one are void (R2.9)."""

    user_id: str
    role: str
    ts: int


class TokensUsed(TypedDict):
    """Tokens that were paid for outside jobs and queries: the question of a search, embedded by a service (R2.36)."""

    organization_id: str
    use_id: str
    tokens: int
    cost_cents: int
    ts: int


class UsageFlushed(TypedDict):
    """The totals of a period as of now (R2.37): absolute, so that a repeat changes nothing."""

    organization_id: str
    period: str
    upto_seq: int
    presentations: int
    slides: int
    tokens: int
    cost_cents: int
    at: int


class UsageRecorded(TypedDict):
    """What a job or a query used, each thing once (R2.36)."""

    organization_id: str
    job_id: str
    period: str
    seq: int
    presentations: int
    slides: int
    tokens: int
    cost_cents: int
    at: int


class ViewRecorded(TypedDict):
    """A public deck was looked at (R2.42)."""

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
