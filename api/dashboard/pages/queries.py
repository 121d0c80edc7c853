"""Queries: the latest ones, and how each went, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.pages.user import table_html
from highwater.api.dashboard.view import View, chip, link, page, segment, set_html, text, tile
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.schemas.envelope import ms_from_iso
from highwater.streams.checks import is_uuid
from highwater.streams.queries.states import Status

_REFRESH_SECONDS = 2.0
_LISTED_MAX = 100
_TONES = {Status.COMPLETED: "hw-good", Status.FAILED: "hw-bad"}
_STAGE_COLOURS = {"analyzer": "#0072b2", "assembler": "#009e73", "responder": "#d55e00", "archivist": "#7a5cc4"}


def register() -> None:
    """Make the page known."""
    page("/queries", "Queries")(_build)


async def _build(view: View) -> None:
    chosen = view.asked("id")
    if chosen:
        with ui.column().classes("hw-card"):
            timeline = ui.html("", sanitize=False).classes("full-width")
    tiles = ui.html("", sanitize=False).classes("full-width")
    listed = ui.html("", sanitize=False).classes("full-width")

    async def refresh() -> None:
        if chosen:
            set_html(timeline, _timeline(await view.get(f"/api/query/{segment(chosen)}/timeline")))
        only = view.only_user
        if only is not None and not is_uuid(only.lower()):
            set_html(
                listed,
                f'<div class="hw-card hw-muted">Queries need a user that is a UUID; {text(only)} is not one.</div>',
            )
            return
        rows = await dashboard_reads.runs(view.services.database.require(), only, _LISTED_MAX)
        set_html(listed, _list(rows, chosen))
        if view.sees_all:
            set_html(tiles, _tiles(await view.get("/api/queries/metrics", minutes=60)))

    view.live(_REFRESH_SECONDS, refresh)


def _tiles(metrics: Mapping[str, Any]) -> str:
    found = metrics["pipeline"]
    mean, slow = found.get("mean_ms"), found.get("p95_ms")
    return (
        '<div class="hw-tiles">'
        + tile(figures.count(found.get("requests")), "queries in the last hour")
        + tile(figures.count(found.get("completed")), "completed")
        + tile(figures.count(found.get("failed")), "failed", tone="hw-bad" if found.get("failed") else "")
        + tile(figures.count(found.get("backlog")), "waiting")
        + tile(figures.DASH if mean is None else figures.seconds(mean / 1000), "mean time to the answer")
        + tile(figures.DASH if slow is None else figures.seconds(slow / 1000), "95 of 100 are faster")
        + "</div>"
    )


def _list(rows: list[dict[str, Any]], chosen: str) -> str:
    if not rows:
        return '<div class="hw-card hw-muted">Nobody has asked yet: <code>highwater ask USER "…"</code>.</div>'
    return table_html(
        ("asked (UTC)", "query", "status", "took#", "user"),
        "".join(_line(row, is_chosen=row["request_id"] == chosen) for row in rows),
    )


def _line(row: Mapping[str, Any], *, is_chosen: bool) -> str:
    ended = row["completed_at"]
    took = figures.seconds((ended - row["created_at"]) / 1000) if ended is not None else figures.DASH
    return (
        f"<tr{' aria-current=true' if is_chosen else ''}><td>{figures.moment(row['created_at'])}</td>"
        f'<td style="white-space:normal;min-width:16rem"><a href="{link("/queries", id=row["request_id"])}">'
        f"{text(row['query'])}</a></td><td>{chip(row['status'].lower(), _TONES.get(row['status'], 'hw-warn'))}</td>"
        f'<td class="hw-number">{took}</td><td class="hw-mono">{text(row["user_id"])}</td></tr>'
    )


def _timeline(document: Mapping[str, Any]) -> str:
    stages = [one for one in document["stages"] if one["started_at"] is not None]
    begin = ms_from_iso(document["created_at"])
    ends = [ms_from_iso(one["ended_at"] or one["started_at"]) for one in stages]
    span = max([*ends, begin + 1]) - begin
    bars = "".join(_bar(one, begin, span) for one in stages)
    totals = document["totals"]
    cost = "" if totals["cost_usd"] is None else f", {totals['cost_usd']:.4f} USD"
    events = "".join(
        f"<tr><td>{figures.iso_text(one['at'])}</td>"
        f'<td class="hw-number">{figures.seconds((ms_from_iso(one["at"]) - begin) / 1000)}</td>'
        f"<td>{text(one['status'].lower())}</td><td>{text((one['archive_status'] or '').lower())}</td>"
        f'<td class="hw-number">{one["attempt"]}</td><td class="hw-mono">{text(one["position"])}</td>'
        f"<td>{text(one['error'] or '')}</td></tr>"
        for one in document["events"]
    )
    took = document["duration_ms"]
    return (
        f'<h2 class="hw" style="overflow-wrap:anywhere">{text(document["query"])}</h2>'
        f'<div class="hw-row hw-small">{chip(document["status"].lower(), _TONES.get(document["status"], "hw-warn"))}'
        f"<span>{figures.DASH if took is None else figures.seconds(took / 1000)}</span>"
        f"<span>{totals['calls']} calls of the language model, {totals['prompt_tokens']:,} + "
        f"{totals['completion_tokens']:,} tokens{cost}</span>"
        f'<a href="{link("/user", id=document["user_id"])}" class="hw-mono">{text(document["user_id"])}</a></div>'
        f'<div style="display:grid;gap:.35rem;margin:.75rem 0">{bars}</div>'
        + (f'<p class="hw-bad">{text(document["error"])}</p>' if document["error"] else "")
        + table_html(("at (UTC)", "after#", "status", "archive", "attempt#", "position", "error"), events)
    )


def _bar(stage: Mapping[str, Any], begin: int, span: int) -> str:
    started = ms_from_iso(stage["started_at"])
    ended = ms_from_iso(stage["ended_at"]) if stage["ended_at"] is not None else begin + span
    left, width = 100 * (started - begin) / span, max(0.6, 100 * (ended - started) / span)
    took = "in progress" if stage["ended_at"] is None else figures.seconds((ended - started) / 1000)
    tries = len(stage["attempts"])
    told = f"{took}, {tries} call{'s' if tries != 1 else ''}"
    colour = _STAGE_COLOURS.get(stage["stage"], "#56616d")
    return (
        '<div style="display:grid;grid-template-columns:6.5rem 1fr 9rem;gap:.75rem;align-items:center">'
        f"<span>{text(stage['stage'])}</span>"
        f'<div style="position:relative;height:1.1rem;background:var(--hw-ground);border-radius:.3rem">'
        f'<div style="position:absolute;left:{min(left, 99.4):.1f}%;width:{min(width, 100 - min(left, 99.4)):.1f}%;height:100%;'
        f'background:{colour};border-radius:.3rem"></div></div><span class="hw-small hw-muted">{told}</span></div>'
    )
