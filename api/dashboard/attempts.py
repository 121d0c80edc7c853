"""Calls of the language model on a timeline: their spans, and the table that says the same with tokens, time and cost.

Invariant. Pure functions of a timeline as the API serves it, of a query as of a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from highwater.api.dashboard import figures
from highwater.api.dashboard.gantt import Span, gantt_html
from highwater.api.dashboard.tables import table_html
from highwater.api.dashboard.view import chip, text
from highwater.schemas.envelope import ms_from_iso

_ANSWERED = "answered"
# Times stay apart by the ms: calls of one stage begin within a second.
_TIME = slice(11, 23)


def spans_of(stages: Sequence[Mapping[str, Any]], name: str) -> list[Span]:
    """A span for each stage and, within it, for each of its calls; `name` is the member that names a stage."""
    found = []
    for stage in stages:
        found.append(Span(stage[name], ms_from_iso(stage["started_at"]), _ms(stage["ended_at"])))
        for call in stage["attempts"]:
            if call["started_at"] is None:
                continue
            tone = "call" if call["outcome"] in (_ANSWERED, None) else "failed"
            begin, end = ms_from_iso(call["started_at"]), _ms(call["ended_at"])
            found.append(Span(f"call {call['attempt']}", begin, end, tone, is_inner=True))
    return found


def timeline_html(
    stages: Sequence[Mapping[str, Any]], name: str, created_at: str, completed_at: str | None, now_ms: int
) -> str:
    """The bars and the table."""
    begun = [stage for stage in stages if stage["started_at"] is not None]
    created, ended = ms_from_iso(created_at), _ms(completed_at)
    whole = Span("in all", created, ended, "wait")
    bars = gantt_html([whole, *spans_of(begun, name)], created, now_ms)
    if not begun:
        return bars + '<p class="hw-muted hw-small">No stage was begun yet; it appears here when a worker takes it.</p>'
    return bars + attempts_html(begun, name)


def timeline_card(document: Mapping[str, Any], name: str, now_ms: int) -> str:
    """The timeline of a query or a job as the API serves it; `name` is the member that names a stage, its plural holds them."""
    went = timeline_html(document[f"{name}s"], name, document["created_at"], document["completed_at"], now_ms)
    return f'<div class="hw-card"><h2 class="hw" id="timeline">Timeline</h2>{went}</div>'


def attempts_html(stages: Sequence[Mapping[str, Any]], name: str) -> str:
    """A row for each stage and each call."""
    rows = "".join(
        _row(f"<b>{text(stage[name])}</b>", stage, "", "")
        + "".join(
            _row(f"call {call['attempt']}{_sends(call)}", call, _usage(call), _outcome(call))
            for call in stage["attempts"]
        )
        for stage in stages
    )
    columns = ("stage, call", "began (UTC)", "took#", "model", "tokens in#", "tokens out#", "cost USD#", "outcome")
    return table_html(columns, rows, "Stages and their calls of the language model")


def _row(name: str, one: Mapping[str, Any], usage: str, outcome: str) -> str:
    took = "running" if one["ended_at"] is None else figures.seconds((one["duration_ms"] or 0) / 1000)
    return (
        f'<tr><td>{name}</td><td>{text(one["started_at"].removesuffix("Z")[_TIME])}</td><td class="hw-number">{took}</td>'
        f"{usage or '<td></td>' * 4}<td>{outcome}</td></tr>"
    )


def _usage(call: Mapping[str, Any]) -> str:
    cost = figures.DASH if call["cost_usd"] is None else f"{call['cost_usd']:.6f}"
    tokens = (figures.count(call["prompt_tokens"]), figures.count(call["completion_tokens"]), cost)
    return f"<td>{text(call['model'] or figures.DASH)}</td>" + "".join(
        f'<td class="hw-number">{one}</td>' for one in tokens
    )


def _sends(call: Mapping[str, Any]) -> str:
    """A call that was sent more than once: its worker ended before the answer came."""
    return "" if call["sends"] == 1 else f" (sent {call['sends']} times)"


def _outcome(call: Mapping[str, Any]) -> str:
    outcome = call["outcome"]
    if outcome is None:
        return chip("waiting", "hw-warn")
    error = f" {text(call['error'])}" if call["error"] else ""
    return chip(outcome.replace("_", " "), "hw-good" if outcome == _ANSWERED else "hw-bad") + error


def _ms(iso: str | None) -> int | None:
    return None if iso is None else ms_from_iso(iso)
