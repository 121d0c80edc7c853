"""Jobs: the latest ones with their progress, and how one stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.pages.user import table_html
from highwater.api.dashboard.view import View, chip, facts, link, note, page, segment, set_html, text, tile
from highwater.api.jobs.routes import RESTART_JOB
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.schemas.errors import HighwaterError
from highwater.streams.jobs.states import JobStatus

_REFRESH_SECONDS = 2.0
_LISTED_MAX = 100
# The beginning of a job's id tells the listed ones apart; the whole is one click away.
_ID_CHARACTERS = 8
_TONES = {
    JobStatus.COMPLETED: "hw-good",
    JobStatus.FAILED: "hw-bad",
    JobStatus.EXPIRED: "hw-bad",
    JobStatus.REVOKED: "hw-muted",
}


def register() -> None:
    """Make the page known."""
    page("/jobs", "Jobs")(_build)


async def _build(view: View) -> None:
    chosen = view.asked("id")
    if chosen:
        with ui.column().classes("hw-card"):
            detail = ui.html("", sanitize=False).classes("full-width")
            again = _Restart(view, chosen)
            again.build()
    tiles = ui.html("", sanitize=False).classes("full-width")
    listed = ui.html("", sanitize=False).classes("full-width")

    async def refresh() -> None:
        if chosen:
            job = await view.get(f"/api/jobs/{segment(chosen)}")
            set_html(detail, _detail(job))
            again.show(job)
        only = view.only_user
        rows = await dashboard_reads.jobs(view.services.database.require(), only, _LISTED_MAX)
        set_html(tiles, _tiles(rows))
        set_html(listed, _list(rows))

    view.live(_REFRESH_SECONDS, refresh)


class _Restart:
    """The button that has a failed job go on; a visitor who may not is told what it takes instead."""

    def __init__(self, view: View, job_id: str) -> None:
        self._view = view
        self._job_id = job_id

    def build(self) -> None:
        """Put the button in its place, or the note; either is shown while the job has failed."""
        self._place = ui.element("div")
        self._place.set_visibility(False)
        with self._place:
            if self._view.may(RESTART_JOB):
                ui.button("Restart from the last step", icon="replay", on_click=self._restart).props("no-caps")
            else:
                note("To restart a failed job needs the role editor.")

    def show(self, job: Mapping[str, Any]) -> None:
        """Show it if the job has failed."""
        self._place.set_visibility(job["status"] == JobStatus.FAILED)

    async def _restart(self) -> None:
        try:
            await self._view.send("POST", f"/api/jobs/{segment(self._job_id)}/restart")
        except HighwaterError as error:
            ui.notify(str(error), type="negative", timeout=0, close_button="Close")
        else:
            self._place.set_visibility(False)
            ui.notify("The job goes on.", type="positive")


def _tiles(rows: list[dict[str, Any]]) -> str:
    def of(*statuses: JobStatus) -> str:
        return figures.count(sum(row["status"] in statuses for row in rows))

    cost = float(sum(row["cost_usd"] for row in rows))
    return (
        '<div class="hw-tiles">'
        + tile(of(JobStatus.RUNNING), "running")
        + tile(of(JobStatus.PENDING), "waiting")
        + tile(of(JobStatus.COMPLETED), "completed")
        + tile(of(JobStatus.FAILED, JobStatus.EXPIRED), "failed or expired")
        + tile(f"{cost:,.2f} USD", f"cost of the latest {len(rows)}")
        + "</div>"
    )


def _list(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return '<div class="hw-card hw-muted">No job yet: <code>POST /api/jobs</code> has a deck made.</div>'
    return table_html(
        ("submitted (UTC)", "kind", "status", "progress", "took#", "organization", "user", "job"),
        "".join(map(_line, rows)),
    )


def _bar(row: Mapping[str, Any]) -> str:
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
        f"<tr><td>{figures.moment(row['created_at'])}</td><td>{text(row['kind'])}</td>"
        f"<td>{chip(row['status'], _TONES.get(row['status'], 'hw-warn'))}</td><td>{_bar(row)}</td><td class=hw-number>{took}</td>"
        f"<td>{text(row['organization_id'])}</td><td>{text(row['user_id'])}</td>"
        f'<td class="hw-mono"><a href="{link("/jobs", id=row["job_id"])}" title="{text(row["job_id"])}">'
        f"{text(row['job_id'][:_ID_CHARACTERS])}</a></td></tr>"
    )


def _detail(job: Mapping[str, Any]) -> str:
    result = job["result"]
    url = job["result_url"]
    told = {
        "status": chip(job["status"], _TONES.get(job["status"], "hw-warn")),
        "progress": _bar(job),
        "for": f"{text(job['organization_id'])}, {text(job['user_id'])}",
        "submitted": f"{figures.iso_text(job['created_at'])} UTC",
        "ended": f"{figures.iso_text(job['completed_at'])} UTC" if job["completed_at"] else figures.DASH,
        "position": f'<span class="hw-mono">{text(job["position"])}</span>',
        "cost": f"{job['cost_usd']:.4f} USD for {job['tokens']:,} tokens",
    }
    if job["error"]:
        told["error"] = f'<span class="hw-bad">{text(job["error"])}</span>'
    if url:
        told["result at"] = f'<span class="hw-mono">{text(url)}</span>'
    whole = ""
    if result is not None:
        pretty = orjson.dumps(result, option=orjson.OPT_INDENT_2).decode()
        whole = f'<details><summary>result</summary><pre class="hw">{text(pretty[:20_000])}</pre></details>'
    return f'<h2 class="hw">{text(job["kind"])} <span class="hw-mono">{text(job["job_id"])}</span></h2>{facts(told)}{whole}'
