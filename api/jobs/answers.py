"""The responses of the routes of jobs and decks, for the OpenAPI document.

Invariant: no response has other members. An optional member is `NotRequired`; a nullable one is also `None`.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from highwater.api.core.answers import Time
from highwater.api.core.restarts import UserFailures
from highwater.streams.jobs.states import JobStatus


class GeneratedDeck(TypedDict):
    """The result of a generation."""

    presentation_id: str
    title: str
    slides: int
    is_cached: bool


class IngestedDocuments(TypedDict):
    """The result of an ingestion; its chunks are in a slot of a namespace. `left_out`: numbers of parts of the documents
    that are in no chunk, by reason.
    """

    ns: str
    slot: str
    ingest_id: str
    documents: int
    chunks: int
    left_out: NotRequired[dict[str, int]]


class PartLeftOut(TypedDict):
    """A part of a document that is in no chunk, its first 1,000 letters, and why (`streams/documents/chunking.py`)."""

    reason: str
    text: str


class PartsLeftOut(TypedDict):
    """What ingestion leaves out of a document: the numbers of parts by reason, and the first parts in order."""

    sha256: str
    left_out: dict[str, int]
    parts: list[PartLeftOut]


class ExportedFile(TypedDict):
    """The result of an export to a file; `symbols_left_out`: number of symbols that no font contains."""

    sha256: str
    media_type: str
    size_bytes: int
    presentation_id: str
    format: str
    file_name: NotRequired[str]
    symbols_left_out: NotRequired[int]


class ExportedToGoogle(TypedDict):
    """The result of an export to Google Slides."""

    file_id: str
    url: str
    presentation_id: str
    format: str


class PlannedSlide(TypedDict):
    """A slide of an outline."""

    title: str
    points: list[str]


class Outline(TypedDict):
    """The outline of a deck."""

    title: str
    slides: list[PlannedSlide]


class OutlineResult(TypedDict):
    """The result of a generation with `outline_only`."""

    outline: Outline


class ApprovalWait(TypedDict):
    """The job waits for the approval of its outline, which lists of jobs leave out; at `until` it fails."""

    event: Literal["approval"]
    until: Time
    outline: NotRequired[Outline]


class Job(TypedDict):
    """The state of a job. Null: unknown yet; `expires_at` is a number if the given time is not a date.

    `waiting_for`: what a running job waits for, or null.
    """

    job_id: str
    kind: Literal["generation", "ingestion", "export"]
    organization_id: str
    user_id: str
    status: JobStatus
    waiting_for: ApprovalWait | None
    progress_pct: int
    steps_done: int
    steps_total: int | None
    result: GeneratedDeck | OutlineResult | IngestedDocuments | ExportedFile | ExportedToGoogle | None
    result_url: str | None
    error: str | None
    tokens: int
    cost_usd: float
    cost_cents: int | None
    created_at: Time
    updated_at: Time
    completed_at: Time | None
    expires_at: Time | int | None
    last_event_id: str
    position: str


class JobsOfOrganization(TypedDict):
    """A page of the jobs of an organization, the newest first."""

    organization_id: str
    jobs: list[Job]
    next_cursor: str | None


class BulletSource(TypedDict):
    """The source of a bullet: a document, the headings above the passage, and the number of the passage, from 0."""

    document: str
    name: str | None
    heading: str
    place: int


class SlideTable(TypedDict):
    """A table of a slide; `rows_total`: rows of the whole table, if these are only the first."""

    header: list[str]
    rows: list[list[str]]
    rows_total: NotRequired[int]


class DeckSlide(TypedDict):
    """A slide; `sources` runs parallel to `bullets`."""

    slide_id: str
    number: int
    title: str
    bullets: list[str]
    notes: str
    sources: NotRequired[list[BulletSource | None]]
    table: NotRequired[SlideTable | None]


class Presentation(TypedDict):
    """A deck, and how often it was viewed."""

    presentation_id: str
    organization_id: str
    user_id: str
    title: str
    slides: list[DeckSlide]
    view_count: int
    created_at: Time
    position: str


class PresentationLink(TypedDict):
    """A public link, without its token."""

    link_id: str
    created_at: Time


class NewPresentationLink(PresentationLink):
    """A new public link: its token, and the address of its page on this host."""

    token: str
    url: str


class PresentationLinks(TypedDict):
    """The public links of a deck that work, the oldest first."""

    presentation_id: str
    links: list[PresentationLink]


class SharedSlide(TypedDict):
    """A slide as the reader of a public link sees it."""

    number: int
    title: str
    bullets: list[str]
    table: NotRequired[SlideTable]


class SharedPresentation(TypedDict):
    """A deck as the reader of a public link sees it."""

    title: str
    slides: list[SharedSlide]


class ProcessSockets(TypedDict):
    """The open sockets of a process; `server_id` begins with the name of its host."""

    server_id: str
    sockets: int


class UserSockets(TypedDict):
    """The open sockets of a user."""

    user_id: str
    sockets: int


class OpenSockets(TypedDict):
    """The open sockets on jobs; `users`: the 100 with the most, of `users_total`."""

    sockets: int
    processes: list[ProcessSockets]
    users_total: int
    users: list[UserSockets]


class UsageOfMonth(TypedDict):
    """The usage of an organization in a month; `upto_seq` and `upto`: the last job that is counted.

    `built_in_tokens`: those of `tokens` that the built-in model read and wrote, and that no plan limits; not from Redis.
    """

    organization_id: str
    period: str
    presentations: int
    slides: int
    tokens: int
    built_in_tokens: NotRequired[int]
    cost_cents: int
    source: Literal["postgresql", "redis"]
    upto_seq: int
    upto: Time | None


class FailureReason(TypedDict):
    """What failed jobs have in common, and how many of those that were found have it."""

    reason: str
    jobs: int


class RestartedJob(TypedDict):
    """A failed job that is restarted: it continues after `steps_done` steps."""

    job_id: str
    kind: Literal["generation", "ingestion", "export"]
    user_id: str
    error: str
    steps_done: int
    steps_total: int
    failed_at: Time


class JobRestarts(TypedDict):
    """What a restart begins, or has begun. `found`: how many the filter finds; `jobs`: up to 500, the last to fail
    first.

    `is_whole`: whether every failed job was checked; `refusal`: why the organization may not run them, if so; `users`:
    those with the most of them.
    """

    executed: bool
    found: int
    is_whole: bool
    refusal: str | None
    reasons: list[FailureReason]
    users: list[UserFailures]
    steps_left: int
    jobs: list[RestartedJob]
    positions: list[str]
