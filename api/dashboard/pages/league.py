"""League pages in the cache: freshness, TTL, inside or outside a match window, hit rate, version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.core.resources import require_key
from highwater.api.dashboard import figures
from highwater.api.dashboard.explained import explain_card
from highwater.api.dashboard.season_past import SeasonPast, season_of
from highwater.api.dashboard.tables import scrolled
from highwater.api.dashboard.tiles import linked_tile
from highwater.api.dashboard.view import View, note, page, set_html, set_rows
from highwater.api.explain.routes import EXPLAIN
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.schemas.errors import HighwaterError
from highwater.streams.league.resources import KINDS, LEAGUE_RULES, resource_of
from highwater.streams.pages.refresh import Freshness, refresh_decision
from highwater.streams.pages.windows import is_match_window_active
from highwater.streams.telemetry import DOCUMENT_READS

_REFRESH_SECONDS = 3.0
_LISTED_MAX = 300
# Served from memory or Redis, without PostgreSQL.
_HITS = frozenset({"memory", "redis"})
_TONES = {Freshness.FRESH: "hw-good", Freshness.STALE: "hw-warn", Freshness.COLD: "hw-muted", Freshness.KEPT: "hw-warn"}

_COLUMNS: list[dict[str, Any]] = [
    {"name": "key", "label": "document", "field": "key", "align": "left", "sortable": True},
    {"name": "state", "label": "state", "field": "state", "align": "left", "sortable": True},
    {"name": "version", "label": "version", "field": "version", "align": "right", "sortable": True},
    {"name": "built", "label": "made (UTC)", "field": "built", "align": "left", "sortable": True, "classes": "hw-keep"},
    {"name": "expires", "label": "fresh for", "field": "expires", "align": "right", "classes": "hw-keep"},
    {"name": "life", "label": "TTL now", "field": "life", "align": "right"},
    {"name": "window", "label": "match window", "field": "window", "align": "left", "sortable": True},
    {"name": "bytes", "label": "bytes", "field": "bytes", "align": "right", "sortable": True},
    {"name": "cause", "label": "changed by", "field": "cause", "align": "left", "classes": "hw-key"},
]
_KIND_COLUMNS: list[dict[str, Any]] = [
    {"name": "kind", "label": "kind", "field": "kind", "align": "left", "sortable": True},
    {"name": "reads", "label": "reads", "field": "reads", "align": "right", "sortable": True},
    {"name": "hits", "label": "hit ratio", "field": "hits", "align": "right", "sortable": True},
    {"name": "inside", "label": "TTL in a window", "field": "inside", "align": "right"},
    {"name": "outside", "label": "TTL outside", "field": "outside", "align": "right"},
    {"name": "about", "label": "holds", "field": "about", "align": "left", "classes": "hw-about"},
]
_LINKED = (
    '<q-td :props="props"><a :href="\'/league?key=\' + encodeURIComponent(props.value)">{{ props.value }}</a></q-td>'
)
_BYTES = "<q-td :props=\"props\">{{ props.value.toLocaleString('en') }}</q-td>"
_STATE = '<q-td :props="props"><span :class="\'hw-chip \' + props.row.tone">{{ props.value }}</span></q-td>'


def register() -> None:
    """Register the page."""
    page("/league", "Leagues")(_build)


async def _build(view: View) -> None:
    tiles = ui.html("", sanitize=False).classes("full-width")
    ui.html('<h2 class="hw" id="documents">Documents</h2>', sanitize=False)
    search = (
        ui.input("Find a document", value=view.asked("key")).props("dense outlined clearable").style("max-width:24rem")
    )
    table = (
        ui.table(columns=_COLUMNS, rows=[], row_key="key", pagination=25).classes("full-width hw-wrap").props("dense")
    )
    table.props(
        'no-data-label="No page is stored yet: a page is built at its first read, such as GET /api/league/{season}/table"'
    )
    scrolled(table, "Documents")
    table.add_slot("body-cell-state", _STATE)
    table.add_slot("body-cell-key", _LINKED)
    table.add_slot("body-cell-bytes", _BYTES)
    asked = view.asked("key")
    if resource_of(asked) is not None:
        try:
            require_key(view.visitor.principal, asked)
        except HighwaterError as error:
            note(str(error))
        else:
            explain_card(view, f"Explain {asked}", lambda explainer: explainer.resource(asked))
            season = season_of(asked)
            if season is not None and view.may(EXPLAIN):
                SeasonPast(view, asked, season).build()
    search.on_value_change(lambda event: table.set_filter(event.value or ""))
    table.set_filter(search.value or "")
    ui.html('<a href="/match">Matches and their results: finalize or correct one</a>', sanitize=False)
    ui.html('<h2 class="hw" id="kinds">Kinds</h2>', sanitize=False)
    note(
        "Reads and hits of this API process since it started; a hit was served from memory or Redis without asking PostgreSQL."
    )
    kinds = ui.table(columns=_KIND_COLUMNS, rows=[], row_key="kind", pagination=0).classes("full-width hw-wrap")
    scrolled(kinds, "Kinds").props("dense :rows-per-page-options=[0] hide-pagination")

    async def refresh() -> None:
        services = view.services
        stored = await dashboard_reads.documents(services.database.require(), "", _LISTED_MAX)
        windows = await view.documents.windows()
        rows = [row for row in (_row(one, windows, services.clock()) for one in stored) if row is not None]
        if not view.sees_all:
            rows = [row for row in rows if not row["is_private"]]
        set_rows(table, rows)
        set_rows(kinds, _kinds())
        set_html(tiles, _tiles(rows, windows, services.clock()))

    view.live(_REFRESH_SECONDS, refresh)


def _row(stored: Mapping[str, Any], windows: Mapping[str, Sequence[Any]], now_ms: int) -> dict[str, Any] | None:
    found = resource_of(stored["key"])
    if found is None:
        return None
    its_windows = LEAGUE_RULES.windows_of(found, windows)
    life = refresh_decision(stored["built_at"], found.kind, its_windows, now_ms)
    left = (life.expires_ms - now_ms) / 1000
    return {
        "key": stored["key"],
        "is_private": found.kind.is_private,
        "state": life.freshness.value,
        "tone": _TONES[life.freshness],
        "version": stored["version"],
        "built": figures.moment(stored["built_at"]),
        "expires": figures.seconds(round(left)) if left > 0 else "over",
        "life": figures.seconds(life.options.ttl_seconds),
        "window": "in a window" if is_match_window_active(its_windows, now_ms) else "outside",
        "bytes": stored["bytes"],
        "cause": stored["position"],
    }


def _reads() -> dict[str, dict[str, float]]:
    """Return reads of this process by kind and by source."""
    found: dict[str, dict[str, float]] = {}
    for metric in DOCUMENT_READS.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                found.setdefault(sample.labels["kind"], {})[sample.labels["source"]] = sample.value
    return found


def _ratio(of_kind: Mapping[str, float]) -> float | None:
    total = sum(of_kind.values())
    return sum(value for source, value in of_kind.items() if source in _HITS) / total if total else None


def _kinds() -> list[dict[str, Any]]:
    reads = _reads()
    rows = []
    for kind in KINDS.values():
        of_kind = reads.get(kind.name, {})
        ratio = _ratio(of_kind)
        rows.append(
            {
                "kind": kind.name,
                "reads": int(sum(of_kind.values())),
                "hits": figures.DASH if ratio is None else f"{ratio:.1%}",
                "inside": figures.seconds(kind.ttl_in_window_seconds),
                "outside": figures.seconds(kind.ttl_outside_seconds),
                "about": kind.about,
            }
        )
    return sorted(rows, key=lambda row: -int(str(row["reads"])))


def _tiles(rows: Sequence[Mapping[str, Any]], windows: Mapping[str, Sequence[Any]], now_ms: int) -> str:
    reads = _reads()
    together: dict[str, float] = {}
    for of_kind in reads.values():
        for source, value in of_kind.items():
            together[source] = together.get(source, 0.0) + value
    ratio = _ratio(together)
    active = [season for season, spans in windows.items() if is_match_window_active(spans, now_ms)]
    fresh = sum(row["state"] == Freshness.FRESH.value for row in rows)
    return (
        '<div class="hw-tiles">'
        + linked_tile(figures.count(len(rows)), "documents stored", "#documents")
        + linked_tile(figures.count(fresh), "of them fresh", "#documents")
        + linked_tile(figures.DASH if ratio is None else f"{ratio:.1%}", "hit ratio", "#kinds")
        + linked_tile(figures.count(int(sum(together.values()))), "reads by this process", "#kinds")
        + linked_tile(", ".join(sorted(active)) or "none", "seasons in a match window", "/match")
        + "</div>"
    )
