"""The page of queries: the latest queries, and metrics of the pipeline for the last hour. `query.py` shows one query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.restarts import Queries, Restarts
from highwater.api.dashboard.tables import WorkList
from highwater.api.dashboard.tiles import linked_tile, loading
from highwater.api.dashboard.view import View, chip, link, note, page, segment, set_html, text
from highwater.api.queries.routes_restarts import RESTART_QUERIES
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.streams.queries.states import Status

_REFRESH_SECONDS = 2.0
_LISTED_MAX = 100
STATUS_TONES = {Status.COMPLETED: "hw-good", Status.FAILED: "hw-bad"}


def query_address(request_id: str) -> str:
    """Return the address of a query's page."""
    return f"/queries/{segment(request_id)}"


def register() -> None:
    """Register the page."""
    page("/queries", "Queries")(_build)


async def _build(view: View) -> None:
    chosen = view.asked("id")
    if chosen:  # the form of links of earlier versions
        ui.navigate.to(query_address(chosen))
        return
    group = view.asked("status")
    tiles = ui.html("", sanitize=False).classes("full-width")
    if view.may(RESTART_QUERIES):
        Restarts(view, Queries()).build()
    else:
        note("To restart failed queries together needs the role admin.")
    listed = ui.html(loading("the queries"), sanitize=False).classes("full-width")

    async def refresh() -> None:
        only = view.only_user
        rows = await dashboard_reads.runs(view.services.database.require(), only, _LISTED_MAX)
        set_html(listed, QUERIES.html(rows, group))
        if view.sees_all:
            set_html(tiles, _tiles(await view.get("/api/queries/metrics", minutes=60)))

    view.live(_REFRESH_SECONDS, refresh)


def _tiles(metrics: Mapping[str, Any]) -> str:
    found = metrics["pipeline"]
    mean, slow = found.get("mean_ms"), found.get("p95_ms")
    failed = "hw-bad" if found.get("failed") else ""
    completed = link("/queries", status="completed")
    return (
        '<div class="hw-tiles">'
        + linked_tile(figures.count(found.get("requests")), "queries in the last hour", "/queries")
        + linked_tile(figures.count(found.get("completed")), "completed", completed)
        + linked_tile(figures.count(found.get("failed")), "failed", link("/queries", status="failed"), tone=failed)
        + linked_tile(figures.count(found.get("backlog")), "waiting", link("/queries", status="waiting"))
        + linked_tile(
            figures.DASH if mean is None else figures.seconds(mean / 1000), "mean time to the answer", completed
        )
        + linked_tile(figures.DASH if slow is None else figures.seconds(slow / 1000), "95 of 100 are faster", completed)
        + "</div>"
    )


def _line(row: Mapping[str, Any]) -> str:
    ended = row["completed_at"]
    took = figures.seconds((ended - row["created_at"]) / 1000) if ended is not None else figures.DASH
    return (
        f'<tr data-key="{text(row["request_id"])}"><td>{figures.moment(row["created_at"])}</td>'
        f'<td style="white-space:normal;min-width:16rem"><a href="{query_address(row["request_id"])}">'
        f"{text(row['query'])}</a></td><td>{chip(row['status'].lower(), STATUS_TONES.get(row['status'], 'hw-warn'))}</td>"
        f'<td class="hw-number">{took}</td><td class="hw-mono">'
        f'<a href="{text(link("/user", id=row["user_id"]))}">{text(row["user_id"])}</a></td></tr>'
    )


QUERIES = WorkList(
    "/queries",
    "The latest queries",
    ("asked (UTC)", "query", "status", "took#", "user"),
    _line,
    {
        "completed": lambda status: status == Status.COMPLETED,
        "failed": lambda status: status == Status.FAILED,
        "waiting": lambda status: status not in STATUS_TONES,
    },
    'No query yet: <code>highwater ask USER "…"</code>.',
)
