"""Chunks: the ages of each namespace, the latest ingests, and a search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.browsing import Browsing, of_key
from highwater.api.dashboard.tables import numbers, table_html
from highwater.api.dashboard.tiles import linked, loading
from highwater.api.dashboard.view import View, chip, heading, note, page, set_html, text
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.schemas.chunks import CHUNK_CHANGED, QUERIES_SERVED
from highwater.schemas.errors import HighwaterError
from highwater.streams.chunks.completion import Counted, reason_of

_REFRESH_SECONDS = 5.0
_INGESTS_MAX = 50
_FOUND_MAX = 10
_TEXT_CHARACTERS = 300
_TONES = {"complete": "hw-good", "failed": "hw-bad", "running": "hw-warn", "abandoned": "hw-bad"}


def register() -> None:
    """Register the page."""
    page("/chunks", "Chunks")(_build)


async def _build(view: View) -> None:
    namespaces = ui.html(loading("the namespaces"), sanitize=False).classes("full-width")
    with ui.column().classes("hw-card"):
        heading("Search")
        with ui.row().classes("hw-row"):
            choice = ui.select([], label="Namespace").props("dense outlined").style("min-width:10rem")
            asked = ui.input("Words").props("dense outlined clearable").style("flex:1;min-width:12rem")
            button = ui.button("Search", icon="search").props("outline no-caps")
        found = ui.html("", sanitize=False).classes("full-width")
    if view.sees_all:
        heading("Ingests")
        ingests = ui.html(loading("the ingests"), sanitize=False).classes("full-width")

    async def search() -> None:
        if not choice.value or not asked.value:
            return
        try:
            answer = await view.get("/api/chunks/search", ns=choice.value, q=asked.value, limit=_FOUND_MAX)
            set_html(found, _found(answer))
        except HighwaterError as error:
            view.tell(str(error))

    asked.on("keydown.enter", search, args=[])
    button.on_click(search)

    async def refresh() -> None:
        held = (await view.get("/api/chunks/lifecycle"))["namespaces"]
        set_html(namespaces, namespaces_html(held, sees_all=view.sees_all))
        names = [one["ns"] for one in held]
        if names != choice.options:
            choice.set_options(names, value=choice.value or next(iter(names), None))
        if view.sees_all:
            rows = await dashboard_reads.ingests(view.services.database.require(), _INGESTS_MAX)
            set_html(ingests, _ingests(rows))

    view.live(_REFRESH_SECONDS, refresh)
    if not view.sees_all:
        note("Ingests are shown only to keys that are not bound to a user.")


def _events_of(topic: str, ns: str) -> str:
    """The address of a search for the events of a namespace."""
    return Browsing(topic=topic, where=f"value.ns == {json.dumps(ns)}", search="1").address()


def namespaces_html(held: list[dict[str, Any]], *, sees_all: bool) -> str:
    """The namespaces; figures lead to the changes that they count, for a visitor who may read topics."""

    def led(value: str, one: Mapping[str, Any], topic: str = CHUNK_CHANGED) -> str:
        return linked(value, _events_of(topic, one["ns"])) if sees_all else value

    if not held:
        return '<div class="hw-card hw-muted">No chunks yet: <code>highwater import files DIR</code>.</div>'
    lines = "".join(
        f"<tr><td><b>{text(one['ns'])}</b> {chip('hot', 'hw-warn') if one['is_hot'] else ''}</td>"
        + numbers(*(led(f"{one[name]:,}", one) for name in ("chunks", "sources")))
        + f"<td>{_ages(one)}</td>"
        + numbers(
            *(led(f"{one[name]:,}", one) for name in ("to_delete", "archived", "without_embedding")),
            led(f"{one['queries_per_day']:.1f}", one, QUERIES_SERVED),
            f"{one['passport']['half_life_days']:g} days",
        )
        + "</tr>"
        for one in held
    )
    columns = (
        "namespace",
        "chunks#",
        "sources#",
        "hot · warm · cold",
        "to be deleted#",
        "archived#",
        "no vector#",
        "searches a day#",
        "half-life#",
    )
    return table_html(columns, lines, "Namespaces") + "".join(map(switch_html, held))


def switch_html(one: Mapping[str, Any]) -> str:
    """Return the progress of changing a namespace's embedding model; empty if there is no change."""
    switch = one["switch"]
    if switch is None:
        return ""
    due = f", expected end {figures.iso_text(switch['due_at'])} UTC" if switch["due_at"] else ""
    return (
        f'<p class="hw-small"><b>{text(one["ns"])}</b>: {switch["made"]:,} of {one["chunks"]:,} vectors of '
        f"{text(switch['embedding_model'])} are made{due}. Until then searches compare by {text(one['embedding_model'])}.</p>"
    )


def _ages(one: Mapping[str, Any]) -> str:
    total = max(1, one["hot"] + one["warm"] + one["cold"])
    parts = "".join(
        f'<i style="display:inline-block;height:100%;width:{100 * one[age] / total:.1f}%;background:{colour}"></i>'
        for age, colour in (("hot", "#d55e00"), ("warm", "#b8860b"), ("cold", "#0072b2"))
    )
    return (
        f'<div class="hw-bar" style="white-space:nowrap;font-size:0">{parts}</div>'
        f'<span class="hw-small">{one["hot"]:,} · {one["warm"]:,} · {one["cold"]:,}</span>'
    )


def _reason(row: dict[str, Any]) -> str:
    seen = row["inserted"] + row["updated"] + row["unchanged"]
    return reason_of(row["status"], Counted(seen, row["failures"], row["expected"])) or ""


def _ingest_figure(row: Mapping[str, Any], name: str) -> str:
    """A figure of an ingest, which leads to the changes of its source."""
    key = f"{row['ns']}|{row['slot']}|{row['source_id']}"
    return linked(f"{row[name]:,}", of_key(CHUNK_CHANGED, key), tone="hw-bad" if name == "failures" else "")


def _ingests(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return '<div class="hw-card hw-muted">No ingest yet: <code>highwater import files DIR</code> makes one.</div>'
    lines = "".join(
        f'<tr><td>{figures.moment(row["updated_at"])}</td><td title="{text(_reason(row))}">'
        f"{chip(row['status'], _TONES.get(row['status'], 'hw-muted'))}</td>"
        f"<td>{text(row['ns'])} / {text(row['slot'])}</td>"
        f'<td style="white-space:normal;overflow-wrap:anywhere">{text(row["source_id"])}</td>'
        + numbers(*(_ingest_figure(row, name) for name in ("inserted", "updated", "unchanged", "failures", "orphaned")))
        + "</tr>"
        for row in rows
    )
    columns = (
        "changed (UTC)",
        "status",
        "namespace",
        "source",
        "inserted#",
        "updated#",
        "unchanged#",
        "failures#",
        "orphaned#",
    )
    return table_html(columns, lines, "Ingests")


def _found(answer: Mapping[str, Any]) -> str:
    items = answer["results"]
    if not items:
        return '<p class="hw-muted">Nothing was found: try other words, or another namespace.</p>'
    note = (
        "Compared by words: no embedding model compares this namespace now." if answer["compared_by"] == "words" else ""
    )
    return (f'<p class="hw-muted">{note}</p>' if note else "") + "".join(
        f'<div style="margin:.5rem 0"><b>{text(one.get("title") or one["source_id"])}</b> '
        f'<span class="hw-muted hw-small">{one["final"]:.3f} · {text(one["source_id"])} #{one["chunk_no"]}</span><br>'
        f'<span class="hw-small">{text(one["content"][:_TEXT_CHARACTERS])}</span></div>'
        for one in items
    )
