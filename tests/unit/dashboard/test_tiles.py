"""Figures lead to what they count: a list that has as many lines as the figure says."""

from __future__ import annotations

import re
from typing import Any

from highwater.api.dashboard.pages import jobs, queries, user
from highwater.api.dashboard.tiles import linked_tile
from highwater.streams.jobs.states import JobStatus
from highwater.streams.queries.states import Status


def job(status: JobStatus) -> dict[str, Any]:
    """A row of the list of jobs."""
    named = {"job_id": "j", "kind": "deck", "organization_id": "", "user_id": "", "status": status}
    return {
        **named,
        "cost_usd": 0,
        "progress_pct": 0,
        "steps_done": 0,
        "steps_total": 1,
        "created_at": 0,
        "completed_at": None,
    }


def run(status: Status) -> dict[str, Any]:
    """A row of the list of queries."""
    return {"request_id": "r", "user_id": "", "query": "q", "status": status, "created_at": 0, "completed_at": None}


def test_a_figure_of_the_jobs_leads_to_as_many_jobs() -> None:
    """Of every status, also of two that are counted together; an unknown group shows all."""
    rows = [job(status) for number, status in enumerate(JobStatus) for _ in range(number + 1)]
    figures = re.findall(r'href="([^"]+)"><b class="">([\d,]+)</b>', jobs._tiles(rows))
    assert len(figures) == 4
    assert dict(figures)["/jobs?status=failed"] == "10"  # 4 failed, 6 expired
    for address, count in figures:
        assert jobs._list(rows, address.rpartition("=")[2]).count("<tr><td>") == int(count) > 0
    assert jobs._list(rows, "none").count("<tr><td>") == len(rows)


def test_every_query_is_completed_failed_or_waiting() -> None:
    """The three lists have each query once."""
    rows = [run(status) for status in Status]
    counts = [queries._list(rows, group).count("<tr><td>") for group in ("completed", "failed", "waiting")]
    assert counts == [1, 1, len(rows) - 2]
    assert f"1 of the latest {len(rows)}: failed" in queries._list(rows, "failed")


def test_a_channel_leads_to_its_insights_for_who_may_read_topics() -> None:
    """For others it is text."""
    assert "/browse?topic=feeds.insight-ingested&amp;" in user._pending({"c&d": 2}, sees_all=True)
    assert "key=c%26d" in user._pending({"c&d": 2}, sees_all=True)
    assert "<a " not in user._pending({"c&d": 2}, sees_all=False)


def test_what_a_figure_says_is_no_markup() -> None:
    """Name, value and address are escaped."""
    assert "<i>" not in linked_tile("<i>", "<i>", '"><i>')
