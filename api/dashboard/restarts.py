"""Restarts failed work in bulk, jobs or queries, on their pages: filter, plan, confirmation, and ten seconds to stop
it.

Invariant: only work of the displayed plan is restarted; the API plans again and leaves out work that is no longer
failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions, confirm
from highwater.api.dashboard.consequences import Consequence
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked
from highwater.api.dashboard.undo import UndoWindow
from highwater.api.dashboard.view import View, heading, link, note, segment, set_html, text
from highwater.schemas.errors import HighwaterError
from highwater.streams.engines.restarts import LOOKED_AT_MAX
from highwater.streams.wording import agreed, counted

# Work of one request: between two the progress is shown, and a stop takes effect.
_BATCH = 50
# Listed work of a plan; the rest is counted.
_LISTED_MAX = 20
_ID_CHARACTERS = 8
# name of the parameter, label, placeholder
Field = tuple[str, str, str]
_REASON: Field = ("reason", "Error contains", "any")
_TIMES: Sequence[Field] = (("from", "Failed from", "2026-01-31T12:00Z"), ("to", "Failed before", "now"))


class Restartable(ABC):
    """What is restarted. `noun`: its name, in the plural; `ids`: the field of a request for its ids."""

    noun: str
    ids: str
    id: str
    fields: Sequence[Field]
    columns: tuple[str, ...]

    @abstractmethod
    def path(self, organization: str) -> str:
        """Return the path of the plan and of the restart.

        Raises:
            ValueError: an organization is required, as the message states.
        """

    def asked(self, organization: str) -> dict[str, str]:
        """Return the parameters of the organization beside its path."""
        del organization
        return {}

    @abstractmethod
    def consequence(self, plan: Mapping[str, Any], organization: str) -> Consequence:
        """Return the confirmation."""

    @abstractmethod
    def line(self, work: Mapping[str, Any]) -> str:
        """Return a row of the table of work to restart."""

    def refusals(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """Return why not everything, or nothing, can be restarted now."""
        return [f"Not possible now: {plan['refusal']}"] if plan["refusal"] else []

    def is_refused(self, plan: Mapping[str, Any]) -> bool:
        """Return whether nothing can be restarted now."""
        return plan["refusal"] is not None


class Jobs(Restartable):
    """Failed jobs of an organization."""

    noun, ids, id = "jobs", "job_ids", "job_id"
    fields = (_REASON, ("step", "Failed after steps", "any"), *_TIMES)
    columns = ("job", "kind", "user", "failed (UTC)", "steps#", "error")

    def path(self, organization: str) -> str:
        """Return the path of one organization."""
        if not organization:
            raise ValueError("Name the organization whose jobs are meant.")
        return f"/api/organizations/{segment(organization)}/jobs/restart"

    def consequence(self, plan: Mapping[str, Any], organization: str) -> Consequence:
        """Return the confirmation."""
        return consequences.restart_jobs(plan, organization)

    def line(self, work: Mapping[str, Any]) -> str:
        """Return the row of a job."""
        steps = f"{work['steps_done']}/{work['steps_total']}"
        return (
            f"<tr>{_link('/jobs/', work['job_id'])}<td>{text(work['kind'])}</td><td>{text(work['user_id'])}</td>"
            f'<td>{figures.iso_text(work["failed_at"])}</td>{numbers(steps)}<td class="hw-long">{text(work["error"])}</td></tr>'
        )


class Queries(Restartable):
    """Failed queries, of one organization or of all."""

    noun, ids, id = "queries", "request_ids", "request_id"
    fields = (_REASON, ("stage", "Failed in stage", "any"), ("user_id", "User", "any"), *_TIMES)
    columns = ("query", "question", "user", "failed (UTC)", "stage", "error")

    def path(self, organization: str) -> str:
        """Return the path of all organizations."""
        del organization
        return "/api/queries/restart"

    def asked(self, organization: str) -> dict[str, str]:
        """Return the organization, if one is named."""
        return {"organization_id": organization} if organization else {}

    def consequence(self, plan: Mapping[str, Any], organization: str) -> Consequence:
        """Return the confirmation."""
        return consequences.restart_queries(plan, organization)

    def line(self, work: Mapping[str, Any]) -> str:
        """Return the row of a query."""
        return (
            f'<tr>{_link("/queries/", work["request_id"])}<td class="hw-long">{text(consequences.shortened(work["query"]))}</td>'
            f'<td class="hw-mono">{text(work["user_id"])}</td><td>{figures.iso_text(work["failed_at"])}</td>'
            f'<td>{text(work["stage"])}</td><td class="hw-long">{text(work["error"])}</td></tr>'
        )

    def refusals(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """Return the organizations whose queries are left out."""
        return [
            f"{counted(one['queries'], 'query', 'queries')} of {one['organization_id']} "
            f"{agreed(one['queries'], 'is', 'are')} left out: {one['reason']}"
            for one in plan["refusals"]
        ]

    def is_refused(self, plan: Mapping[str, Any]) -> bool:
        """Return False: refused queries are not in the plan."""
        del plan
        return False


def _link(page: str, work_id: str) -> str:
    return f'<td class="hw-mono"><a href="{page}{segment(work_id)}">{text(work_id[:_ID_CHARACTERS])}</a></td>'


class Restarts:
    """The card in one browser."""

    def __init__(self, view: View, what: Restartable) -> None:
        self._view = view
        self._what = what
        self._plan: Mapping[str, Any] = {}
        self._organization = ""

    def build(self) -> None:
        """Add the elements."""
        noun = self._what.noun
        with ui.column().classes("hw-card"):
            heading(f"Restart failed {noun}")
            note(
                f"First shows which {noun} would be restarted, and why they failed. Nothing is changed before you confirm."
            )
            with ui.row().classes("hw-row"):
                self._of = ui.input("Organization", value=self._view.asked("organization")).props("dense outlined")
                self._fields = {
                    name: ui.input(label, value=self._view.asked(name), placeholder=placeholder).props(
                        "dense outlined clearable"
                    )
                    for name, label, placeholder in self._what.fields
                }
                ui.button("Show what would be restarted", on_click=self._show).props("no-caps outline")
            self._actions = Actions(self._view)
            with self._actions.build():
                self._actions.add("Restart them", "replay", self._restart)
            self._undo = UndoWindow()
            self._undo.build()
            self._listed = ui.html("", sanitize=False).classes("full-width")
        if any(self._view.asked(name) for name in self._fields):  # as figures of a plan lead here
            ui.timer(0, self._show, once=True)

    def _asked(self) -> dict[str, str]:
        given = {name: str(field.value or "").strip() for name, field in self._fields.items()}
        return {name: value for name, value in given.items() if value} | self._what.asked(self._organization)

    async def _show(self) -> None:
        """Request the plan for the values of the fields."""
        self._organization = str(self._of.value or "").strip()
        self._actions.show()
        set_html(self._listed, "")
        try:
            self._plan = await self._view.get(self._what.path(self._organization), **self._asked())
        except (HighwaterError, ValueError) as error:
            self._actions.tell(str(error), is_wrong=True)
            return
        self._actions.tell_html("")
        set_html(self._listed, plan_html(self._plan, self._what, self._organization))
        if self._plan[self._what.noun] and not self._what.is_refused(self._plan):
            self._actions.show("Restart them")

    async def _restart(self) -> None:
        """Confirm, and restart once the undo window has ended."""
        plan, organization, what = self._plan, self._organization, self._what
        if not await confirm(what.consequence(plan, organization)):
            return
        self._actions.show()
        ids = [work[what.id] for work in plan[what.noun]]
        outcome: Counter[str] = Counter()
        of = f" of {organization}" if organization else ""
        line = f"{_counted(len(ids), what.noun)}{of} will be restarted"
        path = what.path(organization)
        self._undo.open(line, len(ids), lambda: self._send(path, ids, outcome), lambda: restarted_text(outcome))

    async def _send(self, path: str, ids: Sequence[str], outcome: Counter[str]) -> AsyncIterator[int]:
        """Restart the listed work, in batches; yield how much was handled."""
        for begin in range(0, len(ids), _BATCH):
            some = list(ids[begin : begin + _BATCH])
            answer = (await self._view.send("POST", path, body={self._what.ids: some})).json()
            outcome["restarted"] += len(answer[self._what.noun])
            outcome["left out"] += len(some) - len(answer[self._what.noun])
            yield begin + len(some)


def restarted_text(outcome: Mapping[str, int]) -> str:
    """Return the outcome."""
    left = outcome.get("left out", 0)
    return f"restarted: {outcome.get('restarted', 0):,}" + (f"; no longer failed: {left:,}" if left else "")


def plan_html(plan: Mapping[str, Any], what: Restartable, organization: str = "") -> str:
    """What a plan would restart; a reason leads to the plan of it alone."""
    noun, work = what.noun, plan[what.noun]
    refusal = "".join(f'<p class="hw-bad" role="alert">{text(one)}</p>' for one in what.refusals(plan))
    if not work:
        none = f"The filter finds no failed {_SINGULAR[noun]}, so nothing would be restarted."
        return f'{refusal}<p class="hw-muted">{none}</p>'

    def narrower(name: str, value: str) -> str:
        named = {"organization": organization} if organization else {}
        return link(f"/{noun}", **named, **{name: value})

    def of_user(user: str) -> str:
        may_name = any(name == "user_id" for name, *_ in what.fields)
        return narrower("user_id", user) if may_name else link("/user", id=user)

    most = f", of which the last {len(work):,} to fail are restarted at once" if plan["found"] > len(work) else ""
    partly = (
        "" if plan["is_whole"] else f" Only the latest {LOOKED_AT_MAX:,} failed {noun} were checked; narrow the time."
    )
    reasons = "".join(
        f"<tr><td>{text(one['reason'])}</td>{numbers(linked(figures.count(one[noun]), narrower('reason', one['reason'])))}</tr>"
        for one in plan["reasons"]
    )
    users = "".join(
        f"<tr><td>{text(one['user_id'])}</td>{numbers(linked(figures.count(one['count']), of_user(one['user_id'])))}</tr>"
        for one in plan["users"]
    )
    lines = "".join(map(what.line, work[:_LISTED_MAX]))
    rest = len(work) - _LISTED_MAX
    more = f'<p class="hw-muted hw-small">and {rest:,} more</p>' if rest > 0 else ""
    return (
        f"<p>{_counted(plan['found'], noun)}{most}.{partly}</p>{refusal}"
        f"{table_html(('reason', f'{noun}#'), reasons, 'Reasons')}{table_html(('user', f'{noun}#'), users, 'Users')}"
        f"{table_html(what.columns, lines, f'{noun.capitalize()} to restart')}{more}"
    )


_SINGULAR = {"jobs": "job", "queries": "query"}


def _counted(number: int, noun: str) -> str:
    return counted(number, f"failed {_SINGULAR[noun]}", f"failed {noun}")
