"""The topic browser: follows a topic, or searches all of it; the address of the page contains the search."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from nicegui import events, ui

from highwater.api.dashboard import figures
from highwater.api.dashboard.browsing import BROWSE_PATH, EXPORT_PATH, NEWEST, OLDEST, Browsing
from highwater.api.dashboard.record import record_address, show_record
from highwater.api.dashboard.results import Results
from highwater.api.dashboard.tables import table_html
from highwater.api.dashboard.tails import Shown, Tail
from highwater.api.dashboard.view import View, note, page, set_html, text
from highwater.api.records.routes import MEDIA_TYPES
from highwater.connectors.replay.selection import FORMS
from highwater.schemas.avro_files import schema_text
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.schemas.exact_json import write_json
from highwater.schemas.positions import Position
from highwater.schemas.topics import DEAD_LETTER_SUFFIX, TOPICS, all_topics

_REFRESH_SECONDS = 0.5
# Rows of a followed topic: more than fits a screen, few enough to be sent twice a second.
_ROWS_MAX = 60
# A row shows the beginning of a value; the rest is one click away.
_VALUE_CHARACTERS = 400
_SPARK_POINTS = 60

_COLUMNS = ("arrived (UTC)", "partition / offset", "key")
# A click on a record opens it over the page; its link opened in another tab opens it there.
_ON_CLICK = """(event) => {
  const one = event.target.closest("a[data-record]");
  if (!one || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  emit(one.dataset.record);
}"""
# name of the parameter, label, what stands in an empty field, width
_FIELDS = (
    ("since", "From", "7d, 12/1200, 2026-01-31", "11rem"),
    ("until", "To", "now", "9rem"),
    ("partition", "Partition", "all", "6rem"),
    ("key", "Key", "any", "10rem"),
    ("text", "Value contains", "", "12rem"),
    ("where", "Where (CEL)", "value.seq > 3", "14rem"),
)


def register() -> None:
    """Register the page."""
    page(BROWSE_PATH, "Browse")(_build)


async def _build(view: View) -> None:
    if not view.sees_all:
        note("Topics contain events of all users; this key is bound to one user.")
        return
    browsing = Browsing.of(view.request.query_params)
    known = [topic.name for topic in all_topics()]
    names = known + [name for name in await _on_broker(view, known, browsing.topic) if name not in known]
    if browsing.topic not in names:
        note(f"There is no topic {browsing.topic!r}.")
        browsing = Browsing()
    _Form(browsing, names).build()
    table = _Records(view, browsing)
    shown = _Searched(view, browsing, table) if browsing.search else _Followed(view, browsing, table)
    shown.build()
    view.live(_REFRESH_SECONDS, shown.refresh, ahead=False)
    if browsing.record:
        await table.show(browsing.record)


async def _on_broker(view: View, known: Collection[str], wanted: str) -> list[str]:
    """Return other browsable topics, as they were listed last unless the wanted one is not among them; none while the
    broker is unavailable, which the page reports itself.
    """
    listed = _browsable(view.hub.last_listed_topics() or ())
    if listed and (wanted in known or wanted in listed):
        return listed
    try:
        return _browsable(await view.hub.listed_topics())
    except UnavailableError:
        return []


def _browsable(topics: Iterable[Mapping[str, Any]]) -> list[str]:
    return [one["topic"] for one in topics if one["kind"] != "internal"]


class _Form:
    """The search form; a search is an address to open."""

    def __init__(self, browsing: Browsing, names: list[str]) -> None:
        self._browsing = browsing
        self._names = names

    def build(self) -> None:
        """Add the fields."""
        asked = self._browsing
        about = TOPICS.get(asked.topic)
        with ui.row().classes("hw-row"):
            topics = ui.select(
                self._names,
                value=asked.topic,
                label="Topic",
                with_input=True,
                on_change=lambda event: _go_to_topic(event.value),
            )
            topics.props("dense outlined").style("min-width:min(100%,22rem)")
            self._order = ui.select({NEWEST: "newest first", OLDEST: "oldest first"}, value=asked.order, label="Order")
            self._order.props("dense outlined").style("width:9rem")
            self._fields = {}
            for name, label, placeholder, width in _FIELDS:
                field = ui.input(label, value=getattr(asked, name), placeholder=placeholder)
                field.props("dense outlined clearable").style(
                    f"width:{width};flex:{'1' if name == 'where' else 'none'}"
                )
                field.on("keydown.enter", self._go)
                self._fields[name] = field
            ui.button("Search", icon="search", on_click=self._go).props("unelevated no-caps")
        if about is None and self._browsing.topic.removesuffix(DEAD_LETTER_SUFFIX) not in TOPICS:
            note(f"A topic of another application: a value is read as Avro, JSON or text. From and To: {FORMS}.")
        if about is not None:
            note(
                f"{about.about}; key {about.key or 'none'}, written by {', '.join(about.producers)}. From and To: {FORMS}."
            )

    def _go(self) -> None:
        asked = {name: str(field.value or "").strip() for name, field in self._fields.items()}
        order = str(self._order.value)
        wanted = Browsing(topic=self._browsing.topic, columns=self._browsing.columns, order=order, search="1", **asked)
        ui.navigate.to(wanted.address())


class _Records:
    """The table of records, with the selected columns; a row opens the record in full."""

    def __init__(self, view: View, browsing: Browsing) -> None:
        self._view = view
        self._browsing = browsing
        self.columns = browsing.shown_columns

    def build(self) -> None:
        """Add the choice of columns and the table."""
        topic = TOPICS.get(self._browsing.topic.removesuffix(DEAD_LETTER_SUFFIX))
        known = list(self.columns)
        may_add: Literal["add-unique"] | None = "add-unique" if topic is None else None
        if topic is not None:
            known = [field["name"] for field in json.loads(schema_text(topic.schema))["fields"]]
            self.columns = [name for name in self.columns if name in known]
        choice = ui.select(
            known, value=self.columns, label="Columns", multiple=True, on_change=self._choose, new_value_mode=may_add
        )
        choice.props("dense outlined use-chips").style("min-width:min(100%,22rem)")
        self._table = ui.html("", sanitize=False).classes("full-width hw-mono hw-wrap hw-records")
        self._table.on("click", self._open, js_handler=_ON_CLICK)

    def _choose(self, event: events.ValueChangeEventArguments[Any]) -> None:
        self.columns = list(event.value or ())
        ui.navigate.history.replace(self._browsing.address(columns=",".join(self.columns)))

    def set_rows(self, rows: list[dict[str, Any]]) -> None:
        """Show these records."""
        set_html(self._table, records_html(self._browsing.topic, rows, self.columns))

    async def _open(self, event: events.GenericEventArguments) -> None:
        await self.show(str(event.args))

    async def show(self, number: str) -> None:
        """Open the record at `partition/offset`, anything else is not a record; an error is shown above the page."""
        partition, _, offset = number.partition("/")
        if not (partition.isdecimal() and offset.isdecimal()):
            return
        try:
            await show_record(self._view, Position(self._browsing.topic, int(partition), int(offset)))
        except HighwaterError as error:
            self._view.tell(str(error))


class _Followed:
    """A topic as records arrive: the latest of them."""

    def __init__(self, view: View, browsing: Browsing, table: _Records) -> None:
        self._view = view
        self._topic = browsing.topic
        self._table = table
        self._is_held = False

    def build(self) -> None:
        """Add the elements."""
        self._hold = ui.button("Hold", icon="pause", on_click=self._toggle).props("outline no-caps")
        self._line = ui.html("", sanitize=False).classes("full-width")
        self._table.build()
        with suppress(HighwaterError):  # the first refresh reports it
            self._view.hub.tails.of(self._topic)  # reads while the browser loads the page

    def _toggle(self) -> None:
        self._is_held = not self._is_held
        self._hold.set_text("Continue" if self._is_held else "Hold")
        self._hold.props(f"icon={'play_arrow' if self._is_held else 'pause'}")

    async def refresh(self) -> None:
        """Show the latest, the newest first."""
        tail = self._view.hub.tails.of(self._topic)
        records = tail.records()
        if self._is_held:
            return
        set_html(self._line, self._status(len(records)))
        self._table.set_rows([_row_of_tail(tail, one, self._table.columns) for one in records[::-1][:_ROWS_MAX]])
        if tail.problem is not None:
            raise HighwaterError(tail.problem)

    def _status(self, kept: int) -> str:
        hub = self._view.hub
        now, held = hub.rates.per_second().get(self._topic), hub.held().get(self._topic)
        line = figures.spark(hub.rates.history(self._topic, _SPARK_POINTS), "events a second over two minutes")
        words = (
            f"<b>{figures.rate(now)}</b> is followed: the last {min(kept, _ROWS_MAX):,} of {figures.count(held)} records; "
            "Search reads all of them"
        )
        return f'<div class="hw-row hw-small">{line}<span>{words}</span></div>'


class _Searched:
    """A search of the topic: rows as they are found, and how much was read."""

    def __init__(self, view: View, browsing: Browsing, table: _Records) -> None:
        self._view = view
        self._browsing = browsing
        self._table = table
        self._results: Results | None = None
        self._problem: str | None = None

    def build(self) -> None:
        """Add the elements, and begin."""
        with ui.row().classes("hw-row"):
            self._stop = ui.button("Stop", icon="stop", on_click=self._end).props("outline no-caps")
            self._next = ui.button("Next page", icon="navigate_next", on_click=self._go_on).props("outline no-caps")
            self._link = ui.button("Copy link", icon="link", on_click=self._copy).props("flat no-caps")
            export = self._browsing.address(EXPORT_PATH, cursor="", columns="")
            exports = "".join(
                f' <a href="{text(f"{export}&format={kind}")}" download>{kind}</a>' for kind in MEDIA_TYPES
            )
            ui.html(f'<span class="hw-small">All results as{exports}</span>', sanitize=False)
            follow = text(Browsing(topic=self._browsing.topic).address())
            ui.html(f'<a class="hw-small" href="{follow}">Follow the topic</a>', sanitize=False)
        self._line = ui.html("", sanitize=False).classes("full-width").props("role=status")
        self._table.build()
        try:
            self._results = Results(self._view, self._browsing.search_of_topic, self._browsing.cursor or None)
        except HighwaterError as error:
            self._problem = str(error)
            return
        self._results.start()
        ui.context.client.on_delete(self._results.stop)

    async def refresh(self) -> None:
        """Show the results, and the progress of the search."""
        results = self._results
        problem = self._problem if results is None else results.problem
        wrong = "" if problem is None else f'<pre class="hw hw-bad" role="alert">{text(problem)}</pre>'
        told = "" if results is None else results.told()
        set_html(self._line, f'{wrong}<div class="hw-small">{text(told)}</div>')
        self._stop.set_enabled(results is not None and results.is_running)
        self._next.set_enabled(results is not None and results.next_cursor is not None)
        self._link.set_enabled(results is not None and results.begin_cursor is not None)
        if results is not None:
            self._table.set_rows([_row_of_search(one, self._table.columns) for one in results.records])

    def _end(self) -> None:
        if self._results is not None:
            self._results.stop()

    def _here(self, cursor: str | None) -> str:
        return self._browsing.address(cursor=cursor or "", columns=",".join(self._table.columns))

    def _go_on(self) -> None:
        if self._results is not None:
            ui.navigate.to(self._here(self._results.next_cursor))

    def _copy(self) -> None:
        """Copy a link to exactly these records, without those appended meanwhile."""
        if self._results is not None:
            base = str(self._view.request.base_url).rstrip("/")
            ui.clipboard.write(base + self._here(self._results.begin_cursor))
            ui.notify("The link opens the same page again, even after new records arrive.")


def records_html(topic: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Records as a table: each with its beginning, or with the fields that have a column each."""
    lines = "".join(_line(topic, row, columns) for row in rows)
    none = "" if rows else '<p class="hw-muted hw-small">no records to show</p>'
    return table_html((*_COLUMNS, *(columns or ("value",))), lines, "Records") + none


def _line(topic: str, row: Mapping[str, Any], columns: Sequence[str]) -> str:
    partition, _, offset = row["number"].partition("/")
    address = record_address(Position(topic, int(partition), int(offset)))
    fields = "".join(f'<td class="hw-long">{text(row[f"of_{name}"])}</td>' for name in columns)
    whole = f'<td class="hw-long hw-value"><div class="hw-clamp">{text(row["value"])}</div></td>'
    return (
        f'<tr data-key="{row["number"]}"><td class="hw-keep">{text(row["timestamp"])}</td><td class="hw-keep">'
        f'<a href="{text(address)}" data-record="{row["number"]}" aria-label="Show {row["place"]}">{row["place"]}</a></td>'
        f'<td class="hw-key">{text(row["key"])}</td>{fields or whole}</tr>'
    )


def _go_to_topic(topic: str | None) -> None:
    if topic:
        ui.navigate.to(Browsing(topic=topic).address())


def _row_of_tail(tail: Tail, one: Shown, columns: list[str]) -> dict[str, Any]:
    value = tail.document(one).get("value") if columns else None
    return _row(one.record.partition, one.record.offset, one.timestamp, one.key, one.text) | _cells(value, columns)


def _row_of_search(one: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    shown = write_json(one.get("undecodable", one["value"])).decode()
    row = _row(one["partition"], one["offset"], one["timestamp"], one["key"] or "", shown)
    return row | _cells(one["value"], columns)


def _row(partition: int, offset: int, timestamp: str, key: str, value: str) -> dict[str, Any]:
    return {
        "number": f"{partition}/{offset}",
        "timestamp": timestamp.replace("T", " ").removesuffix("Z"),
        "place": f"{partition} / {offset:,}",
        "key": key,
        "value": _cut(value),
    }


def _cells(value: Any, columns: list[str]) -> dict[str, str]:
    """Return the fields with a column each, if the value has fields; a text unchanged, anything else as JSON."""
    fields = value if isinstance(value, Mapping) else {}
    found = {name: fields.get(name) for name in columns}
    return {
        f"of_{name}": _cut(one if isinstance(one, str) else "" if one is None else write_json(one).decode())
        for name, one in found.items()
    }


def _cut(shown: str) -> str:
    return shown if len(shown) <= _VALUE_CHARACTERS else shown[:_VALUE_CHARACTERS] + " …"
