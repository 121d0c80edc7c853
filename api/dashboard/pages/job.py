"""One job: its input, its deck or outline, every attempt on a timeline, its records, and its actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions, position_html
from highwater.api.dashboard.attempts import timeline_card
from highwater.api.dashboard.browsing import OLDEST, Browsing
from highwater.api.dashboard.decks import deck_html, outline_html
from highwater.api.dashboard.outline_form import OutlineForm
from highwater.api.dashboard.pages.jobs import STATUS_TONES, job_address, progress_html
from highwater.api.dashboard.tiles import loading, missing
from highwater.api.dashboard.view import View, chip, facts, link, note, page, place, segment, set_html, text
from highwater.api.jobs.routes import APPROVE_JOB, RESTART_JOB, REVOKE_JOB, SUBMIT_JOB
from highwater.schemas.topics import TOPICS
from highwater.streams.jobs.states import ENDED, JobStatus, Kind
from highwater.streams.wording import counted

_REFRESH_SECONDS = 2.0
_RESULT_CHARACTERS_MAX = 20_000
_CANCEL, _RESTART, _AGAIN, _APPROVE = "Cancel", "Restart from the last step", "Submit again", "Approve the outline"
_GO_ON = "Approve and make the slides"


def register() -> None:
    """Register the page."""
    page("/jobs/{job_id}", "Job")(_build)


async def _build(view: View) -> None:
    job = _Job(view, view.named("job_id"))
    job.build()
    view.live(_REFRESH_SECONDS, job.refresh)


class _Job:
    """The page in one browser."""

    def __init__(self, view: View, job_id: str) -> None:
        self._view = view
        self._id = job_id
        self._job: dict[str, Any] = {}
        self._timeline: dict[str, Any] = {}
        self._deck_of: str | None = None
        self._form = OutlineForm()

    def build(self) -> None:
        """Add the elements."""
        self._head = place(loading("the job"))
        self._actions = Actions(self._view)
        with self._actions.build():
            self._actions.offer(REVOKE_JOB, _CANCEL, "cancel", self._cancel)
            self._actions.offer(RESTART_JOB, _RESTART, "replay", self._restart)
            self._actions.offer(APPROVE_JOB, _GO_ON, "check_circle", self._go_on)
            self._actions.offer(SUBMIT_JOB, _APPROVE, "check_circle", self._approve)
            self._actions.offer(SUBMIT_JOB, _AGAIN, "restart_alt", self._submit_again)
        if not self._view.may(RESTART_JOB):
            note("Approving an outline or restarting a failed job requires the role editor.")
        self._form.build()
        self._made, self._went, self._input = place(), place(), place()

    async def refresh(self) -> None:
        """Read its state; its timeline and its deck only if something was added."""
        job = await self._view.find(f"/api/jobs/{segment(self._id)}")
        if job is None:
            set_html(self._head, missing("job", self._id, "/jobs"))
            self._actions.show()
            return
        if job != self._job or not self._timeline:
            self._timeline = await self._view.get(f"/api/jobs/{segment(self._id)}/timeline")
            self._job = job
        set_html(self._head, _head(self._view, job, self._timeline))
        set_html(self._went, timeline_card(self._timeline, "step", self._view.services.clock()))
        set_html(self._input, _input(self._view, self._timeline))
        self._actions.show(*self._offered(job))
        await self._show_made(job)

    async def _show_made(self, job: Mapping[str, Any]) -> None:
        result, waiting = job["result"], job["waiting_for"]
        self._form.show(waiting if self._view.may(APPROVE_JOB) else None)
        if waiting is not None:
            set_html(self._made, "" if self._view.may(APPROVE_JOB) else outline_html(waiting["outline"]))
        elif result is None:
            set_html(self._made, _unmade(job))
        elif "outline" in result:
            set_html(self._made, outline_html(result["outline"]))
        elif job["kind"] == Kind.GENERATION and self._deck_of != result["presentation_id"]:
            # Reading a deck here is not a view of it: those are counted by their own operation.
            deck = await self._view.get(f"/api/presentations/{segment(result['presentation_id'])}")
            set_html(self._made, deck_html(deck))
            self._deck_of = result["presentation_id"]
        elif job["kind"] != Kind.GENERATION:
            set_html(self._made, _result(job))

    def _offered(self, job: Mapping[str, Any]) -> list[str]:
        if job["waiting_for"] is not None:
            return [_GO_ON, _CANCEL]
        if job["status"] not in ENDED:
            return [_CANCEL]
        found = [_RESTART] if job["status"] == JobStatus.FAILED else []
        found += [_APPROVE] if "outline" in (job["result"] or {}) else []
        return [*found, _AGAIN]

    async def _cancel(self) -> None:
        await self._actions.run(
            consequences.revoke_job(self._job),
            "The job is being cancelled.",
            lambda: self._view.send("DELETE", f"/api/jobs/{segment(self._id)}"),
        )

    async def _restart(self) -> None:
        await self._actions.run(
            consequences.restart_job(self._job),
            "The job continues after its last stored step.",
            lambda: self._view.send("POST", f"/api/jobs/{segment(self._id)}/restart"),
        )

    async def _go_on(self) -> None:
        edited = self._form.edited()
        await self._actions.run(
            consequences.approve_waiting_outline(self._form.slides, is_edited=edited is not None),
            "The slides are being made.",
            lambda: self._view.send("POST", f"/api/jobs/{segment(self._id)}/approve", body={"outline": edited}),
        )

    async def _submit_again(self) -> None:
        await self._submit(consequences.submit_job_again(self._job), "Submitted again:", dict(self._timeline["args"]))

    async def _approve(self) -> None:
        outline, args = self._job["result"]["outline"], dict(self._timeline["args"])
        slides = len(outline["slides"])
        approved = {name: value for name, value in args.items() if name not in ("outline_only", "cache")}
        approved |= {"outline": outline, "slides": slides}
        asked = consequences.approve_outline(slides, self._job["organization_id"])
        await self._submit(asked, "The deck is being made from the outline:", approved)

    async def _submit(self, consequence: consequences.Consequence, done: str, args: dict[str, Any]) -> None:
        body = {name: self._job[name] for name in ("kind", "organization_id", "user_id")} | {"args": args}
        await self._actions.run(consequence, done, lambda: self._view.send("POST", "/api/jobs", body=body), _new_job)


def _new_job(answer: Mapping[str, Any]) -> str:
    return f'<a href="{job_address(answer["job_id"])}">open the new job</a>.'


def _head(view: View, job: Mapping[str, Any], timeline: Mapping[str, Any]) -> str:
    took = timeline["duration_ms"]
    told = {
        "status": chip(job["status"], STATUS_TONES.get(job["status"], "hw-warn")),
        "progress": progress_html(job),
        "organization": text(job["organization_id"]),
        "user": f'<a href="{text(link("/user", id=job["user_id"]))}">{text(job["user_id"])}</a>',
        "submitted": f"{figures.iso_text(job['created_at'])} UTC",
        "ended": f"{figures.iso_text(job['completed_at'])} UTC" if job["completed_at"] else figures.DASH,
        "took": figures.DASH if took is None else figures.seconds(took / 1000),
        "used": f'<a href="#timeline">{counted(job["tokens"], "token")}, {job["cost_usd"]:.4f} USD</a>',
        "submitted at": f'<span class="hw-mono">{position_html(view, job["position"])}</span>',
        "changed last by": f'<span class="hw-mono">{position_html(view, timeline["caused_by"])}</span>',
    }
    if job["waiting_for"]:
        told["waits for"] = f"approval of its outline, until {figures.iso_text(job['waiting_for']['until'])} UTC"
    if job["error"]:
        told["error"] = f'<span class="hw-bad">{text(job["error"])}</span>'
    if job["result_url"]:
        told["result at"] = f'<span class="hw-mono">{text(job["result_url"])}</span>'
    title = f'{text(job["kind"])} <span class="hw-mono hw-long">{text(job["job_id"])}</span>'
    return f'<div class="hw-card"><h2 class="hw">{title}</h2>{facts(told)}</div>'


def _unmade(job: Mapping[str, Any]) -> str:
    told = {
        JobStatus.PENDING: "No step has begun: the job waits for a worker.",
        JobStatus.RUNNING: "The result appears here when the job has ended.",
        JobStatus.FAILED: "The job failed. Restart it: it continues after its last stored step.",
        JobStatus.REVOKED: "The job was cancelled. Submit it again to run it.",
        JobStatus.EXPIRED: "No worker began the job in time. Submit it again to run it.",
    }
    words = told.get(JobStatus(job["status"]), "The job has no result.")
    return f'<div class="hw-card"><h2 class="hw">Result</h2><p class="hw-muted">{words}</p></div>'


def _result(job: Mapping[str, Any]) -> str:
    return f'<div class="hw-card"><h2 class="hw">Result</h2>{_json(job["result"])}</div>'


def _json(value: Any) -> str:
    pretty = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return f'<pre class="hw">{text(pretty[:_RESULT_CHARACTERS_MAX])}</pre>'


def _input(view: View, document: Mapping[str, Any]) -> str:
    records = ""
    if view.sees_all:
        topics = [topic.name for topic in TOPICS.values() if topic.key == "job_id"]
        links = ", ".join(
            f'<a href="{text(Browsing(topic=name, key=document["job_id"], order=OLDEST, search="1").address())}">{text(name)}</a>'
            for name in topics
        )
        records = f'<p class="hw-small">Every record of this job: {links}</p>'
    return f'<div class="hw-card"><h2 class="hw">Input</h2>{_json(document["args"])}{records}</div>'
