"""One query: its question, its answer with sources, every attempt on a timeline, its statuses in the log, and actions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from highwater.api.dashboard import consequences, figures
from highwater.api.dashboard.actions import Actions, position_html
from highwater.api.dashboard.addresses import insight_address
from highwater.api.dashboard.attempts import timeline_card
from highwater.api.dashboard.pages.queries import STATUS_TONES, query_address
from highwater.api.dashboard.tables import table_html
from highwater.api.dashboard.tiles import loading, missing
from highwater.api.dashboard.view import View, chip, facts, link, note, page, place, segment, set_html, text
from highwater.api.queries.routes import ASK, CANCEL_RUN, RESTART_RUN
from highwater.schemas.envelope import ms_from_iso
from highwater.streams.queries.states import Stage, Status
from highwater.streams.wording import counted

_REFRESH_SECONDS = 2.0
# An ended query changes only by a retraction, which may appear late.
_ENDED_TURNS = 15
_CANCEL, _AGAIN = "Cancel", "Ask again"
_STAGES = (Stage.ANALYZER, Stage.ASSEMBLER, Stage.RESPONDER)
_TEXT_CHARACTERS = 300


def register() -> None:
    """Register the page."""
    page("/queries/{request_id}", "Query")(_build)


async def _build(view: View) -> None:
    query = _Query(view, view.named("request_id"))
    query.build()
    view.live(_REFRESH_SECONDS, query.refresh)


class _Query:
    """The page in one browser."""

    def __init__(self, view: View, request_id: str) -> None:
        self._view = view
        self._id = request_id
        self._timeline: dict[str, Any] = {}
        self._turns_left = 0

    def build(self) -> None:
        """Add the elements."""
        self._head = place(loading("the query"))
        self._actions = Actions(self._view)
        with self._actions.build():
            self._actions.offer(CANCEL_RUN, _CANCEL, "cancel", self._cancel)
            self._actions.offer(ASK, _AGAIN, "replay", self._ask_again)
            for stage in _STAGES:
                self._actions.offer(RESTART_RUN, _restart_name(stage), "restart_alt", partial(self._restart, stage))
        if not self._view.may(RESTART_RUN):
            note("Asking again requires the role editor; restarting from a stage requires the role admin.")
        self._answer, self._went, self._events = place(), place(), place()

    async def refresh(self) -> None:
        """Read its state; rarely once it has ended."""
        if self._turns_left > 0:
            self._turns_left -= 1
            return
        timeline = await self._view.find(f"/api/query/{segment(self._id)}/timeline")
        status = timeline and await self._view.find(f"/api/query/{segment(self._id)}/status")
        if timeline is None or status is None:
            set_html(self._head, missing("query", self._id, "/queries"))
            self._actions.show()
            self._turns_left = _ENDED_TURNS
            return
        self._timeline = timeline
        has_ended = timeline["status"] in (Status.COMPLETED, Status.FAILED)
        is_archived = timeline["status"] == Status.FAILED or timeline["archive_status"] in ("STORED", "FAILED")
        self._turns_left = _ENDED_TURNS if has_ended and is_archived else 0
        set_html(self._head, _head(self._view, timeline))
        set_html(self._answer, _answer(self._view, status))
        set_html(self._went, timeline_card(timeline, "stage", self._view.services.clock()))
        set_html(self._events, _events(self._view, timeline))
        stages = map(_restart_name, consequences.restartable_stages(timeline))
        self._actions.show(*([_AGAIN, *stages] if has_ended else [_CANCEL]))

    async def _cancel(self) -> None:
        await self._actions.run(
            consequences.cancel_query(self._timeline),
            "The query is being cancelled.",
            lambda: self._view.send("POST", f"/api/query/{segment(self._id)}/cancel"),
        )

    async def _ask_again(self) -> None:
        asked = {"query": self._timeline["query"], "user_id": self._timeline["user_id"]}
        await self._actions.run(
            consequences.ask_again(self._timeline),
            "The question was asked again:",
            lambda: self._view.send("POST", "/api/query", body=asked),
            _new_query,
        )

    async def _restart(self, stage: Stage) -> None:
        await self._actions.run(
            consequences.restart_query(self._timeline, stage),
            f"Restarted from the {stage.value}:",
            lambda: self._view.send("POST", f"/api/query/{segment(self._id)}/restart", body={"stage": stage.value}),
            _new_query,
        )


def _restart_name(stage: Stage) -> str:
    return f"Restart from {stage.value}"


def _new_query(answer: Mapping[str, Any]) -> str:
    return f'<a href="{query_address(answer["request_id"])}">open the new query</a>.'


def _head(view: View, document: Mapping[str, Any]) -> str:
    totals, took = document["totals"], document["duration_ms"]
    cost = "" if totals["cost_usd"] is None else f", {totals['cost_usd']:.4f} USD"
    told = {
        "status": chip(document["status"].lower(), STATUS_TONES.get(document["status"], "hw-warn")),
        "user": f'<a class="hw-mono" href="{text(link("/user", id=document["user_id"]))}">{text(document["user_id"])}</a>',
        "asked": f"{figures.iso_text(document['created_at'])} UTC",
        "took": figures.DASH if took is None else figures.seconds(took / 1000),
        "used": f'<a href="#timeline">{counted(totals["calls"], "call")} of the language model, {totals["prompt_tokens"]:,} + '
        f"{totals['completion_tokens']:,} tokens{cost}</a>",
        "position": f'<span class="hw-mono">{position_html(view, document["position"])}</span>',
    }
    if document["restarted_from"]:
        former = document["restarted_from"]
        told["restarted from"] = f'<a class="hw-mono" href="{query_address(former)}">{text(former)}</a>'
    if document["error"]:
        told["error"] = f'<span class="hw-bad">{text(document["error"])}</span>'
    return f'<div class="hw-card"><h2 class="hw hw-long">{text(document["query"])}</h2>{facts(told)}</div>'


def _answer(view: View, status: Mapping[str, Any]) -> str:
    if status["status"] == "failed":
        told = '<p class="hw-muted">There is no answer: the query failed. Ask again, or restart it from a stage.</p>'
    elif status["status"] != "completed":
        told = '<p class="hw-muted">There is no answer yet; it appears here when the responder has ended.</p>'
    else:
        told = f'<p class="hw-answer">{text(status["answer"])}</p>{_sources(view, status.get("sources"))}'
    return f'<div class="hw-card"><h2 class="hw">Answer</h2>{told}</div>'


def _sources(view: View, sources: Any) -> str:
    if not sources:
        return '<p class="hw-muted hw-small">It was made without sources: nothing that was stored is about the question.</p>'
    rows = "".join(
        f'<tr><td class="hw-number">{number}</td><td style="white-space:normal;min-width:16rem">'
        f"{_linked(one)}</td><td>{text(_where(one))}</td>"
        f'<td class="hw-number">{one["similarity"]:.3f}</td><td class="hw-mono">{position_html(view, one["position"])}</td></tr>'
        for number, one in enumerate(sources, start=1)
    )
    return table_html(("[n]#", "source", "from", "similarity#", "record"), rows, "Sources of the answer")


def _linked(source: Mapping[str, Any]) -> str:
    """Return the beginning of a source; that of an insight links to its page."""
    words = text((source.get("text") or "retracted")[:_TEXT_CHARACTERS])
    if source.get("document"):
        return words
    return f'<a href="{text(insight_address(source["channel_id"], source["insight_id"]))}">{words}</a>'


def _where(source: Mapping[str, Any]) -> str:
    found = (source.get("document"), source.get("heading"), source["channel_id"])
    return " · ".join(str(one) for one in found if one)


def _events(view: View, document: Mapping[str, Any]) -> str:
    begin = ms_from_iso(document["created_at"])
    rows = "".join(
        f"<tr><td>{figures.iso_text(one['at'])}</td>"
        f'<td class="hw-number">{figures.seconds(max(0, ms_from_iso(one["at"]) - begin) / 1000)}</td>'
        f"<td>{text(one['status'].lower())}</td><td>{text((one['archive_status'] or '').lower())}</td>"
        f'<td class="hw-number">{"" if one["attempt"] is None else one["attempt"]}</td>'
        f'<td class="hw-mono">{position_html(view, one["position"])}</td><td>{text(one["error"] or "")}</td></tr>'
        for one in document["events"]
    )
    none = '<p class="hw-muted hw-small">No status was read from the log yet; it takes a second.</p>'
    columns = ("at (UTC)", "after#", "status", "archive", "attempt#", "record", "error")
    listed = table_html(columns, rows, "Statuses in the log") if rows else none
    return f'<div class="hw-card"><h2 class="hw">Statuses in the log</h2>{listed}</div>'
