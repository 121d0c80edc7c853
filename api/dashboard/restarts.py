"""Restarting failed jobs of an organization together on the page of jobs: filter, plan, confirmation, and ten seconds to stop it.

Invariant: what is restarted is what the plan listed; the API plans again and leaves out what is no longer failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions, confirm
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.undo import UndoWindow
from highwater.api.dashboard.view import View, heading, note, segment, set_html, text
from highwater.schemas.errors import HighwaterError
from highwater.streams.jobs.restarts import LOOKED_AT_MAX

# Jobs of one request: between two the progress is shown, and a stop is obeyed.
_BATCH = 50
# Jobs of a plan that are listed; the others are counted.
_LISTED_MAX = 20
_ID_CHARACTERS = 8
# name of the parameter, label, what stands in an empty field
_FIELDS = (
    ("reason", "Error contains", "any"),
    ("step", "Failed after steps", "any"),
    ("from", "Failed from", "2026-01-31T12:00Z"),
    ("to", "Failed before", "now"),
)


class Restarts:
    """The card in one browser."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._plan: Mapping[str, Any] = {}
        self._organization = ""

    def build(self) -> None:
        """Put the elements in their places."""
        with ui.column().classes("hw-card"):
            heading("Restart failed jobs")
            note(
                "First shows which jobs would be restarted, and why they failed. Nothing is changed before you confirm."
            )
            with ui.row().classes("hw-row"):
                self._of = ui.input("Organization", value=self._view.asked("organization")).props("dense outlined")
                self._fields = {
                    name: ui.input(label, placeholder=placeholder).props("dense outlined clearable")
                    for name, label, placeholder in _FIELDS
                }
                ui.button("Show what would be restarted", on_click=self._show).props("no-caps outline")
            self._actions = Actions(self._view)
            with self._actions.build():
                self._actions.add("Restart them", "replay", self._restart)
            self._undo = UndoWindow()
            self._undo.build()
            self._listed = ui.html("", sanitize=False).classes("full-width")

    def _asked(self) -> dict[str, str]:
        given = {name: str(field.value or "").strip() for name, field in self._fields.items()}
        return {name: value for name, value in given.items() if value}

    async def _show(self) -> None:
        """Ask for the plan of what the fields say."""
        self._organization = str(self._of.value or "").strip()
        self._actions.show()
        set_html(self._listed, "")
        if not self._organization:
            self._actions.tell("Name the organization whose jobs are meant.", is_wrong=True)
            return
        try:
            self._plan = await self._view.get(self._path, **self._asked())
        except HighwaterError as error:
            self._actions.tell(str(error), is_wrong=True)
            return
        self._actions.tell_html("")
        set_html(self._listed, plan_html(self._plan))
        if self._plan["jobs"] and self._plan["refusal"] is None:
            self._actions.show("Restart them")

    @property
    def _path(self) -> str:
        return f"/api/organizations/{segment(self._organization)}/jobs/restart"

    async def _restart(self) -> None:
        """Confirm, and restart once the undo window has ended."""
        plan, organization, path = self._plan, self._organization, self._path
        if not await confirm(consequences.restart_jobs(plan, organization)):
            return
        self._actions.show()
        ids = [job["job_id"] for job in plan["jobs"]]
        outcome: Counter[str] = Counter()
        what = f"{len(ids):,} failed jobs of {organization} will be restarted"
        self._undo.open(what, len(ids), lambda: self._send(path, ids, outcome), lambda: restarted_text(outcome))

    async def _send(self, path: str, ids: Sequence[str], outcome: Counter[str]) -> AsyncIterator[int]:
        """Restart the jobs that were listed, in batches; yields how many were handled."""
        for begin in range(0, len(ids), _BATCH):
            some = list(ids[begin : begin + _BATCH])
            answer = (await self._view.send("POST", path, body={"job_ids": some})).json()
            outcome["restarted"] += len(answer["jobs"])
            outcome["left out"] += len(some) - len(answer["jobs"])
            yield begin + len(some)


def restarted_text(outcome: Mapping[str, int]) -> str:
    """What became of the jobs."""
    left = outcome.get("left out", 0)
    return f"restarted: {outcome.get('restarted', 0):,}" + (f"; no longer failed: {left:,}" if left else "")


def plan_html(plan: Mapping[str, Any]) -> str:
    """What a plan would restart."""
    jobs = plan["jobs"]
    if not jobs:
        return '<p class="hw-muted">The filter finds no failed job, so nothing would be restarted.</p>'
    most = f", of which the last {len(jobs):,} to fail are restarted at once" if plan["found"] > len(jobs) else ""
    partly = (
        "" if plan["is_whole"] else f" Only the latest {LOOKED_AT_MAX:,} failed jobs were checked; narrow the time."
    )
    refusal = f'<p class="hw-bad" role="alert">Not possible now: {text(plan["refusal"])}</p>' if plan["refusal"] else ""
    reasons = "".join(
        f"<tr><td>{text(one['reason'])}</td>{numbers(figures.count(one['jobs']))}</tr>" for one in plan["reasons"]
    )
    lines = "".join(map(_line, jobs[:_LISTED_MAX]))
    rest = len(jobs) - _LISTED_MAX
    more = f'<p class="hw-muted hw-small">and {rest:,} more</p>' if rest > 0 else ""
    columns = ("job", "kind", "user", "failed (UTC)", "steps#", "error")
    return (
        f"<p>{plan['found']:,} failed jobs{most}.{partly}</p>{refusal}"
        f"{table_html(('reason', 'jobs#'), reasons, 'Reasons')}{table_html(columns, lines, 'Jobs to restart')}{more}"
    )


def _line(job: Mapping[str, Any]) -> str:
    steps = f"{job['steps_done']}/{job['steps_total']}"
    return (
        f'<tr><td class="hw-mono"><a href="/jobs/{segment(job["job_id"])}">{text(job["job_id"][:_ID_CHARACTERS])}</a></td>'
        f"<td>{text(job['kind'])}</td><td>{text(job['user_id'])}</td><td>{figures.iso_text(job['failed_at'])}</td>"
        f'{numbers(steps)}<td class="hw-long">{text(job["error"])}</td></tr>'
    )
