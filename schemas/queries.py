"""Typed records of the queries events, written by `python -m highwater.schemas.generate` from the Avro files.

Times (`timestamp-millis`) are integers: milliseconds since 1970-01-01 UTC. Below them stand their topics, from the catalogue.
"""

from __future__ import annotations

from typing import Final, TypedDict

from highwater.schemas.topic_names import TopicName


class PipelineStage(TypedDict):
    """A run was created, or its status changed."""

    id: str
    user_id: str
    status: str
    operation: str
    attempt: int
    at: int
    ordinal: int
    revision: int
    waiting: bool
    error: str | None
    requested: bool


class PromptChanged(TypedDict):
    """An administrator changed or disabled the prompt of a pipeline role."""

    role_name: str
    prompt_template: str
    is_active: bool
    ts: int


class QuerySubmitted(TypedDict):
    """A user asked a question; one run of the pipeline answers it."""

    request_id: str
    user_id: str
    query: str
    ts: int
    organization_id: str | None


class RunArchived(TypedDict):
    """The memory of a completed run was stored, or storing it failed. The user's next run may start."""

    request_id: str
    user_id: str
    ordinal: int
    archive_status: str
    memory_id: int | None
    error: str | None
    at: int


class RunControlled(TypedDict):
    """A run is to be cancelled, or restarted from a stage as a new run."""

    request_id: str
    user_id: str
    action: str
    stage: str | None
    new_request_id: str | None
    ts: int


class RunFailed(TypedDict):
    """A run, or the archiving of a completed run, failed."""

    request_id: str
    user_id: str
    stage: str
    reason: str
    error: str
    stack: str
    is_alert: bool
    at: int


class StageRequested(TypedDict):
    """The decision to run a stage of a waiting run, with its inputs."""

    request_id: str
    user_id: str
    stage: str
    status: str
    ordinal: int
    revision: int
    queued: int
    requested_at: int


QUERY_SUBMITTED: Final = TopicName[QuerySubmitted]("queries.query-submitted")
RUN_CONTROLLED: Final = TopicName[RunControlled]("queries.run-controlled")
PROMPT_CHANGED: Final = TopicName[PromptChanged]("queries.prompt-changed")
PIPELINE_STAGE: Final = TopicName[PipelineStage]("queries.pipeline-stage")
STAGE_REQUESTED: Final = TopicName[StageRequested]("queries.stage-requested")
RUN_ARCHIVED: Final = TopicName[RunArchived]("queries.run-archived")
RUN_FAILED: Final = TopicName[RunFailed]("queries.run-failed")
