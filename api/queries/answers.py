"""What the routes of queries answer with, for the OpenAPI document.

Invariant: no answer has other members. One that is not always there is `NotRequired`; one that may have no value is also `None`.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from highwater.api.core.answers import Time
from highwater.api.core.restarts import UserFailures

RunStatus: TypeAlias = Literal[
    "NEW", "ANALYZING", "ANALYZED", "ASSEMBLING", "READY", "RESPONDING", "COMPLETED", "FAILED"
]
RunArchiveStatus: TypeAlias = Literal["WAITING", "ARCHIVING", "STORED", "FAILED"]


class AnswerSource(TypedDict):
    """A source of an answer; for a chunk, `channel_id` is its namespace. `text` is null after its retraction."""

    insight_id: str
    channel_id: str
    ts: Time
    text: NotRequired[str | None]
    position: str
    similarity: float
    share: NotRequired[float]
    document: NotRequired[str]
    heading: NotRequired[str]


class QueryProcessing(TypedDict):
    """A query without an answer yet."""

    request_id: str
    status: Literal["processing"]
    state: RunStatus


class QueryCompleted(TypedDict):
    """A query with its answer."""

    request_id: str
    status: Literal["completed"]
    answer: str
    sources: NotRequired[list[AnswerSource]]
    archive_status: RunArchiveStatus | None


class QueryFailed(TypedDict):
    """A query that failed."""

    request_id: str
    status: Literal["failed"]
    error: str


class ModelCall(TypedDict):
    """A call of a language model; null if unknown."""

    attempt: int
    key: str
    model: str | None
    sends: int
    started_at: Time | None
    ended_at: Time | None
    duration_ms: int | None
    outcome: str | None
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None


class TimelineStage(TypedDict):
    """A started stage, with its calls of the language model."""

    stage: Literal["analyzer", "assembler", "responder", "archivist"]
    started_at: Time | None
    ended_at: Time | None
    duration_ms: int | None
    attempts: list[ModelCall]


class TimelineEvent(TypedDict):
    """An event of a query, with its place in the log."""

    status: RunStatus
    archive_status: RunArchiveStatus | None
    operation: str | None
    attempt: int | None
    at: Time
    position: str
    error: str | None


class TimelineTotals(TypedDict):
    """Totals over all calls; the cost is null if no call has a price."""

    calls: int
    sends: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


class QueryTimeline(TypedDict):
    """The timeline of a query."""

    request_id: str
    user_id: str
    status: RunStatus
    archive_status: RunArchiveStatus | None
    query: str
    error: str | None
    created_at: Time
    completed_at: Time | None
    duration_ms: int | None
    restarted_from: str | None
    position: str
    stages: list[TimelineStage]
    events: list[TimelineEvent]
    sources: list[AnswerSource]
    totals: TimelineTotals


class QueryLine(TypedDict):
    """A query in a list."""

    request_id: str
    query: str
    status: Literal["processing", "completed", "failed"]
    state: RunStatus
    archive_status: RunArchiveStatus | None
    error: str | None
    restarted_from: str | None
    created_at: Time
    completed_at: Time | None
    position: str


class QueriesOfUser(TypedDict):
    """A page of the queries of a user, the newest first."""

    user_id: str
    queries: list[QueryLine]
    next_cursor: str | None


class PipelineMetrics(TypedDict):
    """All queries of the span; null: never measured."""

    requests: int
    requests_per_minute: float
    completed: int
    failed: int
    cancelled: int
    failed_rate: float | None
    mean_ms: float | None
    p95_ms: float | None
    backlog: int


class StageMetrics(TypedDict):
    """A stage: `mean_ms` is its whole duration, `mean_llm_ms` that of its answered calls."""

    mean_ms: float | None
    mean_llm_ms: float | None
    retry_rate: float | None


class AnalyzerMetrics(StageMetrics):
    """The analyzer."""

    context_found_share: float | None


class AssemblerMetrics(StageMetrics):
    """The assembler."""

    mean_context_characters: float | None


class ArchivistMetrics(StageMetrics):
    """The archivist."""

    stored: int
    failed: int


class StagesMetrics(TypedDict):
    """Each stage."""

    analyzer: AnalyzerMetrics
    assembler: AssemblerMetrics
    responder: StageMetrics
    archivist: ArchivistMetrics


class StoreSize(TypedDict):
    """The size of a table."""

    rows_estimated: int
    bytes: int


class ModelTotals(TypedDict):
    """Calls of language models."""

    calls: int
    sends: int
    prompt_tokens: int
    completion_tokens: int
    rate_limit_hits: int
    timeouts: int
    cost_usd: float | None


class TotalsOfModel(ModelTotals):
    """Calls of one language model."""

    model: str | None


class AllModelTotals(ModelTotals):
    """Calls of all language models, and of each."""

    by_model: list[TotalsOfModel]


class QueryMetrics(TypedDict):
    """Metrics of the query pipeline over the last minutes; `database` by table."""

    minutes: int
    pipeline: PipelineMetrics
    modules: StagesMetrics
    database: dict[str, StoreSize]
    llm: AllModelTotals


class Prompt(TypedDict):
    """The prompt of a role; a member is null if nothing is stored for it or if the prompt is the built-in one."""

    role_name: str
    prompt_template: str | None
    is_active: bool
    position: str | None
    changed_at: Time | None


class PromptOfRole(Prompt):
    """The active prompt; `history` and `next_cursor` are present if requested."""

    history: NotRequired[list[Prompt]]
    next_cursor: NotRequired[str | None]


class Prompts(TypedDict):
    """The prompt of each role."""

    prompts: list[Prompt]


class QueryFailureReason(TypedDict):
    """What failed queries have in common, and how many of those that were found have it."""

    reason: str
    queries: int


class RefusedOrganization(TypedDict):
    """An organization that may not ask now, so that its queries are left out."""

    organization_id: str
    queries: int
    reason: str


class RestartedQuery(TypedDict):
    """A failed query that is restarted: `new_request_id` begins at `stage`."""

    request_id: str
    new_request_id: str
    organization_id: str | None
    user_id: str
    query: str
    error: str
    stage: Literal["analyzer", "assembler", "responder"]
    failed_at: Time


class QueryRestarts(TypedDict):
    """What a restart begins, or has begun. `found`: how many the filter finds; `queries`: up to 500, the last to fail first.

    `is_whole`: whether every failed query was checked; `users`: those with the most of them; `expected_tokens` and
    `expected_cost_usd` follow from the calls of the last week; null if unknown.
    """

    executed: bool
    found: int
    is_whole: bool
    refusals: list[RefusedOrganization]
    reasons: list[QueryFailureReason]
    users: list[UserFailures]
    stages_left: int
    expected_tokens: int | None
    expected_cost_usd: float | None
    queries: list[RestartedQuery]
    positions: list[str]
