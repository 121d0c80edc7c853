"""SQL over the log: an editor, the tables beside it, and the rows as they arrive; the address of the page contains the query."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from highwater.api.dashboard.answers import Answered, shown
from highwater.api.dashboard.export import SQL_EXPORT_PATH
from highwater.api.dashboard.tables import table_html
from highwater.api.dashboard.view import View, link, note, page, place, set_html, text
from highwater.api.records.routes import MEDIA_TYPES
from highwater.api.sql.queries import QUERY_CHARACTERS_MAX, listed_tables
from highwater.connectors.sql.catalogue import topics_by_table
from highwater.schemas.topics import DEAD_LETTER_SUFFIX

PATH = "/sql"
_REFRESH_SECONDS = 0.5
# Possessive: a text of many comments must not be tried in every division of them.
_EXPLAIN = re.compile(r"(?>\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*+EXPLAIN\b", re.IGNORECASE | re.DOTALL)
_NUMBERS = ("BIGINT", "INTEGER", "DOUBLE", "FLOAT", "HUGEINT")
_EXAMPLES = {
    "Busiest channels of the last hour": """
SELECT channel_id, count(*) AS insights
FROM feeds.insight_ingested
WHERE _timestamp > now() - INTERVAL 1 HOUR
GROUP BY ALL ORDER BY insights DESC LIMIT 20
""",
    "Dead letters by reason": """
SELECT _headers['dlq_reason'] AS reason, count(*) AS letters, max(_timestamp) AS latest
FROM feeds.insight_ingested_dlq
GROUP BY ALL ORDER BY letters DESC
""",
    "Insights a minute": """
SELECT date_trunc('minute', _timestamp) AS minute, count(*) AS insights
FROM feeds.insight_ingested
WHERE _timestamp > now() - INTERVAL 1 HOUR
GROUP BY ALL ORDER BY minute
""",
    "Activity by plan": """
SELECT u.plan, count(*) AS events
FROM feeds.user_active AS e JOIN models.users AS u USING (user_id)
GROUP BY ALL ORDER BY events DESC
""",
}


def register() -> None:
    """Register the page."""
    page(PATH, "SQL")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Topics and read models contain data of all users; this key is bound to one user.")
        return
    query = view.asked("query")[:QUERY_CHARACTERS_MAX]
    note(
        "One SELECT over topics and read models, in DuckDB's SQL; EXPLAIN before it shows its plan. Put the name of a topic"
        ' that is not in the catalogue in quotes: FROM "orders-v1". Conditions on _timestamp, _partition and _offset decide'
        " how much of the log is read."
    )
    with ui.element("div").classes("hw-sql"):
        with ui.element("div").classes("hw-sql-main"):
            shown = _Query(view, query)
            shown.build()
        tables = ui.html("", sanitize=False)
    if query and view.asked("run"):
        shown.run()
    listed: list[bool] = []

    async def refresh() -> None:
        shown.refresh()
        if not listed:  # after the query's own rows, so that an unavailable service does not delay them
            set_html(tables, _tables(await listed_tables(view.services)))
            listed.append(True)

    view.live(_REFRESH_SECONDS, refresh, ahead=False)


class _Query:
    """The editor, and the answer below it."""

    def __init__(self, view: View, query: str) -> None:
        self._view = view
        self._query = query
        self._answered: Answered | None = None
        self._shown = 0

    def build(self) -> None:
        """Add the elements."""
        self._editor = ui.textarea("Query", value=self._query).props(
            f"outlined autogrow maxlength={QUERY_CHARACTERS_MAX}"
        )
        self._editor.props('input-class="hw-mono" spellcheck=false').classes("full-width")
        self._editor.on("keydown.ctrl.enter", self._go)
        with ui.row().classes("hw-row"):
            ui.button("Run", icon="play_arrow", on_click=self._go).props("unelevated no-caps")
            self._stop = ui.button("Stop", icon="stop", on_click=self._end).props("outline no-caps")
            self._link = ui.button("Copy link", icon="link", on_click=self._copy).props("flat no-caps")
            if self._query:
                exports = "".join(
                    f' <a href="{text(link(SQL_EXPORT_PATH, query=self._query, format=kind))}" download>{kind}</a>'
                    for kind in MEDIA_TYPES
                )
                ui.html(f'<span class="hw-small">All rows as{exports}</span>', sanitize=False)
            ui.html('<span class="hw-muted hw-small">Ctrl+Enter runs the query</span>', sanitize=False)
        self._line = ui.html("", sanitize=False).classes("full-width").props("role=status")
        self._table = place().classes("hw-mono hw-rows hw-plan" if is_explained(self._query) else "hw-mono hw-rows")
        self._examples = ui.html(_examples(), sanitize=False).classes("full-width")
        self._examples.set_visibility(not self._query)

    def run(self) -> None:
        """Run the query of the address."""
        self._answered = Answered(self._view, self._query)
        self._answered.start()
        ui.context.client.on_delete(self._answered.stop)

    def _go(self) -> None:
        query = str(self._editor.value or "").strip()
        if query:
            ui.navigate.to(link(PATH, query=query, run="1"))

    def _end(self) -> None:
        if self._answered is not None:
            self._answered.stop()

    def _copy(self) -> None:
        base = str(self._view.request.base_url).rstrip("/")
        ui.clipboard.write(base + link(PATH, query=str(self._editor.value or ""), run="1"))
        ui.notify("The link runs this query again.")

    def refresh(self) -> None:
        """Show the rows so far."""
        answered = self._answered
        self._stop.set_enabled(answered is not None and answered.is_running)
        if answered is None:
            return
        wrong = (
            "" if answered.problem is None else f'<pre class="hw hw-bad" role="alert">{text(answered.problem)}</pre>'
        )
        empty = (
            "<p>No row meets the conditions. Widen the condition on _timestamp, or open the topic in"
            ' <a href="/browse">Browse</a>.</p>'
            if answered.is_empty
            else ""
        )
        set_html(self._line, f'{wrong}<div class="hw-small">{text(answered.told())}</div>{empty}')
        if len(answered.rows) != self._shown:
            self._shown = len(answered.rows)
            set_html(self._table, rows_html(answered.columns, answered.rows))


def is_explained(query: str) -> bool:
    """Return whether a query shows a plan, whose drawing has no lines between its rows; comments may precede it."""
    return _EXPLAIN.match(query) is not None


def rows_html(columns: Sequence[Mapping[str, str]], rows: Sequence[Sequence[Any]]) -> str:
    """Return the rows of an answer as a table; columns of numbers are to the right."""
    numbers = [one["type"] in _NUMBERS or one["type"].startswith("DECIMAL") for one in columns]
    # A name may end in what marks a column of numbers.
    heads = tuple(f"{one['name']} {'#' if number else ''}" for one, number in zip(columns, numbers, strict=True))
    cells = ['<td class="hw-number">' if number else "<td>" for number in numbers]
    lines = "".join(
        "<tr>"
        + "".join(f"{cell}<div>{text(shown(value))}</div></td>" for cell, value in zip(cells, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return table_html(heads, lines, "Rows")


def _examples() -> str:
    links = "".join(
        f'<li><a href="{text(link(PATH, query=query.strip(), run="1"))}">{text(name)}</a></li>'
        for name, query in _EXAMPLES.items()
    )
    return f'<h2 class="hw">Examples</h2><ul class="hw-small">{links}</ul>'


def _tables(tables: dict[str, dict[str, str]]) -> str:
    """Return the tables with their columns, as HTML; those of dead letters are named once, since each has its topic's columns."""
    letters = {name for name, topic in topics_by_table().items() if topic.name.endswith(DEAD_LETTER_SUFFIX)}
    listed = "".join(_one_table(name, columns) for name, columns in tables.items() if name not in letters)
    return (
        '<h2 class="hw">Tables</h2>'
        '<p class="hw-muted hw-small">Dead letters of a topic are in the table whose name ends in _dlq.</p>'
        f'<div class="hw-sql-tables">{listed}</div>'
    )


def _one_table(name: str, columns: dict[str, str]) -> str:
    rows = "".join(
        f"<dt>{text(one)}</dt><dd>{text(kind.replace('TIMESTAMP WITH TIME ZONE', 'TIMESTAMPTZ'))}</dd>"
        for one, kind in columns.items()
    )
    query = text(link(PATH, query=f"SELECT *\nFROM {name}\nLIMIT 50"))
    return (
        f'<details><summary>{text(name)}</summary><a class="hw-small" href="{query}">Query it</a>'
        f'<dl class="hw-facts hw-small">{rows}</dl></details>'
    )
