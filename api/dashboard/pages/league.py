"""League pages in the cache: freshness, TTL, inside or outside a match window, hit rate, version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.core.resources import require_key
from highwater.api.dashboard import figures
from highwater.api.dashboard.explained import explain_card
from highwater.api.dashboard.season_past import SeasonPast, season_of
from highwater.api.dashboard.tables import Row, Sorting, numbers, table_html
from highwater.api.dashboard.tiles import linked, linked_tile, loading
from highwater.api.dashboard.view import View, chip, link, note, page, set_html, text
from highwater.api.explain.routes import EXPLAIN
from highwater.connectors.dashboard import read_model as dashboard_reads
from highwater.schemas.errors import HighwaterError
from highwater.streams.league.resources import KINDS, LEAGUE_RULES, resource_of
from highwater.streams.pages.kinds import Kind
from highwater.streams.pages.refresh import Freshness, refresh_decision
from highwater.streams.pages.windows import is_match_window_active
from highwater.streams.telemetry import DOCUMENT_READS

_REFRESH_SECONDS = 3.0
_LISTED_MAX = 300
# Served from memory or Redis, without PostgreSQL.
_HITS = frozenset({"memory", "redis"})
_TONES = {Freshness.FRESH: "hw-good", Freshness.STALE: "hw-warn", Freshness.COLD: "hw-muted", Freshness.KEPT: "hw-warn"}

_COLUMNS = (
    *("document", "state", "version#", "made (UTC)", "fresh for#", "TTL now#", "match window", "bytes#", "changed by"),
)
_SORTED = ("document", "state", "version", "made (UTC)", "match window", "bytes")
_KIND_COLUMNS = ("kind", "reads#", "hit ratio#", "TTL in a window#", "TTL outside#", "holds")
# Documents that are shown of those that the filter finds; the others are counted.
_SHOWN_MAX = 100


def register() -> None:
    """Register the page."""
    page("/league", "Leagues")(_build)


async def _build(view: View) -> None:
    tiles = ui.html("", sanitize=False).classes("full-width")
    documents = _Documents(view)
    documents.build()
    _explained(view, view.asked("key"))
    ui.html('<a href="/match">Matches and their results: finalize or correct one</a>', sanitize=False)
    ui.html('<h2 class="hw" id="kinds">Kinds</h2>', sanitize=False)
    note(
        "Reads and hits of this API process since it started; a hit was served from memory or Redis without asking PostgreSQL."
    )
    kinds = ui.html(kinds_html(_reads()), sanitize=False).classes("full-width")

    async def refresh() -> None:
        services = view.services
        stored = await dashboard_reads.documents(services.database.require(), "", _LISTED_MAX)
        windows = await view.documents.windows()
        rows = [row for row in (_row(one, windows, services.clock()) for one in stored) if row is not None]
        if not view.sees_all:
            rows = [row for row in rows if not row["is_private"]]
        documents.show(rows)
        set_html(kinds, kinds_html(_reads()))
        set_html(tiles, _tiles(rows, windows, services.clock()))

    view.live(_REFRESH_SECONDS, refresh)


def _explained(view: View, key: str) -> None:
    """The cards of a document that the address names: its explanation, and its season as of an earlier change."""
    if resource_of(key) is None:
        return
    try:
        require_key(view.visitor.principal, key)
    except HighwaterError as error:
        note(str(error))
        return
    explain_card(view, f"Explain {key}", lambda explainer: explainer.resource(key))
    season = season_of(key)
    if season is not None and view.may(EXPLAIN):
        SeasonPast(view, key, season).build()


class _Documents:
    """The documents in one browser, as far as the filter finds them, in the order that was chosen."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._rows: Sequence[Row] | None = None
        self._sorting = Sorting("", _SORTED, ("version", "made (UTC)", "bytes"), self._show)

    def build(self) -> None:
        """Put the elements in their places."""
        ui.html('<h2 class="hw" id="documents">Documents</h2>', sanitize=False)
        self._search = ui.input("Find a document", value=self._view.asked("key"), on_change=self._show)
        self._search.props("dense outlined clearable").style("max-width:24rem")
        self._listed = ui.html(loading("the documents"), sanitize=False).classes("full-width")
        self._sorting.listen(self._listed)

    def show(self, rows: Sequence[Row]) -> None:
        """Show these."""
        self._rows = rows
        self._show()

    def _show(self) -> None:
        if self._rows is not None:
            set_html(self._listed, documents_html(self._rows, str(self._search.value or "").strip(), self._sorting))


def documents_html(rows: Sequence[Row], words: str, sorting: Sorting) -> str:
    """The documents whose key has these words, or all."""
    if not rows:
        return (
            '<p class="hw-muted">No page is stored yet: a page is built at its first read, such as '
            "<code>GET /api/league/{season}/table</code>.</p>"
        )
    found = [row for row in rows if words.lower() in row["document"].lower()]
    if not found:
        return f'<p class="hw-muted">None of the latest {len(rows):,} documents has this in its key.</p>'
    lines = "".join(map(_line, sorting.rows(found)[:_SHOWN_MAX]))
    rest = len(found) - _SHOWN_MAX
    more = f'<p class="hw-muted hw-small">and {rest:,} more; the filter narrows them</p>' if rest > 0 else ""
    return table_html(_COLUMNS, lines, "Documents", sort=sorting.sort, sortable=_SORTED) + more


def _line(row: Row) -> str:
    address = link("/league", key=row["document"])
    return (
        f'<tr data-key="{text(row["document"])}"><td class="hw-long"><a href="{text(address)}">{text(row["document"])}</a></td>'
        f"<td>{chip(row['state'], row['tone'])}</td>{numbers(linked(str(row['version']), address))}"
        f"<td>{row['made (UTC)']}</td>{numbers(row['expires'], row['life'])}<td>{row['match window']}</td>"
        f'{numbers(figures.count(row["bytes"]))}<td class="hw-mono">{text(row["cause"])}</td></tr>'
    )


def _row(stored: Mapping[str, Any], windows: Mapping[str, Sequence[Any]], now_ms: int) -> Row | None:
    found = resource_of(stored["key"])
    if found is None:
        return None
    its_windows = LEAGUE_RULES.windows_of(found, windows)
    life = refresh_decision(stored["built_at"], found.kind, its_windows, now_ms)
    left = (life.expires_ms - now_ms) / 1000
    return {
        "document": stored["key"],
        "is_private": found.kind.is_private,
        "state": life.freshness.value,
        "tone": _TONES[life.freshness],
        "version": stored["version"],
        "made (UTC)": figures.moment(stored["built_at"]),
        "expires": figures.seconds(round(left)) if left > 0 else "over",
        "life": figures.seconds(life.options.ttl_seconds),
        "match window": "in a window" if is_match_window_active(its_windows, now_ms) else "outside",
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


def kinds_html(reads: Mapping[str, Mapping[str, float]]) -> str:
    """The kinds of documents with their reads, those that are read most first; reads lead to the documents of the kind."""
    ordered = sorted(KINDS.values(), key=lambda kind: -sum(reads.get(kind.name, {}).values()))
    return table_html(_KIND_COLUMNS, "".join(_kind_line(kind, reads.get(kind.name, {})) for kind in ordered), "Kinds")


def _kind_line(kind: Kind, reads: Mapping[str, float]) -> str:
    ratio = _ratio(reads)
    of_kind = link("/league", key=kind.template.partition("{id}")[0])
    cells = numbers(
        linked(figures.count(int(sum(reads.values()))), of_kind),
        figures.DASH if ratio is None else f"{ratio:.1%}",
        figures.seconds(kind.ttl_in_window_seconds),
        figures.seconds(kind.ttl_outside_seconds),
    )
    return f'<tr data-key="{text(kind.name)}"><td>{text(kind.name)}</td>{cells}<td class="hw-cell">{text(kind.about)}</td></tr>'


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
