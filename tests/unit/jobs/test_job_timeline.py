"""The timeline of a job: its steps in the order in which they began, each with its calls."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from highwater.api.jobs.timeline import job_timeline
from highwater.connectors.jobs.read_model import JobRead

JOB = JobRead(
    "7d8c0f0a-0000-4000-8000-000000000001", "generation", "acme", "ann", '{"query":"why?"}', "completed", 5, 7, 100, 2, 2, None,
    30, Decimal("0.5"), 50, None, "jobs.job-submitted/0/1", "jobs.job-control/0/2", None, 1_000, 9_000, 8_000,
)  # fmt: skip


def call(stage: str, attempt: int, begin: int, end: int | None, outcome: str | None = "answered") -> dict[str, Any]:
    """A call of the language model."""
    return {
        "stage": stage, "attempt": attempt, "model": "local", "sends": 1, "outcome": outcome, "error": None, "prompt_tokens": 10,
        "completion_tokens": 5, "cost_usd": Decimal("0.25"), "started_ms": begin, "ended_ms": end,
    }  # fmt: skip


def test_steps_hold_their_calls():
    """A step begins with its first call and ends with its last; the price is a number."""
    calls = [
        call("outline", 1, 1_000, 2_000),
        call("slide-1", 1, 2_000, 3_000, "timeout"),
        call("slide-1", 2, 4_000, 5_500),
    ]
    found = job_timeline(JOB, calls)
    assert [one["step"] for one in found["steps"]] == ["outline", "slide-1"]
    slide = found["steps"][1]
    assert (slide["started_at"], slide["ended_at"], slide["duration_ms"]) == (
        "1970-01-01T00:00:02Z",
        "1970-01-01T00:00:05.500Z",
        3_500,
    )
    assert [one["outcome"] for one in slide["attempts"]] == ["timeout", "answered"]
    assert slide["attempts"][1]["cost_usd"] == 0.25
    assert slide["attempts"][1]["key"] == f"{JOB.job_id}/slide-1/2"
    assert found["args"] == {"query": "why?"}
    assert found["duration_ms"] == 7_000


def test_a_step_in_progress_has_no_end():
    """Its last call has no outcome yet."""
    running = replace(JOB, completed_ms=None, status="running")
    found = job_timeline(running, [call("outline", 1, 1_000, 2_000), call("outline", 2, 2_000, None, None)])
    assert found["steps"][0]["ended_at"] is None
    assert found["duration_ms"] is None
