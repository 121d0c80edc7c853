"""Jobs: the latest ones with their progress; each has a page of its own (`job.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.restarts import Jobs, Restarts
from highwater.api.dashboard.tables import WorkList
from highwater.api.dashboard.tiles import linked_tile, loading
from highwater.api.dashboard.view import View, chip, link, note, page, segment, set_html, text
from highwater.api.jobs.routes_restarts import RESTART_JOBS
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.streams.jobs.states import JobStatus

_REFRESH_SECONDS = 2.0
_LISTED_MAX = 100
# The statuses that a tile counts and its link lists.
_GROUPS = {
    "running": (JobStatus.RUNNING,),
    "waiting": (JobStatus.PENDING,),
    "completed": (JobStatus.COMPLETED,),
    "failed": (JobStatus.FAILED, JobStatus.EXPIRED),
}
# The beginning of a job's id distinguishes the listed ones; the rest is one click away.
_ID_CHARACTERS = 8
STATUS_TONES = {
    JobStatus.COMPLETED: "hw-good",
    JobStatus.FAILED: "hw-bad",
    JobStatus.EXPIRED: "hw-bad",
    JobStatus.REVOKED: "hw-muted",
}


def job_address(job_id: str) -> str:
    """Return the address of a job's page."""
    return f"/jobs/{segment(job_id)}"


def register() -> None:
    """Register the page."""
    page("/jobs", "Jobs")(_build)


async def _build(view: View) -> None:
    chosen = view.asked("id")
    if chosen:  # the form of links of earlier versions
        ui.navigate.to(job_address(chosen))
        return
    group = view.asked("status")
    tiles = ui.html("", sanitize=False).classes("full-width")
    if view.may(RESTART_JOBS):
        Restarts(view, Jobs()).build()
    else:
        note("To restart failed jobs together needs the role admin.")
    listed = ui.html(loading("the jobs"), sanitize=False).classes("full-width")

    async def refresh() -> None:
        only = view.only_user
        rows = await dashboard_reads.jobs(view.services.database.require(), only, _LISTED_MAX)
        set_html(tiles, _tiles(rows))
        set_html(listed, JOBS.html(rows, group))

    view.live(_REFRESH_SECONDS, refresh)


def _tiles(rows: list[dict[str, Any]]) -> str:
    def of(group: str, label: str) -> str:
        counted = sum(row["status"] in _GROUPS[group] for row in rows)
        return linked_tile(figures.count(counted), label, link("/jobs", status=group))

    cost = float(sum(row["cost_usd"] for row in rows))
    return (
        '<div class="hw-tiles">'
        + of("running", "running")
        + of("waiting", "waiting")
        + of("completed", "completed")
        + of("failed", "failed or expired")
        + linked_tile(f"{cost:,.2f} USD", f"cost of the latest {len(rows)}", "/jobs")
        + "</div>"
    )


def status_html(row: Mapping[str, Any]) -> str:
    """Return the status of a job, in words for the person who has to act."""
    if row["status"] == JobStatus.RUNNING and row["approval_until_ms"] is not None:
        return chip("waits for approval", "hw-warn")
    return chip(row["status"], STATUS_TONES.get(row["status"], "hw-warn"))


def progress_html(row: Mapping[str, Any]) -> str:
    """Return the progress of a job as a bar with its numbers."""
    done = row["progress_pct"]
    return (
        f'<div style="display:flex;gap:.6rem;align-items:center"><div class="hw-bar" role="progressbar" aria-valuenow="{done}" '
        f'aria-valuemin="0" aria-valuemax="100" aria-label="progress"><i style="width:{done}%"></i></div>'
        f'<span class="hw-small">{done} % <span class="hw-muted">{row["steps_done"]}/{row["steps_total"]}</span></span></div>'
    )


def _line(row: Mapping[str, Any]) -> str:
    ended = row["completed_at"]
    took = figures.seconds((ended - row["created_at"]) / 1000) if ended is not None else figures.DASH
    return (
        f'<tr data-key="{text(row["job_id"])}"><td>{figures.moment(row["created_at"])}</td><td>{text(row["kind"])}</td>'
        f"<td>{status_html(row)}</td><td>{progress_html(row)}</td>"
        f"<td class=hw-number>{took}</td>"
        f"<td>{text(row['organization_id'])}</td>"
        f'<td><a href="{text(link("/user", id=row["user_id"]))}">{text(row["user_id"])}</a></td>'
        f'<td class="hw-mono"><a href="{job_address(row["job_id"])}" title="{text(row["job_id"])}">'
        f"{text(row['job_id'][:_ID_CHARACTERS])}</a></td></tr>"
    )


JOBS = WorkList(
    "/jobs",
    "The latest jobs",
    ("submitted (UTC)", "kind", "status", "progress", "took#", "organization", "user", "job"),
    _line,
    {name: frozenset(statuses).__contains__ for name, statuses in _GROUPS.items()},
    "No job yet: <code>POST /api/jobs</code> creates a deck.",
)
