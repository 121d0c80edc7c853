"""The timeline of a job as it is served: its input, and its steps with their calls of the language model.

Invariant: a pure function of the stored rows, so the same rows give the same bytes. A step appears once it called the
language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
from typing_extensions import TypedDict

from highwater.api.core.model_calls import call_document, duration_ms
from highwater.connectors.jobs.read_model import JobRead
from highwater.schemas.envelope import iso_from_ms, iso_from_ms_or_none


class JobCall(TypedDict):
    """A call of a language model; null if unknown."""

    attempt: int
    key: str
    model: str | None
    sends: int
    started_at: str
    ended_at: str | None
    duration_ms: int | None
    outcome: str | None
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None


class JobStep(TypedDict):
    """A step that called the language model, such as `outline` or `slide-3`; `ended_at` null: it is still running."""

    step: str
    started_at: str
    ended_at: str | None
    duration_ms: int | None
    attempts: list[JobCall]


class JobTimeline(TypedDict):
    """The timeline of a job; `args` is its input, `caused_by` the position of the event that changed it last."""

    job_id: str
    kind: str
    organization_id: str
    user_id: str
    args: dict[str, Any]
    status: str
    created_at: str
    completed_at: str | None
    duration_ms: int | None
    position: str
    caused_by: str
    steps: list[JobStep]


def job_timeline(job: JobRead, calls: Sequence[Mapping[str, Any]]) -> JobTimeline:
    """Return the document; `calls` in the order in which they began."""
    by_step: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        by_step.setdefault(call["stage"], []).append(call)
    return {
        "job_id": job.job_id,
        "kind": job.kind,
        "organization_id": job.organization_id,
        "user_id": job.user_id,
        "args": orjson.loads(job.args),
        "status": job.status,
        "created_at": iso_from_ms(job.created_ms),
        "completed_at": iso_from_ms_or_none(job.completed_ms),
        "duration_ms": duration_ms(job.created_ms, job.completed_ms),
        "position": job.position,
        "caused_by": job.caused_by,
        "steps": [_step(job.job_id, step, of_step) for step, of_step in by_step.items()],
    }


def _step(job_id: str, step: str, calls: Sequence[Mapping[str, Any]]) -> JobStep:
    started_ms = min(call["started_ms"] for call in calls)
    ends = [call["ended_ms"] for call in calls]
    ended_ms = None if None in ends else max(ends)
    return {
        "step": step,
        "started_at": iso_from_ms(started_ms),
        "ended_at": iso_from_ms_or_none(ended_ms),
        "duration_ms": duration_ms(started_ms, ended_ms),
        "attempts": [cast("JobCall", call_document(job_id, call)) for call in calls],
    }
